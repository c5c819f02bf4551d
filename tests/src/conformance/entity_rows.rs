//! Rows of entities: minimal rows to apply, and rows decoded from the columns that views read.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use futures::TryStreamExt;
use schemas::entities::{Application, Athlete, Authorization, Effort, Entity, Group, schema};
use schemas::source::Source;
use stores::Result;
use stores::entities::{ApplyOutcome, EntityRead, EntityWrite, Notification};

/// The time of changes in the laws.
pub(super) const NOW_MS: i64 = 1_700_000_000_000;

/// Returns an effort with only the required columns.
#[must_use]
pub fn effort(id: i64, segment_id: i64, athlete_id: i64) -> Effort {
    Effort {
        id,
        segment_id,
        athlete_id,
        activity_id: 1,
        elapsed_time_s: 60,
        started_at_us: 1_700_000_000_000_000,
        tz: "UTC".to_owned(),
        is_hidden: false,
        is_deleted: false,
        version: 0,
    }
}

/// Returns an athlete without optional columns.
#[must_use]
pub const fn athlete(id: i64) -> Athlete {
    Athlete {
        id,
        name: None,
        gender: None,
        birth_year: None,
        weight_kg: None,
        country: None,
        is_disqualified: false,
        is_deleted: false,
        version: 0,
    }
}

/// Returns an authorization that is not revoked.
#[must_use]
pub const fn authorization(id: i64, application_id: i64, athlete_id: i64) -> Authorization {
    Authorization {
        id,
        application_id,
        athlete_id,
        created_at_us: 1_600_000_000_000_000,
        revoked_at_us: None,
        version: 0,
    }
}

/// Returns an application.
#[must_use]
pub fn application(id: i64, athlete_capacity: i64) -> Application {
    Application {
        id,
        name: "Ride".to_owned(),
        owner: serde_json::json!("somebody"),
        athlete_capacity,
        version: 0,
    }
}

/// A row of `efforts` as views read it.
#[expect(missing_docs, reason = "named as the columns")]
#[derive(Debug, Clone, PartialEq)]
pub struct EffortRow {
    pub id: i64,
    pub segment_id: i64,
    pub athlete_id: i64,
    pub activity_id: i64,
    pub elapsed_time_s: i64,
    pub started_at_us: i64,
    pub day: i64,
    pub is_hidden: bool,
    pub is_deleted: bool,
    pub gender: Option<String>,
    pub birth_year: Option<i64>,
    pub weight_kg: Option<f64>,
    pub athlete_is_deleted: bool,
    pub athlete_is_disqualified: bool,
}

/// A row of `authorizations` as views read it.
#[expect(missing_docs, reason = "named as the columns")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationRow {
    pub id: i64,
    pub application_id: i64,
    pub athlete_id: i64,
    pub created_at_us: i64,
    pub revoked_at_us: Option<i64>,
    pub athlete_is_deleted: bool,
}

/// Returns a group.
pub(super) fn group(key: i64, member: i64) -> Group {
    Group { key, member }
}

/// Returns the sources and groups of notifications, checking that their numbers increase.
pub(super) fn source_groups(notifications: &[Notification]) -> Vec<(Source, Group)> {
    let ids: Vec<i64> = notifications
        .iter()
        .map(|notification| notification.id)
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "numbers rise: {ids:?}");
    let groups = notifications
        .iter()
        .map(|notification| (notification.source, notification.group));
    groups.collect()
}

/// Applies rows and expects that none is rejected.
pub(super) async fn apply(entities: &dyn EntityWrite, rows: &[Entity]) -> Result<ApplyOutcome> {
    let applied = entities.apply(rows, NOW_MS).await?;
    assert_eq!(applied.rejected, [], "every row is accepted");
    assert_eq!(applied.accepted, rows.len() as u64);
    Ok(applied)
}

