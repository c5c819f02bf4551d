//! What waits in slots to be told to others: entries that are numbered through, so that a number
//! names one entry for ever.

use std::ops::Range;

use bytes::Bytes;
use schemas::source::Source;
use sqlx::{Connection, SqliteConnection};

use super::db::{BEGIN_WRITE, Opened};
use super::live_write::{Held, load};
use super::statement::stored;
use crate::Result;
use crate::live::{Outbox, SlotId};

/// The first entries of some slots, in one transaction.
pub(super) async fn read(
    db: &Opened,
    source: Source,
    partitions: Range<u32>,
    limit: usize,
) -> Result<Vec<Option<Outbox>>> {
    let fault = db.fault("reading what waits to be told");
    let mut connection = db.reader().await?;
    let mut tx = connection.begin().await.map_err(fault)?;
    let mut outboxes = Vec::new();
    for partition in partitions {
        let Some(held) = load(&mut tx, db, SlotId { source, partition }).await? else {
            outboxes.push(None);
            continue;
        };
        let generation = stored(held.slot.generation)?;
        let waiting: i64 =
            sqlx::query_scalar("SELECT count(*) FROM outbox WHERE slot = ? AND generation = ?")
                .bind(held.id)
                .bind(generation)
                .fetch_one(&mut *tx)
                .await
                .map_err(fault)?;
        let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "SELECT number, entry FROM outbox WHERE slot = ? AND generation = ?
             ORDER BY number LIMIT ?",
        )
        .bind(held.id)
        .bind(generation)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
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
pub(super) async fn append(
    connection: &mut SqliteConnection,
    db: &Opened,
    held: &Held,
    entries: &[Bytes],
) -> Result<()> {
    let generation = stored(held.slot.generation)?;
    for entry in entries {
        sqlx::query("INSERT INTO outbox (slot, generation, entry) VALUES (?, ?, ?)")
            .bind(held.id)
            .bind(generation)
            .bind(entry.as_ref())
            .execute(&mut *connection)
            .await
            .map_err(db.fault("noting what is to be told"))?;
    }
    Ok(())
}

/// Takes out what was read, if it is there.
pub(super) async fn take_out(db: &Opened, slot: SlotId, read: &Outbox) -> Result<bool> {
    let fault = db.fault("taking out what has been told");
    let mut connection = db.writer().await?;
    let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
    let Some(held) = load(&mut tx, db, slot).await? else {
        return Ok(false);
    };
    let there = held.slot.generation == read.slot.generation;
    if !there || read.entries.is_empty() {
        return Ok(false);
    }
    let done = sqlx::query(
        "DELETE FROM outbox WHERE slot = ? AND generation = ? AND number >= ? AND number < ?",
    )
    .bind(held.id)
    .bind(stored(held.slot.generation)?)
    .bind(stored(read.numbers.start)?)
    .bind(stored(read.numbers.end)?)
    .execute(&mut *tx)
    .await
    .map_err(fault)?;
    tx.commit().await.map_err(fault)?;
    Ok(done.rows_affected() > 0)
}

/// Deletes entries of earlier lives of a slot, at most `limit` of them; answers how many.
pub(super) async fn delete_garbage(
    connection: &mut SqliteConnection,
    db: &Opened,
    slot: SlotId,
    limit: usize,
) -> Result<usize> {
    let done = sqlx::query(
        "DELETE FROM outbox WHERE number IN (
             SELECT o.number FROM slots s JOIN outbox o ON o.slot = s.id
             WHERE s.source = ? AND s.partition = ? AND o.generation <> s.generation LIMIT ?)",
    )
    .bind(slot.source.name())
    .bind(slot.partition)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .execute(connection)
    .await
    .map_err(db.fault("deleting what an earlier life had to tell"))?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
}
