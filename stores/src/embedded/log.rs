//! The log in `log.db`: batches of records, each a compressed blob with a checksum.
//!
//! Offsets have no holes, so a gap between two batches is damage. After records were deleted, the
//! table `trimmed` has the first offset of the partition, which may have no batches at all.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use async_trait::async_trait;
use futures::TryStreamExt;
use schemas::seam::Offset;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row, SqliteConnection};
use tokio::sync::Mutex;

use super::db::{DatabaseSpec, Db, Upgrade};
use super::payload::{PackedBatch, StoredBatch, pack, to_usize, unpack, value_bytes};
use super::session::Session;
use crate::log::{FetchLimit, FetchedRecords, LogRead, LogWrite, NewRecords, Span};
use crate::{Error, Result};

/// The maximum size of one fetch: offsets in an Arrow array have 32 bits.
const FETCH_BYTES_MAX: usize = 1 << 30;

/// The maximum size of payloads that are encoded and decoded without a blocking thread.
const INLINE_BYTES_MAX: usize = 64 << 10;

const TRIMMED_TABLE: &str = "
        CREATE TABLE trimmed (
            topic INTEGER NOT NULL REFERENCES topics (id),
            partition INTEGER NOT NULL,
            start INTEGER NOT NULL,
            logged_at_ms INTEGER NOT NULL,
            PRIMARY KEY (topic, partition)
        ) STRICT, WITHOUT ROWID;";

static LOG: DatabaseSpec = DatabaseSpec {
    name: "log.db",
    version: 2,
    // The payload is the last column, so that the others can be read without it.
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
    upgrades: &[(1, Upgrade::Statements(TRIMMED_TABLE))],
    is_replaceable: false,
    page_bytes: 8192,
    cache_kib: 32 * 1024,
    readers: 3,
    row_buffer: 16,
    remedy: "the log is damaged; stop every process that uses this folder and restore log.db from \
             a backup",
};

/// Log of a data folder.
#[derive(Debug)]
pub struct SqliteLog {
    db: Db,
    ends: Mutex<Option<LogEnds>>,
}

/// End offsets of topics at the version of the file that the connection saw last.
#[derive(Debug)]
struct LogEnds {
    connection: SqliteConnection,
    /// SQLite's counter of commits by other connections of any process.
    data_version: i64,
    by_topic: HashMap<String, Vec<Offset>>,
}

impl LogEnds {
    async fn read(&mut self, topic: &str) -> std::result::Result<Vec<Offset>, sqlx::Error> {
        let connection = &mut self.connection;
        // Read before the ends: ends newer than the version are read again, but never missed.
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
            Some(topic_row) => {
                let all_ends =
                    query_partition_ends(connection, topic_row, 0..topic_row.partitions).await?;
                all_ends.into_iter().map(|ends| ends.end).collect()
            }
            None => Vec::new(),
        };
        self.by_topic.insert(topic.to_owned(), ends.clone());
        Ok(ends)
    }
}

/// A topic in the table `topics`.
#[derive(Debug, Clone, Copy)]
struct Topic {
    id: i64,
    partitions: u32,
}

/// First offset and end offset of a partition.
#[derive(Debug, Clone, Copy)]
struct PartitionEnds {
    start: Offset,
    end: Offset,
    /// Log time of the last record.
    logged_at_ms: i64,
}

