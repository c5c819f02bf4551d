//! Metrics, and whether a process lives, on an address of their own: for processes that serve nothing else, and for who may
//! not have a key.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::options::{MetricsText, ServingOptions};
use crate::{Result, server};

/// Prometheus' text format.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// More than monitoring needs, also from one address.
const CONNECTIONS_MAX: usize = 64;

/// Answers `/metrics` and `/livez` until `stop` is cancelled. Nobody is asked who they are.
///
/// # Errors
/// A listener that has no address.
pub async fn monitor(
    listener: TcpListener,
    metrics: MetricsText,
    stop: CancellationToken,
) -> Result<()> {
    let text = move || async move { ([(header::CONTENT_TYPE, TEXT)], metrics.render()) };
    let router = Router::new()
        .route("/metrics", get(text))
        .route("/livez", get(|| async { "live\n" }));
    let options = ServingOptions {
        connections_max: CONNECTIONS_MAX,
        ..ServingOptions::default()
    };
    server::run(listener, router, &options, stop).await
}
