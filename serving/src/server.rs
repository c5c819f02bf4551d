//! Connections: accepting them, limiting them, draining them.
//!
//! Built with hyper-util, since axum's own server sets no timers: a client that never finishes the
//! head of its request would hold a connection for ever.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::http::Peer;
use crate::options::ServingOptions;
use crate::{Error, Result};

/// How long to wait when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STREAMS_MAX: u32 = 100;
const KEEP_ALIVE: Duration = Duration::from_secs(20);

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

struct Connection {
    router: Router,
    head_timeout: Duration,
    head_bytes_max: u32,
    watcher: Watcher,
}

impl Connection {
    async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "nodelay");
        }
        let begun = Arc::new(AtomicBool::new(false));
        let service = service_fn({
            let begun = Arc::clone(&begun);
            let router = self.router;
            move |mut request: hyper::Request<Incoming>| {
                begun.store(true, Ordering::Relaxed);
                request.extensions_mut().insert(Peer(peer));
                router.clone().oneshot(request)
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
        // hyper's timer begins with the first bytes; a client that sends none has this one.
        let silent = async {
            sleep(self.head_timeout).await;
            if begun.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        let ended = tokio::select! {
            ended = &mut connection => ended,
            // Nothing was begun, so nothing is lost.
            () = silent => return,
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, error, "a connection ended with an error");
        }
    }
}
