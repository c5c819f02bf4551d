//! The previous period: its start and, while the current period is running, the part to compare
//! with.
//!
//! This module moves a period to the previous one, by the calendar or by a duration. The names of
//! periods are unknown here.

use jiff::Span;
use jiff::civil::{Date, DateTime};

use super::bucket::{QUARTER_SECONDS, Range, Seconds, Width};
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
    Exact(Seconds),
}

impl PeriodStep {
    /// Returns the period before the one that begins at `from`. If the current period is running at
    /// the time `running`, returns the same elapsed part of the previous one.
    ///
    /// The elapsed part includes the current quarter of an hour, which is moved by its start. If it
    /// were moved by its end, the last quarter of a day would belong to the next day, which the
    /// previous month may not have.
    pub(super) fn before(
        self,
        zone: &Zone,
        from: Seconds,
        running: Option<Seconds>,
    ) -> Result<Range, ZoneError> {
        let start = match self {
            Self::Calendar { first, length } => zone.first_instant(back(first, length)?)?,
            Self::Exact(seconds) => from - seconds,
        };
        // Fails if the calendar does not reach back that far.
        zone.local(start)?;
        let Some(now) = running else {
            return Ok(Range::new(start, from));
        };
        let quarter = Width::Quarter.floor(now);
        let moved = match self {
            Self::Calendar { length, .. } => {
                let local = zone.local(quarter)?;
                zone.first_at(DateTime::from_parts(
                    back(local.date(), length)?,
                    local.time(),
                ))?
            }
            Self::Exact(seconds) => quarter - seconds,
        };
        Ok(Range::new(
            start,
            (moved.max(start) + QUARTER_SECONDS).min(from),
        ))
    }
}

fn back(date: Date, length: Span) -> Result<Date, ZoneError> {
    date.checked_sub(length)
        .map_err(|_| ZoneError::OutOfRange(format!("the period before the one of {date}")))
}
