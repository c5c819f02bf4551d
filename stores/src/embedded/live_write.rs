//! What the scripts on live state read and write within their transaction.

use std::sync::LazyLock;

use arrow::array::{Array, BinaryArray};
use schemas::seam::Slot;
use sqlx::{Arguments, AssertSqlSafe, Connection, SqliteConnection};

use super::db::{BEGIN_WRITE, Opened};
use super::fault::is_constraint;
use super::live_outbox;
use super::statement::{BoundRows, RowsStatement, bind, heavy, stored};
use crate::live::{Changes, Deltas, SlotId, States};
use crate::{Error, Result};

static ADD_DELTAS: LazyLock<RowsStatement> = LazyLock::new(|| {
    RowsStatement::new(
        "INSERT INTO parts (place, grp, row, count)",
        "p.id, v.column1, v.column2, v.column3",
        "SELECT ? AS id",
        "ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )
});

static PUT_STATES: LazyLock<RowsStatement> = LazyLock::new(|| {
    RowsStatement::new(
        "INSERT INTO states (place, key, member, state)",
        "p.id, v.column1, v.column2, v.column3",
        "SELECT ? AS id",
        "ON CONFLICT DO UPDATE SET state = excluded.state",
    )
});

/// The table that holds the parts of a view.
#[derive(Debug, Clone, Copy)]
pub(super) enum PartsTable {
    Deltas,
    States,
}

/// What a micro-batch changes of one view, bound for its statements.
#[derive(Debug)]
pub(super) struct OfView {
    pub(super) view: String,
    pub(super) table: PartsTable,
    pub(super) rows: Vec<BoundRows>,
}

/// A slot as it is stored.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: i64,
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

/// Adds deltas to the parts of a place, or puts states in the place of those before.
pub(super) async fn add(
    connection: &mut SqliteConnection,
    db: &Opened,
    table: PartsTable,
    place: i64,
    rows: BoundRows,
) -> Result<()> {
    let (doing, statement) = match table {
        PartsTable::Deltas => ("adding deltas", &ADD_DELTAS),
        PartsTable::States => ("putting states", &PUT_STATES),
    };
    statement
        .run(connection, rows, &[place])
        .await
        .map_err(|error| match table {
            PartsTable::Deltas if is_constraint(&error) => db.broken(
                doing,
                "a count would be larger than 64 bits can hold, so nothing was changed; look for \
                 wrong amounts among the events",
            ),
            _ => db.fault(doing)(error),
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
        let deleted = live_outbox::delete_garbage(&mut tx, db, slot, limit).await?;
        tx.commit().await.map_err(fault)?;
        return Ok((deleted > 0).then_some(deleted));
    };
    let mut deleted = 0;
    for (table, first, second) in [("parts", "grp", "row"), ("states", "key", "member")] {
        let keys = (first, second);
        deleted += delete_first(&mut tx, db, (table, keys), place, limit - deleted).await?;
    }
    if deleted < limit {
        sqlx::query("DELETE FROM places WHERE id = ?")
            .bind(place)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
    }
    tx.commit().await.map_err(fault)?;
    Ok(Some(deleted))
}

/// Deletes the first `limit` rows of a place in one table, or all if there are not more.
async fn delete_first(
    connection: &mut SqliteConnection,
    db: &Opened,
    (table, (first, second)): (&str, (&str, &str)),
    place: i64,
    limit: usize,
) -> Result<usize> {
    let fault = db.fault("deleting dropped live parts");
    if limit == 0 {
        return Ok(0);
    }
    let find = format!(
        "SELECT {first}, {second} FROM {table} WHERE place = ? ORDER BY {first}, {second}
         LIMIT 1 OFFSET ?"
    );
    let first_to_stay: Option<(Vec<u8>, Vec<u8>)> = sqlx::query_as(AssertSqlSafe(find))
        .bind(place)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_optional(&mut *connection)
        .await
        .map_err(fault)?;
    let rest = if first_to_stay.is_some() {
        format!("AND ({first}, {second}) < (?, ?)")
    } else {
        String::new()
    };
    let delete = format!("DELETE FROM {table} WHERE place = ? {rest}");
    let mut delete = sqlx::query(AssertSqlSafe(delete)).bind(place);
    if let Some((first, second)) = first_to_stay {
        delete = delete.bind(first).bind(second);
    }
    let done = delete.execute(&mut *connection).await.map_err(fault)?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
}

/// Rows in the order of their keys, so that neighbours in the file are written together.
pub(super) async fn bind_changes(changes: &Changes) -> Result<Vec<OfView>> {
    let rows = changes.rows();
    let changes = changes.clone();
    heavy(rows, move || {
        let deltas = changes.deltas.iter().map(bind_deltas);
        deltas
            .chain(changes.states.iter().map(bind_states))
            .collect()
    })
    .await
}

fn bind_deltas(deltas: &Deltas) -> Result<OfView> {
    let (groups, rows, counts) = (&deltas.groups, &deltas.rows, &deltas.counts);
    let order = order(&deltas.view, groups, rows, counts.len())?;
    let length = order.len();
    let rows = bind(order.into_iter(), length, |arguments, index| {
        arguments.add(groups.value(index))?;
        arguments.add(rows.value(index))?;
        arguments.add(counts.value(index))
    })?;
    Ok(OfView {
        view: deltas.view.clone(),
        table: PartsTable::Deltas,
        rows,
    })
}

fn bind_states(states: &States) -> Result<OfView> {
    let (keys, members) = (&states.keys, &states.members);
    let order = order(&states.view, keys, members, states.states.len())?;
    let length = order.len();
    let rows = bind(order.into_iter(), length, |arguments, index| {
        arguments.add(keys.value(index))?;
        arguments.add(members.value(index))?;
        arguments.add(states.state(index))
    })?;
    Ok(OfView {
        view: states.view.clone(),
        table: PartsTable::States,
        rows,
    })
}

/// The indices of rows in the order of their two keys.
fn order(
    view: &str,
    first: &BinaryArray,
    second: &BinaryArray,
    values: usize,
) -> Result<Vec<usize>> {
    if first.len() != values || second.len() != values {
        return Err(Error::Refused(format!(
            "parts of {view}: {} and {} keys for {values} values; give as many of each",
            first.len(),
            second.len(),
        )));
    }
    let key = |index: usize| (first.value(index), second.value(index));
    let mut order: Vec<usize> = (0..values).collect();
    if !order.is_sorted_by_key(|index| key(*index)) {
        order.sort_unstable_by(|a, b| key(*a).cmp(&key(*b)));
    }
    Ok(order)
}
