//! The service as its owner sees it: build it, then run it until it is asked to stop.

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

use crate::http::{Api, Caller, note, note_seen, router};
use crate::metric::Metric;
use crate::options::{MetricsText, ServingOptions, ServingPorts};
use crate::{Error, Result, server};

/// How often is noted how the installation is getting on.
const NOTE_EVERY: Duration = Duration::from_secs(10);

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
        let closing = self.api.closing.clone();
        let ends = shutdown.clone();
        let told = async move {
            ends.cancelled().await;
            closing.cancel();
        };
        let served = server::run(listener, self.router(), &self.api.options, shutdown);
        let watched = self.watch();
        let (served, (), ()) = tokio::join!(served, told, watched);
        served
    }

    /// Notes now and then how all processes of the installation are getting on, where somebody reads metrics.
    async fn watch(&self) {
        if self.api.metrics_text.is_none() {
            return;
        }
        let closing = self.api.closing.clone();
        // What was never seen is not seen from now on.
        Source::LOGGED
            .into_iter()
            .for_each(|source| note_seen(&self.api, source));
        while !closing.is_cancelled() {
            note(&self.api).await;
            tokio::select! {
                () = closing.cancelled() => {}
                () = sleep(NOTE_EVERY) => {}
            }
        }
    }

    /// Answers one GET as the API does, without a socket: the status and the body. `path` is percent-encoded and begins
    /// with a slash.
    ///
    /// # Errors
    /// [`crate::Error::Asked`] for a path that is none.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let asked = |what: String| Error::Asked {
            path: path.to_owned(),
            what,
        };
        let request = Request::get(path)
            .extension(Caller::trusted())
            .body(Body::empty());
        let request = request.map_err(|error| asked(error.to_string()))?;
        let Ok(response) = self.router().oneshot(request).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await;
        let body = body.map_err(|error| asked(error.to_string()))?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    #[cfg(test)]
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// The description of the API, in OpenAPI.
    #[cfg(test)]
    pub(crate) fn openapi(&self) -> String {
        drop(self.router());
        String::from_utf8_lossy(&self.api.openapi()).into_owned()
    }

    /// All routes, for use without a socket.
    pub fn router(&self) -> axum::Router {
        router(&self.api)
    }
}
