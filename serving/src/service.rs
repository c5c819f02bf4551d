//! The service as its owner sees it: build it, then run it until it is asked to stop.

use std::sync::Arc;

use jobs::Catalog;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http::{Api, router};
use crate::metric::Metric;
use crate::options::{MetricsText, ServingOptions, ServingPorts};
use crate::{Result, server};

/// The serving layer, ready to run.
#[derive(Debug, Clone)]
pub struct Serving {
    api: Arc<Api>,
}

impl Serving {
    /// A service that answers from `ports` what the views of `catalog` count. Without `metrics`
    /// there is nothing under `/metrics`.
    ///
    /// # Errors
    /// [`crate::Error::Option`] for an option that can't be used.
    pub fn build(
        ports: ServingPorts,
        catalog: Catalog,
        options: ServingOptions,
        metrics: Option<MetricsText>,
    ) -> Result<Self> {
        options.check()?;
        let boards = crate::board::all(&catalog);
        let api = Api::new(ports, options, Metric::all(&catalog), boards, metrics);
        Ok(Self { api: Arc::new(api) })
    }

    /// Serves on `listener` until `shutdown` is cancelled; then what is under way may go on for
    /// [`ServingOptions::drain_timeout_ms`].
    ///
    /// # Errors
    /// [`crate::Error::Listen`] if the socket fails.
    pub async fn run(&self, listener: TcpListener, shutdown: CancellationToken) -> Result<()> {
        server::run(listener, self.router(), &self.api.options, shutdown).await
    }

    /// All routes, for use without a socket.
    pub fn router(&self) -> axum::Router {
        router(&self.api)
    }
}
