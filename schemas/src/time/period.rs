//! Periods: from the parameters of a request to a range of instants, and the range to compare with.
//!
//! It owns what `period`, `from`, `to`, `date`, `tz` and `compare` mean together. It must not know
//! HTTP, which values are counted, or the time: the present moment is a parameter.

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};

use super::bucket::{Range, Seconds, Width};
use super::moment::{self, Flaw, Moment};
use super::previous::Step;
use super::shown;
use super::zone::{Zone, ZoneError};
use crate::named;

named! {
    /// The periods that a request can name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum PeriodName {
        /// The local day that holds the anchor.
        Today = "today",
        /// Seven local days, the anchor's the last.
        SevenDays = "7d",
        /// Thirty local days, the anchor's the last.
        ThirtyDays = "30d",
        /// The calendar month that holds the anchor.
        Month = "month",
        /// The calendar year that holds the anchor.
        Year = "year",
        /// All time.
        All = "all",
        /// From `from` to `to`.
        Custom = "custom",
    }
    else PeriodError, PeriodError::UnknownPeriod;
}

/// What is said of a period that nobody may have named.
fn unnamed(period: PeriodName) -> &'static str {
    match period {
        PeriodName::All => ", which holds where none is named",
        _ => "",
    }
}

/// The parameters of a request that say which time it is about, as they were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeriodQuery<'a> {
    /// A [`PeriodName`]; `custom` if absent and there is an edge, else `all`.
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

/// What the parameters mean. Every edge is on a quarter of an hour in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The zone that local days are of.
    pub zone: Zone,
    /// The period that was named or taken by default.
    pub period: PeriodName,
    /// The whole period, also its part that is yet to come.
    pub range: Range,
    /// The range to compare with, if a comparison was asked for and the period has both edges. It
    /// is empty where the day before was one that the zone's clocks skipped.
    pub previous: Option<Range>,
    /// Whether the period holds the present moment.
    pub running: bool,
}

/// Why the parameters mean nothing: each is the asker's to mend (HTTP status 400).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeriodError {
    /// The zone is unknown, or a local time is beyond the calendar.
    #[error(transparent)]
    Zone(#[from] ZoneError),
    /// No period has that name.
    #[error("period={0:?} is unknown: write today, 7d, 30d, month, year, all or custom")]
    UnknownPeriod(String),
    /// There is no such comparison.
    #[error("compare={0:?} is unknown: write compare=previous or leave it out")]
    UnknownCompare(String),
    /// An edge that is neither a date nor an instant.
    #[error(
        "{parameter}={given:?} is neither a date such as 2026-07-01 nor an RFC 3339 instant such \
         as 2026-07-01T09:15:00Z: write one of them"
    )]
    NotAMoment {
        /// `from` or `to`.
        parameter: &'static str,
        /// What was written.
        given: String,
    },
    /// An anchor that is not a date.
    #[error("date={0:?} is not a date: write one such as 2026-07-01")]
    NotADate(String),
    /// A day or time that no calendar or clock shows.
    #[error(
        "{parameter}={given:?} does not exist: write a day of the calendar within the years 0001 \
         to 9999 and a time of the clock"
    )]
    NoSuchTime {
        /// `from`, `to` or `date`.
        parameter: &'static str,
        /// What was written.
        given: String,
    },
    /// An instant between quarters of an hour.
    #[error(
        "{parameter}={given:?} is not on a quarter of an hour (in UTC it is {at}): write an \
         instant at minute 00, 15, 30 or 45 in UTC, or a date"
    )]
    OffQuarter {
        /// `from` or `to`.
        parameter: &'static str,
        /// What was written.
        given: String,
        /// The instant in UTC.
        at: String,
    },
    /// A local time that the zone's offset puts between quarters of an hour.
    #[error(
        "{edge} is at {at}, because the clocks of {zone} were then not a whole number of quarter \
         hours off UTC: choose another tz, a later time, or from and to as instants on a quarter \
         of an hour"
    )]
    OddOffset {
        /// Which edge.
        edge: &'static str,
        /// The edge in UTC.
        at: String,
        /// The zone's name.
        zone: String,
    },
    /// Edges beside a named period.
    #[error(
        "from and to do not go with period={0}: leave period out, write period=custom, or leave \
         from and to out"
    )]
    EdgesBeside(PeriodName),
    /// A custom period without edges.
    #[error("period=custom needs from, to or both: write them, or another period")]
    NoEdges,
    /// An anchor where nothing is anchored.
    #[error(
        "date does not go with period={period}{unnamed}: leave date out, or write period=today, 7d, 30d, month \
         or year",
        period = .0, unnamed = unnamed(*.0)
    )]
    DateBeside(PeriodName),
    /// Edges in the wrong order, or a range without any instant.
    #[error(
        "from must be before to, but from is at {from} and to is at {to}: the range from \
         (included) to (excluded) holds no time"
    )]
    NotBefore {
        /// The first edge in UTC.
        from: String,
        /// The second edge in UTC.
        to: String,
    },
    /// A day that its zone's clocks skipped.
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

