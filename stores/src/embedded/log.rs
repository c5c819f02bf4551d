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
use sqlx::{Connection, FromRow, Row, SqliteConnection};
use tokio::sync::Mutex;

use super::db::{BEGIN_WRITE, Db, Kind, Opened, Upgrade};
use super::payload::{Packed, Stored, pack, size, unpack, value_bytes};
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
        let db = self.db.current().await?;
        let fault = db.fault("reading the ends of a topic");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        let Some(topic) = find_topic(&mut tx, topic).await.map_err(fault)? else {
            return Ok(Vec::new());
        };
        let reaches = reaches(&mut tx, topic, 0..topic.partitions).await;
        let span = |reach: Reach| Span {
            start: reach.start,
            end: reach.end,
        };
        Ok(reaches.map_err(fault)?.into_iter().map(span).collect())
    }

    async fn partitions_now(&self, topic: &str) -> Result<u32> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = find_topic(&mut connection, topic).await;
        let found = found.map_err(db.fault("looking for a topic"))?;
        Ok(found.map_or(0, |topic| topic.partitions))
    }

    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let db = self.db.current().await?;
        let fault = db.fault("reading the end of a partition");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        let found = find_topic(&mut tx, topic).await.map_err(fault)?;
        match found.filter(|topic| partition < topic.partitions) {
            Some(topic) => {
                let reach = reach(&mut tx, topic, partition).await;
                Ok(reach.map_err(fault)?.end)
            }
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
        let db = self.db.current().await?;
        let (batches, reach) = read_batches(&db, topic, partition, from, limit).await?;
        let bytes: usize = batches.iter().map(|batch| batch.payload.len()).sum();
        let unpacked = if bytes > HEAVY_BYTES {
            tokio::task::spawn_blocking(move || unpack(&batches, from, limit))
                .await
                .unwrap_or_else(|error| Err(error.to_string()))
        } else {
            unpack(&batches, from, limit)
        };
        let records = unpacked
            .map_err(|what| db.damaged(&format!("reading {topic}/{partition} at {from}"), what))?;
        let taken = records.offsets.values().last();
        Ok(Fetched {
            next_offset: taken.map_or(from, |last| last + 1),
            end: reach.end,
            records,
        })
    }

    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset> {
        let db = self.db.current().await?;
        let fault = db.fault("looking for a moment in the log");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        let found = find_topic(&mut tx, topic).await.map_err(fault)?;
        let found = partition_of(found, topic, partition)?;
        let reach = reach(&mut tx, found, partition).await.map_err(fault)?;
        // All records of a batch were appended at the same moment.
        let first: Option<Offset> = sqlx::query_scalar(
            "SELECT first_offset FROM batches
             WHERE topic = ? AND partition = ? AND logged_at_ms >= ?
             ORDER BY logged_at_ms, first_offset LIMIT 1",
        )
        .bind(found.id)
        .bind(partition)
        .bind(logged_at_ms)
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        Ok(first.unwrap_or(reach.end))
    }
}

#[async_trait]
impl LogWrite for SqliteLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        let db = self.db.current().await?;
        let fault = db.fault("making a topic");
        {
            let mut connection = db.reader().await?;
            let found = find_topic(&mut connection, topic).await.map_err(fault)?;
            if let Some(found) = found {
                return Ok(found.partitions);
            }
        }
        let mut connection = db.writer().await?;
        let (partitions,) = sqlx::query_as::<_, (u32,)>(
            "INSERT INTO topics (name, partitions) VALUES (?, ?)
             ON CONFLICT DO UPDATE SET partitions = partitions
             RETURNING partitions",
        )
        .bind(topic)
        .bind(partitions)
        .fetch_one(&mut *connection)
        .await
        .map_err(fault)?;
        Ok(partitions)
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        let packed = pack_off_thread(groups).await?;
        let db = self.db.current().await?;
        let fault = db.fault("appending to the log");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let found = find_topic(&mut tx, topic).await.map_err(fault)?;
        let lowest = groups.iter().map(|group| group.partition).min();
        let highest = groups.iter().map(|group| group.partition).max();
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            return Ok(Vec::new());
        };
        let found = partition_of(found, topic, highest)?;
        let reaches = reaches(&mut tx, found, lowest..highest + 1).await;
        let mut reaches: Vec<Reach> = reaches.map_err(fault)?;
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
            let next_offset = reach.end + batch.records;
            sqlx::query(
                "INSERT INTO batches (topic, partition, first_offset, next_offset, logged_at_ms,
                                      value_bytes, crc, payload)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(found.id)
            .bind(batch.partition)
            .bind(reach.end)
            .bind(next_offset)
            .bind(reach.logged_at_ms)
            .bind(batch.value_bytes)
            .bind(batch.crc)
            .bind(batch.payload)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
            reach.end = next_offset;
        }
        tx.commit().await.map_err(fault)?;
        Ok(firsts)
    }

    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        let db = self.db.current().await?;
        let mut connection = db.writer().await?;
        for (partition, before) in (0_u32..).zip(before) {
            trim(&db, &mut connection, (topic, partition), *before).await?;
        }
        Ok(())
    }
}

