//! Logs, on standard error, and traces.

use std::io::{self, IsTerminal, Write};

use schemas::traces;
#[cfg(feature = "otel")]
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::failure::usage;
use crate::settings::{LogFormat, TelemetrySection};

/// Libraries that log what they report to us anyway; they are heard where a filter names targets.
const CLIENTS: &str = ",scylla=off,rdkafka=off,librdkafka=off,ballista_core=off,ballista_scheduler=warn,ballista_executor=warn";

/// What goes on as long as the process does.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    /// Held until the end, when what is left of them is sent.
    #[cfg(feature = "otel")]
    traces_sent: Option<crate::traces::Traces>,
}

/// What is logged: the flags' wish, else `RUST_LOG`, else `level`.
///
/// # Errors
/// A filter that can't be read, or an address for traces that can't be used.
pub(crate) fn start(
    asked: Option<&str>,
    settings: &TelemetrySection,
    level: &str,
) -> anyhow::Result<Telemetry> {
    let from_env = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let (text, place) = match (asked, &from_env) {
        (Some(asked), _) => (asked, "--log-level"),
        (None, Some(from_env)) => (from_env.as_str(), "RUST_LOG"),
        (None, None) => (level, "telemetry.log_level"),
    };
    // What clients of servers say is in our own errors, which say what was being done, too.
    let quiet = if text.contains(['=', ',']) {
        ""
    } else {
        CLIENTS
    };
    let telemetry = Telemetry::of(settings)?;
    let spans = if telemetry.has_traces() {
        "info"
    } else {
        "off"
    };
    let filter = EnvFilter::try_new(format!("{text}{quiet},{}={spans}", traces::TARGET)).map_err(|error| {
        usage(format!(
            "{place}: {text:?} is no log level: {error}; write error, warn, info, debug or trace"
        ))
    })?;
    let color =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let lines = fmt::layer().with_writer(StandardError).with_ansi(color);
    let lines = match settings.log_format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // The filter is the outermost layer, and one for all of them: what a library says through `log` is asked about before it is said, and
    // where that is refused by a layer's own filter, that layer misses the next line of the same thread.
    let all = tracing_subscriber::registry();
    #[cfg(feature = "otel")]
    if let Some(traces) = &telemetry.traces_sent {
        let lines = lines.with_filter(filter_fn(|of| of.target() != traces::TARGET));
        begun(all.with(lines).with(traces.layer()).with(filter).try_init())?;
        return Ok(telemetry);
    }
    begun(all.with(lines).with(filter).try_init())?;
    Ok(telemetry)
}

fn begun(log: Result<(), TryInitError>) -> anyhow::Result<()> {
    log.map_err(|error| anyhow::anyhow!("starting the log: {error}"))
}

impl Telemetry {
    #[cfg(feature = "otel")]
    fn of(settings: &TelemetrySection) -> anyhow::Result<Self> {
        let endpoint = settings.otlp_endpoint.as_deref();
        let traces_sent = endpoint.map(crate::traces::Traces::start).transpose()?;
        Ok(Self { traces_sent })
    }

    #[cfg(feature = "otel")]
    const fn has_traces(&self) -> bool {
        self.traces_sent.is_some()
    }

    #[cfg(not(feature = "otel"))]
    const fn has_traces(&self) -> bool {
        false
    }

    #[cfg(not(feature = "otel"))]
    fn of(settings: &TelemetrySection) -> anyhow::Result<Self> {
        if settings.otlp_endpoint.is_some() {
            return Err(usage(
                "telemetry.otlp_endpoint: this program is built without traces: take one with them (cargo build --features otel), or leave it out",
            ));
        }
        Ok(Self::default())
    }
}

/// Standard error, with progress bars out of the way while a line is written.
struct StandardError;

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line
    }
}

/// One log line.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        crate::progress::suspend(|| io::stderr().lock().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
