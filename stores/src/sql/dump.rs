//! Dumps from servers: all rows of a table, or those of some keys, in key order and from one
//! snapshot.
//!
//! A dump consists of *parts* in key order: ranges of keys with about equal numbers of rows, or
//! lists of keys. On PostgreSQL, a few connections that share a snapshot read parts concurrently.
//! MySQL cannot share a snapshot, so one connection reads one part after the other. The rows of a
//! part are found through the index of groups, so the server never sorts more than a part.
//!
//! Each part has a channel with space for about a part, and the channels are drained in order. No
//! part is started while as many parts wait as there are connections. So memory is bounded: about
//! one part for each connection, and one more.
//!
//! Dropping the stream ends the dump's connections and tasks. Each batch has a deadline; the dump
//! as a whole has none.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::stream::BoxStream;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

use super::connection::{ConnectionPurpose, OwnedConnection, Sql};
use super::decode::{GroupedSource, RowBuilder};
use super::dump_parts::{DumpSnapshot, Part, PartItem, PartSink, Parts};
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::server::Server;
use super::task_stream::stream_from_tasks;
use crate::{Error, Result};

/// Upper limit of the rows of a batch.
const BATCH_ROWS_MAX: usize = 1 << 15;

/// Upper limit of the batches that a part buffers.
const BUFFERED_BATCHES_MAX: usize = 64;
/// The batches that a part buffers if only one connection reads.
const BUFFERED_BATCHES_SEQUENTIAL: usize = 2;

const OPERATION: &str = "dumping rows";

/// Starts a dump of the present rows. `keys` ascend, each once.
pub(crate) async fn dump(
    server: Arc<Server>,
    source: GroupedSource,
    keys: Option<Vec<i64>>,
    batch_rows: usize,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let begin = || async {
        match server.connect(ConnectionPurpose::Dump).await? {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                postgres::dump::begin(&server, connection, source, keys.as_deref()).await
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                let range_rows = server.options.dump_range_rows;
                mysql::dump::begin(connection, source, keys.as_deref(), range_rows).await
            }
        }
    };
    let is_view = server.views.contains(source.table());
    let DumpSnapshot { connections, parts } = server.retry(OPERATION, begin).await?;
    let batch_rows = batch_rows.clamp(1, BATCH_ROWS_MAX);
    let (started, receivers) = mpsc::channel(connections.len().max(1));
    let buffered_batches = if connections.len() == 1 {
        BUFFERED_BATCHES_SEQUENTIAL
    } else {
        let part_batches = server.options.dump_range_rows / (batch_rows as u64) + 1;
        usize::try_from(part_batches).map_or(BUFFERED_BATCHES_MAX, |batches| {
            batches.min(BUFFERED_BATCHES_MAX)
        })
    };
    let remaining = Arc::new(Mutex::new(RemainingParts { parts, started }));
    let mut tasks = JoinSet::new();
    for connection in connections {
        let reader = PartReader {
            server: Arc::clone(&server),
            connection,
            source,
            is_view,
            remaining: Arc::clone(&remaining),
            batch_rows,
            buffered_batches,
        };
        tasks.spawn(reader.run());
    }
    let (sender, receiver) = mpsc::channel(1);
    tasks.spawn(forward_in_order(receivers, sender));
    Ok(stream_from_tasks(receiver, tasks, OPERATION))
}

/// The parts that no connection has started, and the channel that receives the started ones in
/// their order.
#[derive(Debug)]
struct RemainingParts {
    parts: Parts,
    started: Sender<Receiver<PartItem>>,
}

/// Reads one part after the other through one connection.
#[derive(Debug)]
struct PartReader {
    server: Arc<Server>,
    connection: OwnedConnection,
    source: GroupedSource,
    is_view: bool,
    remaining: Arc<Mutex<RemainingParts>>,
    batch_rows: usize,
    buffered_batches: usize,
}

