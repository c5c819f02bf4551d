//! What the scripts on live state read and write within their transaction.

use std::sync::LazyLock;

use arrow::array::{Array, BinaryArray};
use schemas::seam::Slot;
use sqlx::{Arguments, AssertSqlSafe};

use super::db::Db;
use super::fault::is_constraint;
use super::live_outbox;
use super::session::Session;
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

pub(super) async fn load(session: &mut Session, slot: SlotId) -> Result<Option<Held>> {
    let query = sqlx::query("SELECT id, state FROM slots WHERE source = ? AND partition = ?")
        .bind(slot.source.name())
        .bind(slot.partition);
    let found: Option<(i64, String)> = session.first(query).await?;
    let Some((id, state)) = found else {
        return Ok(None);
    };
    let slot = serde_json::from_str(&state).map_err(|error| session.damaged(error))?;
    Ok(Some(Held { id, slot }))
}

pub(super) async fn store(tx: &mut Session, slot: SlotId, state: &Slot) -> Result<()> {
    let json = serde_json::to_string(state);
    let json = json.map_err(|error| Error::broken("writing a slot", error))?;
    let query = sqlx::query(
        "INSERT INTO slots (source, partition, generation, oldest, state) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE
         SET generation = excluded.generation, oldest = excluded.oldest, state = excluded.state",
    )
    .bind(slot.source.name())
    .bind(slot.partition)
    .bind(stored(state.generation)?)
    .bind(stored(state.oldest)?)
    .bind(json);
    tx.execute(query).await.map(drop)
}

/// The place of a view's parts in the epoch that is being filled.
pub(super) async fn ensure_place(tx: &mut Session, held: &Held, view: &str) -> Result<i64> {
    // Setting what is set already makes the statement answer the place in both cases.
    let query = sqlx::query(
        "INSERT INTO places (slot, view, generation, epoch) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET epoch = excluded.epoch RETURNING id",
    )
    .bind(held.id)
    .bind(view)
    .bind(stored(held.slot.generation)?)
    .bind(stored(held.slot.epoch)?);
    let (place,) = tx.one(query).await?;
    Ok(place)
}

/// Adds deltas to the parts of a place, or puts states in the place of those before.
pub(super) async fn add(
    tx: &mut Session,
    table: PartsTable,
    place: i64,
    rows: BoundRows,
) -> Result<()> {
    let statement = match table {
        PartsTable::Deltas => &ADD_DELTAS,
        PartsTable::States => &PUT_STATES,
    };
    let (connection, _) = tx.split();
    let added = statement.run(connection, rows, &[place]).await;
    added.map_err(|error| match table {
        PartsTable::Deltas if is_constraint(&error) => tx.broken(
            "a count would be larger than 64 bits can hold, so nothing was changed; look for \
             wrong amounts among the events",
        ),
        _ => tx.fault(error),
    })
}

/// Deletes up to `limit` parts of one place that can no longer be read, and the place with its last
/// parts; answers how many parts, or nothing if there is no such place.
pub(super) async fn delete_garbage(db: &Db, slot: SlotId, limit: usize) -> Result<Option<usize>> {
    let mut tx = db.change("deleting dropped live parts").await?;
    let query = sqlx::query(
        "SELECT p.id FROM slots s JOIN places p ON p.slot = s.id
         WHERE s.source = ? AND s.partition = ?
           AND (p.generation <> s.generation OR p.epoch < s.oldest)
         LIMIT 1",
    )
    .bind(slot.source.name())
    .bind(slot.partition);
    let place: Option<(i64,)> = tx.first(query).await?;
    let Some((place,)) = place else {
        let deleted = live_outbox::delete_garbage(&mut tx, slot, limit).await?;
        tx.commit().await?;
        return Ok((deleted > 0).then_some(deleted));
    };
    let mut deleted = 0;
    for (table, first, second) in [("parts", "grp", "row"), ("states", "key", "member")] {
        let keys = (first, second);
        deleted += delete_first(&mut tx, (table, keys), place, limit - deleted).await?;
    }
    if deleted < limit {
        let query = sqlx::query("DELETE FROM places WHERE id = ?").bind(place);
        tx.execute(query).await?;
    }
    tx.commit().await?;
    Ok(Some(deleted))
}

/// Deletes the first `limit` rows of a place in one table, or all if there are not more.
async fn delete_first(
    tx: &mut Session,
    (table, (first, second)): (&str, (&str, &str)),
    place: i64,
    limit: usize,
) -> Result<usize> {
    if limit == 0 {
        return Ok(0);
    }
    let find = format!(
        "SELECT {first}, {second} FROM {table} WHERE place = ? ORDER BY {first}, {second}
         LIMIT 1 OFFSET ?"
    );
    let find = sqlx::query(AssertSqlSafe(find))
        .bind(place)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let first_to_stay: Option<(Vec<u8>, Vec<u8>)> = tx.first(find).await?;
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
    let deleted = tx.execute(delete).await?;
    Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
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
