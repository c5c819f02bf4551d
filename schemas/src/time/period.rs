//! Resolves the period parameters of a request to a range of instants and the range to compare
//! with.
//!
//! This module owns the meaning of `period`, `from`, `to`, `date`, `tz` and `compare`. HTTP and the
//! counted values are unknown here, and the current time is a parameter.

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};

use super::bucket::{BucketWidth, TimeRange, UnixSeconds};
use super::format_instant_seconds;
use super::previous::PeriodStep;
use super::range_edge::{self, EdgeError, RangeEdge};
use super::zone::{Zone, ZoneError};
use crate::named;

named! {
    /// The periods that a request can name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum PeriodName {
        /// The local day of the anchor.
        Today = "today",
        /// Seven local days that end with the anchor's.
        SevenDays = "7d",
        /// Thirty local days that end with the anchor's.
        ThirtyDays = "30d",
        /// The calendar month of the anchor.
        Month = "month",
        /// The calendar year of the anchor.
        Year = "year",
        /// All time.
        All = "all",
        /// From `from` to `to`.
        Custom = "custom",
    }
    else PeriodError, PeriodError::UnknownPeriod;
}

/// Returns an addition to messages for a period that may be the default.
fn default_note(period: PeriodName) -> &'static str {
    match period {
        PeriodName::All => " (the default)",
        _ => "",
    }
}

/// The period parameters of a request as text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeriodQuery<'a> {
    /// A [`PeriodName`]. If absent: `custom` if an edge is given, else `all`.
    pub period: Option<&'a str>,
    /// The inclusive edge of a custom period: a date or an RFC 3339 instant.
    pub from: Option<&'a str>,
    /// The exclusive edge of a custom period: a date or an RFC 3339 instant.
    pub to: Option<&'a str>,
    /// The anchor of a named period: a date; today if absent.
    pub date: Option<&'a str>,
    /// An IANA time zone name; UTC if absent.
    pub tz: Option<&'a str>,
    /// `previous`, or absent.
    pub compare: Option<&'a str>,
}

/// The meaning of the parameters. Every edge is on a quarter of an hour in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPeriod {
    /// The time zone of local days.
    pub zone: Zone,
    /// The named or default period.
    pub period: PeriodName,
    /// The whole period, including its future part.
    pub range: TimeRange,
    /// The range to compare with, if a comparison is requested and the period has both edges. It is
    /// empty if the clocks skipped the previous day.
    pub previous: Option<TimeRange>,
    /// True if the period contains the current time.
    pub is_running: bool,
}

/// The reason why the parameters are invalid (HTTP status 400).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeriodError {
    /// The zone is unknown, or a local time is outside the calendar.
    #[error(transparent)]
    Zone(#[from] ZoneError),
    /// No period has that name.
    #[error("period={0:?} is unknown: write today, 7d, 30d, month, year, all or custom")]
    UnknownPeriod(String),
    /// There is no such comparison.
    #[error("compare={0:?} is unknown: write compare=previous or omit it")]
    UnknownCompare(String),
    /// An edge that is neither a date nor an instant.
    #[error(
        "{parameter}={text:?} is neither a date such as 2026-07-01 nor an RFC 3339 instant such \
         as 2026-07-01T09:15:00Z: write one of them"
    )]
    InvalidEdge {
        /// `from` or `to`.
        parameter: &'static str,
        /// The text of the parameter.
        text: String,
    },
    /// An anchor that is not a date.
    #[error("date={0:?} is not a date: write one such as 2026-07-01")]
    InvalidDate(String),
    /// A day or time that does not exist.
    #[error(
        "{parameter}={text:?} does not exist: write a day of the calendar within the years 0001 \
         to 9999 and a time of the clock"
    )]
    NoSuchTime {
        /// `from`, `to` or `date`.
        parameter: &'static str,
        /// The text of the parameter.
        text: String,
    },
    /// An instant between quarters of an hour.
    #[error(
        "{parameter}={text:?} is not on a quarter of an hour (in UTC it is {instant}): write an \
         instant at minute 00, 15, 30 or 45 in UTC, or a date"
    )]
    OffQuarter {
        /// `from` or `to`.
        parameter: &'static str,
        /// The text of the parameter.
        text: String,
        /// The instant in UTC.
        instant: String,
    },
    /// A local time that is not on a quarter of an hour in UTC.
    #[error(
        "{edge} is at {instant}, because {zone} then differed from UTC by a fraction of a quarter of an hour: \
         choose another tz, a later time, or from and to as instants on a quarter of an hour"
    )]
    OddOffset {
        /// Which edge.
        edge: &'static str,
        /// The edge in UTC.
        instant: String,
        /// The zone's name.
        zone: String,
    },
    /// Edges together with a named period.
    #[error(
        "from and to cannot be combined with period={0}: omit period, write period=custom, or omit from \
         and to"
    )]
    EdgesNotAllowed(PeriodName),
    /// A custom period without edges.
    #[error("period=custom requires from, to or both: add them, or choose another period")]
    NoEdges,
    /// An anchor for a period without one.
    #[error(
        "date cannot be combined with period={period}{note}: omit date, or write period=today, 7d, 30d, \
         month or year",
        period = .0, note = default_note(*.0)
    )]
    DateNotAllowed(PeriodName),
    /// Edges in the wrong order, or an empty range.
    #[error(
        "from must be before to, but from is {from} and to is {to}: the range from (included) to \
         (excluded) is empty"
    )]
    NotBefore {
        /// The first edge in UTC.
        from: String,
        /// The second edge in UTC.
        to: String,
    },
    /// A day that the clocks of the zone skipped.
    #[error(
        "the day {date} does not exist in {zone}, whose clocks skipped it: choose another date"
    )]
    SkippedDay {
        /// The day.
        date: Date,
        /// The zone's name.
        zone: String,
    },
}