impl PartReader {
    async fn run(mut self) {
        while let Some((part, sender)) = self.start_part().await {
            let mut sink = PartSink {
                batch_rows: self.batch_rows,
                columns: RowBuilder::new(self.source),
                sender,
            };
            let outcome = match part {
                Ok(part) => self.read_part(&part, &mut sink).await,
                Err(error) => Err(error),
            };
            let has_failed = outcome.is_err();
            let item = outcome.map_err(|error| self.snapshot_error(&error));
            // The receiver may have been dropped.
            if sink.sender.send(item.map(|()| None)).await.is_err() || has_failed {
                return;
            }
        }
    }

    /// Starts the next part. Returns `None` if there is none, or if the stream was dropped.
    async fn start_part(&mut self) -> Option<(Sql<Part>, Sender<PartItem>)> {
        let timeout_ms = self.server.options.dump_timeout_ms;
        let mut remaining = self.remaining.lock().await;
        let parts = &mut remaining.parts;
        let next_part = next_part(parts, &mut self.connection, self.source, timeout_ms);
        let part = next_part.await.transpose()?;
        let (sender, receiver) = mpsc::channel(self.buffered_batches);
        remaining.started.send(receiver).await.ok()?;
        Some((part, sender))
    }

    async fn read_part(&mut self, part: &Part, sink: &mut PartSink) -> Sql<()> {
        let timeout_ms = self.server.options.dump_timeout_ms;
        match &mut self.connection {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                postgres::dump::read_part(connection, self.source, part, sink, timeout_ms).await?;
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                let is_view = self.is_view;
                mysql::dump::read_part(connection, self.source, is_view, part, sink, timeout_ms)
                    .await?;
            }
        }
        sink.flush().await?;
        Ok(())
    }

    /// Converts the error of a connection, which ends the snapshot, too.
    fn snapshot_error(&self, error: &sqlx::Error) -> Error {
        match self.server.classify_error(OPERATION, error) {
            Error::Unavailable { operation, reason } => Error::Unavailable {
                operation,
                reason: format!(
                    "{reason}; the dump's snapshot is lost, so the dump must start again"
                ),
            },
            error => error,
        }
    }
}

/// Returns the next part, if there is one. Looks up its end in the index if necessary.
async fn next_part(
    parts: &mut Parts,
    connection: &mut OwnedConnection,
    source: GroupedSource,
    timeout_ms: u64,
) -> Sql<Option<Part>> {
    let (from, rows) = match parts {
        Parts::List(list) => return Ok(list.next()),
        Parts::Scan { from, rows } => (*from, *rows),
    };
    let next_key = match connection {
        #[cfg(feature = "postgres")]
        OwnedConnection::Postgres(connection) => {
            postgres::dump::find_key_after(connection, source, from, rows, timeout_ms).await?
        }
        #[cfg(feature = "mysql")]
        OwnedConnection::MySql(connection) => {
            mysql::dump::find_key_after(connection, source, from, rows, timeout_ms).await?
        }
    };
    // A key with more rows than a part is a part by itself.
    let before = match next_key {
        Some(next_key) if Some(next_key) == from => next_key.checked_add(1),
        next_key => next_key,
    };
    *parts = match before {
        Some(_) => Parts::Scan { from: before, rows },
        None => Parts::from_list(Vec::new()),
    };
    Ok(Some(Part::Range { from, before }))
}

/// Forwards the batches of one part after the other.
async fn forward_in_order(
    mut parts: Receiver<Receiver<PartItem>>,
    sender: Sender<Result<RecordBatch>>,
) {
    while let Some(mut part) = parts.recv().await {
        loop {
            let batch = match part.recv().await {
                Some(Ok(Some(batch))) => Ok(batch),
                Some(Ok(None)) => break,
                Some(Err(error)) => Err(error),
                None => Err(Error::broken(
                    OPERATION,
                    "the task that reads a part ended early",
                )),
            };
            let has_failed = batch.is_err();
            if sender.send(batch).await.is_err() || has_failed {
                return;
            }
        }
    }
}
