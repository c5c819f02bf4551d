//! Dumps from SQLite: all rows of a table, or those of some keys, in key order and from one
//! snapshot.
//!
//! A dump has a connection and a task of its own. It reads page by page: it finds the next rows in
//! the index, reads them in the order of the file, and sorts them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::stream::BoxStream;
use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;

use super::rows::{DecodedRows, JsonRows, RowPosition, decode};
use crate::Result;
use crate::embedded::db::OpenFile;
use crate::sql::connection::{Dialect, to_json_array};
use crate::sql::decode::GroupedSource;
use crate::sql::task_stream::stream_from_tasks;

/// The number of batches of a page. A large page reads adjacent rows of the file together.
const PAGE_BATCHES: usize = 8;

/// Upper limit of the rows of a page.
const PAGE_ROWS_MAX: usize = 1 << 15;

/// Batches buffered ahead of the reader.
const BUFFERED_BATCHES: usize = 2;

/// Upper limit of the keys of a page.
const KEYS_PER_PAGE: usize = 4096;

const OPERATION: &str = "dumping rows";

/// Starts a dump of the present rows. `keys` ascend, each once.
pub(crate) async fn dump(
    db: Arc<OpenFile>,
    source: GroupedSource,
    keys: Option<Vec<i64>>,
    batch_rows: usize,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let batch_rows = batch_rows.max(1);
    let remaining = match keys {
        None => RemainingRows::All(Some((i64::MIN, i64::MIN, i64::MIN))),
        Some(keys) => RemainingRows::Keys {
            keys,
            current: None,
        },
    };
    let mut connection = db.dedicated_reader().await?;
    // The first read determines the snapshot. The transaction ends with the connection.
    let begin = format!("BEGIN; SELECT 1 FROM {} LIMIT 1;", source.table());
    sqlx::raw_sql(AssertSqlSafe(begin))
        .execute(&mut connection)
        .await
        .map_err(db.error_mapper(OPERATION))?;
    let pages = Pages {
        db,
        source,
        page_rows: batch_rows.saturating_mul(PAGE_BATCHES).min(PAGE_ROWS_MAX),
        connection,
        remaining,
    };
    let (sender, receiver) = mpsc::channel(BUFFERED_BATCHES);
    let mut task = JoinSet::new();
    task.spawn(send_pages(pages, batch_rows, sender));
    Ok(stream_from_tasks(receiver, task, OPERATION))
}

async fn send_pages(mut pages: Pages, batch_rows: usize, sender: Sender<Result<RecordBatch>>) {
    loop {
        match pages.next().await {
            Ok(None) => return,
            Ok(Some(page)) => {
                for from in (0..page.num_rows()).step_by(batch_rows) {
                    let batch = page.slice(from, batch_rows.min(page.num_rows() - from));
                    if sender.send(Ok(batch)).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                // The receiver may have been dropped.
                sender.send(Err(error)).await.ok();
                return;
            }
        }
    }
}

/// The rows that a dump has not read.
#[derive(Debug)]
enum RemainingRows {
    /// All rows from a position on; `None` at the end.
    All(Option<RowPosition>),
    Keys {
        /// The keys that were not started, ascending.
        keys: Vec<i64>,
        /// The position from which the current key continues, if a page ended within it.
        current: Option<RowPosition>,
    },
}

/// Reads the pages of a dump.
#[derive(Debug)]
struct Pages {
    db: Arc<OpenFile>,
    source: GroupedSource,
    page_rows: usize,
    connection: SqliteConnection,
    remaining: RemainingRows,
}

impl Pages {
    /// The rows of the next page; `None` at the end.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(request) = self.next_request() else {
                return Ok(None);
            };
            let page = self.read(&request).await?;
            let is_full = page.batch.num_rows() >= self.page_rows;
            self.remaining.advance(page.last.filter(|_| is_full));
            if page.batch.num_rows() > 0 {
                return Ok(Some(page.batch));
            }
        }
    }

    /// The statement for the next page, and its parameters.
    fn next_request(&self) -> Option<PageRequest> {
        let key = self.source.key_column();
        let (condition, from, keys) = match &self.remaining {
            RemainingRows::All(from) => {
                let condition = format!("({key}, athlete_id, id) >= (?1, ?2, ?3)");
                (condition, (*from)?, None)
            }
            RemainingRows::Keys {
                current: Some(from),
                ..
            } => {
                let condition = format!("{key} = ?1 AND (athlete_id, id) >= (?2, ?3)");
                (condition, *from, None)
            }
            RemainingRows::Keys {
                keys,
                current: None,
            } if keys.is_empty() => return None,
            RemainingRows::Keys {
                keys,
                current: None,
            } => {
                let condition = format!("{key} IN (SELECT value FROM json_each(?5))");
                let keys = to_json_array(keys.iter().take(KEYS_PER_PAGE).copied());
                (condition, (0, 0, 0), Some(keys))
            }
        };
        // The inner limit ends the page. Without the outer limit, SQLite would ignore the outer
        // ORDER BY.
        let statement = format!(
            "SELECT {rows} FROM (
                 SELECT id AS row_id FROM (
                     SELECT id FROM {table} WHERE {condition}
                     ORDER BY {key}, athlete_id, id LIMIT ?4)
                 ORDER BY row_id LIMIT -1)
             CROSS JOIN {table} e ON e.id = row_id {join}",
            rows = self.source.columns(Dialect::Sqlite),
            table = self.source.table(),
            join = GroupedSource::JOIN,
        );
        Some(PageRequest {
            statement,
            from,
            keys,
        })
    }

    async fn read(&mut self, request: &PageRequest) -> Result<DecodedRows> {
        let (key, member, id) = request.from;
        let json: String = sqlx::query_scalar(AssertSqlSafe(request.statement.clone()))
            .bind(key)
            .bind(member)
            .bind(id)
            .bind(i64::try_from(self.page_rows).unwrap_or(i64::MAX))
            .bind(request.keys.as_deref())
            .fetch_one(&mut self.connection)
            .await
            .map_err(self.db.error_mapper(OPERATION))?;
        let excluded = None;
        let rows = decode(self.source, vec![JsonRows { json, excluded }]).await;
        rows.map_err(self.db.error_mapper(OPERATION))
    }
}

/// The statement of a page, and its parameters.
#[derive(Debug)]
struct PageRequest {
    statement: String,
    from: RowPosition,
    /// A JSON array.
    keys: Option<String>,
}

impl RemainingRows {
    /// Removes the rows of a page. `last_of_full` is the last row of a full page. A page that is
    /// not full contains all requested rows.
    fn advance(&mut self, last_of_full: Option<RowPosition>) {
        match self {
            Self::All(from) => *from = last_of_full.and_then(successor),
            Self::Keys { keys, current } => {
                let was_within_key = current.is_some();
                // If the next position belongs to the next key, this one has no more rows.
                *current =
                    last_of_full.and_then(|last| successor(last).filter(|next| next.0 == last.0));
                if was_within_key {
                    return;
                }
                let requested = keys.len().min(KEYS_PER_PAGE);
                let started = last_of_full.map_or(requested, |last| {
                    keys.partition_point(|key| *key <= last.0).min(requested)
                });
                keys.drain(..started);
            }
        }
    }
}

/// The position after another one.
fn successor(position: RowPosition) -> Option<RowPosition> {
    let (key, member, id) = position;
    if let Some(id) = id.checked_add(1) {
        return Some((key, member, id));
    }
    if let Some(member) = member.checked_add(1) {
        return Some((key, member, i64::MIN));
    }
    Some((key.checked_add(1)?, i64::MIN, i64::MIN))
}
