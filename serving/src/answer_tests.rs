use schemas::source::Source;
use serde_json::{json, to_value};

use super::*;
use crate::tally::Keys;

fn reading(tally: Tally, ranges: Vec<Range>) -> Reading {
    Reading {
        segments: Segments::new(ranges),
        tally,
        standing: Standing {
            source: Source::Plays,
            epoch: 3,
            as_of_ms: Some(1_500),
            position: vec![4, 0],
            backfills: 0,
            complete: true,
        },
        run: Reach {
            position: vec![3, 0],
            as_of_ms: Some(1_000),
        },
    }
}

fn cell(count: i128, batch: bool, live: bool) -> Cell {
    Cell {
        count,
        stored: if batch { count } else { 0 },
        kept: 0,
        batch,
        live,
        is_ahead: false,
    }
}

fn frame(range: Range) -> Frame {
    Frame {
        range,
        running: false,
        compared: false,
        prefer: Prefer::Newest,
    }
}

fn compared(range: Range) -> Frame {
    Frame {
        compared: true,
        ..frame(range)
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
fn a_total_says_where_it_comes_from() {
    let cells = Tally::Segments(vec![cell(5, true, true)]);
    let total = total(reading(cells, vec![HOUR]), &frame(HOUR)).unwrap();
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
fn a_compared_total_has_its_change() {
    let asked = |before: i128, now: i128| {
        let cells = Tally::Segments(vec![cell(before, true, false), cell(now, true, false)]);
        let total = total(reading(cells, vec![HOUR, NEXT]), &compared(NEXT)).unwrap();
        (total.count, total.previous, total.change)
    };
    assert_eq!(asked(4, 5), (5, Some(Some(4)), Some(Some(0.25))));
    assert_eq!(asked(0, 5), (5, Some(Some(0)), Some(None)));
    assert_eq!(asked(5, 0), (0, Some(Some(5)), Some(Some(-1.0))));
    let alone = Tally::Segments(vec![cell(5, true, false)]);
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
    let cells = || Tally::Segments(vec![cell(count, true, false)]);
    assert_eq!(
        total(reading(cells(), vec![HOUR]), &frame(HOUR)),
        Err(Overflow(count))
    );
    assert_eq!(
        series(reading(cells(), vec![HOUR]), &frame(HOUR), None),
        Err(Overflow(count))
    );
}

#[test]
fn a_change_of_extremes_is_a_number() {
    assert_eq!(change(i64::MAX, Some(i64::MIN)), Some(-2.0));
    assert_eq!(change(1, Some(-2)), Some(-1.5));
}

#[test]
fn points_are_trimmed_on_open_sides_only() {
    let cells = || {
        Tally::Segments(vec![
            cell(0, false, false),
            cell(0, false, true),
            cell(0, false, false),
            cell(2, true, false),
            cell(0, false, false),
        ])
    };
    let ranges: Vec<Range> = (0..5).map(|n| Range::new(n * 10, n * 10 + 10)).collect();
    let starts = |range| {
        let series = series(reading(cells(), ranges.clone()), &frame(range), None).unwrap();
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
    let cells = Tally::Segments(vec![
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

fn place(count: i64, key: KeyValue) -> Place {
    Place { count, key }
}

fn text(text: &str) -> KeyValue {
    KeyValue::Text(text.to_owned())
}

#[test]
fn the_order_of_a_ranking() {
    let sorted = [
        place(9, text("z")),
        place(5, text("")),
        place(5, text("A")),
        place(5, text("a")),
        place(5, text("ä")),
        place(5, KeyValue::Null),
        place(-1, KeyValue::Int(-2)),
        place(-1, KeyValue::Int(9)),
        place(-1, KeyValue::Int(10)),
    ];
    for (i, one) in sorted.iter().enumerate() {
        for (j, other) in sorted.iter().enumerate() {
            assert_eq!(one.order(other), i.cmp(&j), "{one:?} {other:?}");
        }
    }
}

/// Pages of every size, one after the other, are the whole ranking.
#[test]
fn pages_join() {
    let keys: Vec<(KeyValue, [i128; 2])> = (0..23)
        .map(|n| (KeyValue::Int(n), [i128::from(n), i128::from(n % 4)]))
        .chain([(KeyValue::Null, [0, 2])])
        .collect();
    let counted = || Tally::Keys(keys_of(&keys));
    let page = |after: Option<&Place>, limit| {
        let ranges = vec![HOUR, NEXT];
        breakdown(reading(counted(), ranges), &compared(NEXT), after, limit).unwrap()
    };
    let whole = page(None, 1_000);
    // Of 24 keys the six whose count is 0 are no rows.
    assert_eq!((whole.rows.len(), whole.total, whole.last), (18, 35, None));
    let first = &whole.rows[0];
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
        assert_eq!(rows, whole.rows, "{limit}");
    }
}

#[test]
fn shares_of_nothing_are_null() {
    let keys = keys_of(&[(text("a"), [3, 0]), (text("b"), [-3, 0])]);
    let page = breakdown(
        reading(Tally::Keys(keys), vec![HOUR]),
        &frame(HOUR),
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

/// Whichever layers counted the events that corrections took back.
#[test]
fn keys_whose_count_is_zero_are_no_rows() {
    let layers = [(true, false), (false, true), (true, true)];
    for (batch, live) in layers {
        let mut keys = Keys::default();
        keys.put(&text("a"), [cell(0, batch, live), Cell::default()]);
        keys.put(&text("b"), [cell(3, batch, live), Cell::default()]);
        keys.put(&KeyValue::Null, [cell(0, batch, live), Cell::default()]);
        let page = breakdown(
            reading(Tally::Keys(keys), vec![HOUR]),
            &frame(HOUR),
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
fn keys_of_the_period_before_alone_are_left_out() {
    let mut keys = Keys::default();
    keys.put(&KeyValue::Int(1), [cell(4, true, false), Cell::default()]);
    keys.put(
        &KeyValue::Int(2),
        [cell(4, true, false), cell(5, false, true)],
    );
    let page = breakdown(
        reading(Tally::Keys(keys), vec![HOUR, NEXT]),
        &compared(NEXT),
        None,
        10,
    )
    .unwrap();
    assert_eq!(page.rows.len(), 1);
    assert_eq!(page.rows[0].key, Some(RowKey::Int(2)));
    assert_eq!(page.rows[0].source, Origin::Realtime);
}

fn keys_of(rows: &[(KeyValue, [i128; 2])]) -> Keys {
    let mut keys = Keys::default();
    for (key, counts) in rows {
        keys.put(key, counts.map(|count| cell(count, true, false)));
    }
    keys
}

#[test]
fn the_batch_value_is_given_where_there_is_one() {
    let batch = Frame {
        prefer: Prefer::Batch,
        ..compared(NEXT)
    };
    let merged = |count, stored| Cell {
        stored,
        ..cell(count, true, true)
    };
    let cells = |before, now| Tally::Segments(vec![before, now]);
    let ranges = || vec![HOUR, NEXT];
    let both = total(reading(cells(merged(7, 4), merged(9, 6)), ranges()), &batch).unwrap();
    assert_eq!((both.count, both.previous), (6, Some(Some(4))));
    // It reaches as far as the run does, and no further.
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
    let loading = Cell {
        is_ahead: true,
        ..merged(9, 6)
    };
    let loading = total(reading(cells(merged(7, 4), loading), ranges()), &batch).unwrap();
    assert!(!loading.provenance.complete, "a run is being published");
}

#[test]
fn a_ranking_with_a_row_of_now_is_as_new_as_that_row() {
    let batch = Frame {
        prefer: Prefer::Batch,
        ..frame(HOUR)
    };
    let of = |second: Cell| {
        let mut keys = Keys::default();
        let first = Cell {
            stored: 4,
            ..cell(7, true, true)
        };
        keys.put(&KeyValue::Int(1), [first, Cell::default()]);
        keys.put(&KeyValue::Int(2), [second, Cell::default()]);
        breakdown(reading(Tally::Keys(keys), vec![HOUR]), &batch, None, 10).unwrap()
    };
    let page = of(cell(9, false, true));
    let rows: Vec<_> = page
        .rows
        .iter()
        .map(|row| (row.count, row.source))
        .collect();
    assert_eq!(rows, [(9, Origin::Realtime), (4, Origin::Batch)]);
    assert_eq!(page.provenance.source, Origin::Merged);
    assert_eq!(page.provenance.position["plays"], [4, 0]);
    let page = of(cell(9, true, false));
    assert_eq!(page.provenance.source, Origin::Batch);
    assert_eq!(page.provenance.position["plays"], [3, 0]);
}
