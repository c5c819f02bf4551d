//! Periods and intervals, computed from calendar dates: the recount's own implementation of the
//! rules.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};
use rand::Rng;
use rand::rngs::StdRng;

use crate::client::Parameters;

const QUARTER_HOUR_SECONDS: i64 = 900;

/// A period of time, in seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) parameters: Parameters,
    /// The first second, if the period has a start.
    pub(crate) start_s: Option<i64>,
    /// The first second after the period, if it has an end.
    pub(crate) end_s: Option<i64>,
    /// The first second of the previous period, which ends where this one starts.
    pub(crate) previous_start_s: Option<i64>,
}

/// Returns the first second of a local day.
fn start_of_day(date: Date, zone: &TimeZone) -> anyhow::Result<i64> {
    let day = date.to_zoned(zone.clone())?.start_of_day()?;
    Ok(day.timestamp().as_second())
}

impl Period {
    /// All time.
    pub(crate) fn all() -> Self {
        Self {
            parameters: vec![("period", "all".to_owned())],
            start_s: None,
            end_s: None,
            previous_start_s: None,
        }
    }

    /// A named period relative to a day.
    pub(crate) fn from_name(name: &str, date: Date, zone: &TimeZone) -> anyhow::Result<Self> {
        let parameters = vec![("period", name.to_owned()), ("date", date.to_string())];
        let (first, length) = match name {
            "today" => (date, 1.day()),
            "7d" => (date.checked_sub(6.days())?, 7.days()),
            "30d" => (date.checked_sub(29.days())?, 30.days()),
            "month" => (date.first_of_month(), 1.month()),
            _ => (date.first_of_year(), 1.year()),
        };
        Self::from_days(parameters, first, length, zone)
    }

    /// A period of whole local days.
    pub(crate) fn from_days(
        parameters: Parameters,
        first: Date,
        length: Span,
        zone: &TimeZone,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            parameters,
            start_s: Some(start_of_day(first, zone)?),
            end_s: Some(start_of_day(first.checked_add(length)?, zone)?),
            previous_start_s: Some(start_of_day(first.checked_sub(length)?, zone)?),
        })
    }

    /// A random period around an instant.
    pub(crate) fn random(time_s: i64, zone: &TimeZone, rng: &mut StdRng) -> anyhow::Result<Self> {
        let date = Timestamp::from_second(time_s)?
            .to_zoned(zone.clone())
            .date();
        let quarter = time_s.div_euclid(QUARTER_HOUR_SECONDS) * QUARTER_HOUR_SECONDS;
        let format_time = |time_s| Timestamp::from_second(time_s).map(|time| time.to_string());
        Ok(match rng.random_range(0..11) {
            kind @ 0..5 => {
                let names = ["today", "7d", "30d", "month", "year"];
                Self::from_name(names[kind], date, zone)?
            }
            5 | 6 => Self::all(),
            7 => {
                let first = date.checked_sub(rng.random_range(0..4_i64).days())?;
                let last = date.checked_add(rng.random_range(1..3_i64).days())?;
                let parameters = vec![("from", first.to_string()), ("to", last.to_string())];
                Self::from_days(parameters, first, first.until(last)?, zone)?
            }
            8 => {
                let start = quarter - rng.random_range(0..300) * QUARTER_HOUR_SECONDS;
                let end = quarter + rng.random_range(1..30) * QUARTER_HOUR_SECONDS;
                let custom = ("period", "custom".to_owned());
                Self {
                    parameters: vec![
                        custom,
                        ("from", format_time(start)?),
                        ("to", format_time(end)?),
                    ],
                    start_s: Some(start),
                    end_s: Some(end),
                    previous_start_s: Some(start - (end - start)),
                }
            }
            9 => Self {
                parameters: vec![("from", date.to_string())],
                start_s: Some(start_of_day(date, zone)?),
                ..Self::all()
            },
            _ => Self {
                parameters: vec![("to", format_time(quarter)?)],
                end_s: Some(quarter),
                ..Self::all()
            },
        })
    }

    pub(crate) fn contains(&self, time_s: i64) -> bool {
        self.start_s.is_none_or(|start| start <= time_s)
            && self.end_s.is_none_or(|end| time_s < end)
    }

    /// Returns whether the previous period contains the second.
    pub(crate) fn previous_contains(&self, time_s: i64) -> bool {
        self.previous_start_s.is_some_and(|start| start <= time_s)
            && self.start_s.is_some_and(|end| time_s < end)
    }

    /// Lists the starts of the points of a series, for a period with start and end.
    pub(crate) fn list_points(&self, interval: &str, zone: &TimeZone) -> anyhow::Result<Vec<i64>> {
        let mut points = Vec::new();
        let mut time_s = self.start_s.unwrap_or(i64::MAX);
        while self.end_s.is_some_and(|end| time_s < end) {
            points.push(time_s);
            time_s = find_next_point(interval, time_s, zone)?;
        }
        Ok(points)
    }
}

/// Finds the first second after `time_s` at which an interval starts.
fn find_next_point(interval: &str, time_s: i64, zone: &TimeZone) -> anyhow::Result<i64> {
    let local = Timestamp::from_second(time_s)?.to_zoned(zone.clone());
    let date = local.date();
    let next = match interval {
        "hour" => {
            let seconds_past = i64::from(local.minute()) * 60 + i64::from(local.second());
            return Ok(time_s - seconds_past + 3_600);
        }
        "day" => date.tomorrow()?,
        "week" => {
            let since_monday = date.weekday().to_monday_zero_offset();
            date.checked_add((7 - since_monday).days())?
        }
        _ => date.first_of_month().checked_add(1.month())?,
    };
    start_of_day(next, zone)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn parse_time(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn periods_follow_the_time_zone() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let (short, long) = (date(2026, 3, 29), date(2026, 3, 31));
        let cases = [
            (
                "today",
                short,
                "2026-03-27T23",
                "2026-03-28T23",
                "2026-03-29T22",
            ),
            (
                "7d",
                date(2026, 11, 21),
                "2026-11-07T23",
                "2026-11-14T23",
                "2026-11-21T23",
            ),
            (
                "month",
                long,
                "2026-01-31T23",
                "2026-02-28T23",
                "2026-03-31T22",
            ),
            (
                "year",
                long,
                "2024-12-31T23",
                "2025-12-31T23",
                "2026-12-31T23",
            ),
        ];
        for (name, date, before, from, to) in cases {
            let period = Period::from_name(name, date, &zone).unwrap();
            let found = [period.previous_start_s, period.start_s, period.end_s];
            let expected =
                [before, from, to].map(|hour| Some(parse_time(&format!("{hour}:00:00Z"))));
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn first_point_starts_with_the_period() {
        let zone = TimeZone::get("Asia/Kathmandu").unwrap();
        let points = |interval: &str, from: &str, to: &str| {
            let period = Period {
                start_s: Some(parse_time(from)),
                end_s: Some(parse_time(to)),
                ..Period::all()
            };
            period.list_points(interval, &zone).unwrap()
        };
        assert_eq!(
            points("hour", "2026-11-21T10:00:00Z", "2026-11-21T11:30:00Z"),
            [
                parse_time("2026-11-21T10:00:00Z"),
                parse_time("2026-11-21T10:15:00Z"),
                parse_time("2026-11-21T11:15:00Z")
            ]
        );
        assert_eq!(
            points("week", "2026-11-21T00:00:00Z", "2026-11-24T00:00:00Z"),
            [
                parse_time("2026-11-21T00:00:00Z"),
                parse_time("2026-11-22T18:15:00Z")
            ]
        );
    }
}
