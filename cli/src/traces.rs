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

use crate::failure::usage;

/// What this is called in traces, unless `OTEL_SERVICE_NAME` says otherwise.
const SERVICE: &str = "backstitch";
/// The path that is put behind what is set.
const PATH: &str = "/v1/traces";
/// How long the collector may take for a message.
const SEND_MAX: Duration = Duration::from_secs(10);
/// How long an ending process tries to hand over what it has left.
const END_MAX: Duration = Duration::from_secs(3);

/// Sends traces until it is dropped; then what is left.
#[derive(Debug)]
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to send; a collector that can't be reached keeps nothing from its work.
    ///
    /// # Errors
    /// What is no URL.
    pub(crate) fn start(endpoint: &str) -> anyhow::Result<Self> {
        // What stands there may be secret: it is not shown.
        let wrong = |why: &dyn std::fmt::Display| {
            usage(format!(
                "telemetry.otlp_endpoint can't be used: {why}; write an address as in http://127.0.0.1:4318"
            ))
        };
        let url = reqwest::Url::parse(endpoint).map_err(|error| wrong(&error))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong(&"traces go by http or https"));
        }
        let has_more = url.query().is_some() || url.fragment().is_some();
        if has_more || !url.username().is_empty() || url.password().is_some() {
            let why = "it has a user, a password or a query; what proves who sends goes into the variable OTEL_EXPORTER_OTLP_HEADERS";
            return Err(wrong(&why));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new()?)
            .with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')))
            .with_timeout(SEND_MAX)
            .build()
            .map_err(|error| wrong(&error))?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Self(provider))
    }

    /// What takes spans that are made for traces.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer: SdkTracer = self.0.tracer(SERVICE);
        // Log lines may say more than is to leave this installation.
        let taken = filter_fn(|of| of.is_span() && of.target() == traces::TARGET);
        let taken = taken.with_max_level_hint(LevelFilter::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_filter(taken)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Who is not there to take them does not keep the process from its end.
        self.0.shutdown_with_timeout(END_MAX).ok();
    }
}

/// Sends on the exporter's own thread, which knows no runtime.
#[derive(Debug)]
struct Client {
    runtime: Runtime,
    http: reqwest::Client,
    /// Whether the last message was not taken: that is told once.
    fails: AtomicBool,
}

impl Client {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let http = reqwest::Client::builder().timeout(SEND_MAX).build()?;
        Ok(Self {
            runtime,
            http,
            fails: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let url = request.uri().clone();
        let sent = async {
            let answer = self.http.execute(request.try_into()?).await?;
            let mut response = Response::builder().status(answer.status());
            for (name, value) in answer.headers() {
                response = response.header(name, value);
            }
            Ok(response.body(answer.bytes().await?)?)
        };
        let sent: Result<Response<Bytes>, HttpError> = self.runtime.block_on(sent);
        let why = match &sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answers {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        let failed = self.fails.swap(why.is_some(), Ordering::Relaxed);
        if let (Some(why), false) = (why, failed) {
            tracing::warn!(%url, why, "traces are not taken, and let go (telemetry.otlp_endpoint)");
        }
        sent
    }
}
