//! Traces, by OTLP over HTTP to a collector.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use schemas::traces;
use tokio::runtime::Runtime;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::usage_error;

/// Service name in traces, unless `OTEL_SERVICE_NAME` is set.
const SERVICE_NAME: &str = "backstitch";
/// Path that is appended to the endpoint.
const TRACES_PATH: &str = "/v1/traces";
/// Time limit of a request to the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the remaining traces when the process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends traces. Dropping it sends the remaining ones.
#[derive(Debug)]
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts to send. An unreachable collector does not affect other work.
    ///
    /// # Errors
    /// An invalid URL.
    pub(crate) fn start(endpoint: &str) -> anyhow::Result<Self> {
        // The value may contain a secret, so messages do not show it.
        let invalid_endpoint = |reason: &dyn std::fmt::Display| {
            usage_error(format!(
                "invalid telemetry.otlp_endpoint: {reason}; expected an address such as http://127.0.0.1:4318"
            ))
        };
        let url = reqwest::Url::parse(endpoint).map_err(|error| invalid_endpoint(&error))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(invalid_endpoint(&"the scheme must be http or https"));
        }
        let has_query = url.query().is_some() || url.fragment().is_some();
        if has_query || !url.username().is_empty() || url.password().is_some() {
            let reason = "user, password and query are not supported; set credentials in the environment variable OTEL_EXPORTER_OTLP_HEADERS";
            return Err(invalid_endpoint(&reason));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient::new()?)
            .with_endpoint(format!("{}{TRACES_PATH}", endpoint.trim_end_matches('/')))
            .with_timeout(SEND_TIMEOUT)
            .build()
            .map_err(|error| invalid_endpoint(&error))?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE_NAME);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Self(provider))
    }

    /// The layer that exports spans with the target of traces.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer: SdkTracer = self.0.tracer(SERVICE_NAME);
        // Log lines may contain data that must stay in this installation.
        let exported =
            filter_fn(|metadata| metadata.is_span() && metadata.target() == traces::TARGET);
        let exported = exported.with_max_level_hint(LevelFilter::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_filter(exported)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // An unreachable collector must not delay the end of the process.
        self.0.shutdown_with_timeout(SHUTDOWN_TIMEOUT).ok();
    }
}

/// HTTP client of the exporter's thread, which has no runtime.
#[derive(Debug)]
struct CollectorClient {
    runtime: Runtime,
    http: reqwest::Client,
    /// True if the last request failed: a series of failures is logged once.
    is_failing: AtomicBool,
}

impl CollectorClient {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let http = reqwest::Client::builder().timeout(SEND_TIMEOUT).build()?;
        Ok(Self {
            runtime,
            http,
            is_failing: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let url = request.uri().clone();
        let send = async {
            let reply = self.http.execute(request.try_into()?).await?;
            let mut response = Response::builder().status(reply.status());
            for (name, value) in reply.headers() {
                response = response.header(name, value);
            }
            Ok(response.body(reply.bytes().await?)?)
        };
        let result: Result<Response<Bytes>, HttpError> = self.runtime.block_on(send);
        let reason = match &result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("status {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(reason.is_some(), Ordering::Relaxed);
        if let (Some(reason), false) = (reason, was_failing) {
            tracing::warn!(%url, reason, "the collector rejects traces, and they are dropped (telemetry.otlp_endpoint)");
        }
        result
    }
}
