//! Tests of plans for the built-in views, compared as text.

use std::fmt::Write as _;

use jiff::Timestamp;
use jobs::Catalog;
use schemas::time::{Interval, Zone};

use super::*;
use crate::stats_query::OpenSeries;

fn plays() -> Metric {
    Metric::from_catalog(&Catalog::built_in().unwrap())
        .remove("plays")
        .unwrap()
}

fn parse_time(text: &str) -> UnixSeconds {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn parse_range(from: &str, to: &str) -> TimeRange {
    let bound = |text: &str| (!text.is_empty()).then(|| parse_time(text));
    TimeRange {
        from: bound(from),
        to: bound(to),
    }
}

fn stats_query(filters: &[(&str, KeyValue)], by: Option<&str>, time: RequestedTime) -> StatsQuery {
    StatsQuery {
        filters: filters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        by: by.map(str::to_owned),
        distinct: None,
        explains: false,
        prefer: Prefer::Newest,
        time,
    }
}

fn over(range: TimeRange) -> RequestedTime {
    RequestedTime::Segments(TimeSegments::new(vec![range]))
}

fn format_bound(time: Option<UnixSeconds>) -> String {
    time.map_or("..".to_owned(), |time| {
        Timestamp::from_second(time)
            .unwrap()
            .strftime("%m-%dT%H:%M")
            .to_string()
    })
}

fn write_scan(text: &mut String, label: &str, scan: &ViewScan) {
    write!(text, "{label} {} {:?}", scan.job.name(), scan.group).unwrap();
    if let Some(calendar) = scan.calendar {
        write!(text, " by helper {calendar}").unwrap();
    }
    for span in &scan.spans {
        write!(
            text,
            " [{} {}]",
            format_bound(span.from),
            format_bound(span.to)
        )
        .unwrap();
    }
    text.push('\n');
}

/// The layout of a query as text, for `groups` in the index.
fn describe_layout(query: &StatsQuery, groups: &[i64]) -> String {
    let mut plan = Plan::new(&plays(), query, &BTreeSet::new()).unwrap();
    let groups = groups.iter().map(|n| vec![KeyValue::Int(*n)]).collect();
    let layout = plan.build_layout(query, &groups).unwrap();
    let mut text = String::new();
    for (index, scan) in layout.helpers.iter().enumerate() {
        let label = match (layout.index == Some(index), layout.probes.contains(&index)) {
            (true, _) => "index",
            (_, true) => "probe",
            _ => "calendar",
        };
        write_scan(&mut text, label, scan);
    }
    for scan in &layout.scans {
        write_scan(&mut text, "read", scan);
    }
    text
}

#[track_caller]
fn check(query: &StatsQuery, groups: &[i64], expected: &[&str]) {
    let description = describe_layout(query, groups);
    assert_eq!(
        description.lines().collect::<Vec<_>>(),
        expected,
        "
{description}"
    );
}

const OWNER: (&str, KeyValue) = ("owner_id", KeyValue::Int(7));
const TRACK: (&str, KeyValue) = ("track_id", KeyValue::Int(5));

fn country() -> (&'static str, KeyValue) {
    ("country", KeyValue::Text("DE".to_owned()))
}

#[test]
fn all_time_of_an_owner_is_one_bucket() {
    check(
        &stats_query(&[OWNER], None, over(TimeRange::ALL)),
        &[],
        &["read plays_owner_all [Int(7)] [.. ..]"],
    );
}

#[test]
fn a_range_uses_the_coarsest_buckets() {
    let range = parse_range("2026-01-30T22:45:00Z", "2026-04-02T01:30:00Z");
    check(
        &stats_query(&[OWNER], Some("kind"), over(range)),
        &[],
        &[
            "read plays_owner_quarter [Int(7)] [01-30T22:45 01-30T23:00] [04-02T01:00 04-02T01:30]",
            "read plays_owner_hour [Int(7)] [01-30T23:00 01-31T00:00] [04-02T00:00 04-02T01:00]",
            "read plays_owner_day [Int(7)] [01-31T00:00 02-01T00:00] [04-01T00:00 04-02T00:00]",
            "read plays_owner_month [Int(7)] [02-01T00:00 04-01T00:00]",
        ],
    );
}

#[test]
fn a_filter_selects_the_roll_up_with_its_column() {
    let two_days = parse_range("2026-01-30T00:00:00Z", "2026-02-01T02:00:00Z");
    check(
        &stats_query(&[OWNER, country()], None, over(two_days)),
        &[],
        &[
            "read plays_detail [Int(7)] [02-01T00:00 02-01T02:00]",
            "read plays_owner_day_country_app [Int(7)] [01-30T00:00 02-01T00:00]",
        ],
    );
    let year = parse_range("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z");
    check(
        &stats_query(&[OWNER], Some("track_id"), over(year)),
        &[],
        &["read plays_owner_month_track [Int(7)] [01-01T00:00 01-01T00:00]"],
    );
    // No roll-up has both columns.
    let referrer = ("referrer", KeyValue::Text(String::new()));
    check(
        &stats_query(&[OWNER, country(), referrer], None, over(two_days)),
        &[],
        &["read plays_detail [Int(7)] [01-30T00:00 02-01T02:00]"],
    );
}

#[test]
fn distinct_listeners_are_read_from_cells() {
    let month = parse_range("2026-01-01T00:00:00Z", "2026-02-01T02:00:00Z");
    let listeners = |filters: &[(&str, KeyValue)]| StatsQuery {
        distinct: Some("listener_id".to_owned()),
        ..stats_query(filters, None, over(month))
    };
    check(
        &listeners(&[OWNER]),
        &[],
        &[
            "read plays_detail [Int(7)] [02-01T00:00 02-01T02:00]",
            "read plays_owner_month_uniques [Int(7)] [01-01T00:00 02-01T00:00]",
        ],
    );
    check(
        &listeners(&[TRACK]),
        &[3],
        &[
            "index plays_track_all [Int(5)] [.. ..]",
            "read plays_track_month_uniques [Int(5)] [01-01T00:00 02-01T00:00]",
            "read plays_detail [Int(3)] [02-01T00:00 02-01T02:00]",
        ],
    );
    let days = StatsQuery {
        time: over(parse_range("2026-01-01T00:00:00Z", "2026-01-09T00:00:00Z")),
        ..listeners(&[TRACK])
    };
    check(
        &days,
        &[],
        &["read plays_track_day_uniques [Int(5)] [01-01T00:00 01-09T00:00]"],
    );
    check(
        &listeners(&[OWNER, country()]),
        &[],
        &["read plays_detail [Int(7)] [01-01T00:00 02-01T02:00]"],
    );
}

#[test]
fn live_counts_are_read_from_views_of_events() {
    let year = parse_range("2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z");
    let realtime = StatsQuery {
        prefer: Prefer::Realtime,
        ..stats_query(&[OWNER], None, over(year))
    };
    let read = "read plays_detail [Int(7)] [01-01T00:00 03-01T00:00]";
    check(&realtime, &[], &[read]);
}

#[test]
fn long_ranges_of_the_detail_view_use_the_calendar() {
    let filters = [
        OWNER,
        country(),
        ("referrer", KeyValue::Text(String::new())),
    ];
    let long = parse_range("2026-01-01T00:15:00Z", "2026-12-31T00:00:00Z");
    check(
        &stats_query(&filters, None, over(long)),
        &[],
        &[
            "calendar plays_owner_day [Int(7)] [01-01T00:00 12-31T00:00]",
            "read plays_detail [Int(7)] by helper 0 [01-01T00:15 12-31T00:00]",
        ],
    );
    check(
        &stats_query(&filters, Some("track_id"), over(TimeRange::ALL)),
        &[],
        &[
            "calendar plays_owner_day [Int(7)] [.. ..]",
            "read plays_detail [Int(7)] by helper 0 [.. ..]",
        ],
    );
}

#[test]
fn a_track_filter_selects_views_by_track() {
    check(
        &stats_query(
            &[TRACK],
            Some("owner_id"),
            over(parse_range("2026-01-31T22:45:00Z", "2026-02-01T01:00:00Z")),
        ),
        &[3],
        &[
            "read plays_track_quarter [Int(5)] [01-31T22:45 01-31T23:00]",
            "read plays_track_hour [Int(5)] [01-31T23:00 02-01T01:00]",
        ],
    );
    check(
        &stats_query(&[TRACK, country()], None, over(TimeRange::ALL)),
        &[],
        &[
            "calendar plays_track_month [Int(5)] [.. ..]",
            "read plays_track_day_country_app [Int(5)] by helper 0 [.. ..]",
        ],
    );
}

#[test]
fn a_track_with_detail_filters_is_fanned_out_over_its_owners() {
    let referrer = ("referrer", KeyValue::Text(String::new()));
    let query = stats_query(&[TRACK, country(), referrer], None, over(TimeRange::ALL));
    check(&query, &[], &["index plays_track_all [Int(5)] [.. ..]"]);
    check(
        &query,
        &[3],
        &[
            "index plays_track_all [Int(5)] [.. ..]",
            "calendar plays_owner_day [Int(3)] [.. ..]",
            "read plays_detail [Int(3)] by helper 1 [.. ..]",
        ],
    );
}

#[test]
fn owner_and_track_filters_select_views_by_track() {
    check(
        &stats_query(
            &[OWNER, TRACK],
            None,
            over(parse_range("2026-01-31T22:45:00Z", "2026-02-02T00:00:00Z")),
        ),
        &[],
        &[
            "read plays_track_quarter [Int(5)] [01-31T22:45 01-31T23:00]",
            "read plays_track_hour [Int(5)] [01-31T23:00 02-01T00:00]",
            "read plays_track_day [Int(5)] [02-01T00:00 02-02T00:00]",
        ],
    );
}

#[test]
fn adjacent_points_are_read_as_one_span() {
    let zone = Zone::parse("Europe/Berlin").unwrap();
    let (from, to) = (
        parse_time("2026-03-27T23:00:00Z"),
        parse_time("2026-03-30T22:00:00Z"),
    );
    let points = schemas::time::compute_points(&zone, Interval::Day, from, to).unwrap();
    check(
        &stats_query(
            &[OWNER],
            None,
            RequestedTime::Segments(TimeSegments::from_points(&points)),
        ),
        &[],
        &["read plays_owner_hour [Int(7)] [03-27T23:00 03-30T22:00]"],
    );
}

#[test]
fn an_open_series_is_probed_and_then_closed() {
    let open = OpenSeries {
        zone: Zone::parse("Asia/Kolkata").unwrap(),
        interval: Interval::Day,
        range: TimeRange::ALL,
    };
    let owner = stats_query(&[OWNER], None, RequestedTime::Open(open.clone()));
    check(
        &owner,
        &[],
        &[
            "calendar plays_owner_month [Int(7)] [.. ..]",
            "probe plays_owner_day [Int(7)] [.. ..]",
            "read plays_owner_quarter [Int(7)] by helper 0 [.. ..]",
            "read plays_owner_hour [Int(7)] by helper 0 [.. ..]",
            "read plays_owner_day [Int(7)] [.. ..]",
            "read plays_owner_month [Int(7)] [.. ..]",
        ],
    );
    let mut plan = Plan::new(&plays(), &owner, &BTreeSet::new()).unwrap();
    let mut layout = plan.build_layout(&owner, &BTreeSet::new()).unwrap();
    let day = (
        parse_time("2026-07-01T00:00:00Z"),
        parse_time("2026-07-01T23:59:59Z"),
    );
    let segments = open.close(Some(day)).unwrap();
    assert_eq!(plan.close_series(&mut layout, &segments), Ok(true));
    let spans: Vec<usize> = layout.scans.iter().map(|scan| scan.spans.len()).collect();
    // Days begin at half past: half an hour, hours, half an hour, and the adjacent half hour of the
    // next day.
    assert_eq!(spans, [3, 2, 0, 0]);

    let referrer = ("referrer", KeyValue::Text(String::new()));
    let track = stats_query(&[TRACK, referrer], None, RequestedTime::Open(open));
    let mut plan = Plan::new(&plays(), &track, &BTreeSet::new()).unwrap();
    let mut layout = plan.build_layout(&track, &BTreeSet::new()).unwrap();
    assert_eq!(layout.index, None);
    assert_eq!(plan.close_series(&mut layout, &segments), Ok(false));
    assert!(
        plan.build_layout(&track, &BTreeSet::new())
            .unwrap()
            .index
            .is_some()
    );
}

#[test]
fn excluded_views_are_not_used() {
    let query = stats_query(&[OWNER], None, over(TimeRange::ALL));
    let all_time_view = plays()
        .views
        .iter()
        .find(|job| job.name() == "plays_owner_all")
        .unwrap()
        .view()
        .to_owned();
    let mut plan = Plan::new(&plays(), &query, &BTreeSet::from([all_time_view])).unwrap();
    let layout = plan.build_layout(&query, &BTreeSet::new()).unwrap();
    assert_eq!(layout.scans.len(), 1);
    assert_eq!(layout.scans[0].job.name(), "plays_owner_month");
}

#[test]
fn a_question_without_group_columns_is_rejected() {
    let kind = || ("kind", KeyValue::Text("play".to_owned()));
    let error = |query: &StatsQuery| {
        let plan = Plan::new(&plays(), query, &BTreeSet::new());
        plan.unwrap_err().to_string()
    };
    let query_all_time = |filters: &[_], by| stats_query(filters, by, over(TimeRange::ALL));
    let any_group = "a filter on kind or owner_id or track_id is required: add it";
    let owner_or_track = "a filter on owner_id or track_id is required: add it";
    assert_eq!(error(&query_all_time(&[], None)), any_group);
    assert_eq!(error(&query_all_time(&[country()], None)), owner_or_track);
    assert_eq!(
        error(&query_all_time(&[kind(), country()], None)),
        owner_or_track
    );
    assert_eq!(
        error(&query_all_time(&[kind()], Some("country"))),
        owner_or_track
    );
    let mut live = query_all_time(&[kind()], None);
    live.prefer = Prefer::Realtime;
    assert_eq!(error(&live), owner_or_track);
    let mut distinct = query_all_time(&[kind()], None);
    distinct.distinct = Some("listener_id".to_owned());
    assert_eq!(error(&distinct), owner_or_track);
}

#[test]
fn plays_of_all_owners_are_read_by_day_and_by_quarter() {
    let kind = ("kind", KeyValue::Text("play".to_owned()));
    let plays_between = |from, to| {
        stats_query(
            std::slice::from_ref(&kind),
            None,
            over(parse_range(from, to)),
        )
    };
    check(
        &plays_between("2026-03-01T22:15:00Z", "2026-03-04T00:00:00Z"),
        &[],
        &[
            "read plays_kind_quarter [Text(\"play\")] [03-01T22:15 03-02T00:00]",
            "read plays_kind_day [Text(\"play\")] [03-02T00:00 03-04T00:00]",
        ],
    );
}
