//! Reads of partition states together with their deltas or live entries, in one transaction.

use std::ops::Range;

use arrow::array::{BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder};
use async_trait::async_trait;
use schemas::seam::{Epoch, PartitionState};
use schemas::source::Source;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::db::Db;
use super::live::SqliteLive;
use super::session::Session;
use super::{live_counts, live_outbox, live_scan};
use crate::Result;
use crate::live::{
    DeltaQuery, DeltasSnapshot, EntriesSnapshot, EntryQuery, LiveDeltas, LiveEntriesBuilder,
    LiveRead, MembersQuery, Outbox, PartitionId,
};
use crate::live_scan::{ScanKey, ScannedDeltas, ScannedEntries};

#[async_trait]
impl LiveRead for SqliteLive {
    async fn read_deltas(
        &self,
        source: Source,
        partitions: u32,
        queries: &[DeltaQuery],
    ) -> Result<DeltasSnapshot> {
        let mut tx = self.db.begin_read("reading live deltas").await?;
        let partition_states = load_partition_states(&mut tx, source, 0..partitions).await?;
        let mut deltas = Vec::with_capacity(queries.len());
        for query in queries {
            let mut matches = QueryMatches::default();
            for range in &query.ranges {
                let range_query = RangeQuery {
                    source,
                    partitions: restrict(0..partitions, query.partition),
                    query,
                    range,
                };
                matches.read(&mut tx, range_query).await?;
            }
            deltas.push(matches.finish());
        }
        Ok(DeltasSnapshot {
            partition_states,
            deltas,
        })
    }

    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<PartitionState>>> {
        let mut session = self.db.read("reading partition states").await?;
        load_partition_states(&mut session, source, partitions).await
    }

    async fn read_entries(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        read_entry_snapshot(&self.db, source, partitions, queries, false).await
    }

    async fn read_live_counts(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        read_entry_snapshot(&self.db, source, partitions, queries, true).await
    }

