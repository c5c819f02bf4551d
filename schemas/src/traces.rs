//! The target of trace-only spans, by which the log output excludes them.

/// The target of spans that appear in traces but not in the log.
pub const TARGET: &str = "backstitch_spans";
