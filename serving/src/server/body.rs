//! Wrappers of bodies: request bodies whose unread rest is drained, and response bodies in chunks
//! that show progress.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Response};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::activity::Exchange;
use crate::http::Permit;

/// Maximum chunk of a response over HTTP/1. At most this much is unsent when the request's permit
/// is released.
const HTTP1_CHUNK_BYTES: usize = 64 * 1024;
/// Maximum chunk over HTTP/2. Each stream holds one in memory, even if the client's window is
/// closed.
pub(super) const HTTP2_CHUNK_BYTES: usize = 16 * 1024;
/// Limits of reading the rest of a refused body.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request. When its handler drops it, the unread rest is sent to [`drain`].
pub(super) struct RequestBody {
    /// `Some` until it is dropped.
    body: Option<Incoming>,
    /// True if the client sends the body. With `Expect: 100-continue` it waits until the handler
    /// reads.
    is_sent: bool,
    return_to: Option<oneshot::Sender<Incoming>>,
}

impl RequestBody {
    /// Wraps the body of a request. Unless it is empty, also returns the receiver of the unread
    /// rest.
    pub(super) fn wrap(
        request: Request<Incoming>,
    ) -> (Request<Self>, Option<oneshot::Receiver<Incoming>>) {
        let is_sent = !request.headers().contains_key(header::EXPECT);
        let has_body = !request.body().is_end_stream();
        let (return_to, unread) = has_body.then(oneshot::channel).unzip();
        let request = request.map(|body| Self {
            body: Some(body),
            is_sent,
            return_to,
        });
        (request, unread)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_sent = true;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map(Incoming::size_hint)
            .unwrap_or_default()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let body = self.body.take().filter(|_| self.is_sent);
        if let (Some(body), Some(return_to)) = (body, self.return_to.take()) {
            // Fails if the rest is not drained; then it is dropped.
            return_to.send(body).ok();
        }
    }
}

/// Reads and drops the rest of a body after its handler has finished. `_exchange` keeps the request
/// counted meanwhile.
pub(super) async fn drain(unread: oneshot::Receiver<Incoming>, _exchange: Arc<Exchange>) {
    let Ok(mut body) = unread.await else { return };
    let read = async {
        let mut remaining_bytes = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(remaining) = remaining_bytes.checked_sub(length) else {
                return;
            };
            remaining_bytes = remaining;
        }
    };
    timeout(DRAIN_TIMEOUT, read).await.ok();
}

/// The body of a response, in chunks. Each chunk that the connection takes counts as progress.
pub(super) struct ResponseBody {
    body: axum::body::Body,
    /// Bytes from `body` that were not passed on yet.
    unsent: Bytes,
    chunk_bytes_max: usize,
    /// Moves into the last chunk.
    guard: Option<ResponseGuard>,
}

/// Held until the last byte of a response is sent.
struct ResponseGuard {
    exchange: Arc<Exchange>,
    /// The permit of the request.
    _permit: Option<Permit>,
}

/// The last chunk of a response.
struct LastChunk {
    chunk: Bytes,
    _guard: ResponseGuard,
}

impl AsRef<[u8]> for LastChunk {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl ResponseBody {
    pub(super) fn wrap(
        mut response: axum::response::Response,
        exchange: Arc<Exchange>,
        is_http1: bool,
    ) -> Response<Self> {
        let guard = ResponseGuard {
            exchange,
            _permit: response.extensions_mut().remove(),
        };
        response.map(|body| Self {
            body,
            unsent: Bytes::new(),
            chunk_bytes_max: match is_http1 {
                true => HTTP1_CHUNK_BYTES,
                false => HTTP2_CHUNK_BYTES,
            },
            guard: Some(guard),
        })
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.unsent.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            if polled.is_pending()
                && let Some(guard) = &self.guard
            {
                guard.exchange.record_wait();
            }
            let frame = match ready!(polled) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.unsent = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        if let Some(guard) = &self.guard {
            guard.exchange.record_chunk();
        }
        let length = self.unsent.len().min(self.chunk_bytes_max);
        let mut chunk = self.unsent.split_to(length);
        if self.is_end_stream()
            && let Some(guard) = self.guard.take()
        {
            let last = LastChunk {
                chunk,
                _guard: guard,
            };
            chunk = Bytes::from_owner(last);
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let unsent_bytes = self.unsent.len() as u64;
        let hint = self.body.size_hint();
        let mut total_hint = SizeHint::new();
        total_hint.set_lower(hint.lower().saturating_add(unsent_bytes));
        if let Some(upper) = hint.upper() {
            total_hint.set_upper(upper.saturating_add(unsent_bytes));
        }
        total_hint
    }
}
