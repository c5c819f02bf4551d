//! Tests of points against hand-made edges, and against the local clock of every minute.

use jiff::Timestamp;
use jiff::civil::{ISOWeekDate, Weekday};
use proptest::prelude::*;

use super::*;

fn seconds_at(text: &str) -> UnixSeconds {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn zone(name: &str) -> Zone {
    Zone::parse(name).unwrap()
}

fn edges(name: &str, interval: Interval, from: &str, to: &str) -> Vec<String> {
    let points = compute_points(&zone(name), interval, seconds_at(from), seconds_at(to)).unwrap();
    points
        .edges
        .iter()
        .map(|edge| format_instant_seconds(*edge))
        .collect()
}

fn hours(points: &Points) -> Vec<i64> {
    points
        .spans()
        .map(|(start, end)| (end - start) / 3_600)
        .collect()
}

#[test]
fn days_have_23_to_25_hours_where_clocks_change() {
    for (name, from, to, expected) in [
        (
            "Europe/Berlin",
            "2026-03-27T23:00:00Z",
            "2026-03-30T22:00:00Z",
            vec![24, 23, 24],
        ),
        (
            "Europe/Berlin",
            "2026-10-23T22:00:00Z",
            "2026-10-26T23:00:00Z",
            vec![24, 25, 24],
        ),
        (
            "America/New_York",
            "2026-03-07T05:00:00Z",
            "2026-03-10T04:00:00Z",
            vec![24, 23, 24],
        ),
        (
            "America/New_York",
            "2026-10-31T04:00:00Z",
            "2026-11-03T05:00:00Z",
            vec![24, 25, 24],
        ),
        (
            "Antarctica/Troll",
            "2026-03-28T00:00:00Z",
            "2026-03-30T22:00:00Z",
            vec![24, 22, 24],
        ),
        (
            "America/Sao_Paulo",
            "2018-11-03T03:00:00Z",
            "2018-11-06T02:00:00Z",
            vec![24, 23, 24],
        ),
        // The 30th of December is no point at all.
        (
            "Pacific/Apia",
            "2011-12-28T10:00:00Z",
            "2012-01-01T10:00:00Z",
            vec![24, 24, 24, 24],
        ),
    ] {
        let points =
            compute_points(&zone(name), Interval::Day, seconds_at(from), seconds_at(to)).unwrap();
        assert_eq!(hours(&points), expected, "{name}");
    }
}

#[test]
fn ends_are_clipped_to_the_range() {
    assert_eq!(
        edges(
            "Asia/Kathmandu",
            Interval::Hour,
            "2026-07-01T09:30:00Z",
            "2026-07-01T11:45:00Z"
        ),
        [
            "2026-07-01T09:30:00Z",
            "2026-07-01T10:15:00Z",
            "2026-07-01T11:15:00Z",
            "2026-07-01T11:45:00Z"
        ],
    );
    assert_eq!(
        edges(
            "UTC",
            Interval::Month,
            "2024-01-31T12:00:00Z",
            "2024-03-01T00:15:00Z"
        ),
        [
            "2024-01-31T12:00:00Z",
            "2024-02-01T00:00:00Z",
            "2024-03-01T00:00:00Z",
            "2024-03-01T00:15:00Z"
        ],
    );
    assert_eq!(
        edges(
            "UTC",
            Interval::Day,
            "2024-02-29T12:00:00Z",
            "2024-02-29T12:15:00Z"
        ),
        ["2024-02-29T12:00:00Z", "2024-02-29T12:15:00Z"],
    );
}

#[test]
fn weeks_begin_on_monday() {
    assert_eq!(
        edges(
            "Europe/Berlin",
            Interval::Week,
            "2026-03-25T23:00:00Z",
            "2026-04-05T22:00:00Z"
        ),
        [
            "2026-03-25T23:00:00Z",
            "2026-03-29T22:00:00Z",
            "2026-04-05T22:00:00Z"
        ],
    );
    // Monday the 1st of January 1990, and the Sunday before it.
    let utc = Zone::default();
    let monday = seconds_at("1990-01-01T00:00:00Z");
    assert_eq!(Interval::Week.start(&utc, monday), Ok(monday));
    assert_eq!(
        Interval::Week.start(&utc, monday - 1),
        Ok(monday - 7 * 86_400)
    );
    assert_eq!(Interval::Week.next(&utc, monday - 1), Ok(monday));
}

#[test]
fn a_repeated_hour_is_two_points_and_a_skipped_one_none() {
    assert_eq!(
        edges(
            "Europe/Berlin",
            Interval::Hour,
            "2026-10-24T23:00:00Z",
            "2026-10-25T03:00:00Z"
        )
        .len(),
        5,
    );
    let skipped = edges(
        "Europe/Berlin",
        Interval::Hour,
        "2026-03-29T00:00:00Z",
        "2026-03-29T02:00:00Z",
    );
    assert_eq!(
        skipped,
        [
            "2026-03-29T00:00:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-29T02:00:00Z"
        ]
    );
}

#[test]
fn a_change_by_half_an_hour_ends_a_point() {
    // Back from 02:00 to 01:30 at 15:00 UTC: 01:00-02:00, then 01:30-02:00 once more.
    assert_eq!(
        edges(
            "Australia/Lord_Howe",
            Interval::Hour,
            "2026-04-04T14:00:00Z",
            "2026-04-04T16:30:00Z"
        ),
        [
            "2026-04-04T14:00:00Z",
            "2026-04-04T15:00:00Z",
            "2026-04-04T15:30:00Z",
            "2026-04-04T16:30:00Z"
        ],
    );
    // On from 02:00 to 02:30 at 15:30 UTC: the hour of 02 has half an hour.
    assert_eq!(
        edges(
            "Australia/Lord_Howe",
            Interval::Hour,
            "2026-10-03T14:30:00Z",
            "2026-10-03T17:00:00Z"
        ),
        [
            "2026-10-03T14:30:00Z",
            "2026-10-03T15:30:00Z",
            "2026-10-03T16:00:00Z",
            "2026-10-03T17:00:00Z"
        ],
    );
}

#[test]
fn each_quarter_belongs_to_one_point() {
    let points = compute_points(&Zone::default(), Interval::Hour, 900, 9_000).unwrap();
    assert_eq!(
        (points.len(), points.starts()),
        (3, &[900, 3_600, 7_200][..])
    );
    let spans: Vec<_> = points.spans().collect();
    assert_eq!(spans, [(900, 3_600), (3_600, 7_200), (7_200, 9_000)]);
}

#[test]
fn an_empty_range_has_no_points() {
    for (from, to) in [(900, 900), (900, 0), (i64::MAX, i64::MIN)] {
        let points = compute_points(&Zone::default(), Interval::Day, from, to).unwrap();
        assert!(points.is_empty() && points.starts().is_empty());
        assert_eq!((points.len(), points.spans().count()), (0, 0));
    }
}

#[test]
fn open_sides_are_bounded_by_whole_intervals() {
    let berlin = zone("Europe/Berlin");
    let data = (
        seconds_at("2026-02-10T12:15:00Z"),
        seconds_at("2026-04-30T22:00:00Z"),
    );
    assert_eq!(
        close_range(&berlin, Interval::Month, TimeRange::ALL, data.0, data.1),
        Ok((
            seconds_at("2026-01-31T23:00:00Z"),
            seconds_at("2026-05-31T22:00:00Z")
        )),
    );
    let from = TimeRange {
        from: Some(seconds_at("2026-03-03T03:15:00Z")),
        to: None,
    };
    assert_eq!(
        close_range(&berlin, Interval::Day, from, data.0, data.1),
        Ok((
            seconds_at("2026-03-03T03:15:00Z"),
            seconds_at("2026-05-01T22:00:00Z")
        )),
    );
}

#[test]
fn limits_the_number_of_points() {
    let utc = Zone::default();
    let most = compute_points(&utc, Interval::Hour, 0, 10_000 * 3_600).unwrap();
    assert_eq!(most.len(), POINTS_MAX);
    assert_eq!(
        compute_points(&utc, Interval::Hour, 0, 10_000 * 3_600 + 900),
        Err(SeriesError::TooMany {
            interval: Interval::Hour,
            point_count: 10_001
        }),
    );
    let result = compute_points(
        &utc,
        Interval::Hour,
        seconds_at("0001-01-01T00:00:00Z"),
        seconds_at("9999-12-01T00:00:00Z"),
    );
    assert_eq!(
        result.unwrap_err().to_string(),
        "interval=hour gives about 87648672 points over this range, and a series has at most \
         10000: choose a longer interval or a shorter range",
    );
}

#[test]
fn rejects_edges_between_quarters_and_outside_the_calendar() {
    let monrovia = zone("Africa/Monrovia");
    let (from, to) = (
        seconds_at("1971-06-01T00:00:00Z"),
        seconds_at("1971-06-03T00:00:00Z"),
    );
    assert_eq!(
        compute_points(&monrovia, Interval::Day, from, to)
            .unwrap_err()
            .to_string(),
        "interval=day has an edge at 1971-06-01T00:44:30Z in Africa/Monrovia, which is not on a \
         quarter of an hour in UTC: choose another tz, or a later from",
    );
    let late = seconds_at("9999-12-15T00:00:00Z");
    let beyond = compute_points(&Zone::default(), Interval::Month, late, late + 900);
    assert!(matches!(
        beyond,
        Err(SeriesError::Zone(ZoneError::OutOfRange(_)))
    ));
    for interval in Interval::ALL {
        for (from, to) in [
            (i64::MIN, i64::MAX),
            (i64::MIN, 0),
            (i64::MAX - 900, i64::MAX),
        ] {
            assert!(compute_points(&Zone::default(), interval, from, to).is_err());
        }
    }
}

#[test]
fn interval_names_round_trip() {
    for interval in Interval::ALL {
        assert_eq!(interval.to_string().parse(), Ok(interval));
    }
    assert_eq!(
        "quarter".parse::<Interval>().unwrap_err().to_string(),
        "interval=\"quarter\" is unknown: write hour, day, week or month",
    );
}

/// Returns a label of the interval that contains the instant: two instants with the same label are
/// in the same interval. `day` is the latest date that the clock has shown so far.
fn label(interval: Interval, zone: &Zone, seconds: UnixSeconds, day: Date) -> String {
    match interval {
        Interval::Hour => {
            let past = i64::from(zone.local_time(seconds).unwrap().minute()) * 60;
            let minutes = zone.offset_seconds(seconds).unwrap().rem_euclid(3_600) / 60;
            format!("{} {minutes}", seconds - past)
        }
        Interval::Day => day.to_string(),
        Interval::Week => {
            let week: ISOWeekDate = day.iso_week_date();
            ISOWeekDate::new(week.year(), week.week(), Weekday::Monday)
                .unwrap()
                .date()
                .to_string()
        }
        Interval::Month => day.strftime("%Y-%m").to_string(),
    }
}

/// Finds the starts of the points by reading the local clock at every step.
fn read_starts(
    zone: &Zone,
    interval: Interval,
    from: UnixSeconds,
    to: UnixSeconds,
    step: i64,
) -> Vec<UnixSeconds> {
    let mut day = Date::MIN;
    let mut previous_label = None;
    let mut starts = Vec::new();
    let mut now = from - 2 * 86_400;
    while now < to {
        day = day.max(zone.local_time(now).unwrap().date());
        let current_label = label(interval, zone, now, day);
        if now >= from && (now == from || previous_label.as_ref() != Some(&current_label)) {
            starts.push(now);
        }
        previous_label = Some(current_label);
        now += step;
    }
    starts
}

#[test]
fn points_agree_with_the_local_clock() {
    for (name, around) in [
        ("Europe/Berlin", ["2026-03-29", "2026-10-25"]),
        ("America/New_York", ["2026-03-08", "2026-11-01"]),
        ("Asia/Kathmandu", ["1986-01-01", "2026-07-01"]),
        ("Asia/Kolkata", ["2024-02-29", "2026-07-01"]),
        ("Australia/Lord_Howe", ["2026-04-04", "2026-10-03"]),
        ("Pacific/Apia", ["2011-12-30", "2012-04-01"]),
        ("America/Sao_Paulo", ["2018-02-18", "2018-11-04"]),
        ("Africa/Cairo", ["2026-04-24", "2026-10-30"]),
        ("Antarctica/Troll", ["2026-03-29", "2026-10-25"]),
        ("Asia/Tehran", ["2022-03-22", "2022-09-22"]),
        ("America/St_Johns", ["2010-03-14", "2010-11-07"]),
        ("Asia/Pyongyang", ["2015-08-15", "2018-05-04"]),
        ("America/Caracas", ["2007-12-09", "2016-05-01"]),
        ("Pacific/Kwajalein", ["1993-08-21", "1993-12-31"]),
    ] {
        let zone = zone(name);
        for day in around {
            let noon = seconds_at(&format!("{day}T12:00:00Z"));
            for (interval, reach, step) in [
                (Interval::Hour, 36 * 3_600, 60),
                (Interval::Day, 3 * 86_400, 60),
                (Interval::Week, 20 * 86_400, 900),
                (Interval::Month, 70 * 86_400, 900),
            ] {
                let (from, to) = (noon - reach, noon + reach + 900);
                let series = compute_points(&zone, interval, from, to).unwrap();
                let expected = read_starts(&zone, interval, from, to, step);
                assert_eq!(series.starts(), expected, "{name} {day} {interval}");
            }
        }
    }
}

const ZONES: [&str; 12] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "Africa/Cairo",
    "Antarctica/Troll",
    "Asia/Tehran",
    "America/St_Johns",
    "Pacific/Chatham",
];