/// Deletes the records of a partition below an offset. The batch that holds it is written anew with the
/// others alone.
async fn trim(
    db: &Opened,
    connection: &mut SqliteConnection,
    (name, partition): (&str, u32),
    before: Offset,
) -> Result<()> {
    let fault = db.fault("deleting records of the log");
    let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
    let Some(topic) = find_topic(&mut tx, name).await.map_err(fault)? else {
        return Ok(());
    };
    if partition >= topic.partitions {
        return Ok(());
    }
    let reach = reach(&mut tx, topic, partition).await.map_err(fault)?;
    let start = before.min(reach.end);
    if start <= reach.start {
        return Ok(());
    }
    let cut: Option<Stored> = sqlx::query_as(
        "SELECT first_offset, next_offset, logged_at_ms, crc, payload FROM batches
         WHERE topic = ?1 AND partition = ?2 AND first_offset < ?3 AND next_offset > ?3",
    )
    .bind(topic.id)
    .bind(partition)
    .bind(start)
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    sqlx::query("DELETE FROM batches WHERE topic = ? AND partition = ? AND first_offset < ?")
        .bind(topic.id)
        .bind(partition)
        .bind(start)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
    if let Some(cut) = cut {
        put_rest(&mut tx, db, (topic, partition), (cut, start)).await?;
    }
    sqlx::query(
        "INSERT INTO trimmed (topic, partition, start, logged_at_ms) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET start = excluded.start, logged_at_ms = excluded.logged_at_ms",
    )
    .bind(topic.id)
    .bind(partition)
    .bind(start)
    .bind(reach.logged_at_ms)
    .execute(&mut *tx)
    .await
    .map_err(fault)?;
    tx.commit().await.map_err(fault)
}

/// Writes what is left of a batch from an offset on.
async fn put_rest(
    connection: &mut SqliteConnection,
    db: &Opened,
    (topic, partition): (Topic, u32),
    (cut, start): (Stored, Offset),
) -> Result<()> {
    let doing = "deleting records of the log";
    let logged_at_ms = cut.logged_at_ms;
    let all = FetchLimit {
        records: usize::MAX,
        bytes: usize::MAX,
    };
    let rest = unpack(&[cut], start, all).map_err(|what| db.damaged(doing, what))?;
    let rest = NewRecords {
        partition,
        keys: rest.keys,
        values: rest.values,
        headers: Vec::new(),
    };
    let mut first = start;
    for batch in pack(&[rest])? {
        sqlx::query(
            "INSERT INTO batches (topic, partition, first_offset, next_offset, logged_at_ms,
                                  value_bytes, crc, payload)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(topic.id)
        .bind(partition)
        .bind(first)
        .bind(first + batch.records)
        .bind(logged_at_ms)
        .bind(batch.value_bytes)
        .bind(batch.crc)
        .bind(batch.payload)
        .execute(&mut *connection)
        .await
        .map_err(db.fault(doing))?;
        first += batch.records;
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

/// The topic, if it has the partition.
fn partition_of(topic: Option<Topic>, name: &str, partition: u32) -> Result<Topic> {
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

async fn reach(
    connection: &mut SqliteConnection,
    topic: Topic,
    partition: u32,
) -> std::result::Result<Reach, sqlx::Error> {
    let reaches = reaches(connection, topic, partition..partition + 1).await?;
    reaches.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}

/// The batches that hold the records from `from` on, enough of them for the limit.
async fn read_batches(
    db: &Opened,
    name: &str,
    partition: u32,
    from: Offset,
    limit: FetchLimit,
) -> Result<(Vec<Stored>, Reach)> {
    let fault = db.fault("reading the log");
    let mut connection = db.reader().await?;
    let mut tx = connection.begin().await.map_err(fault)?;
    let topic = find_topic(&mut tx, name).await.map_err(fault)?;
    let topic = partition_of(topic, name, partition)?;
    let reach = reach(&mut tx, topic, partition).await.map_err(fault)?;
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
        .fetch(&mut *tx);
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
    let batches = sqlx::query_as(
        "SELECT first_offset, next_offset, logged_at_ms, crc, payload FROM batches
         WHERE topic = ?1 AND partition = ?2 AND first_offset <= ?4 AND first_offset >= (
             SELECT max(first_offset) FROM batches
             WHERE topic = ?1 AND partition = ?2 AND first_offset <= ?3)
         ORDER BY first_offset",
    )
    .bind(topic.id)
    .bind(partition)
    .bind(from)
    .bind(last)
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    Ok((batches, reach))
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