impl FromRow<'_, SqliteRow> for PartitionEnds {
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
        let mut tx = self.db.begin_read("reading the ends of a topic").await?;
        let Some(topic) = load_topic(&mut tx, topic).await? else {
            return Ok(Vec::new());
        };
        let span = |ends: PartitionEnds| Span {
            start: ends.start,
            end: ends.end,
        };
        let partitions = read_partition_ends(&mut tx, topic, 0..topic.partitions).await?;
        Ok(partitions.into_iter().map(span).collect())
    }

    async fn current_partition_count(&self, topic: &str) -> Result<u32> {
        let mut session = self.db.read("finding a topic").await?;
        let topic_row = load_topic(&mut session, topic).await?;
        Ok(topic_row.map_or(0, |topic| topic.partitions))
    }

    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let mut tx = self.db.begin_read("reading the end of a partition").await?;
        let topic_row = load_topic(&mut tx, topic).await?;
        match topic_row.filter(|topic| partition < topic.partitions) {
            Some(topic) => Ok(read_ends(&mut tx, topic, partition).await?.end),
            None => Ok(0),
        }
    }

    /// Only reads a counter of the file if nothing was committed since the last call.
    async fn ends(&self, topic: &str) -> Result<Vec<Offset>> {
        let db = self.db.current().await?;
        let mut ends = self.ends.lock().await;
        // Removed during the read, so that a failed or cancelled connection is not used again.
        let mut cached = match ends.take() {
            Some(cached) => cached,
            None => LogEnds {
                connection: db.dedicated_reader().await?,
                data_version: 0,
                by_topic: HashMap::new(),
            },
        };
        let topic_ends = cached.read(topic).await;
        let topic_ends = topic_ends.map_err(db.error_mapper("reading the ends of a topic"))?;
        *ends = Some(cached);
        Ok(topic_ends)
    }

    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        let limit = FetchLimit {
            records: limit.records.max(1),
            bytes: limit.bytes.min(FETCH_BYTES_MAX),
        };
        let mut tx = self.db.begin_read("reading the log").await?;
        let (batches, ends) = read_batches(&mut tx, topic, partition, from, limit).await?;
        let file = tx.release();
        let bytes: usize = batches.iter().map(|batch| batch.payload.len()).sum();
        let unpacked = if bytes > INLINE_BYTES_MAX {
            tokio::task::spawn_blocking(move || unpack(&batches, from, limit))
                .await
                .unwrap_or_else(|error| Err(error.to_string()))
        } else {
            unpack(&batches, from, limit)
        };
        let records = unpacked.map_err(|damage| {
            file.damaged(&format!("reading {topic}/{partition} at {from}"), damage)
        })?;
        let last = records.offsets.values().last();
        Ok(FetchedRecords {
            next_offset: last.map_or(from, |last| last + 1),
            end: ends.end,
            records,
        })
    }

    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset> {
        let mut tx = self.db.begin_read("finding an offset by log time").await?;
        let topic_row = require_partition(&mut tx, topic, partition).await?;
        let ends = read_ends(&mut tx, topic_row, partition).await?;
        // All records of a batch have the same log time.
        let query = sqlx::query(
            "SELECT first_offset FROM batches
             WHERE topic = ? AND partition = ? AND logged_at_ms >= ?
             ORDER BY logged_at_ms, first_offset LIMIT 1",
        )
        .bind(topic_row.id)
        .bind(partition)
        .bind(logged_at_ms);
        let first: Option<(Offset,)> = tx.fetch_first(query).await?;
        Ok(first.map_or(ends.end, |(first,)| first))
    }
}

#[async_trait]
impl LogWrite for SqliteLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        let cached = self.current_partition_count(topic).await?;
        if cached > 0 {
            return Ok(cached);
        }
        let mut session = self.db.write("creating a topic").await?;
        let query = sqlx::query(
            "INSERT INTO topics (name, partitions) VALUES (?, ?)
             ON CONFLICT DO UPDATE SET partitions = partitions
             RETURNING partitions",
        );
        let (partitions,) = session
            .fetch_one(query.bind(topic).bind(partitions))
            .await?;
        Ok(partitions)
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        let batches = encode_batches(groups).await?;
        let lowest = groups.iter().map(|group| group.partition).min();
        let highest = groups.iter().map(|group| group.partition).max();
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            return Ok(Vec::new());
        };
        let mut tx = self.db.begin_write("appending to the log").await?;
        let topic_row = require_partition(&mut tx, topic, highest).await?;
        let mut partition_ends =
            read_partition_ends(&mut tx, topic_row, lowest..highest + 1).await?;
        let mut first_offsets = Vec::with_capacity(groups.len());
        for batch in batches {
            let Some(ends) = partition_ends.get_mut((batch.partition - lowest) as usize) else {
                continue;
            };
            if batch.is_first {
                first_offsets.push(ends.end);
            }
            if batch.records == 0 {
                continue;
            }
            ends.logged_at_ms = ends.logged_at_ms.max(logged_at_ms);
            let first = ends.end;
            ends.end = insert_batch(&mut tx, topic_row, first, ends.logged_at_ms, batch).await?;
        }
        tx.commit().await?;
        Ok(first_offsets)
    }

    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        for (partition, before) in (0_u32..).zip(before) {
            trim(&self.db, topic, partition, *before).await?;
        }
        Ok(())
    }
}

