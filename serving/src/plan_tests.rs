//! Tests of plans for the built-in views, compared as text.

use std::fmt::Write as _;

use jiff::Timestamp;
use jobs::Catalog;
use schemas::time::{Interval, Zone};

use super::*;
use crate::question::OpenSeries;

fn plays() -> Metric {
    Metric::from_catalog(&Catalog::built_in().unwrap())
        .remove("plays")
        .unwrap()
}

fn at(text: &str) -> Seconds {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn range(from: &str, to: &str) -> Range {
    let edge = |text: &str| (!text.is_empty()).then(|| at(text));
    Range {
        from: edge(from),
        to: edge(to),
    }
}

fn question(filters: &[(&str, KeyValue)], by: Option<&str>, time: Time) -> Question {
    Question {
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

fn over(range: Range) -> Time {
    Time::Segments(Segments::new(vec![range]))
}

fn edge(at: Option<Seconds>) -> String {
    at.map_or("..".to_owned(), |at| {
        Timestamp::from_second(at)
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
        write!(text, " [{} {}]", edge(span.from), edge(span.to)).unwrap();
    }
    text.push('\n');
}

/// The layout of a question as text, for `groups` in the index.
fn written(question: &Question, groups: &[i64]) -> String {
    let mut plan = Plan::new(&plays(), question, &BTreeSet::new()).unwrap();
    let groups = groups.iter().map(|n| vec![KeyValue::Int(*n)]).collect();
    let layout = plan.build_layout(question, &groups).unwrap();
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
fn check(question: &Question, groups: &[i64], expected: &[&str]) {
    let written = written(question, groups);
    assert_eq!(written.lines().collect::<Vec<_>>(), expected, "\n{written}");
}

const OWNER: (&str, KeyValue) = ("owner_id", KeyValue::Int(7));
const TRACK: (&str, KeyValue) = ("track_id", KeyValue::Int(5));

fn country() -> (&'static str, KeyValue) {
    ("country", KeyValue::Text("DE".to_owned()))
}

#[test]
fn all_time_of_an_owner_is_one_bucket() {
    check(
        &question(&[OWNER], None, over(Range::ALL)),
        &[],
        &["read plays_owner_all [Int(7)] [.. ..]"],
    );
}

#[test]
fn a_range_uses_the_coarsest_buckets() {
    let range = range("2026-01-30T22:45:00Z", "2026-04-02T01:30:00Z");
    check(
        &question(&[OWNER], Some("kind"), over(range)),
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
    let two_days = range("2026-01-30T00:00:00Z", "2026-02-01T02:00:00Z");
    check(
        &question(&[OWNER, country()], None, over(two_days)),
        &[],
        &[
            "read plays_detail [Int(7)] [02-01T00:00 02-01T02:00]",
            "read plays_owner_day_country_app [Int(7)] [01-30T00:00 02-01T00:00]",
        ],
    );
    let year = range("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z");
    check(
        &question(&[OWNER], Some("track_id"), over(year)),
        &[],
        &["read plays_owner_month_track [Int(7)] [01-01T00:00 01-01T00:00]"],
    );
    // No roll-up has both columns.
    let referrer = ("referrer", KeyValue::Text(String::new()));
    check(
        &question(&[OWNER, country(), referrer], None, over(two_days)),
        &[],
        &["read plays_detail [Int(7)] [01-30T00:00 02-01T02:00]"],
    );
}

#[test]
fn distinct_listeners_are_read_from_cells() {
    let month = range("2026-01-01T00:00:00Z", "2026-02-01T02:00:00Z");
    let listeners = |filters: &[(&str, KeyValue)]| Question {
        distinct: Some("listener_id".to_owned()),
        ..question(filters, None, over(month))
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
    let days = Question {
        time: over(range("2026-01-01T00:00:00Z", "2026-01-09T00:00:00Z")),
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
    let year = range("2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z");
    let realtime = Question {
        prefer: Prefer::Realtime,
        ..question(&[OWNER], None, over(year))
    };
    let read = "read plays_detail [Int(7)] [01-01T00:00 03-01T00:00]";
    check(&realtime, &[], &[read]);
}

#[test]
fn long_ranges_of_the_detail_view_use_the_calendar() {
    let both = [
        OWNER,
        country(),
        ("referrer", KeyValue::Text(String::new())),
    ];
    let long = range("2026-01-01T00:15:00Z", "2026-12-31T00:00:00Z");
    check(
        &question(&both, None, over(long)),
        &[],
        &[
            "calendar plays_owner_day [Int(7)] [01-01T00:00 12-31T00:00]",
            "read plays_detail [Int(7)] by helper 0 [01-01T00:15 12-31T00:00]",
        ],
    );
    check(
        &question(&both, Some("track_id"), over(Range::ALL)),
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
        &question(
            &[TRACK],
            Some("owner_id"),
            over(range("2026-01-31T22:45:00Z", "2026-02-01T01:00:00Z")),
        ),
        &[3],
        &[
            "read plays_track_quarter [Int(5)] [01-31T22:45 01-31T23:00]",
            "read plays_track_hour [Int(5)] [01-31T23:00 02-01T01:00]",
        ],
    );
    check(
        &question(&[TRACK, country()], None, over(Range::ALL)),
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
    let question = question(&[TRACK, country(), referrer], None, over(Range::ALL));
    check(&question, &[], &["index plays_track_all [Int(5)] [.. ..]"]);
    check(
        &question,
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
        &question(
            &[OWNER, TRACK],
            None,
            over(range("2026-01-31T22:45:00Z", "2026-02-02T00:00:00Z")),
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
    let (from, to) = (at("2026-03-27T23:00:00Z"), at("2026-03-30T22:00:00Z"));
    let points = schemas::time::points(&zone, Interval::Day, from, to).unwrap();
    check(
        &question(
            &[OWNER],
            None,
            Time::Segments(Segments::from_points(&points)),
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
        range: Range::ALL,
    };
    let owner = question(&[OWNER], None, Time::Open(open.clone()));
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
    let day = (at("2026-07-01T00:00:00Z"), at("2026-07-01T23:59:59Z"));
    let segments = open.close(Some(day)).unwrap();
    assert_eq!(plan.close_series(&mut layout, &segments), Ok(true));
    let spans: Vec<usize> = layout.scans.iter().map(|scan| scan.spans.len()).collect();
    // Days begin at half past: half an hour, hours, half an hour, and the adjacent half hour of the
    // next day.
    assert_eq!(spans, [3, 2, 0, 0]);

    let referrer = ("referrer", KeyValue::Text(String::new()));
    let track = question(&[TRACK, referrer], None, Time::Open(open));
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
    let question = question(&[OWNER], None, over(Range::ALL));
    let all = plays()
        .views
        .iter()
        .find(|job| job.name() == "plays_owner_all")
        .unwrap()
        .view()
        .to_owned();
    let mut plan = Plan::new(&plays(), &question, &BTreeSet::from([all])).unwrap();
    let layout = plan.build_layout(&question, &BTreeSet::new()).unwrap();
    assert_eq!(layout.scans.len(), 1);
    assert_eq!(layout.scans[0].job.name(), "plays_owner_month");
}

#[test]
fn a_question_without_group_columns_is_rejected() {
    let kind = || ("kind", KeyValue::Text("play".to_owned()));
    let error = |question: &Question| {
        let plan = Plan::new(&plays(), question, &BTreeSet::new());
        plan.unwrap_err().to_string()
    };
    let all = |filters: &[_], by| question(filters, by, over(Range::ALL));
    let any = "a filter on kind or owner_id or track_id is required: add it";
    let one = "a filter on owner_id or track_id is required: add it";
    assert_eq!(error(&all(&[], None)), any);
    assert_eq!(error(&all(&[country()], None)), one);
    assert_eq!(error(&all(&[kind(), country()], None)), one);
    assert_eq!(error(&all(&[kind()], Some("country"))), one);
    let mut live = all(&[kind()], None);
    live.prefer = Prefer::Realtime;
    assert_eq!(error(&live), one);
    let mut different = all(&[kind()], None);
    different.distinct = Some("listener_id".to_owned());
    assert_eq!(error(&different), one);
}

#[test]
fn plays_of_all_owners_are_read_by_day_and_by_quarter() {
    let kind = ("kind", KeyValue::Text("play".to_owned()));
    let plays_between =
        |from, to| question(std::slice::from_ref(&kind), None, over(range(from, to)));
    check(
        &plays_between("2026-03-01T22:15:00Z", "2026-03-04T00:00:00Z"),
        &[],
        &[
            "read plays_kind_quarter [Text(\"play\")] [03-01T22:15 03-02T00:00]",
            "read plays_kind_day [Text(\"play\")] [03-02T00:00 03-04T00:00]",
        ],
    );
}