/// Resolves the parameters of a request at the time `now`.
///
/// The previous period ends where the period begins and has the same length: the same number of
/// calendar days, a calendar month, a calendar year, or the same duration for edges that are
/// instants.
///
/// A running period is compared with the same elapsed part of the previous one. That part includes
/// the quarter of an hour with the same local time one period earlier. If the previous month or
/// year lacks the day, its last day is used. If the clock skipped the quarter, the quarter after
/// the change is used.
///
/// # Errors
///
/// [`PeriodError`] for parameters that are unknown, contradict each other, name times that do not
/// exist or give edges that are not on a quarter of an hour.
pub fn resolve(query: &PeriodQuery<'_>, now: Timestamp) -> Result<ResolvedPeriod, PeriodError> {
    let zone = query.tz.map_or_else(|| Ok(Zone::default()), parse_zone)?;
    let is_compared = match query.compare {
        None => false,
        Some("previous") => true,
        Some(other) => return Err(PeriodError::UnknownCompare(other.to_owned())),
    };
    let period = parse_period(query)?;
    let now = floor_to_second(now);

    let (range, step) = match period {
        PeriodName::All => (TimeRange::ALL, None),
        PeriodName::Custom => resolve_custom_period(query, &zone)?,
        _ => resolve_named_period(query, period, &zone, now)?,
    };
    let is_running = range.contains(now);
    let previous = match (is_compared, step, range.from) {
        (true, Some(step), Some(from)) => {
            let previous = step.previous_range(&zone, from, is_running.then_some(now))?;
            check_on_quarters(PREVIOUS_EDGES, &zone, previous)?;
            Some(previous)
        }
        _ => None,
    };
    Ok(ResolvedPeriod {
        zone,
        period,
        range,
        previous,
        is_running,
    })
}

/// Parses the name of a zone. A space in place of a plus (`Etc/GMT+5`) is accepted, since URLs
/// decode a plus to a space.
fn parse_zone(name: &str) -> Result<Zone, ZoneError> {
    Zone::parse(name).or_else(|unknown| Zone::parse(&name.replace(' ', "+")).map_err(|_| unknown))
}

fn parse_period(query: &PeriodQuery<'_>) -> Result<PeriodName, PeriodError> {
    let has_edges = query.from.is_some() || query.to.is_some();
    let period = match query.period {
        Some(name) => name.parse()?,
        None if has_edges => PeriodName::Custom,
        None => PeriodName::All,
    };
    match period {
        PeriodName::Custom if !has_edges => Err(PeriodError::NoEdges),
        PeriodName::Custom | PeriodName::All if query.date.is_some() => {
            Err(PeriodError::DateNotAllowed(period))
        }
        PeriodName::Custom => Ok(period),
        _ if has_edges => Err(PeriodError::EdgesNotAllowed(period)),
        _ => Ok(period),
    }
}

/// Returns the second that contains the instant, rounding down also before 1970.
fn floor_to_second(now: Timestamp) -> UnixSeconds {
    now.as_second() - UnixSeconds::from(now.subsec_nanosecond() < 0)
}

