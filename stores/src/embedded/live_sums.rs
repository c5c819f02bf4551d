//! Sums that slots keep of states ([`crate::kept_sum`]).
//!
//! States that change end the sum of their key by triggers of the file. So what is to be kept all the same
//! is decided before, and put when the states are there.

use std::ops::Range;

use schemas::seam::sum::kept;
use schemas::source::Source;

use super::live_write::Held;
use super::session::Session;
use super::statement::stored;
use crate::Result;
use crate::kept_sum::{KeptSum, SumChange};
use crate::live::{HELD_MAX, StateQuery};

/// What becomes of the sum of one key of a view.
#[derive(Debug)]
pub(super) struct Decided<'a> {
    view: &'a str,
    key: &'a [u8],
    sum: Option<KeptSum>,
}

/// The sums of a key that the slots of some partitions keep in their present lives, with the partition.
pub(super) async fn read(
    session: &mut Session,
    (source, partitions): (Source, Range<u32>),
    query: &StateQuery,
) -> Result<Vec<(u32, KeptSum)>> {
    let query = sqlx::query(
        "SELECT s.partition, m.sum
         FROM slots s
         CROSS JOIN sums m ON m.slot = s.id AND m.view = ?4 AND m.key = ?5
             AND m.generation = s.generation
         WHERE s.source = ?1 AND s.partition >= ?2 AND s.partition < ?3",
    )
    .bind(source.name())
    .bind(partitions.start)
    .bind(partitions.end)
    .bind(&query.view)
    .bind(&query.key);
    let found: Vec<(u32, Vec<u8>)> = session.all(query).await?;
    let sums = found.into_iter();
    let sums = sums.map(|(partition, sum)| Some((partition, KeptSum::stored(sum.into())?)));
    Ok(sums.flatten().collect())
}

/// How many states of a key the slots of some partitions hold, counted up to [`HELD_MAX`].
pub(super) async fn held(
    session: &mut Session,
    (source, partitions): (Source, Range<u32>),
    query: &StateQuery,
) -> Result<u64> {
    let query = sqlx::query(
        "SELECT count(*) FROM (
             SELECT 1
             FROM slots s
             CROSS JOIN places p ON p.slot = s.id AND p.view = ?4
                 AND p.generation = s.generation AND p.epoch >= s.oldest
             CROSS JOIN states t ON t.place = p.id AND t.key = ?5
             WHERE s.source = ?1 AND s.partition >= ?2 AND s.partition < ?3
             LIMIT ?6)",
    )
    .bind(source.name())
    .bind(partitions.start)
    .bind(partitions.end)
    .bind(&query.view)
    .bind(&query.key)
    .bind(stored(HELD_MAX)?);
    let (held,): (i64,) = session.one(query).await?;
    Ok(held.cast_unsigned())
}

/// What becomes of the sums of which something is said, as the slot stands before the states change.
pub(super) async fn decide<'a>(
    tx: &mut Session,
    slot: &Held,
    changes: &'a [SumChange],
) -> Result<Vec<Decided<'a>>> {
    let generation = stored(slot.slot.generation)?;
    let mut decided = Vec::with_capacity(changes.len());
    for change in changes {
        let query = sqlx::query(
            "SELECT sum FROM sums WHERE slot = ? AND view = ? AND key = ? AND generation = ?",
        )
        .bind(slot.id)
        .bind(&change.view)
        .bind(&change.key)
        .bind(generation);
        let there: Option<(Vec<u8>,)> = tx.first(query).await?;
        let there = there.and_then(|(sum,)| KeptSum::stored(sum.into()));
        decided.push(Decided {
            view: &change.view,
            key: &change.key,
            sum: kept(
                there.as_ref(),
                change.believed.as_ref(),
                change.next.clone(),
            ),
        });
    }
    Ok(decided)
}

/// Puts them.
pub(super) async fn put(tx: &mut Session, slot: &Held, decided: &[Decided<'_>]) -> Result<()> {
    let generation = stored(slot.slot.generation)?;
    for Decided { view, key, sum } in decided {
        let query = match sum {
            Some(sum) => sqlx::query(
                "INSERT INTO sums (slot, view, key, generation, sum) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET generation = excluded.generation, sum = excluded.sum",
            )
            .bind(slot.id)
            .bind(*view)
            .bind(*key)
            .bind(generation)
            .bind(sum.bytes().as_ref()),
            None => sqlx::query("DELETE FROM sums WHERE slot = ? AND view = ? AND key = ?")
                .bind(slot.id)
                .bind(*view)
                .bind(*key),
        };
        tx.execute(query).await?;
    }
    Ok(())
}

/// Deletes all sums of a slot, which begins a new life.
pub(super) async fn clear(tx: &mut Session, slot: &Held) -> Result<()> {
    let query = sqlx::query("DELETE FROM sums WHERE slot = ?").bind(slot.id);
    tx.execute(query).await.map(drop)
}
