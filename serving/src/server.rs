//! HTTP connections: accepting, limits, timeouts, and draining at shutdown.
//!
//! Built on hyper-util, because `axum::serve` sets no timers: a client that never finishes the head
//! of its request would hold a connection forever. TLS and protection from hostile clients are left
//! to a proxy.

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
use crate::http::{ADDRESS_DIVISOR, Peer, Permit, PermitPool, truncate_to_network};
use crate::network::Network;
use crate::options::ServingOptions;
use crate::{Error, Result};

/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of concurrent HTTP/2 streams of a connection.
const STREAMS_MAX: u32 = 100;
/// Interval and timeout of HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// The idle timeout exceeds the request and body timeouts by this much, so that it is longer than
/// that of usual proxies.
const IDLE_EXTRA: Duration = Duration::from_secs(45);

/// Serves until `shutdown` is cancelled, then lets requests in flight finish within the drain
/// timeout.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    options: &ServingOptions,
    shutdown: CancellationToken,
) -> Result<()> {
    Server::new(router, options).run(listener, shutdown).await
}

/// State that all connections share.
struct Server {
    router: Router,
    builder: Builder<TokioExecutor>,
    timeouts: Timeouts,
    drain_timeout: Duration,
    /// Permits for further connections.
    permits: Arc<Semaphore>,
    /// True while the maximum number of connections is open.
    is_full: AtomicBool,
    address_permits: Arc<PermitPool<IpAddr>>,
    trusted_proxies: Vec<Network>,
    /// Recognizes the addresses of this machine, which have no limit of their own.
    is_local: fn(&IpAddr) -> bool,
}

/// The permits of a connection: one from its address's share, and one from the total.
struct ConnectionPermit {
    _address: Permit,
    _total: OwnedSemaphorePermit,
}

impl Server {
    fn new(router: Router, options: &ServingOptions) -> Self {
        let connections_max = options.connections_max.min(Semaphore::MAX_PERMITS);
        let share = connections_max.div_ceil(ADDRESS_DIVISOR);
        Self {
            router,
            builder: connection_builder(options.head_bytes_max),
            timeouts: Timeouts {
                head: Duration::from_millis(options.head_timeout_ms),
                idle: options.request_timeout().max(options.body_idle_timeout()) + IDLE_EXTRA,
            },
            drain_timeout: Duration::from_millis(options.drain_timeout_ms),
            permits: Arc::new(Semaphore::new(connections_max)),
            is_full: AtomicBool::new(false),
            address_permits: PermitPool::new(connections_max, share),
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
            let Some((stream, peer, permit)) = accepted else {
                continue;
            };
            let (server, watcher) = (Arc::clone(&server), graceful.watcher());
            connections.spawn(async move {
                server.serve(stream, peer, watcher).await;
                drop(permit);
            });
        }
        drop(listener);
        tracing::info!(connections = connections.len(), "draining");
        let drained = timeout(server.drain_timeout, graceful.shutdown()).await;
        if drained.is_err() {
            while connections.try_join_next().is_some() {}
            tracing::warn!(
                connections = connections.len(),
                "the drain timeout has passed: closing the remaining connections"
            );
        }
        connections.shutdown().await;
        Ok(())
    }

    /// Accepts a connection once a permit is free. Returns `None` on failure, or if the client's
    /// address has reached its share.
    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, SocketAddr, ConnectionPermit)> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.is_full.store(true, Ordering::Relaxed);
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                self.is_full.store(false, Ordering::Relaxed);
                permit.ok()?
            }
        };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The client closed it already, or the system is out of descriptors.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY_DELAY).await;
                return None;
            }
        };
        let Ok(address_permit) = self.address_permits.acquire(self.share_key(peer.ip())) else {
            tracing::debug!(%peer, "refusing a connection: its address has reached its share");
            count_closed("room");
            return None;
        };
        let permit = ConnectionPermit {
            _address: address_permit,
            _total: permit,
        };
        Some((stream, peer, permit))
    }

    /// Returns the address by which a client's connections are counted. Returns `None` for this
    /// machine and trusted proxies.
    fn share_key(&self, peer: IpAddr) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        let is_trusted = self
            .trusted_proxies
            .iter()
            .any(|proxy| proxy.contains(&peer));
        (!is_trusted && !(self.is_local)(&peer)).then(|| truncate_to_network(peer))
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "cannot set TCP_NODELAY");
        }
        let activity = Arc::new(Activity::new());
        let stream = InspectReader::new(stream, {
            let activity = Arc::clone(&activity);
            move |bytes: &[u8]| activity.record_read(bytes)
        });
        let service = service_fn({
            let (router, activity) = (self.router.clone(), Arc::clone(&activity));
            move |request| handle_request(router.clone(), peer, Arc::clone(&activity), request)
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
            () = activity.wait_until_expired(&self.timeouts, is_full) => {
                tracing::debug!(%peer, "closing an idle connection");
                count_closed("quiet");
            }
        }
    }
}

fn connection_builder(head_bytes_max: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // hyper's timeout starts at the end of the previous response, so it would close idle
        // connections.
        .header_read_timeout(None)
        .max_buf_size(head_bytes_max as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_send_buf_size(body::HTTP2_CHUNK_BYTES)
        .max_header_list_size(head_bytes_max)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    builder
}

/// Answers one request, and drains the unread rest of its body. If the connection closed with bytes
/// unread, the client would see a reset instead of the response.
async fn handle_request(
    router: Router,
    peer: SocketAddr,
    activity: Arc<Activity>,
    mut request: hyper::Request<Incoming>,
) -> std::result::Result<hyper::Response<ResponseBody>, Infallible> {
    let is_http1 = request.version() <= Version::HTTP_11;
    let exchange = Arc::new(activity.begin_exchange(is_http1));
    let handler_guard = activity.guard_handler();
    request.extensions_mut().insert(Peer(peer));
    let (request, unread) = RequestBody::wrap(request);
    let response = router.oneshot(request).await?;
    // A client that was too slow does not get more time.
    if let Some(unread) = unread
        && response.status() != StatusCode::REQUEST_TIMEOUT
    {
        TokioExecutor::new().execute(drain(unread, Arc::clone(&exchange)));
    }
    drop(handler_guard);
    activity.record_progress();
    Ok(ResponseBody::wrap(response, exchange, is_http1))
}

/// Counts a connection that the server closes although its client might still use it.
fn count_closed(reason: &'static str) {
    metrics::counter!("backstitch_http_connections_closed_total", "reason" => reason).increment(1);
}

#[cfg(test)]
mod tests;
