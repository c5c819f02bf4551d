//! What periods and intervals mean, worked out with calendar dates only: the recount's own
//! reading of the rules.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

/// A stretch of time in seconds since the Unix epoch, half-open; an absent side is unbounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: Option<i64>,
    pub(super) to: Option<i64>,
}

impl Range {
    pub(super) fn holds(self, at: i64) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at < to)
    }
}

/// A period as it can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Period {
    All,
    Day(Date),
    Days7(Date),
    Days30(Date),
    Month(Date),
    Year(Date),
    /// From a date to a date.
    Dates(Date, Date),
    /// From an instant to an instant.
    Instants(i64, i64),
    /// From a date on.
    Since(Date),
    /// Until an instant.
    Until(i64),
}

/// How wide the points of a series are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interval {
    Hour,
    Day,
    Week,
    Month,
}

/// The first instant of a local day.
fn begin(date: Date, zone: &TimeZone) -> anyhow::Result<i64> {
    let day = date.to_zoned(zone.clone())?.start_of_day()?;
    Ok(day.timestamp().as_second())
}

impl Period {
    /// The stretch that it means.
    pub(super) fn range(self, zone: &TimeZone) -> anyhow::Result<Range> {
        let days = |first: Date, length: Span| {
            anyhow::Ok(Range {
                from: Some(begin(first, zone)?),
                to: Some(begin(first.checked_add(length)?, zone)?),
            })
        };
        match self.days() {
            Some((first, length)) => days(first?, length),
            None => Ok(match self {
                Self::Instants(from, to) => Range {
                    from: Some(from),
                    to: Some(to),
                },
                Self::Since(date) => Range {
                    from: Some(begin(date, zone)?),
                    to: None,
                },
                Self::Until(to) => Range {
                    from: None,
                    to: Some(to),
                },
                _ => Range {
                    from: None,
                    to: None,
                },
            }),
        }
    }

    /// The stretch before, as long and ending where this one begins; for one that is over.
    pub(super) fn before(self, zone: &TimeZone) -> anyhow::Result<Option<Range>> {
        let range = self.range(zone)?;
        let from = match (self.days(), self) {
            (Some((first, length)), _) => begin(first?.checked_sub(length)?, zone)?,
            (None, Self::Instants(from, to)) => from - (to - from),
            (None, _) => return Ok(None),
        };
        Ok(Some(Range {
            from: Some(from),
            to: range.from,
        }))
    }

    /// The first local day and the length, of a period that is made of days.
    fn days(self) -> Option<(Result<Date, jiff::Error>, Span)> {
        Some(match self {
            Self::Day(date) => (Ok(date), 1.day()),
            Self::Days7(date) => (date.checked_sub(6.days()), 7.days()),
            Self::Days30(date) => (date.checked_sub(29.days()), 30.days()),
            Self::Month(date) => (Ok(date.first_of_month()), 1.month()),
            Self::Year(date) => (Ok(date.first_of_year()), 1.year()),
            Self::Dates(from, to) => (Ok(from), from.until(to).unwrap_or_default()),
            _ => return None,
        })
    }
}

impl Interval {
    /// Where the points of a series over the range begin.
    pub(super) fn points(self, zone: &TimeZone, from: i64, to: i64) -> anyhow::Result<Vec<i64>> {
        let mut points = Vec::new();
        let mut at = from;
        while at < to {
            points.push(at);
            at = self.next(zone, at)?;
        }
        Ok(points)
    }

    /// The first instant after `at` at which a bucket begins.
    fn next(self, zone: &TimeZone, at: i64) -> anyhow::Result<i64> {
        let local = Timestamp::from_second(at)?.to_zoned(zone.clone());
        let date = local.date();
        match self {
            Self::Hour => {
                let past = i64::from(local.minute()) * 60 + i64::from(local.second());
                Ok(at - past + 3_600)
            }
            Self::Day => begin(date.tomorrow()?, zone),
            Self::Week => {
                let since_monday = date.weekday().to_monday_zero_offset();
                begin(date.checked_add((7 - since_monday).days())?, zone)
            }
            Self::Month => begin(date.first_of_month().checked_add(1.month())?, zone),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn periods_are_local() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let range = |period: Period| period.range(&berlin).unwrap();
        let closed = |from: &str, to: &str| Range {
            from: Some(at(from)),
            to: Some(at(to)),
        };
        assert_eq!(
            range(Period::Day(date(2026, 3, 29))),
            closed("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")
        );
        assert_eq!(
            range(Period::Days7(date(2026, 11, 21))),
            closed("2026-11-14T23:00:00Z", "2026-11-21T23:00:00Z")
        );
        assert_eq!(
            range(Period::Month(date(2026, 11, 21))),
            closed("2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z")
        );
        assert_eq!(
            Period::Month(date(2026, 3, 31)).before(&berlin).unwrap(),
            Some(closed("2026-01-31T23:00:00Z", "2026-02-28T23:00:00Z"))
        );
        assert_eq!(
            Period::Dates(date(2026, 11, 3), date(2026, 11, 5))
                .before(&berlin)
                .unwrap(),
            Some(closed("2026-10-31T23:00:00Z", "2026-11-02T23:00:00Z"))
        );
    }

    #[test]
    fn points_are_cut_to_the_range() {
        let zone = TimeZone::get("Asia/Kathmandu").unwrap();
        let points = |interval: Interval, from: &str, to: &str| {
            interval.points(&zone, at(from), at(to)).unwrap()
        };
        assert_eq!(
            points(
                Interval::Hour,
                "2026-11-21T10:00:00Z",
                "2026-11-21T11:30:00Z"
            ),
            [
                at("2026-11-21T10:00:00Z"),
                at("2026-11-21T10:15:00Z"),
                at("2026-11-21T11:15:00Z")
            ]
        );
        assert_eq!(
            points(
                Interval::Week,
                "2026-11-21T00:00:00Z",
                "2026-11-24T00:00:00Z"
            ),
            [at("2026-11-21T00:00:00Z"), at("2026-11-22T18:15:00Z")]
        );
    }
}
