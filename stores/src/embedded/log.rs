//! The log in `log.db`: batches of records, each a compressed blob with a checksum.
//!
//! Offsets have no holes here, so a gap between two batches is damage. A partition from which records
//! were deleted begins where `trimmed` says, which is all that is left of one without any.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use async_trait::async_trait;
use futures::TryStreamExt;
use schemas::seam::Offset;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row, SqliteConnection};
use tokio::sync::Mutex;

use super::db::{Db, Kind, Upgrade};
use super::payload::{Packed, Stored, pack, size, unpack, value_bytes};
use super::session::Session;
use crate::log::{FetchLimit, Fetched, LogRead, LogWrite, NewRecords, Span};
use crate::{Error, Result};

/// One fetch brings no more bytes than this, whatever was asked for: offsets in an array are 32
/// bits wide.
const FETCH_BYTES_MAX: usize = 1 << 30;

/// Payloads above this size are unpacked on a thread of their own.
const HEAVY_BYTES: usize = 64 << 10;

const TRIMMED: &str = "
        CREATE TABLE trimmed (
            topic INTEGER NOT NULL REFERENCES topics (id),
            partition INTEGER NOT NULL,
            start INTEGER NOT NULL,
            logged_at_ms INTEGER NOT NULL,
            PRIMARY KEY (topic, partition)
        ) STRICT, WITHOUT ROWID;";

static LOG: Kind = Kind {
    name: "log.db",
    version: 2,
    // The payload stands last, so that the other columns are read without it.
    tables: "
        CREATE TABLE topics (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            partitions INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE batches (
            id INTEGER PRIMARY KEY,
            topic INTEGER NOT NULL REFERENCES topics (id),
            partition INTEGER NOT NULL,
            first_offset INTEGER NOT NULL,
            next_offset INTEGER NOT NULL CHECK (next_offset > first_offset),
            logged_at_ms INTEGER NOT NULL,
            value_bytes INTEGER NOT NULL,
            crc INTEGER NOT NULL,
            payload BLOB NOT NULL,
            UNIQUE (topic, partition, first_offset)
        ) STRICT;
        CREATE INDEX batches_by_time ON batches (topic, partition, logged_at_ms, first_offset);
        CREATE TABLE trimmed (
            topic INTEGER NOT NULL REFERENCES topics (id),
            partition INTEGER NOT NULL,
            start INTEGER NOT NULL,
            logged_at_ms INTEGER NOT NULL,
            PRIMARY KEY (topic, partition)
        ) STRICT, WITHOUT ROWID;",
    upgrades: &[(1, Upgrade::Statements(TRIMMED))],
    replaceable: false,
    page_bytes: 8192,
    cache_kib: 32 * 1024,
    readers: 3,
    rows_ahead: 16,
    remedy: "the log is damaged; stop every process of this folder and restore log.db from a copy",
};

/// The log of a data folder.
#[derive(Debug)]
pub struct SqliteLog {
    db: Db,
    ends: Mutex<Option<LogEnds>>,
}

/// The ends of topics as of the version that the connection saw last.
#[derive(Debug)]
struct LogEnds {
    connection: SqliteConnection,
    /// SQLite's counter of commits by other connections, of this process and of others.
    data_version: i64,
    by_topic: HashMap<String, Vec<Offset>>,
}

impl LogEnds {
    async fn read(&mut self, topic: &str) -> std::result::Result<Vec<Offset>, sqlx::Error> {
        let connection = &mut self.connection;
        // Read before the ends: ends that are newer than the version are read again, never missed.
        let data_version: i64 = sqlx::query_scalar("PRAGMA data_version")
            .fetch_one(&mut *connection)
            .await?;
        if data_version != self.data_version {
            self.by_topic.clear();
            self.data_version = data_version;
        }
        if let Some(ends) = self.by_topic.get(topic) {
            return Ok(ends.clone());
        }
        let ends = match find_topic(connection, topic).await? {
            Some(found) => {
                let reaches = reaches(connection, found, 0..found.partitions).await?;
                reaches.into_iter().map(|reach| reach.end).collect()
            }
            None => Vec::new(),
        };
        self.by_topic.insert(topic.to_owned(), ends.clone());
        Ok(ends)
    }
}

/// A topic as it is recorded.
#[derive(Debug, Clone, Copy)]
struct Topic {
    id: i64,
    partitions: u32,
}

/// The ends of a partition.
#[derive(Debug, Clone, Copy)]
struct Reach {
    start: Offset,
    end: Offset,
    /// When the last record was appended.
    logged_at_ms: i64,
}

impl FromRow<'_, SqliteRow> for Reach {
    fn from_row(row: &SqliteRow) -> std::result::Result<Self, sqlx::Error> {
        Ok(Self {
            start: row.try_get("start")?,
            end: row.try_get("end")?,
            logged_at_ms: row.try_get("logged_at_ms")?,
        })
    }
}

