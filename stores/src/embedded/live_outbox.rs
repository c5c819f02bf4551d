//! The outboxes of partition states. Entries have consecutive numbers, so a number identifies one
//! entry forever.

use std::ops::Range;

use super::db::Db;
use super::live_state::{StoredState, load};
use super::session::Session;
use super::statement::to_stored;
use crate::Result;
use crate::live::{Outbox, PartitionId};
use bytes::Bytes;
use schemas::source::Source;

/// Reads the first entries of some outboxes in one transaction.
pub(super) async fn read(
    db: &Db,
    source: Source,
    partitions: Range<u32>,
    limit: usize,
) -> Result<Vec<Option<Outbox>>> {
    let mut tx = db.begin_read("reading outboxes").await?;
    let mut outboxes = Vec::new();
    for partition in partitions {
        let Some(stored) = load(&mut tx, PartitionId { source, partition }).await? else {
            outboxes.push(None);
            continue;
        };
        let generation = to_stored(stored.state.generation)?;
        let count = "SELECT count(*) FROM outbox WHERE slot = ? AND generation = ?";
        let count = sqlx::query(count).bind(stored.id).bind(generation);
        let (pending,): (i64,) = tx.fetch_one(count).await?;
        let query = sqlx::query(
            "SELECT number, entry FROM outbox WHERE slot = ? AND generation = ?
             ORDER BY number LIMIT ?",
        )
        .bind(stored.id)
        .bind(generation)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows: Vec<(i64, Vec<u8>)> = tx.fetch_all(query).await?;
        let number = |row: Option<&(i64, _)>| row.map(|(number, _)| number.cast_unsigned());
        let from = number(rows.first()).unwrap_or(0);
        let to = number(rows.last()).map_or(0, |last| last + 1);
        outboxes.push(Some(Outbox {
            state: stored.state,
            pending: pending.cast_unsigned(),
            sequence_numbers: from..to,
            entries: rows.into_iter().map(|(_, entry)| entry.into()).collect(),
        }));
    }
    Ok(outboxes)
}

/// Appends entries to an outbox.
pub(super) async fn append(
    tx: &mut Session,
    stored: &StoredState,
    entries: &[Bytes],
) -> Result<()> {
    let generation = to_stored(stored.state.generation)?;
    for entry in entries {
        let query = sqlx::query("INSERT INTO outbox (slot, generation, entry) VALUES (?, ?, ?)")
            .bind(stored.id)
            .bind(generation)
            .bind(entry.as_ref());
        tx.execute(query).await?;
    }
    Ok(())
}

/// Removes entries that were read, if they still exist.
pub(super) async fn remove_entries(
    db: &Db,
    partition_id: PartitionId,
    outbox: &Outbox,
) -> Result<bool> {
    let mut tx = db
        .begin_write("removing published entries from the outbox")
        .await?;
    let Some(stored) = load(&mut tx, partition_id).await? else {
        return Ok(false);
    };
    let is_current = stored.state.generation == outbox.state.generation;
    if !is_current || outbox.entries.is_empty() {
        return Ok(false);
    }
    let query = sqlx::query(
        "DELETE FROM outbox WHERE slot = ? AND generation = ? AND number >= ? AND number < ?",
    )
    .bind(stored.id)
    .bind(to_stored(stored.state.generation)?)
    .bind(to_stored(outbox.sequence_numbers.start)?)
    .bind(to_stored(outbox.sequence_numbers.end)?);
    let deleted = tx.execute(query).await?;
    tx.commit().await?;
    Ok(deleted > 0)
}

/// Deletes up to `limit` entries of earlier generations, and returns their number.
pub(super) async fn delete_garbage(
    tx: &mut Session,
    partition_id: PartitionId,
    limit: usize,
) -> Result<usize> {
    let query = sqlx::query(
        "DELETE FROM outbox WHERE number IN (
             SELECT o.number FROM slots s JOIN outbox o ON o.slot = s.id
             WHERE s.source = ? AND s.partition = ? AND o.generation <> s.generation LIMIT ?)",
    )
    .bind(partition_id.source.name())
    .bind(partition_id.partition)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let deleted = tx.execute(query).await?;
    Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
}
