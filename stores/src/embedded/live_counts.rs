//! Live counts that partition states maintain ([`crate::live_count`]).
//!
//! Triggers of the file invalidate a live count when its entries change. So the counts to store are
//! decided before the entries change, and written afterwards.

use std::ops::Range;

use schemas::seam::live_count::next_count;
use schemas::source::Source;

use super::live_state::StoredState;
use super::session::Session;
use super::statement::to_stored;
use crate::Result;
use crate::live::{EntryQuery, STORED_COUNT_MAX};
use crate::live_count::{LiveCountChange, StoredLiveCount};

/// New live count of one key of a view; `None` deletes it.
#[derive(Debug)]
pub(super) struct NewLiveCount<'a> {
    view: &'a str,
    key: &'a [u8],
    count: Option<StoredLiveCount>,
}

/// Reads the live counts of a key in the current generations of some partitions.
pub(super) async fn read_counts(
    session: &mut Session,
    source: Source,
    partitions: Range<u32>,
    query: &EntryQuery,
) -> Result<Vec<(u32, StoredLiveCount)>> {
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
    let rows: Vec<(u32, Vec<u8>)> = session.fetch_all(query).await?;
    let counts = rows.into_iter();
    let counts = counts
        .map(|(partition, count)| Some((partition, StoredLiveCount::from_bytes(count.into())?)));
    Ok(counts.flatten().collect())
}

/// Counts the entries of a key in some partitions, up to [`STORED_COUNT_MAX`].
pub(super) async fn count_entries(
    session: &mut Session,
    source: Source,
    partitions: Range<u32>,
    query: &EntryQuery,
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
    .bind(to_stored(STORED_COUNT_MAX)?);
    let (count,): (i64,) = session.fetch_one(query).await?;
    Ok(count.cast_unsigned())
}

/// Decides the new live counts from the stored ones, before entries change.
pub(super) async fn decide<'a>(
    tx: &mut Session,
    stored: &StoredState,
    changes: &'a [LiveCountChange],
) -> Result<Vec<NewLiveCount<'a>>> {
    let generation = to_stored(stored.state.generation)?;
    let mut counts = Vec::with_capacity(changes.len());
    for change in changes {
        let query = sqlx::query(
            "SELECT sum FROM sums WHERE slot = ? AND view = ? AND key = ? AND generation = ?",
        )
        .bind(stored.id)
        .bind(&change.view)
        .bind(&change.key)
        .bind(generation);
        let stored_count: Option<(Vec<u8>,)> = tx.fetch_first(query).await?;
        let stored_count =
            stored_count.and_then(|(count,)| StoredLiveCount::from_bytes(count.into()));
        counts.push(NewLiveCount {
            view: &change.view,
            key: &change.key,
            count: next_count(
                stored_count.as_ref(),
                change.expected.as_ref(),
                change.next.clone(),
            ),
        });
    }
    Ok(counts)
}

/// Writes live counts.
pub(super) async fn put_counts(
    tx: &mut Session,
    stored: &StoredState,
    counts: &[NewLiveCount<'_>],
) -> Result<()> {
    let generation = to_stored(stored.state.generation)?;
    for NewLiveCount { view, key, count } in counts {
        let query = match count {
            Some(count) => sqlx::query(
                "INSERT INTO sums (slot, view, key, generation, sum) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET generation = excluded.generation, sum = excluded.sum",
            )
            .bind(stored.id)
            .bind(*view)
            .bind(*key)
            .bind(generation)
            .bind(count.bytes().as_ref()),
            None => sqlx::query("DELETE FROM sums WHERE slot = ? AND view = ? AND key = ?")
                .bind(stored.id)
                .bind(*view)
                .bind(*key),
        };
        tx.execute(query).await?;
    }
    Ok(())
}

/// Deletes all live counts of a partition state that starts a new generation.
pub(super) async fn delete_all(tx: &mut Session, stored: &StoredState) -> Result<()> {
    let query = sqlx::query("DELETE FROM sums WHERE slot = ?").bind(stored.id);
    tx.execute(query).await.map(drop)
}
