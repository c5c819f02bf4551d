//! What waits in slots to be told to others: entries that are numbered through, so that a number
//! names one entry for ever.

use std::ops::Range;

use super::db::Db;
use super::live_write::{Held, load};
use super::session::Session;
use super::statement::stored;
use crate::Result;
use crate::live::{Outbox, SlotId};
use bytes::Bytes;
use schemas::source::Source;

/// The first entries of some slots, in one transaction.
pub(super) async fn read(
    db: &Db,
    source: Source,
    partitions: Range<u32>,
    limit: usize,
) -> Result<Vec<Option<Outbox>>> {
    let mut tx = db.snapshot("reading what waits to be told").await?;
    let mut outboxes = Vec::new();
    for partition in partitions {
        let Some(held) = load(&mut tx, SlotId { source, partition }).await? else {
            outboxes.push(None);
            continue;
        };
        let generation = stored(held.slot.generation)?;
        let count = "SELECT count(*) FROM outbox WHERE slot = ? AND generation = ?";
        let count = sqlx::query(count).bind(held.id).bind(generation);
        let (waiting,): (i64,) = tx.one(count).await?;
        let query = sqlx::query(
            "SELECT number, entry FROM outbox WHERE slot = ? AND generation = ?
             ORDER BY number LIMIT ?",
        )
        .bind(held.id)
        .bind(generation)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows: Vec<(i64, Vec<u8>)> = tx.all(query).await?;
        let number = |row: Option<&(i64, _)>| row.map(|(number, _)| number.cast_unsigned());
        let from = number(rows.first()).unwrap_or(0);
        let to = number(rows.last()).map_or(0, |last| last + 1);
        outboxes.push(Some(Outbox {
            slot: held.slot,
            waiting: waiting.cast_unsigned(),
            numbers: from..to,
            entries: rows.into_iter().map(|(_, entry)| entry.into()).collect(),
        }));
    }
    Ok(outboxes)
}

/// Appends entries to the outbox of a slot.
pub(super) async fn append(tx: &mut Session, held: &Held, entries: &[Bytes]) -> Result<()> {
    let generation = stored(held.slot.generation)?;
    for entry in entries {
        let query = sqlx::query("INSERT INTO outbox (slot, generation, entry) VALUES (?, ?, ?)")
            .bind(held.id)
            .bind(generation)
            .bind(entry.as_ref());
        tx.execute(query).await?;
    }
    Ok(())
}

/// Takes out what was read, if it is there.
pub(super) async fn take_out(db: &Db, slot: SlotId, read: &Outbox) -> Result<bool> {
    let mut tx = db.change("taking out what has been told").await?;
    let Some(held) = load(&mut tx, slot).await? else {
        return Ok(false);
    };
    let there = held.slot.generation == read.slot.generation;
    if !there || read.entries.is_empty() {
        return Ok(false);
    }
    let query = sqlx::query(
        "DELETE FROM outbox WHERE slot = ? AND generation = ? AND number >= ? AND number < ?",
    )
    .bind(held.id)
    .bind(stored(held.slot.generation)?)
    .bind(stored(read.numbers.start)?)
    .bind(stored(read.numbers.end)?);
    let deleted = tx.execute(query).await?;
    tx.commit().await?;
    Ok(deleted > 0)
}

/// Deletes entries of earlier lives of a slot, at most `limit` of them; answers how many.
pub(super) async fn delete_garbage(tx: &mut Session, slot: SlotId, limit: usize) -> Result<usize> {
    let query = sqlx::query(
        "DELETE FROM outbox WHERE number IN (
             SELECT o.number FROM slots s JOIN outbox o ON o.slot = s.id
             WHERE s.source = ? AND s.partition = ? AND o.generation <> s.generation LIMIT ?)",
    )
    .bind(slot.source.name())
    .bind(slot.partition)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let deleted = tx.execute(query).await?;
    Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
}
