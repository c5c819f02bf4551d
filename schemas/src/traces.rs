//! Traces: what spans that are made for them are called by, so that log lines go without them.

/// The target of spans that only traces have.
pub const TARGET: &str = "backstitch_spans";
