//! The points of a chart: local hours, days, weeks and months, clipped to a range.
//!
//! This module divides local time into intervals. It returns edges; each quarter of an hour belongs
//! to one point. The counted values and the stored buckets are unknown here.

use jiff::ToSpan;
use jiff::civil::Date;

use super::bucket::{BucketWidth, TimeRange, UnixSeconds};
use super::format_instant_seconds;
use super::zone::{Zone, ZoneError};
use crate::named;

/// The maximum number of points of a series.
pub const POINTS_MAX: usize = 10_000;

const HOUR_SECONDS: UnixSeconds = 3_600;

named! {
    /// The interval of local time of a point.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Interval {
        /// An hour of the local clock. An hour that the clock repeats is two points. A change of
        /// the clock by part of an hour, as on Lord Howe Island, also ends a point.
        Hour = "hour",
        /// A local day, which has 23 or 25 hours when clocks change.
        Day = "day",
        /// A local week, which begins on Monday.
        Week = "week",
        /// A local calendar month.
        Month = "month",
    }
    else SeriesError, SeriesError::UnknownInterval;
}

/// The reason why a series cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeriesError {
    /// No interval has that name.
    #[error("interval={0:?} is unknown: write hour, day, week or month")]
    UnknownInterval(String),
    /// There would be too many points.
    #[error(
        "interval={interval} gives about {point_count} points over this range, and a series has at \
         most {POINTS_MAX}: choose a longer interval or a shorter range"
    )]
    TooMany {
        /// The interval.
        interval: Interval,
        /// The approximate number of points.
        point_count: i64,
    },
    /// An edge of a point would not be on a quarter of an hour.
    #[error(
        "interval={interval} has an edge at {instant} in {zone}, which is not on a quarter of an hour \
         in UTC: choose another tz, or a later from"
    )]
    OffQuarter {
        /// The interval.
        interval: Interval,
        /// The edge in UTC.
        instant: String,
        /// The zone's name.
        zone: String,
    },
    /// An edge is outside the calendar.
    #[error(transparent)]
    Zone(#[from] ZoneError),
}

/// The points of a series in order. Each ends where the next begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Points {
    /// The start of each point, then the end of the last one. Empty without points.
    edges: Vec<UnixSeconds>,
}

impl Points {
    /// Returns the number of points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.edges.len().saturating_sub(1)
    }

    /// Returns whether there are no points.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// Returns the start of each point, which is `at` in answers.
    #[must_use]
    pub fn starts(&self) -> &[UnixSeconds] {
        &self.edges[..self.len()]
    }

    /// Iterates over the start and the exclusive end of each point.
    pub fn spans(&self) -> impl Iterator<Item = (UnixSeconds, UnixSeconds)> + '_ {
        self.edges.windows(2).map(|edges| (edges[0], edges[1]))
    }
}

/// Computes the points from `from` (included) to `to` (excluded). Returns no points if `to` is not
/// after `from`.
///
/// The first and the last point are clipped to the range, so the first point starts at `from`.
///
/// # Errors
///
/// [`SeriesError`] if there would be more than [`POINTS_MAX`] points, or one with an edge that is
/// not on a quarter of an hour.
pub fn compute_points(
    zone: &Zone,
    interval: Interval,
    from: UnixSeconds,
    to: UnixSeconds,
) -> Result<Points, SeriesError> {
    if from >= to {
        return Ok(Points::default());
    }
    let mut edges = vec![from];
    let mut edge = from;
    while edge < to {
        // The limit is checked for each edge, so that a huge range costs no more than a full
        // series.
        if edges.len() > POINTS_MAX {
            let point_count = to.saturating_sub(from) / interval.usual_seconds();
            let point_count = point_count.max(i64::try_from(edges.len()).unwrap_or(i64::MAX));
            return Err(SeriesError::TooMany {
                interval,
                point_count,
            });
        }
        edge = interval.next(zone, edge)?.min(to);
        edges.push(edge);
    }
    match edges
        .iter()
        .find(|edge| !BucketWidth::QuarterHour.is_aligned(**edge))
    {
        None => Ok(Points { edges }),
        Some(edge) => Err(SeriesError::OffQuarter {
            interval,
            instant: format_instant_seconds(*edge),
            zone: zone.name().to_owned(),
        }),
    }
}