    async fn read_members(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<EntriesSnapshot> {
        let mut tx = self.db.begin_read("reading live entries").await?;
        let partition_states = load_partition_states(&mut tx, source, partitions.clone()).await?;
        let mut entries = Vec::with_capacity(queries.len());
        for MembersQuery { query, members } in queries {
            let Range { start, end } = restrict(partitions.clone(), query.partition);
            let mut builder = LiveEntriesBuilder::default();
            builder.live_counts =
                live_counts::read_counts(&mut tx, source, start..end, query).await?;
            builder.stored_count =
                live_counts::count_entries(&mut tx, source, start..end, query).await?;
            for member in members {
                let rows = sqlx::query(
                    "SELECT s.partition, p.epoch, t.member, t.state
                     FROM slots s
                     CROSS JOIN places p ON p.slot = s.id AND p.view = ?4
                         AND p.generation = s.generation AND p.epoch >= s.oldest
                     CROSS JOIN states t ON t.place = p.id AND t.key = ?5 AND t.member = ?6
                     WHERE s.source = ?1 AND s.partition >= ?2 AND s.partition < ?3",
                )
                .bind(source.name())
                .bind(start)
                .bind(end)
                .bind(&query.view)
                .bind(&query.key)
                .bind(member);
                tx.for_each_row(rows, |row| add_entry(&mut builder, row))
                    .await?;
            }
            entries.push(builder.finish());
        }
        Ok(EntriesSnapshot {
            partition_states,
            entries,
        })
    }

    async fn outboxes(
        &self,
        source: Source,
        partitions: Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        live_outbox::read(&self.db, source, partitions, limit).await
    }

    async fn scan_deltas(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedDeltas> {
        let request = live_scan::PageRequest {
            partition_id,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        live_scan::read_delta_page(&self.db, request).await
    }

    async fn scan_entries(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedEntries> {
        let request = live_scan::PageRequest {
            partition_id,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        live_scan::read_entry_page(&self.db, request).await
    }
}

/// Restricts a range of partitions to the only one of a query, if it has one.
fn restrict(partitions: Range<u32>, only: Option<u32>) -> Range<u32> {
    let Some(only) = only else { return partitions };
    partitions.start.max(only)..partitions.end.min(only.saturating_add(1))
}

/// Reads partition states and live entries. Finished live counts may replace entries.
async fn read_entry_snapshot(
    db: &Db,
    source: Source,
    partitions: u32,
    queries: &[EntryQuery],
    accepts_live_counts: bool,
) -> Result<EntriesSnapshot> {
    let mut tx = db.begin_read("reading live entries").await?;
    let partition_states = load_partition_states(&mut tx, source, 0..partitions).await?;
    let mut entries = Vec::with_capacity(queries.len());
    for query in queries {
        let Range { start, end } = restrict(0..partitions, query.partition);
        let mut builder = LiveEntriesBuilder::default();
        builder.live_counts = live_counts::read_counts(&mut tx, source, start..end, query).await?;
        // The order of the joins is fixed, as for deltas.
        let rows = sqlx::query(
            "SELECT s.partition, p.epoch, t.member, t.state
             FROM slots s
             CROSS JOIN places p ON p.slot = s.id AND p.view = ?4
                 AND p.generation = s.generation AND p.epoch >= s.oldest
             CROSS JOIN states t ON t.place = p.id AND t.key = ?5
             WHERE s.source = ?1 AND s.partition >= ?2 AND s.partition < ?3
                 AND NOT (?6 AND EXISTS (
                     SELECT 1 FROM sums m WHERE m.slot = s.id AND m.view = ?4 AND m.key = ?5
                         AND m.generation = s.generation AND substr(m.sum, 1, 1) = x'6d'))",
        )
        .bind(source.name())
        .bind(start)
        .bind(end)
        .bind(&query.view)
        .bind(&query.key)
        .bind(accepts_live_counts);
        tx.for_each_row(rows, |row| add_entry(&mut builder, row))
            .await?;
        entries.push(builder.finish());
    }
    Ok(EntriesSnapshot {
        partition_states,
        entries,
    })
}

/// Adds the entry of a row.
fn add_entry(builder: &mut LiveEntriesBuilder, row: &SqliteRow) -> Result<(), sqlx::Error> {
    let epoch: i64 = row.try_get(1)?;
    let (partition, epoch) = (row.try_get(0)?, epoch.cast_unsigned());
    builder.add(partition, epoch, row.try_get(2)?, row.try_get(3)?);
    Ok(())
}

async fn load_partition_states(
    session: &mut Session,
    source: Source,
    partitions: Range<u32>,
) -> Result<Vec<Option<PartitionState>>> {
    let query = sqlx::query(
        "SELECT partition, state FROM slots WHERE source = ? AND partition >= ? AND partition < ?",
    )
    .bind(source.name())
    .bind(partitions.start)
    .bind(partitions.end);
    let rows: Vec<(u32, String)> = session.fetch_all(query).await?;
    let mut partition_states = vec![None; partitions.len()];
    for (partition, json) in rows {
        let state = serde_json::from_str(&json).map_err(|error| session.damaged(error))?;
        let index = partition.saturating_sub(partitions.start) as usize;
        if let Some(entry) = partition_states.get_mut(index) {
            *entry = Some(state);
        }
    }
    Ok(partition_states)
}

/// One range of a query in some partitions.
#[derive(Debug)]
struct RangeQuery<'a> {
    source: Source,
    partitions: Range<u32>,
    query: &'a DeltaQuery,
    range: &'a (Vec<u8>, Option<Vec<u8>>),
}

/// Deltas that match one query.
#[derive(Debug, Default)]
struct QueryMatches {
    partitions: UInt32Builder,
    epochs: UInt64Builder,
    rows: BinaryBuilder,
    counts: Int64Builder,
}

impl QueryMatches {
    async fn read(&mut self, session: &mut Session, range_query: RangeQuery<'_>) -> Result<()> {
        let (begin, end) = range_query.range;
        // The order of the joins is fixed: partition states, their few containers, and a range of
        // each.
        let statement = match end {
            Some(_) => sqlx::query(
                "SELECT s.partition, p.epoch, t.row, t.count
                 FROM slots s
                 CROSS JOIN places p ON p.slot = s.id AND p.view = ?4
                     AND p.generation = s.generation AND p.epoch >= s.oldest
                 CROSS JOIN parts t ON t.place = p.id AND t.grp = ?5
                     AND t.row >= ?6 AND t.row < ?7
                 WHERE s.source = ?1 AND s.partition >= ?2 AND s.partition < ?3",
            ),
            None => sqlx::query(
                "SELECT s.partition, p.epoch, t.row, t.count
                 FROM slots s
                 CROSS JOIN places p ON p.slot = s.id AND p.view = ?4
                     AND p.generation = s.generation AND p.epoch >= s.oldest
                 CROSS JOIN parts t ON t.place = p.id AND t.grp = ?5 AND t.row >= ?6
                 WHERE s.source = ?1 AND s.partition >= ?2 AND s.partition < ?3",
            ),
        };
        let query = statement
            .bind(range_query.source.name())
            .bind(range_query.partitions.start)
            .bind(range_query.partitions.end)
            .bind(&range_query.query.view)
            .bind(&range_query.query.group)
            .bind(begin)
            .bind(end);
        session.for_each_row(query, |row| self.add(row)).await
    }

    fn add(&mut self, row: &SqliteRow) -> std::result::Result<(), sqlx::Error> {
        self.partitions.append_value(row.try_get(0)?);
        self.epochs
            .append_value(row.try_get::<i64, _>(1)?.cast_unsigned());
        self.rows.append_value(row.try_get::<&[u8], _>(2)?);
        self.counts.append_value(row.try_get(3)?);
        Ok(())
    }

    fn finish(mut self) -> LiveDeltas {
        LiveDeltas {
            partitions: self.partitions.finish(),
            epochs: self.epochs.finish(),
            rows: self.rows.finish(),
            counts: self.counts.finish(),
        }
    }
}
