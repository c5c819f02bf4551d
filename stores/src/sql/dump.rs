//! Dumps: all rows of a table, or those of some keys, in order, as of one moment.
//!
//! A dump is read in *parts*, which follow each other in the order of keys: ranges of keys of about
//! as many rows each, or some of the keys. On PostgreSQL a few connections that see the same moment
//! read parts side by side; MySQL can't share a moment, so one connection reads one part after the
//! other. Either way a part is found through the index of groups, and the server never has to sort
//! more than a part.
//!
//! Rows come out in order: each part has a channel of its own, which holds about a part, and parts are
//! emptied one after the other. Nobody begins a part while as many wait as there are connections,
//! so what is held is bounded: about one part for each connection and one more.
//!
//! Connections and tasks are the dump's own. When the stream is dropped, they end. No batch is waited
//! for longer than the options say; how long the whole takes is nobody's business.

use std::sync::Arc;
use std::vec;

use arrow::array::RecordBatch;
use futures::stream::BoxStream;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

use super::connection::{OwnedConnection, Sql};
use super::database::Purpose;
use super::decode::{Columns, Grouped, Readable};
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::server::Server;
use super::task_stream::task_stream;
use crate::{Error, Result};

/// No batch has more rows, however many were asked for.
const BATCH_ROWS_MAX: usize = 1 << 15;

/// A part that waits has at most so many batches; one that is read by one connection alone has few.
const BATCHES_AHEAD_MAX: usize = 64;
const BATCHES_AHEAD_ALONE: usize = 2;

/// So many keys are looked for by one statement.
pub(crate) const KEYS_AT_ONCE: usize = 2048;

const DOING: &str = "dumping rows";

/// What one statement of a dump reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// The keys from one on and before another; all of them where neither is said.
    Range {
        from: Option<i64>,
        before: Option<i64>,
    },
    /// These keys, which ascend.
    Keys(Vec<i64>),
}

/// All keys.
pub(crate) const ALL: Part = Part::Range {
    from: None,
    before: None,
};

/// What is yet to be read.
#[derive(Debug)]
pub(crate) enum Parts {
    /// These parts.
    These(vec::IntoIter<Part>),
    /// All keys from one on (all if none is said), in ranges whose ends are looked up in the index
    /// when it is their turn: of so many rows, or of one key.
    Walk { from: Option<i64>, rows: u64 },
}

impl Parts {
    pub(crate) fn these(parts: Vec<Part>) -> Self {
        Self::These(parts.into_iter())
    }

    /// How many connections have something to do.
    pub(crate) fn connections(&self, max: u32) -> usize {
        let max = usize::try_from(max).unwrap_or(usize::MAX).max(1);
        match self {
            Self::These(parts) => max.min(parts.len()),
            Self::Walk { .. } => max,
        }
    }

    async fn next(
        &mut self,
        own: &mut OwnedConnection,
        of: Grouped,
        wait_ms: u64,
    ) -> Sql<Option<Part>> {
        let (from, rows) = match self {
            Self::These(parts) => return Ok(parts.next()),
            Self::Walk { from, rows } => (*from, *rows),
        };
        let next = match own {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                postgres::dump::key_after(connection, of, from, rows, wait_ms).await?
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                mysql::dump::key_after(connection, of, from, rows, wait_ms).await?
            }
        };
        // A key that has more rows than a part is a part alone.
        let before = match next {
            Some(next) if Some(next) == from => next.checked_add(1),
            next => next,
        };
        *self = match before {
            Some(_) => Self::Walk { from: before, rows },
            None => Self::these(Vec::new()),
        };
        Ok(Some(Part::Range { from, before }))
    }
}

/// A dump whose moment stands still.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Connections that see the moment.
    pub(crate) connections: Vec<OwnedConnection>,
    pub(crate) parts: Parts,
}

/// Begins a dump of the rows that are stored now. Keys ascend, each once.
pub(crate) async fn dump(
    server: Arc<Server>,
    of: Grouped,
    keys: Option<Vec<i64>>,
    batch_rows: usize,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let beginning = || async {
        match server.connect(Purpose::Dump).await? {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                postgres::dump::begin(&server, connection, of, keys.as_deref()).await
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                let range_rows = server.options.dump_range_rows;
                mysql::dump::begin(connection, of, keys.as_deref(), range_rows).await
            }
        }
    };
    let is_view = server.views.contains(of.table());
    let Begun { connections, parts } = server.tried(DOING, beginning).await?;
    let batch_rows = batch_rows.clamp(1, BATCH_ROWS_MAX);
    let (order, receivers) = mpsc::channel(connections.len().max(1));
    let batches_ahead = if connections.len() == 1 {
        BATCHES_AHEAD_ALONE
    } else {
        let of_a_part = server.options.dump_range_rows / (batch_rows as u64) + 1;
        usize::try_from(of_a_part).map_or(BATCHES_AHEAD_MAX, |n| n.min(BATCHES_AHEAD_MAX))
    };
    let left = Arc::new(Mutex::new(Left { parts, order }));
    let mut tasks = JoinSet::new();
    for own in connections {
        let reader = Reader {
            server: Arc::clone(&server),
            own,
            of,
            is_view,
            left: Arc::clone(&left),
            batch_rows,
            batches_ahead,
        };
        tasks.spawn(reader.read());
    }
    let (sender, receiver) = mpsc::channel(1);
    tasks.spawn(in_order(receivers, sender));
    Ok(task_stream(receiver, tasks, DOING))
}

