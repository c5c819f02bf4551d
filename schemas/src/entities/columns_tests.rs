//! Tests of the builders of entity columns.

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};

use super::*;

const ROW: EffortRow<'_> = EffortRow {
    id: 1,
    segment_id: 2,
    athlete_id: 3,
    activity_id: 4,
    elapsed_time_s: 61,
    started_at_us: 1_367_883_000_000_000,
    tz: "UTC",
    is_hidden: false,
    is_deleted: false,
    gender: None,
    birth_year: None,
    weight_kg: None,
    athlete_is_deleted: false,
    athlete_is_disqualified: false,
};

const AUTHORIZATION: AuthorizationRow = AuthorizationRow {
    id: 1,
    application_id: 2,
    athlete_id: 3,
    created_at_us: -1,
    revoked_at_us: None,
    athlete_is_deleted: false,
};

fn ints(rows: &RecordBatch, column: &str) -> Vec<Option<i64>> {
    rows[column].as_primitive::<Int64Type>().iter().collect()
}

fn bools(rows: &RecordBatch, column: &str) -> Vec<Option<bool>> {
    rows[column].as_boolean().iter().collect()
}

fn instants(rows: &RecordBatch, column: &str) -> Vec<Option<i64>> {
    rows[column]
        .as_primitive::<TimestampMicrosecondType>()
        .iter()
        .collect()
}

#[test]
fn sources_with_views_have_columns() {
    for source in Source::ALL {
        let has_columns = matches!(source, Source::Efforts | Source::Authorizations);
        assert_eq!(schema(source).is_some(), has_columns, "{source}");
    }
}

#[test]
fn builds_all_columns_of_an_effort() {
    let mut columns = EffortBatchBuilder::default();
    columns.push(&ROW).unwrap();
    columns
        .push(&EffortRow {
            id: -1,
            segment_id: i64::MIN,
            athlete_id: i64::MAX,
            activity_id: 0,
            elapsed_time_s: 5,
            started_at_us: -1,
            tz: "America/New_York",
            is_hidden: true,
            is_deleted: true,
            gender: Some("X"),
            birth_year: Some(1984),
            weight_kg: Some(58.5),
            athlete_is_deleted: true,
            athlete_is_disqualified: true,
        })
        .unwrap();
    assert_eq!(columns.len(), 2);
    let rows = columns.finish().unwrap();
    assert_eq!(Some(rows.schema()), schema(Source::Efforts));
    for (column, expected) in [
        ("id", [Some(1), Some(-1)]),
        ("segment_id", [Some(2), Some(i64::MIN)]),
        ("athlete_id", [Some(3), Some(i64::MAX)]),
        ("activity_id", [Some(4), Some(0)]),
        ("elapsed_time", [Some(61), Some(5)]),
        ("day", [Some(20_130_506), Some(19_691_231)]),
        ("birth_year", [None, Some(1984)]),
    ] {
        assert_eq!(ints(&rows, column), expected, "{column}");
    }
    for column in [
        "is_hidden",
        "is_deleted",
        "athlete_is_deleted",
        "athlete_is_disqualified",
    ] {
        assert_eq!(bools(&rows, column), [Some(false), Some(true)], "{column}");
    }
    assert_eq!(
        instants(&rows, "started_at"),
        [Some(ROW.started_at_us), Some(-1)]
    );
    let gender: Vec<_> = rows["gender"].as_string::<i32>().iter().collect();
    assert_eq!(gender, [None, Some("X")]);
    let weight_kg = rows["weight_kg"].as_primitive::<Float64Type>();
    assert_eq!(weight_kg.iter().collect::<Vec<_>>(), [None, Some(58.5)]);
}

#[test]
fn the_day_follows_the_zone_of_the_row() {
    let days = [
        ("UTC", 20_130_506),
        ("Europe/Berlin", 20_130_507),
        ("Europe/Berlin", 20_130_507),
        ("UTC", 20_130_506),
        ("Asia/Tokyo", 20_130_507),
        ("America/New_York", 20_130_506),
    ];
    let mut columns = EffortBatchBuilder::default();
    for (tz, _) in days {
        columns.push(&EffortRow { tz, ..ROW }).unwrap();
    }
    let rows = columns.finish().unwrap();
    assert_eq!(ints(&rows, "day"), days.map(|(_, day)| Some(day)));
}

#[test]
fn rejects_a_row_without_a_day() {
    let mut columns = EffortBatchBuilder::default();
    for (row, word) in [
        (
            EffortRow {
                tz: "Mars/Olympus",
                ..ROW
            },
            "tz: \"Mars/Olympus\"",
        ),
        (EffortRow { tz: "", ..ROW }, "tz: \"\""),
        (
            EffortRow {
                started_at_us: i64::MAX,
                ..ROW
            },
            "started_at",
        ),
    ] {
        columns.push(&ROW).unwrap();
        let reason = columns.push(&row).unwrap_err();
        assert!(reason.contains(word), "{reason}");
    }
    assert_eq!(columns.len(), 3);
    let rows = columns.finish().unwrap();
    assert_eq!(ints(&rows, "day"), [Some(20_130_506); 3]);
}

#[test]
fn builds_all_columns_of_an_authorization() {
    let mut columns = AuthorizationBatchBuilder::default();
    columns.push(&AUTHORIZATION);
    columns.push(&AuthorizationRow {
        id: i64::MAX,
        application_id: i64::MIN,
        athlete_id: 0,
        created_at_us: 5,
        revoked_at_us: Some(4),
        athlete_is_deleted: true,
    });
    assert_eq!(columns.len(), 2);
    let rows = columns.finish().unwrap();
    assert_eq!(Some(rows.schema()), schema(Source::Authorizations));
    assert_eq!(ints(&rows, "id"), [Some(1), Some(i64::MAX)]);
    assert_eq!(ints(&rows, "application_id"), [Some(2), Some(i64::MIN)]);
    assert_eq!(ints(&rows, "athlete_id"), [Some(3), Some(0)]);
    assert_eq!(instants(&rows, "created_at"), [Some(-1), Some(5)]);
    assert_eq!(instants(&rows, "revoked_at"), [None, Some(4)]);
    assert_eq!(
        bools(&rows, "athlete_is_deleted"),
        [Some(false), Some(true)]
    );
}

#[test]
fn finishing_clears_the_builder() {
    let mut efforts = EffortBatchBuilder::default();
    let mut authorizations = AuthorizationBatchBuilder::default();
    for rows in [1, 3, 0, 2] {
        assert!(efforts.is_empty() && authorizations.is_empty());
        for _ in 0..rows {
            efforts.push(&ROW).unwrap();
            authorizations.push(&AUTHORIZATION);
        }
        assert_eq!(efforts.finish().unwrap().num_rows(), rows);
        assert_eq!(authorizations.finish().unwrap().num_rows(), rows);
    }
}