/// Inserts a batch, and returns the offset after it.
async fn insert_batch(
    tx: &mut Session,
    topic: Topic,
    first: Offset,
    logged_at_ms: i64,
    batch: PackedBatch,
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

/// Deletes the records of a partition below an offset. The batch that contains the offset is
/// replaced by one with its remaining records.
async fn trim(db: &Db, name: &str, partition: u32, before: Offset) -> Result<()> {
    let mut tx = db.begin_write("deleting records of the log").await?;
    let Some(topic) = load_topic(&mut tx, name).await? else {
        return Ok(());
    };
    if partition >= topic.partitions {
        return Ok(());
    }
    let ends = read_ends(&mut tx, topic, partition).await?;
    let start = before.min(ends.end);
    if start <= ends.start {
        return Ok(());
    }
    let query = sqlx::query(
        "SELECT first_offset, next_offset, logged_at_ms, crc, payload FROM batches
         WHERE topic = ?1 AND partition = ?2 AND first_offset < ?3 AND next_offset > ?3",
    );
    let query = query.bind(topic.id).bind(partition).bind(start);
    let split_batch: Option<StoredBatch> = tx.fetch_first(query).await?;
    let delete = "DELETE FROM batches WHERE topic = ? AND partition = ? AND first_offset < ?";
    let delete = sqlx::query(delete)
        .bind(topic.id)
        .bind(partition)
        .bind(start);
    tx.execute(delete).await?;
    if let Some(split_batch) = split_batch {
        insert_remainder(&mut tx, topic, partition, split_batch, start).await?;
    }
    let query = sqlx::query(
        "INSERT INTO trimmed (topic, partition, start, logged_at_ms) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET start = excluded.start, logged_at_ms = excluded.logged_at_ms",
    )
    .bind(topic.id)
    .bind(partition)
    .bind(start)
    .bind(ends.logged_at_ms);
    tx.execute(query).await?;
    tx.commit().await
}

/// Inserts the records of a batch from an offset on.
async fn insert_remainder(
    tx: &mut Session,
    topic: Topic,
    partition: u32,
    batch: StoredBatch,
    start: Offset,
) -> Result<()> {
    let logged_at_ms = batch.logged_at_ms;
    let no_limit = FetchLimit {
        records: usize::MAX,
        bytes: usize::MAX,
    };
    let remainder = unpack(&[batch], start, no_limit).map_err(|damage| tx.damaged(damage))?;
    let remainder = NewRecords {
        partition,
        keys: remainder.keys,
        values: remainder.values,
        headers: Vec::new(),
    };
    let mut first = start;
    for new_batch in pack(&[remainder])? {
        first = insert_batch(tx, topic, first, logged_at_ms, new_batch).await?;
    }
    Ok(())
}

async fn find_topic(
    connection: &mut SqliteConnection,
    name: &str,
) -> std::result::Result<Option<Topic>, sqlx::Error> {
    let row: Option<(i64, u32)> =
        sqlx::query_as("SELECT id, partitions FROM topics WHERE name = ?")
            .bind(name)
            .fetch_optional(connection)
            .await?;
    Ok(row.map(|(id, partitions)| Topic { id, partitions }))
}

async fn load_topic(session: &mut Session, name: &str) -> Result<Option<Topic>> {
    let topic = find_topic(session.split().0, name).await;
    topic.map_err(|error| session.error_for(error))
}

/// Returns the topic, or an error if it does not have the partition.
async fn require_partition(session: &mut Session, name: &str, partition: u32) -> Result<Topic> {
    let topic = load_topic(session, name).await?;
    let partitions = topic.map_or(0, |topic| topic.partitions);
    topic
        .filter(|topic| partition < topic.partitions)
        .ok_or_else(|| Error::NoPartition {
            operation: format!("{name}/{partition} (the topic has {partitions} partitions)"),
        })
}

async fn query_partition_ends(
    connection: &mut SqliteConnection,
    topic: Topic,
    partitions: Range<u32>,
) -> std::result::Result<Vec<PartitionEnds>, sqlx::Error> {
    sqlx::query_as(
        "WITH RECURSIVE
            requested (topic, partition, after) AS (
                SELECT ?, ?, ?
                UNION ALL
                SELECT topic, partition + 1, after FROM requested WHERE partition + 1 < after)
         SELECT coalesce(first.first_offset, t.start, 0) AS start,
                coalesce(last.next_offset, t.start, 0) AS \"end\",
                coalesce(last.logged_at_ms, t.logged_at_ms, -9223372036854775808) AS logged_at_ms
         FROM requested
         LEFT JOIN trimmed AS t ON t.topic = requested.topic AND t.partition = requested.partition
         LEFT JOIN batches AS first ON first.id = (
             SELECT id FROM batches AS b
             WHERE b.topic = requested.topic AND b.partition = requested.partition
             ORDER BY first_offset LIMIT 1)
         LEFT JOIN batches AS last ON last.id = (
             SELECT id FROM batches AS b
             WHERE b.topic = requested.topic AND b.partition = requested.partition
             ORDER BY first_offset DESC LIMIT 1)
         ORDER BY requested.partition",
    )
    .bind(topic.id)
    .bind(partitions.start)
    .bind(partitions.end)
    .fetch_all(connection)
    .await
}

async fn read_partition_ends(
    session: &mut Session,
    topic: Topic,
    partitions: Range<u32>,
) -> Result<Vec<PartitionEnds>> {
    let ends = query_partition_ends(session.split().0, topic, partitions).await;
    ends.map_err(|error| session.error_for(error))
}

async fn read_ends(session: &mut Session, topic: Topic, partition: u32) -> Result<PartitionEnds> {
    let all_ends = read_partition_ends(session, topic, partition..partition + 1).await?;
    let ends = all_ends.into_iter().next();
    ends.ok_or_else(|| session.error_for(sqlx::Error::RowNotFound))
}

/// Reads the batches with the records from `from` on, up to the limit.
async fn read_batches(
    tx: &mut Session,
    name: &str,
    partition: u32,
    from: Offset,
    limit: FetchLimit,
) -> Result<(Vec<StoredBatch>, PartitionEnds)> {
    let topic = require_partition(tx, name, partition).await?;
    let ends = read_ends(tx, topic, partition).await?;
    if from < ends.start || from > ends.end {
        return Err(Error::OffsetOutOfRange {
            topic: name.to_owned(),
            partition,
            requested: from,
            start: ends.start,
            end: ends.end,
        });
    }
    if from == ends.end {
        return Ok((Vec::new(), ends));
    }
    // Selects the batches first, so that no unneeded payload is read.
    let mut last_first_offset = from;
    {
        let (connection, to_error) = tx.split();
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
        while let Some((first, next, value_bytes)) = sizes.try_next().await.map_err(to_error)? {
            last_first_offset = first;
            // The needed part of a batch that begins before `from` is not known yet.
            bytes += if first < from {
                0
            } else {
                to_usize(value_bytes)
            };
            if to_usize(next - from) >= limit.records || bytes >= limit.bytes {
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
    .bind(last_first_offset);
    Ok((tx.fetch_all(query).await?, ends))
}

/// Encodes before the write lock is taken, so that other writers do not wait for it.
async fn encode_batches(groups: &[NewRecords]) -> Result<Vec<PackedBatch>> {
    let bytes: usize = groups.iter().map(|group| value_bytes(&group.values)).sum();
    if bytes <= INLINE_BYTES_MAX {
        return pack(groups);
    }
    // Arrays are shared, so this copies no records.
    let groups = groups.to_vec();
    match tokio::task::spawn_blocking(move || pack(&groups)).await {
        Ok(batches) => batches,
        Err(error) => Err(Error::broken("encoding records for the log", error)),
    }
}