proptest! {
    #[test]
    fn points_partition_the_range(
        name in proptest::sample::select(&ZONES),
        interval in proptest::sample::select(&Interval::ALL),
        start in 100_000_i64..2_800_000,
        quarters in 1_i64..20_000,
        probe in 0_i64..20_000,
    ) {
        let zone = zone(name);
        let (from, to) = (start * 900, (start + quarters) * 900);
        let points = compute_points(&zone, interval, from, to).unwrap();
        prop_assert_eq!((points.edges[0], *points.edges.last().unwrap()), (from, to));
        prop_assert!(points.edges.is_sorted_by(|a, b| a < b));
        for edge in &points.edges[1..points.len()] {
            prop_assert_eq!(interval.start(&zone, *edge), Ok(*edge));
            prop_assert!(interval.start(&zone, edge - 1).unwrap() < *edge);
        }
        let probe = from + probe % quarters * 900;
        let containing = points.spans().filter(|(start, end)| (*start..*end).contains(&probe));
        prop_assert_eq!(containing.count(), 1);
        let (begin, next) = (interval.start(&zone, probe).unwrap(), interval.next(&zone, probe).unwrap());
        prop_assert!(begin <= probe && probe < next);
        prop_assert_eq!(interval.next(&zone, begin), Ok(next));
    }
}