/// A batch, or that the part is over: one that ends without it was broken off.
type Piece = Result<Option<RecordBatch>>;

/// What nobody has begun, and where the parts that somebody has begun are told of, in their order.
#[derive(Debug)]
struct Left {
    parts: Parts,
    order: Sender<Receiver<Piece>>,
}

/// Reads one part after the other by one connection.
#[derive(Debug)]
struct Reader {
    server: Arc<Server>,
    own: OwnedConnection,
    of: Grouped,
    is_view: bool,
    left: Arc<Mutex<Left>>,
    batch_rows: usize,
    batches_ahead: usize,
}

impl Reader {
    async fn read(mut self) {
        while let Some((part, sender)) = self.begin_part().await {
            let mut sink = Sink {
                batch_rows: self.batch_rows,
                columns: Columns::new(self.of),
                sender,
            };
            let read = match part {
                Ok(part) => self.read_part(&part, &mut sink).await,
                Err(error) => Err(error),
            };
            let is_over = read.is_err();
            let last = read.map_err(|error| self.lost(&error));
            // Nobody may be there any more, who would want to know.
            if sink.sender.send(last.map(|()| None)).await.is_err() || is_over {
                return;
            }
        }
    }

    /// The next part, and where its rows go; nothing if there is none, or nobody wants one.
    async fn begin_part(&mut self) -> Option<(Sql<Part>, Sender<Piece>)> {
        let wait_ms = self.server.options.dump_timeout_ms;
        let mut left = self.left.lock().await;
        let part = left.parts.next(&mut self.own, self.of, wait_ms).await;
        let part = part.transpose()?;
        let (sender, receiver) = mpsc::channel(self.batches_ahead);
        left.order.send(receiver).await.ok()?;
        Some((part, sender))
    }

    async fn read_part(&mut self, part: &Part, sink: &mut Sink) -> Sql<()> {
        let wait_ms = self.server.options.dump_timeout_ms;
        match &mut self.own {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                postgres::dump::pour(connection, self.of, part, sink, wait_ms).await?;
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                mysql::dump::pour(connection, self.of, self.is_view, part, sink, wait_ms).await?;
            }
        }
        sink.flush().await?;
        Ok(())
    }

    /// The error of a connection, with which the moment is gone.
    fn lost(&self, error: &sqlx::Error) -> Error {
        match self.server.fault(DOING, error) {
            Error::Unavailable { what, why } => Error::Unavailable {
                what,
                why: format!(
                    "{why}; the dump's moment is lost with its connection, so it has to begin anew"
                ),
            },
            error => error,
        }
    }
}

/// Forwards the batches of one part after the other.
async fn in_order(mut parts: Receiver<Receiver<Piece>>, sender: Sender<Result<RecordBatch>>) {
    while let Some(mut part) = parts.recv().await {
        loop {
            let batch = match part.recv().await {
                Some(Ok(Some(batch))) => Ok(batch),
                Some(Ok(None)) => break,
                Some(Err(error)) => Err(error),
                None => Err(Error::broken(DOING, "what read it ended in the middle")),
            };
            let is_over = batch.is_err();
            if sender.send(batch).await.is_err() || is_over {
                return;
            }
        }
    }
}

/// Where the rows of a part go.
#[derive(Debug)]
pub(crate) struct Sink {
    batch_rows: usize,
    columns: Columns,
    sender: Sender<Piece>,
}

impl Sink {
    /// Takes a row; answers whether anybody wants more.
    pub(crate) async fn push(&mut self, row: &(impl Readable + Sync)) -> Sql<bool> {
        self.columns.push(row)?;
        if self.columns.len() < self.batch_rows {
            return Ok(true);
        }
        self.flush().await
    }

    async fn flush(&mut self) -> Sql<bool> {
        if self.columns.len() == 0 {
            return Ok(true);
        }
        let batch = self.columns.finish()?;
        Ok(self.sender.send(Ok(Some(batch))).await.is_ok())
    }
}