/// What a request's parameters mean at the moment `now`.
///
/// The period before ends where the period begins and is as long: as many calendar days, a calendar
/// month, a calendar year, or for edges that are instants the same duration. While a period runs, it
/// is compared with the same elapsed part of the one before: up to and with the quarter of an hour
/// that the local clock showed a day, seven days, a month … ago when it showed the quarter that now
/// runs. A day that the month or year before doesn't have is its last day. Where that clock skipped
/// the quarter, it is the one at which the clock went on.
///
/// # Errors
///
/// [`PeriodError`] for parameters that are unknown, contradict each other, name times that don't
/// exist or give edges that are not on a quarter of an hour.
pub fn resolve(query: &PeriodQuery<'_>, now: Timestamp) -> Result<Resolved, PeriodError> {
    let zone = query.tz.map_or_else(|| Ok(Zone::default()), parse_zone)?;
    let compared = match query.compare {
        None => false,
        Some("previous") => true,
        Some(other) => return Err(PeriodError::UnknownCompare(other.to_owned())),
    };
    let period = period_of(query)?;
    let now = full_second(now);

    let (range, step) = match period {
        PeriodName::All => (Range::ALL, None),
        PeriodName::Custom => custom(query, &zone)?,
        _ => named(query, period, &zone, now)?,
    };
    let running = range.contains(now);
    let previous = match (compared, step, range.from) {
        (true, Some(step), Some(from)) => {
            let before = step.before(&zone, from, running.then_some(now))?;
            on_quarters(PREVIOUS_EDGES, &zone, before)?;
            Some(before)
        }
        _ => None,
    };
    Ok(Resolved {
        zone,
        period,
        range,
        previous,
        running,
    })
}

/// A plus that came through a URL as a space (`Etc/GMT+5`) is taken as the plus it was.
fn parse_zone(name: &str) -> Result<Zone, ZoneError> {
    Zone::parse(name).or_else(|unknown| Zone::parse(&name.replace(' ', "+")).map_err(|_| unknown))
}

fn period_of(query: &PeriodQuery<'_>) -> Result<PeriodName, PeriodError> {
    let edges = query.from.is_some() || query.to.is_some();
    let period = match query.period {
        Some(name) => name.parse()?,
        None if edges => PeriodName::Custom,
        None => PeriodName::All,
    };
    match period {
        PeriodName::Custom if !edges => Err(PeriodError::NoEdges),
        PeriodName::Custom | PeriodName::All if query.date.is_some() => {
            Err(PeriodError::DateBeside(period))
        }
        PeriodName::Custom => Ok(period),
        _ if edges => Err(PeriodError::EdgesBeside(period)),
        _ => Ok(period),
    }
}

/// The second that holds the instant: also before 1970 the one that began before it.
fn full_second(now: Timestamp) -> Seconds {
    now.as_second() - Seconds::from(now.subsec_nanosecond() < 0)
}

