//! Reading slots together with their live parts, in one transaction.

use std::ops::Range;

use arrow::array::{BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder};
use async_trait::async_trait;
use schemas::seam::{Epoch, Slot};
use schemas::source::Source;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::db::Db;
use super::live::SqliteLive;
use super::session::Session;
use super::{live_outbox, live_scan, live_sums};
use crate::Result;
use crate::live::{
    LiveAnswer, LiveParts, LiveQuery, LiveRead, LiveStatesBuilder, MembersQuery, Outbox, SlotId,
    StateQuery, StatesAnswer,
};
use crate::live_scan::{LivePlace, ScannedDeltas, ScannedStates};

#[async_trait]
impl LiveRead for SqliteLive {
    async fn read(
        &self,
        source: Source,
        partitions: u32,
        queries: &[LiveQuery],
    ) -> Result<LiveAnswer> {
        let mut tx = self.db.snapshot("reading live parts").await?;
        let slots = read_slots(&mut tx, source, 0..partitions).await?;
        let mut parts = Vec::with_capacity(queries.len());
        for query in queries {
            let mut found = Found::default();
            for range in &query.ranges {
                let asked = Asked {
                    source,
                    partitions: within(0..partitions, query.partition),
                    query,
                    range,
                };
                found.read(&mut tx, asked).await?;
            }
            parts.push(found.finish());
        }
        Ok(LiveAnswer { slots, parts })
    }

    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<Slot>>> {
        let mut session = self.db.read("reading slots").await?;
        read_slots(&mut session, source, partitions).await
    }

    async fn read_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        read_states(&self.db, (source, partitions), queries, false).await
    }

    async fn read_sums(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        read_states(&self.db, (source, partitions), queries, true).await
    }

    async fn read_members(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<StatesAnswer> {
        let mut tx = self.db.snapshot("reading live states").await?;
        let slots = read_slots(&mut tx, source, partitions.clone()).await?;
        let mut states = Vec::with_capacity(queries.len());
        for MembersQuery { of, members } in queries {
            let Range { start, end } = within(partitions.clone(), of.partition);
            let mut found = LiveStatesBuilder::default();
            found.sums = live_sums::read(&mut tx, (source, start..end), of).await?;
            found.held = live_sums::held(&mut tx, (source, start..end), of).await?;
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
                .bind(&of.view)
                .bind(&of.key)
                .bind(member);
                tx.each(rows, |row| add_state(&mut found, row)).await?;
            }
            states.push(found.finish());
        }
        Ok(StatesAnswer { slots, states })
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
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedDeltas> {
        let asked = live_scan::Asked {
            slot,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        live_scan::deltas(&self.db, asked).await
    }

    async fn scan_states(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedStates> {
        let asked = live_scan::Asked {
            slot,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        live_scan::states(&self.db, asked).await
    }
}

/// Some partitions, or of these the only one that a query is about.
fn within(partitions: Range<u32>, only: Option<u32>) -> Range<u32> {
    let Some(only) = only else { return partitions };
    partitions.start.max(only)..partitions.end.min(only.saturating_add(1))
}

/// Slots and live states. Sums that are made may take the place of states.
async fn read_states(
    db: &Db,
    (source, partitions): (Source, u32),
    queries: &[StateQuery],
    takes_sums: bool,
) -> Result<StatesAnswer> {
    let mut tx = db.snapshot("reading live states").await?;
    let slots = read_slots(&mut tx, source, 0..partitions).await?;
    let mut states = Vec::with_capacity(queries.len());
    for query in queries {
        let Range { start, end } = within(0..partitions, query.partition);
        let mut found = LiveStatesBuilder::default();
        found.sums = live_sums::read(&mut tx, (source, start..end), query).await?;
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
        .bind(takes_sums);
        tx.each(rows, |row| add_state(&mut found, row)).await?;
        states.push(found.finish());
    }
    Ok(StatesAnswer { slots, states })
}

/// Adds a state that was found.
fn add_state(found: &mut LiveStatesBuilder, row: &SqliteRow) -> Result<(), sqlx::Error> {
    let epoch: i64 = row.try_get(1)?;
    let of_slot = (row.try_get(0)?, epoch.cast_unsigned());
    found.add(of_slot, row.try_get(2)?, row.try_get(3)?);
    Ok(())
}

async fn read_slots(
    session: &mut Session,
    source: Source,
    partitions: Range<u32>,
) -> Result<Vec<Option<Slot>>> {
    let query = sqlx::query(
        "SELECT partition, state FROM slots WHERE source = ? AND partition >= ? AND partition < ?",
    )
    .bind(source.name())
    .bind(partitions.start)
    .bind(partitions.end);
    let found: Vec<(u32, String)> = session.all(query).await?;
    let mut slots = vec![None; partitions.len()];
    for (partition, state) in found {
        let slot = serde_json::from_str(&state).map_err(|error| session.damaged(error))?;
        let index = partition.saturating_sub(partitions.start) as usize;
        if let Some(place) = slots.get_mut(index) {
            *place = Some(slot);
        }
    }
    Ok(slots)
}

/// One range of a query, in the slots of some partitions.
#[derive(Debug)]
struct Asked<'a> {
    source: Source,
    partitions: Range<u32>,
    query: &'a LiveQuery,
    range: &'a (Vec<u8>, Option<Vec<u8>>),
}

/// The parts that answer one query, as they are found.
#[derive(Debug, Default)]
struct Found {
    partitions: UInt32Builder,
    epochs: UInt64Builder,
    rows: BinaryBuilder,
    counts: Int64Builder,
}

impl Found {
    async fn read(&mut self, session: &mut Session, asked: Asked<'_>) -> Result<()> {
        let (begin, end) = asked.range;
        // The order of the joins is fixed: slots, their few places, and a range of each.
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
        let parts = statement
            .bind(asked.source.name())
            .bind(asked.partitions.start)
            .bind(asked.partitions.end)
            .bind(&asked.query.view)
            .bind(&asked.query.group)
            .bind(begin)
            .bind(end);
        session.each(parts, |part| self.add(part)).await
    }

    fn add(&mut self, part: &SqliteRow) -> std::result::Result<(), sqlx::Error> {
        self.partitions.append_value(part.try_get(0)?);
        self.epochs
            .append_value(part.try_get::<i64, _>(1)?.cast_unsigned());
        self.rows.append_value(part.try_get::<&[u8], _>(2)?);
        self.counts.append_value(part.try_get(3)?);
        Ok(())
    }

    fn finish(mut self) -> LiveParts {
        LiveParts {
            partitions: self.partitions.finish(),
            epochs: self.epochs.finish(),
            rows: self.rows.finish(),
            counts: self.counts.finish(),
        }
    }
}