/// Reads a dump.
pub(super) async fn batches(
    entities: &dyn EntityRead,
    source: Source,
    keys: Option<&[i64]>,
    batch_rows: usize,
) -> Result<Vec<RecordBatch>> {
    let dump = entities.dump(source, keys, batch_rows).await?;
    let batches: Vec<RecordBatch> = dump.try_collect().await?;
    for batch in &batches {
        assert_eq!(Some(batch.schema()), schema(source), "the columns of views");
        let rows = 1..=batch_rows.max(1);
        assert!(rows.contains(&batch.num_rows()), "{}", batch.num_rows());
    }
    Ok(batches)
}

/// Reads all efforts.
pub(super) async fn efforts(
    entities: &dyn EntityRead,
    batch_rows: usize,
) -> Result<Vec<EffortRow>> {
    let batches = batches(entities, Source::Efforts, None, batch_rows).await?;
    Ok(batches.iter().flat_map(effort_rows).collect())
}

/// Reads all authorizations.
pub(super) async fn authorizations(entities: &dyn EntityRead) -> Result<Vec<AuthorizationRow>> {
    let batches = batches(entities, Source::Authorizations, None, 100).await?;
    Ok(batches.iter().flat_map(authorization_rows).collect())
}

/// Decodes the rows of a batch of `efforts`.
#[must_use]
pub fn effort_rows(batch: &RecordBatch) -> Vec<EffortRow> {
    let row = |row: usize| EffortRow {
        id: integer(batch, "id", row),
        segment_id: integer(batch, "segment_id", row),
        athlete_id: integer(batch, "athlete_id", row),
        activity_id: integer(batch, "activity_id", row),
        elapsed_time_s: integer(batch, "elapsed_time", row),
        started_at_us: instant(batch, "started_at", row).unwrap_or_default(),
        day: integer(batch, "day", row),
        is_hidden: boolean(batch, "is_hidden", row),
        is_deleted: boolean(batch, "is_deleted", row),
        gender: {
            let column = column(batch, "gender");
            let text = || column.as_string::<i32>().value(row).to_owned();
            column.is_valid(row).then(text)
        },
        birth_year: {
            let is_present = column(batch, "birth_year").is_valid(row);
            is_present.then(|| integer(batch, "birth_year", row))
        },
        weight_kg: {
            let column = column(batch, "weight_kg");
            let weight = || column.as_primitive::<Float64Type>().value(row);
            column.is_valid(row).then(weight)
        },
        athlete_is_deleted: boolean(batch, "athlete_is_deleted", row),
        athlete_is_disqualified: boolean(batch, "athlete_is_disqualified", row),
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Decodes the rows of a batch of `authorizations`.
#[must_use]
pub fn authorization_rows(batch: &RecordBatch) -> Vec<AuthorizationRow> {
    let row = |row: usize| AuthorizationRow {
        id: integer(batch, "id", row),
        application_id: integer(batch, "application_id", row),
        athlete_id: integer(batch, "athlete_id", row),
        created_at_us: instant(batch, "created_at", row).unwrap_or_default(),
        revoked_at_us: instant(batch, "revoked_at", row),
        athlete_is_deleted: boolean(batch, "athlete_is_deleted", row),
    };
    (0..batch.num_rows()).map(row).collect()
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a dyn Array {
    batch
        .column_by_name(name)
        .unwrap_or_else(|| panic!("there is a column {name}"))
}

fn integer(batch: &RecordBatch, name: &str, row: usize) -> i64 {
    column(batch, name).as_primitive::<Int64Type>().value(row)
}

fn boolean(batch: &RecordBatch, name: &str, row: usize) -> bool {
    column(batch, name).as_boolean().value(row)
}

fn instant(batch: &RecordBatch, name: &str, row: usize) -> Option<i64> {
    let column = column(batch, name);
    let values = column.as_primitive::<TimestampMicrosecondType>();
    column.is_valid(row).then(|| values.value(row))
}
