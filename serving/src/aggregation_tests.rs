use std::collections::BTreeMap;

use jobs::Catalog;
use schemas::time::TimeRange;

use super::*;
use crate::stats_query::{Prefer, RequestedTime};

fn scan() -> ViewScan {
    let catalog = Catalog::built_in().unwrap();
    let job = catalog.job("plays_detail").unwrap();
    let group = vec![KeyValue::Int(7)];
    ViewScan {
        key: job.group().encode_values(&group).unwrap(),
        rollup: None,
        job: std::sync::Arc::clone(job),
        group,
        spans: vec![BucketSpan {
            width: BucketWidth::QuarterHour,
            from: Some(0),
            to: Some(9_000),
        }],
        calendar: None,
    }
}

fn text(text: &str) -> KeyValue {
    KeyValue::Text(text.to_owned())
}

fn key(scan: &ViewScan, bucket: i64, track: i64, referrer: KeyValue, app: KeyValue) -> Vec<u8> {
    let values = [
        KeyValue::Time(bucket),
        KeyValue::Int(track),
        text("play"),
        KeyValue::Null,
        referrer,
        app,
        KeyValue::Null,
    ];
    scan.job.row().encode_values(&values).unwrap()
}

fn stats_query(by: Option<&str>, filters: &[(&str, KeyValue)]) -> (StatsQuery, TimeSegments) {
    let segments = TimeSegments::new(vec![TimeRange::new(0, 900), TimeRange::new(900, 9_000)]);
    let query = StatsQuery {
        filters: filters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        by: by.map(str::to_owned),
        distinct: None,
        explains: false,
        prefer: Prefer::Newest,
        time: RequestedTime::Segments(segments.clone()),
    };
    (query, segments)
}

fn aggregate_rows(by: Option<&str>, filters: &[(&str, KeyValue)]) -> Aggregation {
    let scan = scan();
    let keys = [
        (
            key(&scan, 0, 1, text("a"), KeyValue::Int(4)),
            1,
            true,
            false,
        ),
        (
            key(&scan, 900, 1, text("a"), KeyValue::Null),
            10,
            false,
            true,
        ),
        (
            key(&scan, 1_800, 2, text(""), KeyValue::Null),
            100,
            true,
            false,
        ),
        (
            key(&scan, 1_800, 2, KeyValue::Null, KeyValue::Null),
            1_000,
            false,
            true,
        ),
        // After the last span.
        (
            key(&scan, 9_000, 2, KeyValue::Null, KeyValue::Null),
            10_000,
            true,
            true,
        ),
    ];
    let values: Vec<MergedRow<'_>> = keys
        .iter()
        .map(|(key, count, batch, live)| MergedRow {
            key,
            count: *count,
            batch_count: if *batch { 1 } else { 0 },
            drift: 0,
            has_batch: *batch,
            has_live: *live,
            is_ahead: false,
            row_epoch: batch.then_some(1),
            base_epoch: 1,
        })
        .collect();
    let (query, segments) = stats_query(by, filters);
    let mut aggregation = Aggregation::new(&query, segments.len());
    aggregation
        .add(&scan, &query, &segments, &values, &[])
        .unwrap();
    aggregation
}

fn sums_by_key(aggregation: Aggregation) -> BTreeMap<KeyValue, [i128; 2]> {
    let Aggregation::Keys(keys) = aggregation else {
        panic!("not by key")
    };
    keys.into_rows()
        .map(|(key, pair)| (key, pair.map(|sum| sum.count)))
        .collect()
}

#[test]
fn segments_have_separate_sums_and_layers() {
    let Aggregation::Segments(sums) = aggregate_rows(None, &[]) else {
        panic!("not by segment")
    };
    let summaries = sums
        .iter()
        .map(|sum| (sum.count, sum.has_batch, sum.has_live));
    let summaries: Vec<_> = summaries.collect();
    assert_eq!(summaries, [(1, true, false), (1_110, true, true)]);
}

#[test]
fn filters_match_equal_values() {
    let total = |filters: &[(&str, KeyValue)]| match aggregate_rows(None, filters) {
        Aggregation::Segments(sums) => sums.iter().map(|sum| sum.count).sum::<i128>(),
        Aggregation::Keys(_) | Aggregation::Sketches(_) | Aggregation::Rows(_) => {
            panic!("not by segment")
        }
    };
    assert_eq!(total(&[("owner_id", KeyValue::Int(7))]), 1_111);
    assert_eq!(total(&[("referrer", text(""))]), 100);
    assert_eq!(
        total(&[("referrer", text("a")), ("track_id", KeyValue::Int(1))]),
        11
    );
    assert_eq!(total(&[("app_id", KeyValue::Int(4))]), 1);
    assert_eq!(total(&[("country", text("DE"))]), 0);
}

#[test]
fn missing_values_form_a_separate_key() {
    assert_eq!(
        sums_by_key(aggregate_rows(Some("referrer"), &[])),
        BTreeMap::from([
            (KeyValue::Null, [0, 1_000]),
            (text(""), [0, 100]),
            (text("a"), [1, 10]),
        ])
    );
    assert_eq!(
        sums_by_key(aggregate_rows(Some("track_id"), &[])),
        BTreeMap::from([(KeyValue::Int(1), [1, 10]), (KeyValue::Int(2), [0, 1_100])])
    );
}

#[test]
fn a_group_column_has_a_single_key() {
    assert_eq!(
        sums_by_key(aggregate_rows(Some("owner_id"), &[])),
        BTreeMap::from([(KeyValue::Int(7), [1, 1_110])])
    );
}

#[test]
fn invalid_key_bytes_are_an_error() {
    let scan = scan();
    let (query, segments) = stats_query(None, &[]);
    let damaged = MergedRow {
        key: b"x",
        count: 1,
        batch_count: 1,
        drift: 0,
        has_batch: true,
        has_live: false,
        is_ahead: false,
        row_epoch: Some(1),
        base_epoch: 1,
    };
    let mut aggregation = Aggregation::new(&query, 2);
    assert!(
        aggregation
            .add(&scan, &query, &segments, &[damaged], &[])
            .is_err()
    );
}