impl SqliteLog {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &LOG).await?,
            ends: Mutex::new(None),
        })
    }
}

#[async_trait]
impl LogRead for SqliteLog {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        let mut tx = self.db.snapshot("reading the ends of a topic").await?;
        let Some(topic) = topic_of(&mut tx, topic).await? else {
            return Ok(Vec::new());
        };
        let span = |reach: Reach| Span {
            start: reach.start,
            end: reach.end,
        };
        let reaches = reaches_of(&mut tx, topic, 0..topic.partitions).await?;
        Ok(reaches.into_iter().map(span).collect())
    }

    async fn partitions_now(&self, topic: &str) -> Result<u32> {
        let mut session = self.db.read("looking for a topic").await?;
        let found = topic_of(&mut session, topic).await?;
        Ok(found.map_or(0, |topic| topic.partitions))
    }

    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let mut tx = self.db.snapshot("reading the end of a partition").await?;
        let found = topic_of(&mut tx, topic).await?;
        match found.filter(|topic| partition < topic.partitions) {
            Some(topic) => Ok(reach(&mut tx, topic, partition).await?.end),
            None => Ok(0),
        }
    }

    /// Reads a counter of the file where nothing was committed since the last call.
    async fn ends(&self, topic: &str) -> Result<Vec<Offset>> {
        let db = self.db.current().await?;
        let mut ends = self.ends.lock().await;
        // Taken out, so that a connection that failed or was left in the middle is not used again.
        let mut known = match ends.take() {
            Some(known) => known,
            None => LogEnds {
                connection: db.own_reader().await?,
                data_version: 0,
                by_topic: HashMap::new(),
            },
        };
        let found = known.read(topic).await;
        let found = found.map_err(db.fault("reading the ends of a topic"))?;
        *ends = Some(known);
        Ok(found)
    }

    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<Fetched> {
        let limit = FetchLimit {
            records: limit.records.max(1),
            bytes: limit.bytes.min(FETCH_BYTES_MAX),
        };
        let mut tx = self.db.snapshot("reading the log").await?;
        let (batches, reach) = read_batches(&mut tx, topic, partition, from, limit).await?;
        let file = tx.give_back();
        let bytes: usize = batches.iter().map(|batch| batch.payload.len()).sum();
        let unpacked = if bytes > HEAVY_BYTES {
            tokio::task::spawn_blocking(move || unpack(&batches, from, limit))
                .await
                .unwrap_or_else(|error| Err(error.to_string()))
        } else {
            unpack(&batches, from, limit)
        };
        let records = unpacked.map_err(|what| {
            file.damaged(&format!("reading {topic}/{partition} at {from}"), what)
        })?;
        let taken = records.offsets.values().last();
        Ok(Fetched {
            next_offset: taken.map_or(from, |last| last + 1),
            end: reach.end,
            records,
        })
    }

    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset> {
        let mut tx = self.db.snapshot("looking for a moment in the log").await?;
        let found = partition_of(&mut tx, topic, partition).await?;
        let reach = reach(&mut tx, found, partition).await?;
        // All records of a batch were appended at the same moment.
        let query = sqlx::query(
            "SELECT first_offset FROM batches
             WHERE topic = ? AND partition = ? AND logged_at_ms >= ?
             ORDER BY logged_at_ms, first_offset LIMIT 1",
        )
        .bind(found.id)
        .bind(partition)
        .bind(logged_at_ms);
        let first: Option<(Offset,)> = tx.first(query).await?;
        Ok(first.map_or(reach.end, |(first,)| first))
    }
}

#[async_trait]
impl LogWrite for SqliteLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        let known = self.partitions_now(topic).await?;
        if known > 0 {
            return Ok(known);
        }
        let mut session = self.db.write("making a topic").await?;
        let query = sqlx::query(
            "INSERT INTO topics (name, partitions) VALUES (?, ?)
             ON CONFLICT DO UPDATE SET partitions = partitions
             RETURNING partitions",
        );
        let (partitions,) = session.one(query.bind(topic).bind(partitions)).await?;
        Ok(partitions)
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        let packed = pack_off_thread(groups).await?;
        let lowest = groups.iter().map(|group| group.partition).min();
        let highest = groups.iter().map(|group| group.partition).max();
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            return Ok(Vec::new());
        };
        let mut tx = self.db.change("appending to the log").await?;
        let found = partition_of(&mut tx, topic, highest).await?;
        let mut reaches = reaches_of(&mut tx, found, lowest..highest + 1).await?;
        let mut firsts = Vec::with_capacity(groups.len());
        for batch in packed {
            let Some(reach) = reaches.get_mut((batch.partition - lowest) as usize) else {
                continue;
            };
            if batch.first {
                firsts.push(reach.end);
            }
            if batch.records == 0 {
                continue;
            }
            reach.logged_at_ms = reach.logged_at_ms.max(logged_at_ms);
            let at = (reach.end, reach.logged_at_ms);
            reach.end = put_batch(&mut tx, found, at, batch).await?;
        }
        tx.commit().await?;
        Ok(firsts)
    }

    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        for (partition, before) in (0_u32..).zip(before) {
            trim(&self.db, (topic, partition), *before).await?;
        }
        Ok(())
    }
}

