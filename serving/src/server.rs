//! Connections: accepting them, limiting them, draining them.
//!
//! Built with hyper-util, since axum's own server sets no timers: a client that never finishes the
//! head of its request would hold a connection for ever.

mod open;
mod watched;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use self::open::{Activity, Open, Sending, UnderWay};
use self::watched::Watched;
use crate::http::{Peer, Place};
use crate::options::ServingOptions;
use crate::{Error, Result};

/// By HTTP/2 a piece of an answer is taken whole once there is room for its first byte, and no more than one is kept ready: so it
/// is seen whether the client takes them.
const PIECE_BYTES: usize = 16 * 1024;
/// By HTTP/1 a piece is larger: bytes that leave are seen there, and these are those that a request keeps its place for.
const HTTP1_PIECE_BYTES: usize = 64 * 1024;
/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STREAMS_MAX: u32 = 100;
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How much longer than an answer may take a connection may be on which nothing happens: no request, no piece of a body
/// either way. Pings are nothing.
const QUIET_EXTRA: Duration = Duration::from_secs(45);
/// A connection that makes room for another is closed once no byte has left it for so long; while we owe an answer, not at all.
const ENDING: Duration = Duration::from_secs(1);
/// Bytes that are a part of no answer keep it for so long.
const ENDING_MAX: Duration = Duration::from_secs(5);

/// Serves until `shutdown` is cancelled, then lets requests that are under way finish, up to the
/// drain timeout.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    options: &ServingOptions,
    shutdown: CancellationToken,
) -> Result<()> {
    let address = listener.local_addr().map_err(|source| Error::Listen {
        address: "unknown address".to_owned(),
        source,
    })?;
    tracing::info!(%address, "serving");
    let open = Open::new(options.connections_max);
    let drain = CancellationToken::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener) => accepted,
        };
        let Some((stream, peer)) = accepted else {
            continue;
        };
        let slot = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            slot = open.room_for(Activity::of(peer.ip(), &options.trusted_proxies)) => slot,
        };
        let Some(slot) = slot else {
            tracing::debug!(%peer, "there is no room for a connection: its address has more than its part");
            note_closed("room");
            continue;
        };
        let connection = Connection {
            router: router.clone(),
            head_timeout: options.head_timeout(),
            quiet_max: options.request_timeout().max(options.body_idle_timeout()) + QUIET_EXTRA,
            head_bytes_max: options.head_bytes_max,
            drain: drain.clone(),
        };
        connections.spawn(async move {
            connection.serve(stream, peer, slot.activity()).await;
            drop(slot);
        });
    }
    drop(listener);
    tracing::info!(connections = connections.len(), "draining");
    drain.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(options.drain_timeout(), drained).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "the drain timeout is over: connections are closed"
        );
    }
    connections.shutdown().await;
    Ok(())
}

/// The next connection.
async fn accept(listener: &TcpListener) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            // The connection broke before it was taken, or the system is out of descriptors.
            tracing::warn!(%error, "a connection could not be accepted");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// A request's body, of which each piece is noted as it passes.
struct Asked {
    body: Incoming,
    sending: Sending,
}

