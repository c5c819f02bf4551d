use std::collections::BTreeMap;

use jobs::Catalog;
use schemas::time::Range;

use super::*;
use crate::question::Time;

fn lane() -> Lane {
    let catalog = Catalog::built_in().unwrap();
    let job = catalog.job("plays_detail").unwrap();
    let group = vec![KeyValue::Int(7)];
    Lane {
        key: job.group().encode_values(&group).unwrap(),
        rollup: None,
        job: std::sync::Arc::clone(job),
        group,
        spans: vec![Span {
            width: Width::Quarter,
            from: Some(0),
            to: Some(9_000),
        }],
        calendar: None,
    }
}

fn text(text: &str) -> KeyValue {
    KeyValue::Text(text.to_owned())
}

fn key(lane: &Lane, bucket: i64, track: i64, referrer: KeyValue, app: KeyValue) -> Vec<u8> {
    let values = [
        KeyValue::Time(bucket),
        KeyValue::Int(track),
        text("play"),
        KeyValue::Null,
        referrer,
        app,
        KeyValue::Null,
    ];
    lane.job.row().encode_values(&values).unwrap()
}

fn question(by: Option<&str>, filters: &[(&str, KeyValue)]) -> (Question, Segments) {
    let segments = Segments::new(vec![Range::new(0, 900), Range::new(900, 9_000)]);
    let question = Question {
        filters: filters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        by: by.map(str::to_owned),
        distinct: None,
        explains: false,
        prefer: Prefer::Newest,
        time: Time::Segments(segments.clone()),
    };
    (question, segments)
}

fn counted(by: Option<&str>, filters: &[(&str, KeyValue)]) -> Tally {
    let lane = lane();
    let keys = [
        (
            key(&lane, 0, 1, text("a"), KeyValue::Int(4)),
            1,
            true,
            false,
        ),
        (
            key(&lane, 900, 1, text("a"), KeyValue::Null),
            10,
            false,
            true,
        ),
        (
            key(&lane, 1_800, 2, text(""), KeyValue::Null),
            100,
            true,
            false,
        ),
        (
            key(&lane, 1_800, 2, KeyValue::Null, KeyValue::Null),
            1_000,
            false,
            true,
        ),
        // After the last span.
        (
            key(&lane, 9_000, 2, KeyValue::Null, KeyValue::Null),
            10_000,
            true,
            true,
        ),
    ];
    let values: Vec<Merged<'_>> = keys
        .iter()
        .map(|(key, count, batch, live)| Merged {
            key,
            count: *count,
            stored: if *batch { 1 } else { 0 },
            kept: 0,
            batch: *batch,
            live: *live,
            is_ahead: false,
            row_epoch: batch.then_some(1),
            base: 1,
        })
        .collect();
    let (question, segments) = question(by, filters);
    let mut tally = Tally::new(&question, segments.len());
    tally
        .add(&lane, &question, &segments, (&values, &[]))
        .unwrap();
    tally
}

fn by_key(tally: Tally) -> BTreeMap<KeyValue, [i128; 2]> {
    let Tally::Keys(keys) = tally else {
        panic!("not by key")
    };
    keys.into_rows()
        .map(|(key, pair)| (key, pair.map(|cell| cell.count)))
        .collect()
}

#[test]
fn segments_are_counted_apart_with_their_layers() {
    let Tally::Segments(cells) = counted(None, &[]) else {
        panic!("not by segment")
    };
    let told = cells.iter().map(|cell| (cell.count, cell.batch, cell.live));
    let told: Vec<_> = told.collect();
    assert_eq!(told, [(1, true, false), (1_110, true, true)]);
}

#[test]
fn filters_let_through_what_is_equal() {
    let total = |filters: &[(&str, KeyValue)]| match counted(None, filters) {
        Tally::Segments(cells) => cells.iter().map(|cell| cell.count).sum::<i128>(),
        Tally::Keys(_) | Tally::Sketches(_) | Tally::Rows(_) => panic!("not by segment"),
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
fn a_missing_value_is_a_key_of_its_own() {
    assert_eq!(
        by_key(counted(Some("referrer"), &[])),
        BTreeMap::from([
            (KeyValue::Null, [0, 1_000]),
            (text(""), [0, 100]),
            (text("a"), [1, 10]),
        ])
    );
    assert_eq!(
        by_key(counted(Some("track_id"), &[])),
        BTreeMap::from([(KeyValue::Int(1), [1, 10]), (KeyValue::Int(2), [0, 1_100])])
    );
}

#[test]
fn a_group_column_is_one_key() {
    assert_eq!(
        by_key(counted(Some("owner_id"), &[])),
        BTreeMap::from([(KeyValue::Int(7), [1, 1_110])])
    );
}

#[test]
fn bytes_that_are_no_key_are_an_error() {
    let lane = lane();
    let (question, segments) = question(None, &[]);
    let damaged = Merged {
        key: b"x",
        count: 1,
        stored: 1,
        kept: 0,
        batch: true,
        live: false,
        is_ahead: false,
        row_epoch: Some(1),
        base: 1,
    };
    let mut tally = Tally::new(&question, 2);
    assert!(
        tally
            .add(&lane, &question, &segments, (&[damaged], &[]))
            .is_err()
    );
}