/// Returns the range of a named period and its step.
fn resolve_named_period(
    query: &PeriodQuery<'_>,
    period: PeriodName,
    zone: &Zone,
    now: UnixSeconds,
) -> Result<(TimeRange, Option<PeriodStep>), PeriodError> {
    let anchor = match query.date {
        None => zone.local_date(now)?,
        Some(text) => range_edge::parse_date(text).map_err(|error| match error {
            EdgeError::Day => PeriodError::NoSuchTime {
                parameter: "date",
                text: text.to_owned(),
            },
            _ => PeriodError::InvalidDate(text.to_owned()),
        })?,
    };
    let out_of_range = |_| ZoneError::OutOfRange(format!("the {period} that contains {anchor}"));
    let (first, length) = match period {
        PeriodName::SevenDays => (
            anchor.checked_sub(6.days()).map_err(out_of_range)?,
            7.days(),
        ),
        PeriodName::ThirtyDays => (
            anchor.checked_sub(29.days()).map_err(out_of_range)?,
            30.days(),
        ),
        PeriodName::Month => (anchor.first_of_month(), 1.month()),
        PeriodName::Year => (anchor.first_of_year(), 1.year()),
        PeriodName::Today | PeriodName::All | PeriodName::Custom => (anchor, 1.day()),
    };
    let after = first.checked_add(length).map_err(out_of_range)?;
    let (from, to) = (zone.day_start(first)?, zone.day_start(after)?);
    if from == to {
        return Err(PeriodError::SkippedDay {
            date: anchor,
            zone: zone.name().to_owned(),
        });
    }
    let range = TimeRange::new(from, to);
    check_on_quarters(NAMED_EDGES, zone, range)?;
    Ok((range, Some(PeriodStep::Calendar { first, length })))
}

/// Returns the range of `from` and `to`, and its step if it has both edges.
fn resolve_custom_period(
    query: &PeriodQuery<'_>,
    zone: &Zone,
) -> Result<(TimeRange, Option<PeriodStep>), PeriodError> {
    let from = query
        .from
        .map(|text| parse_edge("from", text))
        .transpose()?;
    let to = query.to.map(|text| parse_edge("to", text)).transpose()?;
    let range = TimeRange {
        from: from.map(|edge| resolve_edge(edge, zone)).transpose()?,
        to: to.map(|edge| resolve_edge(edge, zone)).transpose()?,
    };
    check_on_quarters(CUSTOM_EDGES, zone, range)?;
    let (Some(begin), Some(end)) = (range.from, range.to) else {
        return Ok((range, None));
    };
    if begin >= end {
        return Err(PeriodError::NotBefore {
            from: format_instant_seconds(begin),
            to: format_instant_seconds(end),
        });
    }
    let step = match (from, to) {
        (Some(RangeEdge::Date(first)), Some(RangeEdge::Date(after))) => {
            let days = first.duration_until(after).as_hours() / 24;
            PeriodStep::Calendar {
                first,
                length: days.days(),
            }
        }
        _ => PeriodStep::Exact(end - begin),
    };
    Ok((range, Some(step)))
}

fn parse_edge(parameter: &'static str, text: &str) -> Result<RangeEdge, PeriodError> {
    let edge = range_edge::parse(text);
    let text = text.to_owned();
    edge.map_err(|error| match error {
        EdgeError::Malformed => PeriodError::InvalidEdge { parameter, text },
        EdgeError::Day | EdgeError::Time => PeriodError::NoSuchTime { parameter, text },
        EdgeError::OffQuarter(instant) => PeriodError::OffQuarter {
            parameter,
            text,
            instant,
        },
    })
}

fn resolve_edge(edge: RangeEdge, zone: &Zone) -> Result<UnixSeconds, ZoneError> {
    match edge {
        RangeEdge::Date(date) => zone.day_start(date),
        RangeEdge::Instant(seconds) => Ok(seconds),
    }
}

/// The names of the two edges of a range in messages.
type EdgeNames = [&'static str; 2];
const CUSTOM_EDGES: EdgeNames = ["from", "to"];
const NAMED_EDGES: EdgeNames = ["the start of the period", "the end of the period"];
const PREVIOUS_EDGES: EdgeNames = [
    "the start of the period before",
    "the end of the period before",
];

/// Checks that both edges of a range are on a quarter of an hour in UTC.
fn check_on_quarters(names: EdgeNames, zone: &Zone, range: TimeRange) -> Result<(), PeriodError> {
    let is_off = |instant: &UnixSeconds| !BucketWidth::QuarterHour.is_aligned(*instant);
    for (edge, instant) in names.into_iter().zip([range.from, range.to]) {
        if let Some(instant) = instant.filter(is_off) {
            let zone = zone.name().to_owned();
            return Err(PeriodError::OddOffset {
                edge,
                instant: format_instant_seconds(instant),
                zone,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "period_tests.rs"]
mod tests;