impl Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.sending.note(polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body. Its request is under way as long as there may be more of it.
struct Answer {
    body: axum::body::Body,
    /// What has come of the body and was not given on.
    rest: Bytes,
    piece_bytes_max: usize,
    under_way: UnderWay,
    /// That of the request, until there is no more of the answer.
    place: Option<Place>,
}

/// The last piece of an answer: its request has its place until it has left.
struct Last {
    piece: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Last {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Answer {
    /// A response, whose body is given on in pieces by which is seen how it goes.
    fn of(
        mut response: axum::response::Response,
        under_way: UnderWay,
        is_http1: bool,
    ) -> axum::response::Response<Self> {
        let place = response.extensions_mut().remove();
        response.map(|body| Self {
            body,
            rest: Bytes::new(),
            piece_bytes_max: if is_http1 {
                HTTP1_PIECE_BYTES
            } else {
                PIECE_BYTES
            },
            under_way,
            place,
        })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            self.under_way.set_ours(polled.is_pending());
            let data = match std::task::ready!(polled) {
                Some(Ok(frame)) => frame.into_data(),
                ended => return Poll::Ready(ended),
            };
            match data {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        self.under_way.note();
        let length = self.rest.len().min(self.piece_bytes_max);
        let mut piece = self.rest.split_to(length);
        if self.is_end_stream()
            && let Some(place) = self.place.take()
        {
            piece = Bytes::from_owner(Last {
                piece,
                _place: place,
            });
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

struct Connection {
    router: Router,
    head_timeout: Duration,
    quiet_max: Duration,
    head_bytes_max: u32,
    drain: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: TcpStream, peer: SocketAddr, activity: Arc<Activity>) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "nodelay");
        }
        let service = service_fn({
            let activity = Arc::clone(&activity);
            let router = self.router;
            move |mut request: hyper::Request<Incoming>| {
                let under_way = UnderWay::begun(&activity);
                request.extensions_mut().insert(Peer(peer));
                let is_http1 = request.version() <= hyper::Version::HTTP_11;
                if is_http1 {
                    activity.note_http1();
                }
                let (router, sending) = (router.clone(), under_way.sending());
                let request = request.map(|body| Asked { body, sending });
                async move {
                    let response = router.oneshot(request).await;
                    under_way.note();
                    under_way.set_ours(false);
                    response.map(|response| Answer::of(response, under_way, is_http1))
                }
            }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            // That one begins with the answer before, so it would close connections that are kept for the next request.
            .header_read_timeout(None)
            .max_buf_size(self.head_bytes_max as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_send_buf_size(PIECE_BYTES)
            .max_header_list_size(self.head_bytes_max)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let stream = Watched::new(stream, Arc::clone(&activity));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection.into_owned());
        let mut quiet = std::pin::pin!(quiet(&activity, (self.head_timeout, self.quiet_max)));
        let mut is_told = false;
        let ended = loop {
            tokio::select! {
                ended = &mut connection => break ended,
                () = told(&self.drain, &activity), if !is_told => {
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = &mut quiet => {
                    let is_for_others = activity.ending_for().is_some();
                    tracing::debug!(%peer, is_for_others, "a connection is closed");
                    note_closed(if is_for_others { "room" } else { "quiet" });
                    return;
                }
            }
        };
        if activity.ending_for().is_some() {
            note_closed("room");
        }
        if let Err(error) = ended {
            tracing::debug!(%peer, error, "a connection ended with an error");
        }
    }
}

/// Notes that a connection was closed which its client may have kept.
fn note_closed(reason: &'static str) {
    metrics::counter!("backstitch_http_connections_closed_total", "reason" => reason).increment(1);
}

/// Comes once a connection is to take no further request.
async fn told(drain: &CancellationToken, activity: &Activity) {
    tokio::select! {
        () = drain.cancelled() => {}
        () = activity.asked_to_end() => {}
    }
}

/// Comes once nothing has happened on a connection for too long, or a head has not come whole: that is looked for as often as it
/// may take. hyper's timers end with the head: a client that reads no answer and only answers pings would hold a connection for ever.
async fn quiet(activity: &Activity, (head_timeout, quiet_max): (Duration, Duration)) {
    loop {
        let ending_for = activity.ending_for();
        let left = match (ending_for, activity.must_end_for()) {
            // What takes long may be written, and is there when it is there.
            _ if activity.owes_an_answer() => ENDING,
            (Some(_), Some(must_end_for)) => ENDING.saturating_sub(must_end_for),
            (Some(ending_for), None) => {
                let still_for = activity.still_for().min(ending_for);
                let quiet_for = activity.quiet_for().min(ending_for);
                let in_any_case = ENDING_MAX.saturating_sub(quiet_for);
                ENDING.saturating_sub(still_for).min(in_any_case)
            }
            // An answer that is not taken is not kept by others beside it.
            (None, _) if activity.has_begun() => {
                let head_for = activity.head_for().unwrap_or_default();
                let quiet_for = activity.quiet_for().max(activity.stalled_for());
                let head_left = head_timeout.saturating_sub(head_for);
                quiet_max.saturating_sub(quiet_for).min(head_left)
            }
            (None, _) => head_timeout.saturating_sub(activity.quiet_for()),
        };
        if left.is_zero() {
            return;
        }
        tokio::select! {
            () = sleep(left) => {}
            () = activity.asked_to_end(), if ending_for.is_none() => {}
        }
    }
}

#[cfg(test)]
mod tests;