/// Bounds a range for [`compute_points`]. An absent side is replaced by an edge of the intervals
/// that contain the `first` and the `last` instant with data, so the points there are not clipped.
///
/// # Errors
///
/// [`SeriesError::Zone`] beyond the calendar.
pub fn close_range(
    zone: &Zone,
    interval: Interval,
    range: TimeRange,
    first: UnixSeconds,
    last: UnixSeconds,
) -> Result<(UnixSeconds, UnixSeconds), SeriesError> {
    let from = range.from.map_or_else(|| interval.start(zone, first), Ok)?;
    let to = range.to.map_or_else(|| interval.next(zone, last), Ok)?;
    Ok((from, to))
}

impl Interval {
    /// Returns the last edge at or before the instant.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] beyond the calendar.
    pub fn start(self, zone: &Zone, seconds: UnixSeconds) -> Result<UnixSeconds, ZoneError> {
        if self == Self::Hour {
            return hour_edge_before(zone, seconds);
        }
        zone.day_start(self.first_date(zone.local_date(seconds)?)?)
    }

    /// Returns the first edge after the instant.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] beyond the calendar.
    pub fn next(self, zone: &Zone, seconds: UnixSeconds) -> Result<UnixSeconds, ZoneError> {
        let length = match self {
            Self::Hour => return next_hour_edge(zone, seconds),
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
        };
        let first = self.first_date(zone.local_date(seconds)?)?;
        zone.day_start(
            first
                .checked_add(length)
                .map_err(|_| out_of_range(self, first))?,
        )
    }

    /// Returns the first day of the interval that contains the day.
    fn first_date(self, date: Date) -> Result<Date, ZoneError> {
        match self {
            Self::Hour | Self::Day => Ok(date),
            Self::Week => date
                .checked_sub(date.weekday().to_monday_zero_offset().days())
                .map_err(|_| out_of_range(self, date)),
            Self::Month => Ok(date.first_of_month()),
        }
    }

    /// Returns the usual length of the interval in seconds.
    const fn usual_seconds(self) -> UnixSeconds {
        match self {
            Self::Hour => HOUR_SECONDS,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_629_746,
        }
    }
}

fn out_of_range(interval: Interval, date: Date) -> ZoneError {
    ZoneError::OutOfRange(format!("the {interval} of {date}"))
}

/// Returns the last edge of an hour at or before the instant. Edges are where the local clock shows
/// a full hour, and where it changes by part of an hour. A change by whole hours keeps the minutes,
/// so it adds no edge.
fn hour_edge_before(zone: &Zone, seconds: UnixSeconds) -> Result<UnixSeconds, ZoneError> {
    let full_hour = last_full_hour(seconds, zone.offset_seconds(seconds)?);
    for change in zone
        .changes_until(seconds)?
        .take_while(|change| *change > full_hour)
    {
        let offset_change = zone.offset_seconds(change)? - zone.offset_seconds(change - 1)?;
        if offset_change % HOUR_SECONDS != 0 {
            return Ok(change);
        }
    }
    Ok(full_hour)
}

/// Returns the first edge of an hour after the instant.
fn next_hour_edge(zone: &Zone, seconds: UnixSeconds) -> Result<UnixSeconds, ZoneError> {
    let mut offset = zone.offset_seconds(seconds)?;
    let full_hour = last_full_hour(seconds, offset) + HOUR_SECONDS;
    for (change, new_offset) in zone
        .changes_after(seconds)?
        .take_while(|(change, _)| *change < full_hour)
    {
        if (new_offset - offset) % HOUR_SECONDS != 0 {
            return Ok(change);
        }
        offset = new_offset;
    }
    Ok(full_hour)
}

/// Returns the last instant at which a clock with that offset showed a full hour.
const fn last_full_hour(seconds: UnixSeconds, offset: UnixSeconds) -> UnixSeconds {
    (seconds + offset).div_euclid(HOUR_SECONDS) * HOUR_SECONDS - offset
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