/// Writes a batch. Returns the offset after it.
async fn put_batch(
    tx: &mut Session,
    topic: Topic,
    (first, logged_at_ms): (Offset, i64),
    batch: Packed,
) -> Result<Offset> {
    let next = first + batch.records;
    let query = sqlx::query(
        "INSERT INTO batches (topic, partition, first_offset, next_offset, logged_at_ms,
                              value_bytes, crc, payload)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(topic.id)
    .bind(batch.partition)
    .bind(first)
    .bind(next)
    .bind(logged_at_ms)
    .bind(batch.value_bytes)
    .bind(batch.crc)
    .bind(batch.payload);
    tx.execute(query).await?;
    Ok(next)
}

/// Deletes the records of a partition below an offset. The batch that holds it is written anew with the
/// others alone.
async fn trim(db: &Db, (name, partition): (&str, u32), before: Offset) -> Result<()> {
    let mut tx = db.change("deleting records of the log").await?;
    let Some(topic) = topic_of(&mut tx, name).await? else {
        return Ok(());
    };
    if partition >= topic.partitions {
        return Ok(());
    }
    let reach = reach(&mut tx, topic, partition).await?;
    let start = before.min(reach.end);
    if start <= reach.start {
        return Ok(());
    }
    let query = sqlx::query(
        "SELECT first_offset, next_offset, logged_at_ms, crc, payload FROM batches
         WHERE topic = ?1 AND partition = ?2 AND first_offset < ?3 AND next_offset > ?3",
    );
    let query = query.bind(topic.id).bind(partition).bind(start);
    let cut: Option<Stored> = tx.first(query).await?;
    let delete = "DELETE FROM batches WHERE topic = ? AND partition = ? AND first_offset < ?";
    let delete = sqlx::query(delete)
        .bind(topic.id)
        .bind(partition)
        .bind(start);
    tx.execute(delete).await?;
    if let Some(cut) = cut {
        put_rest(&mut tx, (topic, partition), (cut, start)).await?;
    }
    let query = sqlx::query(
        "INSERT INTO trimmed (topic, partition, start, logged_at_ms) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET start = excluded.start, logged_at_ms = excluded.logged_at_ms",
    )
    .bind(topic.id)
    .bind(partition)
    .bind(start)
    .bind(reach.logged_at_ms);
    tx.execute(query).await?;
    tx.commit().await
}

/// Writes what is left of a batch from an offset on.
async fn put_rest(
    tx: &mut Session,
    (topic, partition): (Topic, u32),
    (cut, start): (Stored, Offset),
) -> Result<()> {
    let logged_at_ms = cut.logged_at_ms;
    let all = FetchLimit {
        records: usize::MAX,
        bytes: usize::MAX,
    };
    let rest = unpack(&[cut], start, all).map_err(|what| tx.damaged(what))?;
    let rest = NewRecords {
        partition,
        keys: rest.keys,
        values: rest.values,
        headers: Vec::new(),
    };
    let mut first = start;
    for batch in pack(&[rest])? {
        first = put_batch(tx, topic, (first, logged_at_ms), batch).await?;
    }
    Ok(())
}

async fn find_topic(
    connection: &mut SqliteConnection,
    name: &str,
) -> std::result::Result<Option<Topic>, sqlx::Error> {
    let found: Option<(i64, u32)> =
        sqlx::query_as("SELECT id, partitions FROM topics WHERE name = ?")
            .bind(name)
            .fetch_optional(connection)
            .await?;
    Ok(found.map(|(id, partitions)| Topic { id, partitions }))
}

async fn topic_of(session: &mut Session, name: &str) -> Result<Option<Topic>> {
    let found = find_topic(session.split().0, name).await;
    found.map_err(|error| session.fault(error))
}

/// The topic, if it has the partition.
async fn partition_of(session: &mut Session, name: &str, partition: u32) -> Result<Topic> {
    let topic = topic_of(session, name).await?;
    let partitions = topic.map_or(0, |topic| topic.partitions);
    topic
        .filter(|topic| partition < topic.partitions)
        .ok_or_else(|| Error::NoPartition {
            what: format!("{name}/{partition}, where there are {partitions} partitions"),
        })
}

