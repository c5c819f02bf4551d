use schemas::source::Source;
use serde_json::{json, to_value};

use super::*;
use crate::aggregation::KeyedSums;

fn reading(aggregation: Aggregation, ranges: Vec<TimeRange>) -> Reading {
    Reading {
        segments: TimeSegments::new(ranges),
        aggregation,
        read_position: ReadPosition {
            source: Source::Plays,
            epoch: 3,
            as_of_ms: Some(1_500),
            position: vec![4, 0],
            backfills: 0,
            complete: true,
        },
        run_watermark: Watermark {
            position: vec![3, 0],
            as_of_ms: Some(1_000),
        },
    }
}

fn layered_count(count: i128, has_batch: bool, has_live: bool) -> LayeredCount {
    LayeredCount {
        count,
        batch_count: if has_batch { count } else { 0 },
        drift: 0,
        has_batch,
        has_live,
        is_ahead: false,
    }
}

fn spec(range: TimeRange) -> AnswerSpec {
    AnswerSpec {
        range,
        is_running: false,
        is_compared: false,
        prefer: Prefer::Newest,
    }
}

fn compared(range: TimeRange) -> AnswerSpec {
    AnswerSpec {
        is_compared: true,
        ..spec(range)
    }
}

const HOUR: TimeRange = TimeRange {
    from: Some(0),
    to: Some(3_600),
};
const NEXT_HOUR: TimeRange = TimeRange {
    from: Some(3_600),
    to: Some(7_200),
};

#[test]
fn a_total_has_a_provenance() {
    let sums = Aggregation::Segments(vec![layered_count(5, true, true)]);
    let total = build_total(reading(sums, vec![HOUR]), &spec(HOUR)).unwrap();
    assert_eq!(
        to_value(total).unwrap(),
        json!({
            "count": 5,
            "from": "1970-01-01T00:00:00Z",
            "to": "1970-01-01T01:00:00Z",
            "running": false,
            "provenance": {
                "source": "merged",
                "as_of": "1970-01-01T00:00:01.5Z",
                "epoch": 3,
                "complete": true,
                "position": {"plays": [4, 0]},
            },
        })
    );
}

#[test]
fn a_compared_total_has_a_change() {
    let compared_total = |previous: i128, current: i128| {
        let sums = Aggregation::Segments(vec![
            layered_count(previous, true, false),
            layered_count(current, true, false),
        ]);
        let total =
            build_total(reading(sums, vec![HOUR, NEXT_HOUR]), &compared(NEXT_HOUR)).unwrap();
        (total.count, total.previous, total.change)
    };
    assert_eq!(compared_total(4, 5), (5, Some(Some(4)), Some(Some(0.25))));
    assert_eq!(compared_total(0, 5), (5, Some(Some(0)), Some(None)));
    assert_eq!(compared_total(5, 0), (0, Some(Some(5)), Some(Some(-1.0))));
    let single = Aggregation::Segments(vec![layered_count(5, true, false)]);
    let total = build_total(
        reading(single, vec![TimeRange::ALL]),
        &compared(TimeRange::ALL),
    )
    .unwrap();
    let json = to_value(total).unwrap();
    assert_eq!(
        (&json["previous"], &json["change"]),
        (&json!(null), &json!(null))
    );
    assert!(json.as_object().unwrap().contains_key("previous"));
}

#[test]
fn a_count_that_does_not_fit_is_an_error() {
    let count = i128::from(i64::MAX) + 1;
    let sums = || Aggregation::Segments(vec![layered_count(count, true, false)]);
    assert_eq!(
        build_total(reading(sums(), vec![HOUR]), &spec(HOUR)),
        Err(Overflow(count))
    );
    assert_eq!(
        build_series(reading(sums(), vec![HOUR]), &spec(HOUR), None),
        Err(Overflow(count))
    );
}

#[test]
fn a_change_between_extremes_is_finite() {
    assert_eq!(compute_change(i64::MAX, Some(i64::MIN)), Some(-2.0));
    assert_eq!(compute_change(1, Some(-2)), Some(-1.5));
}

#[test]
fn points_are_trimmed_on_open_sides_only() {
    let sums = || {
        Aggregation::Segments(vec![
            layered_count(0, false, false),
            layered_count(0, false, true),
            layered_count(0, false, false),
            layered_count(2, true, false),
            layered_count(0, false, false),
        ])
    };
    let ranges: Vec<TimeRange> = (0..5)
        .map(|n| TimeRange::new(n * 10, n * 10 + 10))
        .collect();
    let starts = |range| {
        let series = build_series(reading(sums(), ranges.clone()), &spec(range), None).unwrap();
        series
            .points
            .into_iter()
            .map(|point| (point.at[17..19].to_owned(), point.count))
            .collect::<Vec<_>>()
    };
    let point = |at: &str, count| (at.to_owned(), count);
    let all = [
        point("00", 0),
        point("10", 0),
        point("20", 0),
        point("30", 2),
        point("40", 0),
    ];
    assert_eq!(starts(TimeRange::new(0, 50)), all);
    assert_eq!(starts(TimeRange::ALL), all[1..4]);
    assert_eq!(
        starts(TimeRange {
            from: Some(0),
            to: None
        }),
        all[..4]
    );
    assert_eq!(
        starts(TimeRange {
            from: None,
            to: Some(50)
        }),
        all[1..]
    );
}

