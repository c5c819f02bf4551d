//! Bodies as the server passes them on: a request's, of which the rest is drained, and a response's, in pieces that show progress.

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
use crate::http::Place;

/// The largest piece of an answer over HTTP/1, which is also the most that leaves a request's place before its bytes are sent.
const HTTP1_PIECE_BYTES: usize = 64 * 1024;
/// The largest piece over HTTP/2. Each stream holds one, whether or not its client has room for it.
pub(super) const HTTP2_PIECE_BYTES: usize = 16 * 1024;
/// How much of a refused body is read, and for how long.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request. It is given back when its handler drops it, perhaps unread.
pub(super) struct RequestBody {
    /// `Some` until it is dropped.
    body: Option<Incoming>,
    /// Whether the client sends it: not before `100 Continue` where it waits for that.
    is_sent: bool,
    give_back: Option<oneshot::Sender<Incoming>>,
}

impl RequestBody {
    /// Wraps the body of a request. Returns where it comes back, unless it is empty.
    pub(super) fn wrap(
        request: Request<Incoming>,
    ) -> (Request<Self>, Option<oneshot::Receiver<Incoming>>) {
        let is_sent = !request.headers().contains_key(header::EXPECT);
        let has_body = !request.body().is_end_stream();
        let (give_back, unread) = has_body.then(oneshot::channel).unzip();
        let request = request.map(|body| Self {
            body: Some(body),
            is_sent,
            give_back,
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
        if let (Some(body), Some(give_back)) = (body, self.give_back.take()) {
            // Where nothing drains it, it is dropped.
            give_back.send(body).ok();
        }
    }
}

/// Reads and drops the rest of a body once its handler gives it back. `_exchange` keeps the request counted meanwhile.
pub(super) async fn drain(unread: oneshot::Receiver<Incoming>, _exchange: Arc<Exchange>) {
    let Ok(mut body) = unread.await else { return };
    let read = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else {
                return;
            };
            left = rest;
        }
    };
    timeout(DRAIN_TIMEOUT, read).await.ok();
}

/// The body of a response, in pieces. Each piece that the connection takes is progress.
pub(super) struct ResponseBody {
    body: axum::body::Body,
    /// Bytes that came from `body` and were not passed on yet.
    rest: Bytes,
    piece_bytes_max: usize,
    /// Moves into the last piece.
    hold: Option<Hold>,
}

/// What a request holds until the last byte of its answer is sent.
struct Hold {
    exchange: Arc<Exchange>,
    /// The request's place among those that are answered at once.
    _place: Option<Place>,
}

/// The last piece of an answer.
struct LastPiece {
    piece: Bytes,
    _hold: Hold,
}

impl AsRef<[u8]> for LastPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl ResponseBody {
    pub(super) fn wrap(
        mut response: axum::response::Response,
        exchange: Arc<Exchange>,
        is_http1: bool,
    ) -> Response<Self> {
        let hold = Hold {
            exchange,
            _place: response.extensions_mut().remove(),
        };
        response.map(|body| Self {
            body,
            rest: Bytes::new(),
            piece_bytes_max: match is_http1 {
                true => HTTP1_PIECE_BYTES,
                false => HTTP2_PIECE_BYTES,
            },
            hold: Some(hold),
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
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            if polled.is_pending()
                && let Some(hold) = &self.hold
            {
                hold.exchange.record_wait();
            }
            let frame = match ready!(polled) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        if let Some(hold) = &self.hold {
            hold.exchange.record_piece();
        }
        let length = self.rest.len().min(self.piece_bytes_max);
        let mut piece = self.rest.split_to(length);
        if self.is_end_stream()
            && let Some(hold) = self.hold.take()
        {
            let last = LastPiece { piece, _hold: hold };
            piece = Bytes::from_owner(last);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let hint = self.body.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(rest));
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper.saturating_add(rest));
        }
        whole
    }
}
