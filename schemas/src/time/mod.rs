//! Time as users ask for it and as stores keep it: periods of local days on one side, UTC buckets
//! on the other.
//!
//! [`mod@bucket`] owns the widths of stored buckets, [`mod@zone`] what a local day is, [`mod@period`] what a
//! request's parameters mean, [`mod@series`] the points of a chart and [`mod@cover`] which buckets make up
//! a range. Instants are whole seconds since the Unix epoch, also before it, and ranges are
//! half-open. Nothing here takes the time, knows a view, a store or a protocol: the present moment
//! is a parameter.

pub mod bucket;
pub mod cover;
mod moment;
pub mod period;
mod previous;
pub mod series;
pub mod zone;

pub use bucket::{QUARTER_SECONDS, Range, Seconds, Width, day_of};
pub use cover::{CoverError, Span, cover};
pub use period::{PeriodError, PeriodName, PeriodQuery, Resolved, resolve};
pub use series::{Interval, POINTS_MAX, Points, SeriesError, points};
pub use zone::{Zone, ZoneError};

/// An instant as messages show it: RFC 3339 in UTC, or the bare number where no calendar reaches.
fn shown(seconds: Seconds) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("second {seconds}"),
        |instant| instant.to_string(),
    )
}

#[cfg(test)]
#[path = "zoneinfo_tests.rs"]
mod zoneinfo_tests;
