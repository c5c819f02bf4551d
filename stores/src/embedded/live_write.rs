//! Writes within transactions on live state.
//!
//! A container holds the rows of one view, generation and epoch. The stored names are older:
//! `places` are containers, `parts` are deltas, `states` are entries, `slots` are partition states.

use std::sync::LazyLock;

use arrow::array::{Array, BinaryArray};
use sqlx::{Arguments, AssertSqlSafe};

use super::db::Db;
use super::errors::is_constraint_violation;
use super::live_outbox;
use super::live_state::StoredState;
use super::session::Session;
use super::statement::{BoundRows, RowsStatement, bind_batches, run_heavy, to_stored};
use crate::live::{Changes, Deltas, Entries, PartitionId};
use crate::{Error, Result};

static ADD_DELTAS: LazyLock<RowsStatement> = LazyLock::new(|| {
    RowsStatement::new(
        "INSERT INTO parts (place, grp, row, count)",
        "p.id, v.column1, v.column2, v.column3",
        "SELECT ? AS id",
        "ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )
});

static PUT_ENTRIES: LazyLock<RowsStatement> = LazyLock::new(|| {
    RowsStatement::new(
        "INSERT INTO states (place, key, member, state)",
        "p.id, v.column1, v.column2, v.column3",
        "SELECT ? AS id",
        "ON CONFLICT DO UPDATE SET state = excluded.state",
    )
});

/// The table that holds the rows of a view.
#[derive(Debug, Clone, Copy)]
pub(super) enum LiveTable {
    Deltas,
    Entries,
}

/// Changes to one view, bound to statements.
#[derive(Debug)]
pub(super) struct ViewRows {
    pub(super) view: String,
    pub(super) table: LiveTable,
    pub(super) rows: Vec<BoundRows>,
}

/// Returns the container of a view for the current epoch. Creates it if it is missing.
pub(super) async fn ensure_container(
    tx: &mut Session,
    stored: &StoredState,
    view: &str,
) -> Result<i64> {
    // The update without effect makes the statement return the id in both cases.
    let query = sqlx::query(
        "INSERT INTO places (slot, view, generation, epoch) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET epoch = excluded.epoch RETURNING id",
    )
    .bind(stored.id)
    .bind(view)
    .bind(to_stored(stored.state.generation)?)
    .bind(to_stored(stored.state.epoch)?);
    let (container,) = tx.fetch_one(query).await?;
    Ok(container)
}

/// Adds deltas to the rows of a container, or replaces entries.
pub(super) async fn add_rows(
    tx: &mut Session,
    table: LiveTable,
    container: i64,
    rows: BoundRows,
) -> Result<()> {
    let statement = match table {
        LiveTable::Deltas => &ADD_DELTAS,
        LiveTable::Entries => &PUT_ENTRIES,
    };
    let (connection, _) = tx.split();
    let result = statement.run(connection, rows, &[container]).await;
    result.map_err(|error| match table {
        LiveTable::Deltas if is_constraint_violation(&error) => tx.broken(
            "a count would exceed 64 bits, so nothing was changed; look for events with wrong \
             amounts",
        ),
        _ => tx.error_for(error),
    })
}

/// Deletes up to `limit` rows of one garbage container, and the container when it is empty. Returns
/// the number of deleted rows, or `None` if there is no garbage.
pub(super) async fn delete_garbage(
    db: &Db,
    partition_id: PartitionId,
    limit: usize,
) -> Result<Option<usize>> {
    let mut tx = db.begin_write("deleting pruned live state").await?;
    let query = sqlx::query(
        "SELECT p.id FROM slots s JOIN places p ON p.slot = s.id
         WHERE s.source = ? AND s.partition = ?
           AND (p.generation <> s.generation OR p.epoch < s.oldest)
         LIMIT 1",
    )
    .bind(partition_id.source.name())
    .bind(partition_id.partition);
    let container: Option<(i64,)> = tx.fetch_first(query).await?;
    let Some((container,)) = container else {
        let deleted = live_outbox::delete_garbage(&mut tx, partition_id, limit).await?;
        tx.commit().await?;
        return Ok((deleted > 0).then_some(deleted));
    };
    let mut deleted = 0;
    for (table, columns) in [("parts", ["grp", "row"]), ("states", ["key", "member"])] {
        deleted += delete_first(&mut tx, table, columns, container, limit - deleted).await?;
    }
    if deleted < limit {
        let query = sqlx::query("DELETE FROM places WHERE id = ?").bind(container);
        tx.execute(query).await?;
    }
    tx.commit().await?;
    Ok(Some(deleted))
}

/// Deletes at most the first `limit` rows of a container in one table.
async fn delete_first(
    tx: &mut Session,
    table: &str,
    [first, second]: [&str; 2],
    container: i64,
    limit: usize,
) -> Result<usize> {
    if limit == 0 {
        return Ok(0);
    }
    let query = format!(
        "SELECT {first}, {second} FROM {table} WHERE place = ? ORDER BY {first}, {second}
         LIMIT 1 OFFSET ?"
    );
    let query = sqlx::query(AssertSqlSafe(query))
        .bind(container)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let first_remaining: Option<(Vec<u8>, Vec<u8>)> = tx.fetch_first(query).await?;
    let condition = if first_remaining.is_some() {
        format!("AND ({first}, {second}) < (?, ?)")
    } else {
        String::new()
    };
    let delete = format!("DELETE FROM {table} WHERE place = ? {condition}");
    let mut delete = sqlx::query(AssertSqlSafe(delete)).bind(container);
    if let Some((first, second)) = first_remaining {
        delete = delete.bind(first).bind(second);
    }
    let deleted = tx.execute(delete).await?;
    Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
}

/// Binds rows in key order, so that adjacent rows of the file are written together.
pub(super) async fn bind_changes(changes: &Changes) -> Result<Vec<ViewRows>> {
    let rows = changes.rows();
    let changes = changes.clone();
    run_heavy(rows, move || {
        let deltas = changes.deltas.iter().map(bind_deltas);
        deltas
            .chain(changes.entries.iter().map(bind_entries))
            .collect()
    })
    .await
}

fn bind_deltas(deltas: &Deltas) -> Result<ViewRows> {
    let (groups, rows, counts) = (&deltas.groups, &deltas.rows, &deltas.counts);
    let order = sort_by_keys(&deltas.view, groups, rows, counts.len())?;
    let length = order.len();
    let rows = bind_batches(order.into_iter(), length, |arguments, index| {
        arguments.add(groups.value(index))?;
        arguments.add(rows.value(index))?;
        arguments.add(counts.value(index))
    })?;
    Ok(ViewRows {
        view: deltas.view.clone(),
        table: LiveTable::Deltas,
        rows,
    })
}

fn bind_entries(entries: &Entries) -> Result<ViewRows> {
    let (keys, members) = (&entries.keys, &entries.members);
    let order = sort_by_keys(&entries.view, keys, members, entries.entries.len())?;
    let length = order.len();
    let rows = bind_batches(order.into_iter(), length, |arguments, index| {
        arguments.add(keys.value(index))?;
        arguments.add(members.value(index))?;
        arguments.add(entries.entry(index))
    })?;
    Ok(ViewRows {
        view: entries.view.clone(),
        table: LiveTable::Entries,
        rows,
    })
}

/// Sorts the indexes of rows by their two keys.
fn sort_by_keys(
    view: &str,
    first: &BinaryArray,
    second: &BinaryArray,
    values: usize,
) -> Result<Vec<usize>> {
    if first.len() != values || second.len() != values {
        return Err(Error::Refused(format!(
            "view {view} has {} group keys and {} row keys for {values} values; the numbers must be equal",
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
