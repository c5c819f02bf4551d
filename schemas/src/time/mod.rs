//! Periods of local days as requests name them, and UTC buckets as stores have them.
//!
//! - [`mod@bucket`]: the widths of stored buckets
//! - [`mod@zone`]: time zones and local days
//! - [`mod@period`]: the meaning of request parameters
//! - [`mod@series`]: the points of a chart
//! - [`mod@cover`]: the buckets that make up a range
//!
//! Instants are whole seconds since the Unix epoch, negative before it. Ranges are half-open.
//! Nothing here reads the clock or knows a view, a store or a protocol; the current time is a
//! parameter.

pub mod bucket;
pub mod cover;
pub mod period;
mod previous;
mod range_edge;
pub mod series;
pub mod zone;

pub use bucket::{BucketWidth, QUARTER_HOUR_SECONDS, TimeRange, UnixSeconds, utc_day};
pub use cover::{BucketSpan, CoverError, cover};
pub use period::{PeriodError, PeriodName, PeriodQuery, ResolvedPeriod, resolve};
pub use series::{Interval, POINTS_MAX, Points, SeriesError, compute_points};
pub use zone::{Zone, ZoneError};

/// Formats an instant for messages: RFC 3339 in UTC, or the number of seconds outside the calendar.
fn format_instant_seconds(seconds: UnixSeconds) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| format!("second {seconds}"),
        |instant| instant.to_string(),
    )
}

#[cfg(test)]
#[path = "zoneinfo_tests.rs"]
mod zoneinfo_tests;
