use schemas::source::Source;
use serde_json::{json, to_value};

use super::*;
use crate::aggregation::KeyedCounts;

fn reading(aggregation: Aggregation, ranges: Vec<Range>) -> Reading {
    Reading {
        segments: Segments::new(ranges),
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

fn cell(count: i128, batch: bool, live: bool) -> LayeredCount {
    LayeredCount {
        count,
        batch_count: if batch { count } else { 0 },
        drift: 0,
        batch,
        live,
        is_ahead: false,
    }
}

fn spec(range: Range) -> AnswerSpec {
    AnswerSpec {
        range,
        running: false,
        compared: false,
        prefer: Prefer::Newest,
    }
}

fn compared(range: Range) -> AnswerSpec {
    AnswerSpec {
        compared: true,
        ..spec(range)
    }
}

const HOUR: Range = Range {
    from: Some(0),
    to: Some(3_600),
};
const NEXT: Range = Range {
    from: Some(3_600),
    to: Some(7_200),
};

#[test]
fn a_total_has_a_provenance() {
    let cells = Aggregation::Segments(vec![cell(5, true, true)]);
    let total = total(reading(cells, vec![HOUR]), &spec(HOUR)).unwrap();
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
    let compared_total = |before: i128, now: i128| {
        let cells = Aggregation::Segments(vec![cell(before, true, false), cell(now, true, false)]);
        let total = total(reading(cells, vec![HOUR, NEXT]), &compared(NEXT)).unwrap();
        (total.count, total.previous, total.change)
    };
    assert_eq!(compared_total(4, 5), (5, Some(Some(4)), Some(Some(0.25))));
    assert_eq!(compared_total(0, 5), (5, Some(Some(0)), Some(None)));
    assert_eq!(compared_total(5, 0), (0, Some(Some(5)), Some(Some(-1.0))));
    let alone = Aggregation::Segments(vec![cell(5, true, false)]);
    let total = total(reading(alone, vec![Range::ALL]), &compared(Range::ALL)).unwrap();
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
    let cells = || Aggregation::Segments(vec![cell(count, true, false)]);
    assert_eq!(
        total(reading(cells(), vec![HOUR]), &spec(HOUR)),
        Err(Overflow(count))
    );
    assert_eq!(
        series(reading(cells(), vec![HOUR]), &spec(HOUR), None),
        Err(Overflow(count))
    );
}

#[test]
fn a_change_between_extremes_is_finite() {
    assert_eq!(change(i64::MAX, Some(i64::MIN)), Some(-2.0));
    assert_eq!(change(1, Some(-2)), Some(-1.5));
}

#[test]
fn points_are_trimmed_on_open_sides_only() {
    let cells = || {
        Aggregation::Segments(vec![
            cell(0, false, false),
            cell(0, false, true),
            cell(0, false, false),
            cell(2, true, false),
            cell(0, false, false),
        ])
    };
    let ranges: Vec<Range> = (0..5).map(|n| Range::new(n * 10, n * 10 + 10)).collect();
    let starts = |range| {
        let series = series(reading(cells(), ranges.clone()), &spec(range), None).unwrap();
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
    assert_eq!(starts(Range::new(0, 50)), all);
    assert_eq!(starts(Range::ALL), all[1..4]);
    assert_eq!(
        starts(Range {
            from: Some(0),
            to: None
        }),
        all[..4]
    );
    assert_eq!(
        starts(Range {
            from: None,
            to: Some(50)
        }),
        all[1..]
    );
}

#[test]
fn points_have_their_own_source() {
    let cells = Aggregation::Segments(vec![
        cell(1, true, false),
        cell(1, false, true),
        cell(0, false, false),
    ]);
    let ranges = vec![Range::new(0, 1), Range::new(1, 2), Range::new(2, 3)];
    let series = series(reading(cells, ranges), &compared(Range::new(1, 3)), Some(1)).unwrap();
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
    for (i, one) in sorted.iter().enumerate() {
        for (j, other) in sorted.iter().enumerate() {
            assert_eq!(one.order(other), i.cmp(&j), "{one:?} {other:?}");
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
    let counted = || Aggregation::Keys(keys_of(&keys));
    let page = |after: Option<&BreakdownPosition>, limit| {
        let ranges = vec![HOUR, NEXT];
        breakdown(reading(counted(), ranges), &compared(NEXT), after, limit).unwrap()
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
    let keys = keys_of(&[(text("a"), [3, 0]), (text("b"), [-3, 0])]);
    let page = breakdown(
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
        let mut keys = KeyedCounts::default();
        keys.insert(&text("a"), [cell(0, batch, live), LayeredCount::default()]);
        keys.insert(&text("b"), [cell(3, batch, live), LayeredCount::default()]);
        keys.insert(
            &KeyValue::Null,
            [cell(0, batch, live), LayeredCount::default()],
        );
        let page = breakdown(
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
    let mut keys = KeyedCounts::default();
    keys.insert(
        &KeyValue::Int(1),
        [cell(4, true, false), LayeredCount::default()],
    );
    keys.insert(
        &KeyValue::Int(2),
        [cell(4, true, false), cell(5, false, true)],
    );
    let page = breakdown(
        reading(Aggregation::Keys(keys), vec![HOUR, NEXT]),
        &compared(NEXT),
        None,
        10,
    )
    .unwrap();
    assert_eq!(page.rows.len(), 1);
    assert_eq!(page.rows[0].key, Some(RowKey::Int(2)));
    assert_eq!(page.rows[0].source, Origin::Realtime);
}

fn keys_of(rows: &[(KeyValue, [i128; 2])]) -> KeyedCounts {
    let mut keys = KeyedCounts::default();
    for (key, counts) in rows {
        keys.insert(key, counts.map(|count| cell(count, true, false)));
    }
    keys
}

#[test]
fn batch_values_are_preferred_where_they_exist() {
    let batch = AnswerSpec {
        prefer: Prefer::Batch,
        ..compared(NEXT)
    };
    let merged = |count, batch_count| LayeredCount {
        batch_count,
        ..cell(count, true, true)
    };
    let cells = |before, now| Aggregation::Segments(vec![before, now]);
    let ranges = || vec![HOUR, NEXT];
    let both = total(reading(cells(merged(7, 4), merged(9, 6)), ranges()), &batch).unwrap();
    assert_eq!((both.count, both.previous), (6, Some(Some(4))));
    // The answer reflects exactly the position of the run.
    assert_eq!(both.provenance.source, Origin::Batch);
    assert_eq!(both.provenance.position["plays"], [3, 0]);
    assert_eq!(
        both.provenance.as_of.as_deref(),
        Some("1970-01-01T00:00:01Z")
    );
    let new = total(
        reading(cells(merged(7, 4), cell(9, false, true)), ranges()),
        &batch,
    )
    .unwrap();
    assert_eq!((new.count, new.provenance.source), (9, Origin::Merged));
    assert_eq!(new.provenance.position["plays"], [4, 0]);
    assert!(new.provenance.complete);
    let loading = LayeredCount {
        is_ahead: true,
        ..merged(9, 6)
    };
    let loading = total(reading(cells(merged(7, 4), loading), ranges()), &batch).unwrap();
    assert!(!loading.provenance.complete, "a run is being published");
}

#[test]
fn a_breakdown_with_a_live_row_reflects_the_live_position() {
    let batch = AnswerSpec {
        prefer: Prefer::Batch,
        ..spec(HOUR)
    };
    let breakdown_with = |second: LayeredCount| {
        let mut keys = KeyedCounts::default();
        let first = LayeredCount {
            batch_count: 4,
            ..cell(7, true, true)
        };
        keys.insert(&KeyValue::Int(1), [first, LayeredCount::default()]);
        keys.insert(&KeyValue::Int(2), [second, LayeredCount::default()]);
        breakdown(
            reading(Aggregation::Keys(keys), vec![HOUR]),
            &batch,
            None,
            10,
        )
        .unwrap()
    };
    let page = breakdown_with(cell(9, false, true));
    let rows: Vec<_> = page
        .rows
        .iter()
        .map(|row| (row.count, row.source))
        .collect();
    assert_eq!(rows, [(9, Origin::Realtime), (4, Origin::Batch)]);
    assert_eq!(page.provenance.source, Origin::Merged);
    assert_eq!(page.provenance.position["plays"], [4, 0]);
    let page = breakdown_with(cell(9, true, false));
    assert_eq!(page.provenance.source, Origin::Batch);
    assert_eq!(page.provenance.position["plays"], [3, 0]);
}
