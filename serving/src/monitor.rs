//! Metrics and liveness on a separate address, without authentication: for processes that serve
//! nothing else, and for monitoring systems without an API key.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::options::{MetricsText, ServingOptions};
use crate::{Result, server};

/// Content type of Prometheus' text format.
pub(crate) const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Maximum connections: more than monitoring needs.
const CONNECTIONS_MAX: usize = 64;

/// Answers `/metrics` and `/livez` without authentication until `stop` is cancelled.
///
/// # Errors
/// [`crate::Error::Listen`] if the listener has no address.
pub async fn monitor(
    listener: TcpListener,
    metrics: MetricsText,
    stop: CancellationToken,
) -> Result<()> {
    let text = move || async move { ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], metrics.render()) };
    let router = Router::new()
        .route("/metrics", get(text))
        .route("/livez", get(|| async { "live\n" }));
    let options = ServingOptions {
        connections_max: CONNECTIONS_MAX,
        ..ServingOptions::default()
    };
    server::run(listener, router, &options, stop).await
}
