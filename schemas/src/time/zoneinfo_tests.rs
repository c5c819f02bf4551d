//! Compares days, hours and periods with Python's zoneinfo. The fixtures come from
//! `fixtures/zones.py`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use serde::Deserialize;

use super::*;

const DAY_SECONDS: UnixSeconds = 86_400;
const LAST: Date = Date::constant(2025, 12, 31);

#[derive(Deserialize)]
struct ZoneFacts {
    /// The first instant of the first day, of 2010.
    first: UnixSeconds,
    /// The days that are not 24 hours long, with their length.
    unusual: Vec<(String, UnixSeconds)>,
    /// Ranges of time, each with the starts of its hours.
    hours: Vec<(UnixSeconds, UnixSeconds, Vec<UnixSeconds>)>,
    /// Name, day, from, to, and from and to of the previous period.
    periods: Vec<(
        String,
        String,
        UnixSeconds,
        UnixSeconds,
        UnixSeconds,
        UnixSeconds,
    )>,
}

fn read_facts() -> BTreeMap<String, ZoneFacts> {
    serde_json::from_str(include_str!("fixtures/zones.json")).expect("the fixture")
}

/// Returns the first instants of all days, and of the day after the last.
fn days(facts: &ZoneFacts) -> BTreeMap<Date, UnixSeconds> {
    let unusual = facts.unusual.iter();
    let unusual: BTreeMap<Date, UnixSeconds> = unusual
        .map(|(date, seconds)| (date.parse().expect("a date"), *seconds))
        .collect();
    let mut days = BTreeMap::new();
    let (mut date, mut start) = (Date::constant(2010, 1, 1), facts.first);
    while date <= LAST {
        days.insert(date, start);
        start += unusual.get(&date).copied().unwrap_or(DAY_SECONDS);
        date = date.tomorrow().expect("a day");
    }
    days.insert(date, start);
    days
}

#[test]
fn days_agree_with_zoneinfo() {
    for (name, facts) in read_facts() {
        let zone = Zone::parse(&name).expect("a zone");
        for (date, start) in days(&facts) {
            assert_eq!(zone.day_start(date), Ok(start), "{name} {date}");
        }
    }
}

#[test]
fn points_agree_with_zoneinfo() {
    for (name, facts) in read_facts() {
        let zone = Zone::parse(&name).expect("a zone");
        let days = days(&facts);
        let (from, to) = (facts.first, *days.values().last().expect("days"));
        let starts = |is_selected: fn(&Date) -> bool| {
            // A day that was skipped is no point.
            let selected = days
                .iter()
                .filter(|(date, _)| is_selected(date) && **date <= LAST);
            let mut starts: Vec<UnixSeconds> = selected.map(|(_, start)| *start).collect();
            starts.dedup();
            starts.retain(|start| *start > from);
            starts.insert(0, from);
            starts
        };
        let monday = |date: &Date| date.weekday() == jiff::civil::Weekday::Monday;
        for (interval, expected) in [
            (Interval::Day, starts(|_| true)),
            (Interval::Week, starts(monday)),
            (Interval::Month, starts(|date| date.day() == 1)),
        ] {
            let points = compute_points(&zone, interval, from, to).expect("points");
            assert_eq!(points.starts(), expected, "{name} by {interval}");
        }
        for (from, to, expected) in &facts.hours {
            let points = compute_points(&zone, Interval::Hour, *from, *to).expect("points");
            assert_eq!(points.starts(), expected, "{name} by hour from {from}");
        }
    }
}

#[test]
fn periods_agree_with_zoneinfo() {
    let now: Timestamp = "2026-11-01T12:00:00Z".parse().expect("an instant");
    for (name, facts) in read_facts() {
        for (period, date, from, to, before_from, before_to) in &facts.periods {
            let query = PeriodQuery {
                period: Some(period),
                date: Some(date),
                tz: Some(&name),
                compare: Some("previous"),
                ..PeriodQuery::default()
            };
            let resolved = resolve(&query, now).expect("a period");
            let case = format!("{name} {period} {date}");
            assert_eq!(resolved.range, TimeRange::new(*from, *to), "{case}");
            let before = TimeRange::new(*before_from, *before_to);
            assert_eq!(resolved.previous, Some(before), "{case}: the one before");
            assert!(!resolved.is_running, "{case}");
        }
    }
}