async fn reaches(
    connection: &mut SqliteConnection,
    topic: Topic,
    partitions: Range<u32>,
) -> std::result::Result<Vec<Reach>, sqlx::Error> {
    sqlx::query_as(
        "WITH RECURSIVE
            asked (topic, partition, after) AS (
                SELECT ?, ?, ?
                UNION ALL
                SELECT topic, partition + 1, after FROM asked WHERE partition + 1 < after)
         SELECT coalesce(first.first_offset, t.start, 0) AS start,
                coalesce(last.next_offset, t.start, 0) AS \"end\",
                coalesce(last.logged_at_ms, t.logged_at_ms, -9223372036854775808) AS logged_at_ms
         FROM asked
         LEFT JOIN trimmed AS t ON t.topic = asked.topic AND t.partition = asked.partition
         LEFT JOIN batches AS first ON first.id = (
             SELECT id FROM batches AS b
             WHERE b.topic = asked.topic AND b.partition = asked.partition
             ORDER BY first_offset LIMIT 1)
         LEFT JOIN batches AS last ON last.id = (
             SELECT id FROM batches AS b
             WHERE b.topic = asked.topic AND b.partition = asked.partition
             ORDER BY first_offset DESC LIMIT 1)
         ORDER BY asked.partition",
    )
    .bind(topic.id)
    .bind(partitions.start)
    .bind(partitions.end)
    .fetch_all(connection)
    .await
}

async fn reaches_of(
    session: &mut Session,
    topic: Topic,
    partitions: Range<u32>,
) -> Result<Vec<Reach>> {
    let found = reaches(session.split().0, topic, partitions).await;
    found.map_err(|error| session.fault(error))
}

async fn reach(session: &mut Session, topic: Topic, partition: u32) -> Result<Reach> {
    let reaches = reaches_of(session, topic, partition..partition + 1).await?;
    let reach = reaches.into_iter().next();
    reach.ok_or_else(|| session.fault(sqlx::Error::RowNotFound))
}

/// The batches that hold the records from `from` on, enough of them for the limit.
async fn read_batches(
    tx: &mut Session,
    name: &str,
    partition: u32,
    from: Offset,
    limit: FetchLimit,
) -> Result<(Vec<Stored>, Reach)> {
    let topic = partition_of(tx, name, partition).await?;
    let reach = reach(tx, topic, partition).await?;
    if from < reach.start || from > reach.end {
        return Err(Error::OffsetOutOfRange {
            topic: name.to_owned(),
            partition,
            asked: from,
            start: reach.start,
            end: reach.end,
        });
    }
    if from == reach.end {
        return Ok((Vec::new(), reach));
    }
    // First which batches, then these: a payload that is not needed is not read.
    let mut last = from;
    {
        let (connection, fault) = tx.split();
        let mut sizes = sqlx::query_as::<_, (Offset, Offset, i64)>(
            "SELECT first_offset, next_offset, value_bytes FROM batches
             WHERE topic = ?1 AND partition = ?2 AND first_offset >= (
                 SELECT max(first_offset) FROM batches
                 WHERE topic = ?1 AND partition = ?2 AND first_offset <= ?3)
             ORDER BY first_offset",
        )
        .bind(topic.id)
        .bind(partition)
        .bind(from)
        .fetch(connection);
        let mut bytes = 0;
        while let Some((first, next, value_bytes)) = sizes.try_next().await.map_err(fault)? {
            last = first;
            // How much of a batch that begins before `from` is wanted is not known yet.
            bytes += if first < from { 0 } else { size(value_bytes) };
            if size(next - from) >= limit.records || bytes >= limit.bytes {
                break;
            }
        }
    }
    let query = sqlx::query(
        "SELECT first_offset, next_offset, logged_at_ms, crc, payload FROM batches
         WHERE topic = ?1 AND partition = ?2 AND first_offset <= ?4 AND first_offset >= (
             SELECT max(first_offset) FROM batches
             WHERE topic = ?1 AND partition = ?2 AND first_offset <= ?3)
         ORDER BY first_offset",
    )
    .bind(topic.id)
    .bind(partition)
    .bind(from)
    .bind(last);
    Ok((tx.all(query).await?, reach))
}

/// Packs before the right to write is taken, so that nobody waits for it.
async fn pack_off_thread(groups: &[NewRecords]) -> Result<Vec<Packed>> {
    let bytes: usize = groups.iter().map(|group| value_bytes(&group.values)).sum();
    if bytes <= HEAVY_BYTES {
        return pack(groups);
    }
    // Arrays are shared, so this copies no records.
    let groups = groups.to_vec();
    match tokio::task::spawn_blocking(move || pack(&groups)).await {
        Ok(packed) => packed,
        Err(error) => Err(Error::broken("packing records for the log", error)),
    }
}
