//! Logs on standard error, and traces.

use std::io::{self, IsTerminal, Write};

use schemas::traces;
#[cfg(feature = "otel")]
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::failure::usage_error;
use crate::settings::{LogFormat, TelemetrySection};

/// Silences libraries that log errors which they also return. A filter that names targets can
/// enable them.
const QUIET_LIBRARIES: &str = ",scylla=off,rdkafka=off,librdkafka=off,ballista_core=off,ballista_scheduler=warn,ballista_executor=warn";

/// Logs and traces of the process; dropping it sends the remaining traces.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    #[cfg(feature = "otel")]
    traces: Option<crate::traces::Traces>,
}

/// Starts logs and traces. The log filter is `requested` by flags, else `RUST_LOG`, else `level`.
///
/// # Errors
/// An invalid filter, or an invalid address for traces.
pub(crate) fn start(
    requested: Option<&str>,
    settings: &TelemetrySection,
    level: &str,
) -> anyhow::Result<Telemetry> {
    let from_variable = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let (text, origin) = match (requested, &from_variable) {
        (Some(requested), _) => (requested, "--log-level"),
        (None, Some(from_variable)) => (from_variable.as_str(), "RUST_LOG"),
        (None, None) => (level, "telemetry.log_level"),
    };
    // Our own errors name the operation and the cause that a client reports.
    let quiet_libraries = if text.contains(['=', ',']) {
        ""
    } else {
        QUIET_LIBRARIES
    };
    let telemetry = Telemetry::new(settings)?;
    let spans = if telemetry.has_traces() {
        "info"
    } else {
        "off"
    };
    let filter = EnvFilter::try_new(format!("{text}{quiet_libraries},{}={spans}", traces::TARGET)).map_err(|error| {
        usage_error(format!(
            "{origin}: invalid log level {text:?}: {error}; expected error, warn, info, debug or trace"
        ))
    })?;
    let has_color =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log_layer = fmt::layer()
        .with_writer(LogWriterFactory)
        .with_ansi(has_color);
    let log_layer = match settings.log_format {
        LogFormat::Text => log_layer.with_target(false).boxed(),
        LogFormat::Json => log_layer.json().flatten_event(true).boxed(),
    };
    // One filter for all layers, outermost. Records of the crate `log` are tested before they are
    // emitted; if a layer's own filter rejects one, that layer misses the next line of the same
    // thread.
    let registry = tracing_subscriber::registry();
    #[cfg(feature = "otel")]
    if let Some(traces) = &telemetry.traces {
        let log_layer =
            log_layer.with_filter(filter_fn(|metadata| metadata.target() != traces::TARGET));
        check_started(
            registry
                .with(log_layer)
                .with(traces.layer())
                .with(filter)
                .try_init(),
        )?;
        return Ok(telemetry);
    }
    check_started(registry.with(log_layer).with(filter).try_init())?;
    Ok(telemetry)
}

fn check_started(result: Result<(), TryInitError>) -> anyhow::Result<()> {
    result.map_err(|error| anyhow::anyhow!("starting the log: {error}"))
}

impl Telemetry {
    #[cfg(feature = "otel")]
    fn new(settings: &TelemetrySection) -> anyhow::Result<Self> {
        let endpoint = settings.otlp_endpoint.as_deref();
        let traces = endpoint.map(crate::traces::Traces::start).transpose()?;
        Ok(Self { traces })
    }

    #[cfg(feature = "otel")]
    const fn has_traces(&self) -> bool {
        self.traces.is_some()
    }

    #[cfg(not(feature = "otel"))]
    const fn has_traces(&self) -> bool {
        false
    }

    #[cfg(not(feature = "otel"))]
    fn new(settings: &TelemetrySection) -> anyhow::Result<Self> {
        if settings.otlp_endpoint.is_some() {
            return Err(usage_error(
                "telemetry.otlp_endpoint: this build has no traces; build with `--features otel`, or remove the setting",
            ));
        }
        Ok(Self::default())
    }
}

/// Creates writers to standard error that hide progress bars while a line is written.
struct LogWriterFactory;

impl<'a> MakeWriter<'a> for LogWriterFactory {
    type Writer = LogLineWriter;

    fn make_writer(&'a self) -> LogLineWriter {
        LogLineWriter
    }
}

/// Writer of one log line.
struct LogLineWriter;

impl Write for LogLineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        crate::progress::suspend(|| io::stderr().lock().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
