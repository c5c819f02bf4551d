//! Dumps: all rows of a table, or those of some keys, in order, as of one moment.
//!
//! A dump has a connection and a task of its own, and a transaction that shows one moment. PostgreSQL
//! is asked for some rows after the other (a cursor); MySQL sends all of them, and we read on as
//! batches are taken. When the stream is dropped, the task ends and the connection with it. No
//! batch is waited for longer than the options say; how long the whole takes is nobody's business.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

use super::decode::{Columns, Grouped, Readable};
use super::server::{Purpose, Server};
use super::session::{Own, Sql};
use crate::{Error, Result, mysql, postgres};

/// No batch has more rows, however many were asked for.
const BATCH_ROWS_MAX: usize = 1 << 15;

/// Batches that may wait for whoever takes them.
const BATCHES_AHEAD: usize = 2;

const DOING: &str = "dumping rows";

/// Begins a dump: what it will bring is what is stored now.
pub(crate) async fn dump(
    server: Arc<Server>,
    of: Grouped,
    keys: Option<&[i64]>,
    batch_rows: usize,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let keys = keys.map(|keys| {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        keys
    });
    if keys.as_ref().is_some_and(Vec::is_empty) {
        return Ok(stream::empty().boxed());
    }
    let beginning = || async {
        let mut own = server.connect(Purpose::Dump).await?;
        match &mut own {
            Own::Postgres(link) => postgres::begin_dump(link, of, keys.as_deref()).await?,
            Own::MySql(link) => mysql::begin_dump(link).await?,
        }
        Ok(own)
    };
    let own = server.tried(DOING, beginning).await?;
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut sink = Sink {
            batch_rows: batch_rows.clamp(1, BATCH_ROWS_MAX),
            columns: Columns::new(of),
            sender,
        };
        if let Err(error) = run(&server, own, of, keys, &mut sink).await {
            // Nobody may be there any more, who would want to know.
            let error = server.fault(DOING, &error);
            sink.sender.send(Err(error)).await.ok();
        }
    });
    Ok(stream::unfold(Some((receiver, task)), next).boxed())
}

async fn run(
    server: &Server,
    own: Own,
    of: Grouped,
    keys: Option<Vec<i64>>,
    sink: &mut Sink,
) -> Sql<()> {
    let wait = server.options.dump_timeout_ms;
    match own {
        Own::Postgres(link) => postgres::pour(link, sink, wait).await?,
        Own::MySql(link) => mysql::pour(link, of, keys.as_deref(), sink, wait).await?,
    }
    sink.flush().await?;
    Ok(())
}

/// The next batch. The task ends when the stream is dropped, and the connection with it.
async fn next(
    dump: Option<(Receiver<Result<RecordBatch>>, JoinSet<()>)>,
) -> Option<(
    Result<RecordBatch>,
    Option<(Receiver<Result<RecordBatch>>, JoinSet<()>)>,
)> {
    let (mut receiver, mut task) = dump?;
    if let Some(batch) = receiver.recv().await {
        let left = batch.is_ok().then_some((receiver, task));
        return Some((batch, left));
    }
    match task.join_next().await? {
        Ok(()) => None,
        Err(error) => Some((Err(Error::broken(DOING, error)), None)),
    }
}

/// Where rows of a dump go.
#[derive(Debug)]
pub(crate) struct Sink {
    batch_rows: usize,
    columns: Columns,
    sender: Sender<Result<RecordBatch>>,
}

impl Sink {
    /// How many rows make a batch.
    pub(crate) const fn batch_rows(&self) -> usize {
        self.batch_rows
    }

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
        Ok(self.sender.send(Ok(batch)).await.is_ok())
    }
}
