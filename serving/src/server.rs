//! Connections: accepting them, limiting them, draining them.
//!
//! Built with hyper-util, since axum's own server sets no timers: a client that never finishes the
//! head of its request would hold a connection for ever.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::http::Peer;
use crate::options::ServingOptions;
use crate::{Error, Result};

/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STREAMS_MAX: u32 = 100;
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How much longer than an answer may take a connection may be on which nothing happens: no request, no piece of a body
/// either way. Pings are nothing.
const QUIET_EXTRA: Duration = Duration::from_secs(45);

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
    let slots = Arc::new(Semaphore::new(options.connections_max));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Some((stream, peer, slot)) = accepted else {
            continue;
        };
        let connection = Connection {
            router: router.clone(),
            head_timeout: options.head_timeout(),
            quiet_max: options.request_timeout().max(options.body_idle_timeout()) + QUIET_EXTRA,
            head_bytes_max: options.head_bytes_max,
            watcher: graceful.watcher(),
        };
        connections.spawn(async move {
            connection.serve(stream, peer).await;
            drop(slot);
        });
    }
    drop(listener);
    tracing::info!(connections = connections.len(), "draining");
    if timeout(options.drain_timeout(), graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!(
            connections = connections.len(),
            "the drain timeout is over: connections are closed"
        );
    }
    connections.shutdown().await;
    Ok(())
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, slot)),
        Err(error) => {
            // The connection broke before it was taken, or the system is out of descriptors.
            tracing::warn!(%error, "a connection could not be accepted");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// When something happened on a connection last.
#[derive(Debug)]
struct Activity {
    opened: Instant,
    has_begun: AtomicBool,
    last_ms: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self {
            opened: Instant::now(),
            has_begun: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
        }
    }

    fn note(&self) {
        let now_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    fn quiet_for(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(last)
    }
}

/// A body of which each piece is noted as it passes.
struct Noted<B> {
    body: B,
    activity: Arc<Activity>,
}

impl<B: Body + Unpin> Body for Noted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_ready() {
            self.activity.note();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Connection {
    router: Router,
    head_timeout: Duration,
    quiet_max: Duration,
    head_bytes_max: u32,
    watcher: Watcher,
}

impl Connection {
    async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "nodelay");
        }
        let activity = Arc::new(Activity::new());
        let service = service_fn({
            let activity = Arc::clone(&activity);
            let router = self.router;
            move |mut request: hyper::Request<Incoming>| {
                activity.has_begun.store(true, Ordering::Relaxed);
                activity.note();
                request.extensions_mut().insert(Peer(peer));
                let (router, activity) = (router.clone(), Arc::clone(&activity));
                let noted = Arc::clone(&activity);
                let request = request.map(|body| Noted {
                    body,
                    activity: noted,
                });
                async move {
                    let response = router.oneshot(request).await;
                    activity.note();
                    response.map(|response| response.map(|body| Noted { body, activity }))
                }
            }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head_timeout)
            .max_buf_size(self.head_bytes_max as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(self.head_bytes_max)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(self.watcher.watch(connection.into_owned()));
        // hyper's timers begin with the first bytes of a head and end with the request: a client that sends none, and one that
        // reads no answer and only answers pings, would hold a connection for ever.
        let quiet = async {
            loop {
                let limit = match activity.has_begun.load(Ordering::Relaxed) {
                    true => self.quiet_max,
                    false => self.head_timeout,
                };
                let left = limit.saturating_sub(activity.quiet_for());
                if left.is_zero() {
                    break;
                }
                sleep(left).await;
            }
        };
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = quiet => {
                tracing::debug!(%peer, "nothing happens on a connection any more: it is closed");
                return;
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, error, "a connection ended with an error");
        }
    }
}
