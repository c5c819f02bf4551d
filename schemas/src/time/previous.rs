//! The period before: where it begins and, while the period still runs, how much of it to compare.
//!
//! It owns the step from a period to the one before it. It must not know which period was asked
//! for, only whether it moves by the calendar or by a duration.

use jiff::Span;
use jiff::civil::{Date, DateTime};

use super::bucket::{QUARTER_SECONDS, Range, Seconds, Width};
use super::zone::{Zone, ZoneError};

/// How a period moves to the one before it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// By calendar days, months or years, for a period that begins with a local day.
    Calendar {
        /// The period's first local day.
        first: Date,
        /// How long the period is.
        length: Span,
    },
    /// By a duration in seconds.
    Exact(Seconds),
}

impl Step {
    /// The period before the one that begins at `from`; if that one is `running` at a moment, the
    /// same elapsed part of the one before.
    ///
    /// What has elapsed includes the quarter of an hour that runs, and that quarter moves as a
    /// whole, by its start. Moved by its end, the last quarter of a day would count as the next
    /// day, which the month before may not have.
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
        // Also tells whether the calendar reaches back that far.
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
