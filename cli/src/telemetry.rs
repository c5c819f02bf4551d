//! Logs, on standard error.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::usage;
use crate::settings::LogFormat;

/// Libraries that log what they report to us anyway; they are heard where a filter names targets.
const CLIENTS: &str = ",scylla=off,rdkafka=off,librdkafka=off,ballista_core=off,ballista_scheduler=warn,ballista_executor=warn";

/// What is logged: the flags' wish, else `RUST_LOG`, else `level`.
///
/// # Errors
/// A filter that can't be read.
pub(crate) fn start(asked: Option<&str>, format: LogFormat, level: &str) -> anyhow::Result<()> {
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
    let filter = EnvFilter::try_new(format!("{text}{quiet}")).map_err(|error| {
        usage(format!(
            "{place}: {text:?} is no log level: {error}; write error, warn, info, debug or trace"
        ))
    })?;
    let color =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(StandardError)
        .with_ansi(color);
    match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!("starting the log: {error}"))
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
