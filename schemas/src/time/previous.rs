//! The previous period: its start and, while the current period is running, the part to compare
//! with.
//!
//! This module moves a period to the previous one, by the calendar or by a duration. The names of
//! periods are unknown here.

use jiff::Span;
use jiff::civil::{Date, DateTime};

use super::bucket::{BucketWidth, QUARTER_HOUR_SECONDS, TimeRange, UnixSeconds};
use super::zone::{Zone, ZoneError};

/// The distance from a period to the previous one.
#[derive(Debug, Clone, Copy)]
pub(super) enum PeriodStep {
    /// By calendar days, months or years, for a period that begins with a local day.
    Calendar {
        /// The period's first local day.
        first: Date,
        /// The length of the period.
        length: Span,
    },
    /// By a duration in seconds.
    Exact(UnixSeconds),
}

impl PeriodStep {
    /// Returns the period before the one that begins at `from`. If the current period contains
    /// `now`, returns the same elapsed part of the previous one.
    ///
    /// The elapsed part includes the current quarter of an hour, which is moved by its start. If it
    /// were moved by its end, the last quarter of a day would belong to the next day, which the
    /// previous month may not have.
    pub(super) fn previous_range(
        self,
        zone: &Zone,
        from: UnixSeconds,
        now: Option<UnixSeconds>,
    ) -> Result<TimeRange, ZoneError> {
        let start = match self {
            Self::Calendar { first, length } => zone.day_start(subtract_length(first, length)?)?,
            Self::Exact(seconds) => from - seconds,
        };
        // Fails if the calendar does not reach back that far.
        zone.local_time(start)?;
        let Some(now) = now else {
            return Ok(TimeRange::new(start, from));
        };
        let quarter = BucketWidth::QuarterHour.floor(now);
        let previous_quarter = match self {
            Self::Calendar { length, .. } => {
                let local = zone.local_time(quarter)?;
                zone.first_instant_at(DateTime::from_parts(
                    subtract_length(local.date(), length)?,
                    local.time(),
                ))?
            }
            Self::Exact(seconds) => quarter - seconds,
        };
        Ok(TimeRange::new(
            start,
            (previous_quarter.max(start) + QUARTER_HOUR_SECONDS).min(from),
        ))
    }
}

fn subtract_length(date: Date, length: Span) -> Result<Date, ZoneError> {
    date.checked_sub(length)
        .map_err(|_| ZoneError::OutOfRange(format!("the period before the one of {date}")))
}
