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

use super::activity::{Activity, Mark};
use crate::http::Place;

/// The largest piece of an answer. The next one is taken from the handler once the client has room for it.
pub(super) const PIECE_BYTES: usize = 64 * 1024;
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
pub(super) async fn drain(unread: oneshot::Receiver<Incoming>, _exchange: Mark) {
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

/// The body of a response, in pieces. Each piece that the client has room for is progress of its connection.
pub(super) struct ResponseBody {
    body: axum::body::Body,
    /// Bytes that came from `body` and were not passed on yet.
    rest: Bytes,
    activity: Arc<Activity>,
    _exchange: Mark,
    /// The request's place among those that are answered at once.
    _place: Option<Place>,
}

impl ResponseBody {
    pub(super) fn wrap(
        mut response: axum::response::Response,
        activity: Arc<Activity>,
        exchange: Mark,
    ) -> Response<Self> {
        let place = response.extensions_mut().remove();
        response.map(|body| Self {
            body,
            rest: Bytes::new(),
            activity,
            _exchange: exchange,
            _place: place,
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
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        self.activity.note();
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
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