/// The range of a period with a name, and its step.
fn named(
    query: &PeriodQuery<'_>,
    period: PeriodName,
    zone: &Zone,
    now: Seconds,
) -> Result<(Range, Option<Step>), PeriodError> {
    let anchor = match query.date {
        None => zone.date_of(now)?,
        Some(text) => moment::parse_date(text).map_err(|flaw| match flaw {
            Flaw::Day => PeriodError::NoSuchTime {
                parameter: "date",
                given: text.to_owned(),
            },
            _ => PeriodError::NotADate(text.to_owned()),
        })?,
    };
    let beyond = |_| ZoneError::OutOfRange(format!("the {period} that holds {anchor}"));
    let (first, length) = match period {
        PeriodName::SevenDays => (anchor.checked_sub(6.days()).map_err(beyond)?, 7.days()),
        PeriodName::ThirtyDays => (anchor.checked_sub(29.days()).map_err(beyond)?, 30.days()),
        PeriodName::Month => (anchor.first_of_month(), 1.month()),
        PeriodName::Year => (anchor.first_of_year(), 1.year()),
        PeriodName::Today | PeriodName::All | PeriodName::Custom => (anchor, 1.day()),
    };
    let after = first.checked_add(length).map_err(beyond)?;
    let (from, to) = (zone.first_instant(first)?, zone.first_instant(after)?);
    if from == to {
        return Err(PeriodError::SkippedDay {
            date: anchor,
            zone: zone.name().to_owned(),
        });
    }
    let range = Range::new(from, to);
    on_quarters(NAMED_EDGES, zone, range)?;
    Ok((range, Some(Step::Calendar { first, length })))
}

/// The range of `from` and `to`, and its step if it has both edges.
fn custom(query: &PeriodQuery<'_>, zone: &Zone) -> Result<(Range, Option<Step>), PeriodError> {
    let from = query
        .from
        .map(|text| parse_edge("from", text))
        .transpose()?;
    let to = query.to.map(|text| parse_edge("to", text)).transpose()?;
    let range = Range {
        from: from.map(|edge| instant_of(edge, zone)).transpose()?,
        to: to.map(|edge| instant_of(edge, zone)).transpose()?,
    };
    on_quarters(CUSTOM_EDGES, zone, range)?;
    let (Some(begin), Some(end)) = (range.from, range.to) else {
        return Ok((range, None));
    };
    if begin >= end {
        return Err(PeriodError::NotBefore {
            from: shown(begin),
            to: shown(end),
        });
    }
    let step = match (from, to) {
        (Some(Moment::Date(first)), Some(Moment::Date(after))) => {
            let days = first.duration_until(after).as_hours() / 24;
            Step::Calendar {
                first,
                length: days.days(),
            }
        }
        _ => Step::Exact(end - begin),
    };
    Ok((range, Some(step)))
}

fn parse_edge(parameter: &'static str, text: &str) -> Result<Moment, PeriodError> {
    let given = text.to_owned();
    moment::parse(text).map_err(|flaw| match flaw {
        Flaw::Shape => PeriodError::NotAMoment { parameter, given },
        Flaw::Day | Flaw::Time => PeriodError::NoSuchTime { parameter, given },
        Flaw::OffQuarter(at) => PeriodError::OffQuarter {
            parameter,
            given,
            at,
        },
    })
}

fn instant_of(moment: Moment, zone: &Zone) -> Result<Seconds, ZoneError> {
    match moment {
        Moment::Date(date) => zone.first_instant(date),
        Moment::Instant(seconds) => Ok(seconds),
    }
}

/// What messages call the two edges of a range.
type Edges = [&'static str; 2];
const CUSTOM_EDGES: Edges = ["from", "to"];
const NAMED_EDGES: Edges = ["the start of the period", "the end of the period"];
const PREVIOUS_EDGES: Edges = [
    "the start of the period before",
    "the end of the period before",
];

fn on_quarters(edges: Edges, zone: &Zone, range: Range) -> Result<(), PeriodError> {
    let off = |at: &Seconds| !Width::Quarter.is_aligned(*at);
    for (edge, at) in edges.into_iter().zip([range.from, range.to]) {
        if let Some(at) = at.filter(off) {
            let zone = zone.name().to_owned();
            return Err(PeriodError::OddOffset {
                edge,
                at: shown(at),
                zone,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "period_tests.rs"]
mod tests;
