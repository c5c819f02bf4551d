//! Connections: accept, limit, time out, drain.
//!
//! Built on hyper-util, because `axum::serve` sets no timers: a client that never finishes the head of its request would hold a
//! connection forever. TLS and hostile clients belong to the proxy in front.

mod activity;
mod body;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Version};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use self::activity::{Activity, Timeouts};
use self::body::{RequestBody, ResponseBody, drain};
use crate::http::{ADDRESS_SHARE, Peer, Place, Places, network};
use crate::network::Network;
use crate::options::ServingOptions;
use crate::{Error, Result};

/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STREAMS_MAX: u32 = 100;
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How much longer than a request or a pause of a body a connection may be idle: longer than proxies keep one that is unused.
const IDLE_EXTRA: Duration = Duration::from_secs(45);

/// Serves until `shutdown` is cancelled, then lets requests in flight finish within the drain timeout.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    options: &ServingOptions,
    shutdown: CancellationToken,
) -> Result<()> {
    Server::new(router, options).run(listener, shutdown).await
}

/// What all connections share.
struct Server {
    router: Router,
    builder: Builder<TokioExecutor>,
    timeouts: Timeouts,
    drain_timeout: Duration,
    /// Connections that can still be opened.
    room: Arc<Semaphore>,
    /// Whether all connections are taken.
    is_full: AtomicBool,
    by_address: Arc<Places<IpAddr>>,
    trusted_proxies: Vec<Network>,
    /// Recognizes the addresses of this machine, which have no limit of their own.
    is_local: fn(&IpAddr) -> bool,
}

/// The place of a connection, in its address's share and in the total.
type Slot = (Place, OwnedSemaphorePermit);

impl Server {
    fn new(router: Router, options: &ServingOptions) -> Self {
        let connections_max = options.connections_max.min(Semaphore::MAX_PERMITS);
        let share = connections_max.div_ceil(ADDRESS_SHARE);
        Self {
            router,
            builder: builder(options.head_bytes_max),
            timeouts: Timeouts {
                head: Duration::from_millis(options.head_timeout_ms),
                idle: options.request_timeout().max(options.body_idle_timeout()) + IDLE_EXTRA,
            },
            drain_timeout: Duration::from_millis(options.drain_timeout_ms),
            room: Arc::new(Semaphore::new(connections_max)),
            is_full: AtomicBool::new(false),
            by_address: Places::new(connections_max, share),
            trusted_proxies: options.trusted_proxies.clone(),
            is_local: IpAddr::is_loopback,
        }
    }

    async fn run(self, listener: TcpListener, shutdown: CancellationToken) -> Result<()> {
        let address = listener.local_addr().map_err(|source| Error::Listen {
            address: "unknown address".to_owned(),
            source,
        })?;
        tracing::info!(%address, "serving");
        let server = Arc::new(self);
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = server.accept(&listener) => accepted,
            };
            let Some((stream, peer, slot)) = accepted else {
                continue;
            };
            let (server, watcher) = (Arc::clone(&server), graceful.watcher());
            connections.spawn(async move {
                server.serve(stream, peer, watcher).await;
                drop(slot);
            });
        }
        drop(listener);
        tracing::info!(connections = connections.len(), "draining");
        let drained = timeout(server.drain_timeout, graceful.shutdown()).await;
        if drained.is_err() {
            while connections.try_join_next().is_some() {}
            tracing::warn!(
                connections = connections.len(),
                "the drain timeout is over: connections are closed"
            );
        }
        connections.shutdown().await;
        Ok(())
    }

    /// Accepts a connection once there is room for one. Returns `None` if that fails, or if the client's address has its share.
    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, Slot)> {
        let room = match Arc::clone(&self.room).try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                self.is_full.store(true, Ordering::Relaxed);
                let room = Arc::clone(&self.room).acquire_owned().await;
                self.is_full.store(false, Ordering::Relaxed);
                room.ok()?
            }
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The client closed it already, or the system is out of descriptors.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                return None;
            }
        };
        let Ok(place) = self.by_address.take(self.share_key(peer.ip())) else {
            tracing::debug!(%peer, "a connection is refused: its address has its share of all");
            note_closed("room");
            return None;
        };
        Some((stream, peer, (place, room)))
    }

    /// The address by which a client's connections are counted; `None` for this machine and for trusted proxies.
    fn share_key(&self, peer: IpAddr) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        let is_trusted = self.trusted_proxies.iter().any(|of| of.contains(&peer));
        (!is_trusted && !(self.is_local)(&peer)).then(|| network(peer))
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "nodelay");
        }
        let activity = Arc::new(Activity::new());
        let stream = InspectReader::new(stream, {
            let activity = Arc::clone(&activity);
            move |bytes: &[u8]| activity.note_read(bytes)
        });
        let service = service_fn({
            let (router, activity) = (self.router.clone(), Arc::clone(&activity));
            move |request| answer(router.clone(), peer, Arc::clone(&activity), request)
        });
        let connection = self
            .builder
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let is_full = || self.is_full.load(Ordering::Relaxed);
        tokio::select! {
            ended = watcher.watch(connection) => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, error, "a connection ended with an error");
                }
            }
            () = activity.expired(&self.timeouts, is_full) => {
                tracing::debug!(%peer, "an idle connection is closed");
                note_closed("quiet");
            }
        }
    }
}

fn builder(head_bytes_max: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // hyper's timeout starts with the end of the previous answer, so it would close connections that clients keep.
        .header_read_timeout(None)
        .max_buf_size(head_bytes_max as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_send_buf_size(body::HTTP2_PIECE_BYTES)
        .max_header_list_size(head_bytes_max)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    builder
}

/// Answers one request, and drains what its handler leaves of the body. If the connection closed with bytes unread, the client
/// would see a reset instead of the answer.
async fn answer(
    router: Router,
    peer: SocketAddr,
    activity: Arc<Activity>,
    mut request: hyper::Request<Incoming>,
) -> std::result::Result<hyper::Response<ResponseBody>, Infallible> {
    let is_http1 = request.version() <= Version::HTTP_11;
    let exchange = Arc::new(activity.begin(is_http1));
    let handling = activity.handling();
    request.extensions_mut().insert(Peer(peer));
    let (request, unread) = RequestBody::wrap(request);
    let response = router.oneshot(request).await?;
    // A client that was too slow does not get more time.
    if let Some(unread) = unread
        && response.status() != StatusCode::REQUEST_TIMEOUT
    {
        TokioExecutor::new().execute(drain(unread, Arc::clone(&exchange)));
    }
    drop(handling);
    activity.note();
    Ok(ResponseBody::wrap(response, exchange, is_http1))
}

/// Counts a connection that the server closes although its client might have used it further.
fn note_closed(reason: &'static str) {
    metrics::counter!("backstitch_http_connections_closed_total", "reason" => reason).increment(1);
}

#[cfg(test)]
mod tests;