#[test]
fn points_have_their_own_source() {
    let sums = Aggregation::Segments(vec![
        layered_count(1, true, false),
        layered_count(1, false, true),
        layered_count(0, false, false),
    ]);
    let ranges = vec![
        TimeRange::new(0, 1),
        TimeRange::new(1, 2),
        TimeRange::new(2, 3),
    ];
    let series = build_series(
        reading(sums, ranges),
        &compared(TimeRange::new(1, 3)),
        Some(1),
    )
    .unwrap();
    let sources = |points: &[Point]| points.iter().map(|point| point.source).collect::<Vec<_>>();
    assert_eq!(sources(&series.points), [Origin::Realtime, Origin::Batch]);
    assert_eq!(
        sources(series.previous.as_deref().unwrap()),
        [Origin::Batch]
    );
    assert_eq!(series.provenance.source, Origin::Merged);
}

fn position(count: i64, key: KeyValue) -> BreakdownPosition {
    BreakdownPosition { count, key }
}

fn text(text: &str) -> KeyValue {
    KeyValue::Text(text.to_owned())
}

#[test]
fn rows_are_ordered_by_count_and_key() {
    let sorted = [
        position(9, text("z")),
        position(5, text("")),
        position(5, text("A")),
        position(5, text("a")),
        position(5, text("ä")),
        position(5, KeyValue::Null),
        position(-1, KeyValue::Int(-2)),
        position(-1, KeyValue::Int(9)),
        position(-1, KeyValue::Int(10)),
    ];
    for (i, position) in sorted.iter().enumerate() {
        for (j, other) in sorted.iter().enumerate() {
            assert_eq!(position.compare(other), i.cmp(&j), "{position:?} {other:?}");
        }
    }
}

