//! The service: built from ports and options, then run until shutdown.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use jobs::Catalog;
use schemas::source::Source;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::http::{Api, Caller, record_metrics, record_source_read_time, router};
use crate::metric::Metric;
use crate::options::{MetricsText, ServingOptions, ServingPorts};
use crate::{Error, Result, server};

/// Interval at which the metrics of the installation are updated.
const METRICS_INTERVAL: Duration = Duration::from_secs(10);

/// The serving layer, ready to run.
#[derive(Debug, Clone)]
pub struct Serving {
    api: Arc<Api>,
}

impl Serving {
    /// Builds a service that answers from `ports` the views of `catalog`. Without `metrics` the
    /// path `/metrics` does not exist.
    ///
    /// # Errors
    /// [`crate::Error::Option`] for an invalid option.
    pub fn new(
        ports: ServingPorts,
        catalog: Catalog,
        options: ServingOptions,
        metrics: Option<MetricsText>,
    ) -> Result<Self> {
        options.check()?;
        let boards = crate::board::from_catalog(&catalog);
        let api = Api::new(
            ports,
            options,
            Metric::from_catalog(&catalog),
            boards,
            metrics,
        );
        Ok(Self { api: Arc::new(api) })
    }

    /// Serves on `listener` until `shutdown` is cancelled. Requests in progress then have
    /// [`ServingOptions::drain_timeout_ms`] to finish.
    ///
    /// # Errors
    /// [`crate::Error::Listen`] if the socket fails.
    pub async fn run(&self, listener: TcpListener, shutdown: CancellationToken) -> Result<()> {
        let closing = self.api.shutdown.clone();
        let shutdown_signal = shutdown.clone();
        let close = async move {
            shutdown_signal.cancelled().await;
            closing.cancel();
        };
        let served = server::run(listener, self.router(), &self.api.options, shutdown);
        let metrics = self.update_metrics();
        let (served, (), ()) = tokio::join!(served, close, metrics);
        served
    }

    /// Updates the metrics about all processes of the installation, if metrics are enabled.
    async fn update_metrics(&self) {
        if self.api.metrics_text.is_none() {
            return;
        }
        let closing = self.api.shutdown.clone();
        // Sources that were never observed count as unobserved from now on.
        Source::LOGGED
            .into_iter()
            .for_each(|source| record_source_read_time(&self.api, source));
        while !closing.is_cancelled() {
            record_metrics(&self.api).await;
            tokio::select! {
                () = closing.cancelled() => {}
                () = sleep(METRICS_INTERVAL) => {}
            }
        }
    }

    /// Answers one GET request like the API, without a socket, and returns the status and the body.
    /// `path` is percent-encoded and begins with a slash.
    ///
    /// # Errors
    /// [`crate::Error::Request`] for an invalid path.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let error = |reason: String| Error::Request {
            path: path.to_owned(),
            reason,
        };
        let request = Request::get(path)
            .extension(Caller::trusted())
            .body(Body::empty());
        let request = request.map_err(|source| error(source.to_string()))?;
        let Ok(response) = self.router().oneshot(request).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await;
        let body = body.map_err(|source| error(source.to_string()))?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// All routes, for use without a socket.
    pub fn router(&self) -> axum::Router {
        router(&self.api)
    }
}
