//! UTC buckets: the widths of stored counts, and the arithmetic of their edges.
//!
//! Instants before 1970 are supported. Buckets are in UTC, so all readers share them. This module
//! does not handle time zones.

use serde::{Deserialize, Serialize};

use crate::named;

/// An instant: whole seconds since 1970-01-01T00:00:00Z, negative before.
pub type UnixSeconds = i64;

/// A quarter of an hour. Every edge of a request is a multiple of it, because since 1972 all time
/// zones differ from UTC by whole quarters of an hour.
pub const QUARTER_HOUR_SECONDS: UnixSeconds = 900;

const HOUR_SECONDS: UnixSeconds = 3_600;
const DAY_SECONDS: UnixSeconds = 86_400;

/// Days from 0000-03-01 to 1970-01-01. If years begin in March, a leap day is their last day.
const EPOCH_DAY: i64 = 719_468;
/// Months from March of year 0 to January 1970.
const EPOCH_MONTH: i64 = 23_638;
/// Days in the 400 years after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

/// A half-open range of instants: `from` is included, `to` is not. Either side may be unbounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeRange {
    /// The first instant; `None` if unbounded.
    pub from: Option<UnixSeconds>,
    /// The instant after the last one; `None` if unbounded.
    pub to: Option<UnixSeconds>,
}

impl TimeRange {
    /// All time.
    pub const ALL: Self = Self {
        from: None,
        to: None,
    };

    /// Creates the range from `from` (included) to `to` (excluded).
    #[must_use]
    pub const fn new(from: UnixSeconds, to: UnixSeconds) -> Self {
        Self {
            from: Some(from),
            to: Some(to),
        }
    }

    /// Returns whether the range contains the instant.
    #[must_use]
    pub fn contains(&self, seconds: UnixSeconds) -> bool {
        self.from.is_none_or(|from| from <= seconds) && self.to.is_none_or(|to| seconds < to)
    }

    /// Returns whether the range contains no instant.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!((self.from, self.to), (Some(from), Some(to)) if from >= to)
    }
}

named! {
    /// The width of a stored bucket. Each bucket consists of whole buckets of the next smaller
    /// width.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum BucketWidth {
        /// A quarter of an hour.
        #[serde(rename = "quarter")]
        QuarterHour = "quarter",
        /// An hour.
        Hour = "hour",
        /// A day in UTC.
        Day = "day",
        /// A calendar month in UTC.
        Month = "month",
        /// All time: one bucket, whose start is stored as 0.
        All = "all",
    }
}

impl BucketWidth {
    /// Returns the start of the bucket that contains the instant; 0 for [`BucketWidth::All`]. A
    /// start before `i64::MIN` saturates.
    #[must_use]
    pub const fn floor(self, seconds: UnixSeconds) -> UnixSeconds {
        match self {
            Self::QuarterHour => floor_to_width(seconds, QUARTER_HOUR_SECONDS),
            Self::Hour => floor_to_width(seconds, HOUR_SECONDS),
            Self::Day => floor_to_width(seconds, DAY_SECONDS),
            Self::Month => first_day_of_month(utc_month(seconds)).saturating_mul(DAY_SECONDS),
            Self::All => 0,
        }
    }

    /// Returns the start of the bucket after the one that contains the instant. Returns `None` for
    /// [`BucketWidth::All`] and beyond `i64::MAX`.
    #[must_use]
    pub const fn next(self, seconds: UnixSeconds) -> Option<UnixSeconds> {
        match self {
            Self::QuarterHour => self.floor(seconds).checked_add(QUARTER_HOUR_SECONDS),
            Self::Hour => self.floor(seconds).checked_add(HOUR_SECONDS),
            Self::Day => self.floor(seconds).checked_add(DAY_SECONDS),
            Self::Month => first_day_of_month(utc_month(seconds) + 1).checked_mul(DAY_SECONDS),
            Self::All => None,
        }
    }

    /// Returns the first bucket start at or after the instant; `None` if there is none.
    #[must_use]
    pub const fn ceil(self, seconds: UnixSeconds) -> Option<UnixSeconds> {
        if self.is_aligned(seconds) {
            Some(seconds)
        } else {
            self.next(seconds)
        }
    }

    /// Returns whether a bucket starts at the instant.
    #[must_use]
    pub const fn is_aligned(self, seconds: UnixSeconds) -> bool {
        self.floor(seconds) == seconds
    }
}

/// Returns the UTC day of an instant, as days since 1970-01-01.
#[must_use]
pub const fn utc_day(seconds: UnixSeconds) -> i64 {
    seconds.div_euclid(DAY_SECONDS)
}

/// Returns the UTC month of an instant, as months since January 1970.
///
/// Howard Hinnant's `civil_from_days` (<https://howardhinnant.github.io/date_algorithms.html>). It
/// runs for each row and, unlike a calendar library, has no range of years.
#[must_use]
pub const fn utc_month(seconds: UnixSeconds) -> i64 {
    let days = utc_day(seconds) + EPOCH_DAY;
    let era = days.div_euclid(ERA_DAYS);
    let day_of_era = days.rem_euclid(ERA_DAYS);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_of_year = (5 * day_of_year + 2) / 153;
    (era * 400 + year_of_era) * 12 + month_of_year - EPOCH_MONTH
}

/// Returns the first day of a month, both relative to the epoch: Hinnant's `days_from_civil`.
const fn first_day_of_month(month: i64) -> i64 {
    let months = month + EPOCH_MONTH;
    let year = months.div_euclid(12);
    let day_of_year = (153 * months.rem_euclid(12) + 2) / 5;
    let year_of_era = year.rem_euclid(400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    year.div_euclid(400) * ERA_DAYS + day_of_era - EPOCH_DAY
}

const fn floor_to_width(seconds: UnixSeconds, width: UnixSeconds) -> UnixSeconds {
    seconds.div_euclid(width).saturating_mul(width)
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