/// Pages of every size, concatenated, are the whole breakdown.
#[test]
fn pages_form_the_whole_breakdown() {
    let keys: Vec<(KeyValue, [i128; 2])> = (0..23)
        .map(|n| (KeyValue::Int(n), [i128::from(n), i128::from(n % 4)]))
        .chain([(KeyValue::Null, [0, 2])])
        .collect();
    let aggregation = || Aggregation::Keys(build_keys(&keys));
    let page = |after: Option<&BreakdownPosition>, limit| {
        let ranges = vec![HOUR, NEXT_HOUR];
        build_breakdown(
            reading(aggregation(), ranges),
            &compared(NEXT_HOUR),
            after,
            limit,
        )
        .unwrap()
    };
    let all_rows = page(None, 1_000);
    // Of 24 keys, the six with count 0 are omitted.
    assert_eq!(
        (all_rows.rows.len(), all_rows.total, all_rows.last),
        (18, 35, None)
    );
    let first = &all_rows.rows[0];
    assert_eq!((first.key.clone(), first.count), (Some(RowKey::Int(3)), 3));
    assert_eq!(
        (first.previous, first.change),
        (Some(Some(3)), Some(Some(0.0)))
    );
    for limit in 1..19 {
        let mut rows = Vec::new();
        let mut after = None;
        loop {
            let page = page(after.as_ref(), limit);
            assert!(page.rows.len() <= limit);
            rows.extend(page.rows);
            after = page.last;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(rows, all_rows.rows, "{limit}");
    }
}

#[test]
fn shares_of_zero_are_null() {
    let keys = build_keys(&[(text("a"), [3, 0]), (text("b"), [-3, 0])]);
    let page = build_breakdown(
        reading(Aggregation::Keys(keys), vec![HOUR]),
        &spec(HOUR),
        None,
        10,
    )
    .unwrap();
    assert_eq!(page.total, 0);
    assert_eq!(page.rows.len(), 2);
    assert!(
        page.rows
            .iter()
            .all(|row| row.share.is_none() && row.previous.is_none())
    );
}

/// Applies to corrections of events in any layer.
#[test]
fn keys_with_count_zero_are_omitted() {
    let layers = [(true, false), (false, true), (true, true)];
    for (batch, live) in layers {
        let mut keys = KeyedSums::default();
        keys.insert(
            &text("a"),
            [layered_count(0, batch, live), LayeredCount::default()],
        );
        keys.insert(
            &text("b"),
            [layered_count(3, batch, live), LayeredCount::default()],
        );
        keys.insert(
            &KeyValue::Null,
            [layered_count(0, batch, live), LayeredCount::default()],
        );
        let page = build_breakdown(
            reading(Aggregation::Keys(keys), vec![HOUR]),
            &spec(HOUR),
            None,
            1,
        )
        .unwrap();
        let rows: Vec<_> = page.rows.iter().map(|row| (&row.key, row.count)).collect();
        assert_eq!(rows, [(&Some(RowKey::Text("b".to_owned())), 3)]);
        assert_eq!(
            (page.total, page.last),
            (3, None),
            "no page of zeros follows"
        );
    }
}

#[test]
fn keys_of_only_the_previous_period_are_omitted() {
    let mut keys = KeyedSums::default();
    keys.insert(
        &KeyValue::Int(1),
        [layered_count(4, true, false), LayeredCount::default()],
    );
    keys.insert(
        &KeyValue::Int(2),
        [layered_count(4, true, false), layered_count(5, false, true)],
    );
    let page = build_breakdown(
        reading(Aggregation::Keys(keys), vec![HOUR, NEXT_HOUR]),
        &compared(NEXT_HOUR),
        None,
        10,
    )
    .unwrap();
    assert_eq!(page.rows.len(), 1);
    assert_eq!(page.rows[0].key, Some(RowKey::Int(2)));
    assert_eq!(page.rows[0].source, Origin::Realtime);
}

fn build_keys(rows: &[(KeyValue, [i128; 2])]) -> KeyedSums {
    let mut keys = KeyedSums::default();
    for (key, counts) in rows {
        keys.insert(key, counts.map(|count| layered_count(count, true, false)));
    }
    keys
}

#[test]
fn batch_values_are_preferred_where_they_exist() {
    let batch = AnswerSpec {
        prefer: Prefer::Batch,
        ..compared(NEXT_HOUR)
    };
    let merged = |count, batch_count| LayeredCount {
        batch_count,
        ..layered_count(count, true, true)
    };
    let sums = |previous, current| Aggregation::Segments(vec![previous, current]);
    let ranges = || vec![HOUR, NEXT_HOUR];
    let both_merged =
        build_total(reading(sums(merged(7, 4), merged(9, 6)), ranges()), &batch).unwrap();
    assert_eq!(
        (both_merged.count, both_merged.previous),
        (6, Some(Some(4)))
    );
    // The answer reflects exactly the position of the run.
    assert_eq!(both_merged.provenance.source, Origin::Batch);
    assert_eq!(both_merged.provenance.position["plays"], [3, 0]);
    assert_eq!(
        both_merged.provenance.as_of.as_deref(),
        Some("1970-01-01T00:00:01Z")
    );
    let live_only = build_total(
        reading(sums(merged(7, 4), layered_count(9, false, true)), ranges()),
        &batch,
    )
    .unwrap();
    assert_eq!(
        (live_only.count, live_only.provenance.source),
        (9, Origin::Merged)
    );
    assert_eq!(live_only.provenance.position["plays"], [4, 0]);
    assert!(live_only.provenance.complete);
    let loading = LayeredCount {
        is_ahead: true,
        ..merged(9, 6)
    };
    let loading = build_total(reading(sums(merged(7, 4), loading), ranges()), &batch).unwrap();
    assert!(!loading.provenance.complete, "a run is being published");
}

#[test]
fn a_breakdown_with_a_live_row_reflects_the_live_position() {
    let batch = AnswerSpec {
        prefer: Prefer::Batch,
        ..spec(HOUR)
    };
    let breakdown_with = |second: LayeredCount| {
        let mut keys = KeyedSums::default();
        let first = LayeredCount {
            batch_count: 4,
            ..layered_count(7, true, true)
        };
        keys.insert(&KeyValue::Int(1), [first, LayeredCount::default()]);
        keys.insert(&KeyValue::Int(2), [second, LayeredCount::default()]);
        build_breakdown(
            reading(Aggregation::Keys(keys), vec![HOUR]),
            &batch,
            None,
            10,
        )
        .unwrap()
    };
    let page = breakdown_with(layered_count(9, false, true));
    let rows: Vec<_> = page
        .rows
        .iter()
        .map(|row| (row.count, row.source))
        .collect();
    assert_eq!(rows, [(9, Origin::Realtime), (4, Origin::Batch)]);
    assert_eq!(page.provenance.source, Origin::Merged);
    assert_eq!(page.provenance.position["plays"], [4, 0]);
    let page = breakdown_with(layered_count(9, true, false));
    assert_eq!(page.provenance.source, Origin::Batch);
    assert_eq!(page.provenance.position["plays"], [3, 0]);
}
