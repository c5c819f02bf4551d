//! What the scripts on live state read and write within their transaction.

use std::sync::LazyLock;

use arrow::array::Array;
use schemas::seam::Slot;
use sqlx::{Arguments, Connection, SqliteConnection};

use super::db::{BEGIN_WRITE, Opened};
use super::fault::is_constraint;
use super::statement::{BoundRows, RowsStatement, bind, heavy, stored};
use crate::live::{Deltas, SlotId};
use crate::{Error, Result};

static UPSERT: LazyLock<RowsStatement> = LazyLock::new(|| {
    RowsStatement::new(
        "INSERT INTO parts (place, grp, row, count)",
        "p.id, v.column1, v.column2, v.column3",
        "SELECT ? AS id",
        "ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )
});

/// A slot as it is stored.
#[derive(Debug)]
pub(super) struct Held {
    id: i64,
    pub(super) slot: Slot,
}

pub(super) async fn load(
    connection: &mut SqliteConnection,
    db: &Opened,
    slot: SlotId,
) -> Result<Option<Held>> {
    let doing = "reading a slot";
    let found: Option<(i64, String)> =
        sqlx::query_as("SELECT id, state FROM slots WHERE source = ? AND partition = ?")
            .bind(slot.source.name())
            .bind(slot.partition)
            .fetch_optional(connection)
            .await
            .map_err(db.fault(doing))?;
    let Some((id, state)) = found else {
        return Ok(None);
    };
    let slot = serde_json::from_str(&state).map_err(|error| db.damaged(doing, error))?;
    Ok(Some(Held { id, slot }))
}

pub(super) async fn store(
    connection: &mut SqliteConnection,
    db: &Opened,
    slot: SlotId,
    state: &Slot,
) -> Result<()> {
    let doing = "writing a slot";
    let json = serde_json::to_string(state).map_err(|error| Error::broken(doing, error))?;
    sqlx::query(
        "INSERT INTO slots (source, partition, generation, oldest, state) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE
         SET generation = excluded.generation, oldest = excluded.oldest, state = excluded.state",
    )
    .bind(slot.source.name())
    .bind(slot.partition)
    .bind(stored(state.generation)?)
    .bind(stored(state.oldest)?)
    .bind(json)
    .execute(connection)
    .await
    .map_err(db.fault(doing))?;
    Ok(())
}

/// The place of a view's parts in the epoch that is being filled.
pub(super) async fn ensure_place(
    connection: &mut SqliteConnection,
    db: &Opened,
    held: &Held,
    view: &str,
) -> Result<i64> {
    // Setting what is set already makes the statement answer the place in both cases.
    sqlx::query_scalar(
        "INSERT INTO places (slot, view, generation, epoch) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET epoch = excluded.epoch RETURNING id",
    )
    .bind(held.id)
    .bind(view)
    .bind(stored(held.slot.generation)?)
    .bind(stored(held.slot.epoch)?)
    .fetch_one(connection)
    .await
    .map_err(db.fault("making a place for live parts"))
}

/// Adds rows of deltas to the parts of a place.
pub(super) async fn add(
    connection: &mut SqliteConnection,
    db: &Opened,
    place: i64,
    rows: BoundRows,
) -> Result<()> {
    let doing = "adding deltas";
    UPSERT
        .run(connection, rows, &[place])
        .await
        .map_err(|error| {
            if is_constraint(&error) {
                db.broken(
                doing,
                "a count would be larger than 64 bits can hold, so nothing was changed; look for \
                 wrong amounts among the events",
            )
            } else {
                db.fault(doing)(error)
            }
        })
}

/// Deletes up to `limit` parts of one place that can no longer be read, and the place with its last
/// parts; answers how many parts, or nothing if there is no such place.
pub(super) async fn delete_garbage(
    db: &Opened,
    slot: SlotId,
    limit: usize,
) -> Result<Option<usize>> {
    let fault = db.fault("deleting dropped live parts");
    let mut connection = db.writer().await?;
    let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
    let place: Option<i64> = sqlx::query_scalar(
        "SELECT p.id FROM slots s JOIN places p ON p.slot = s.id
         WHERE s.source = ? AND s.partition = ?
           AND (p.generation <> s.generation OR p.epoch < s.oldest)
         LIMIT 1",
    )
    .bind(slot.source.name())
    .bind(slot.partition)
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let Some(place) = place else {
        return Ok(None);
    };
    let first_to_stay: Option<(Vec<u8>, Vec<u8>)> = sqlx::query_as(
        "SELECT grp, row FROM parts WHERE place = ? ORDER BY grp, row LIMIT 1 OFFSET ?",
    )
    .bind(place)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let done = if let Some((group, row)) = first_to_stay {
        sqlx::query("DELETE FROM parts WHERE place = ? AND (grp, row) < (?, ?)")
            .bind(place)
            .bind(group)
            .bind(row)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
    } else {
        sqlx::query("DELETE FROM places WHERE id = ?")
            .bind(place)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        sqlx::query("DELETE FROM parts WHERE place = ?")
            .bind(place)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
    };
    tx.commit().await.map_err(fault)?;
    Ok(Some(
        usize::try_from(done.rows_affected()).unwrap_or(usize::MAX),
    ))
}

/// Rows in the order of their keys, so that neighbours in the file are written together.
pub(super) async fn bind_deltas(deltas: &[Deltas]) -> Result<Vec<(String, Vec<BoundRows>)>> {
    let rows = deltas.iter().map(|deltas| deltas.counts.len()).sum();
    let deltas = deltas.to_vec();
    heavy(rows, move || {
        let bind_view = |deltas: Deltas| Ok((deltas.view.clone(), bind_view(&deltas)?));
        deltas.into_iter().map(bind_view).collect()
    })
    .await
}

fn bind_view(deltas: &Deltas) -> Result<Vec<BoundRows>> {
    let Deltas {
        view,
        groups,
        rows,
        counts,
    } = deltas;
    if groups.len() != counts.len() || rows.len() != counts.len() {
        return Err(Error::Refused(format!(
            "deltas of {view}: {} groups, {} rows and {} counts; give as many of each",
            groups.len(),
            rows.len(),
            counts.len()
        )));
    }
    let key = |index: usize| (groups.value(index), rows.value(index));
    let mut order: Vec<usize> = (0..counts.len()).collect();
    if !order.is_sorted_by_key(|index| key(*index)) {
        order.sort_unstable_by(|a, b| key(*a).cmp(&key(*b)));
    }
    let length = order.len();
    bind(order.into_iter(), length, |arguments, index| {
        arguments.add(groups.value(index))?;
        arguments.add(rows.value(index))?;
        arguments.add(counts.value(index))
    })
}
