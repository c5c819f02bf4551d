//! Dumps: all rows of a table, or those of some keys, in order, as of one moment.
//!
//! A dump has a connection and a task of its own. It reads a page at a time: the index says which
//! rows come next, these are read in the order in which they lie in the file, and ordered again.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::stream::BoxStream;
use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;

use super::rows::{DecodedRows, Place, Text, columns};
use crate::Result;
use crate::embedded::db::Opened;
use crate::sql::connection::{Dialect, json_array};
use crate::sql::decode::Grouped;
use crate::sql::task_stream::task_stream;

/// A page is so many batches, so that rows that lie side by side in the file are read together,
const PAGE_BATCHES: usize = 8;

/// but never more rows than this.
const PAGE_ROWS_MAX: usize = 1 << 15;

/// Batches that may wait for whoever takes them.
const BATCHES_AHEAD: usize = 2;

/// So many keys are looked for by one statement.
const KEYS_AT_ONCE: usize = 4096;

const DOING: &str = "dumping rows";

/// Begins a dump of the rows that are stored now. Keys ascend, each once.
pub(crate) async fn dump(
    db: Arc<Opened>,
    of: Grouped,
    keys: Option<Vec<i64>>,
    batch_rows: usize,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let batch_rows = batch_rows.max(1);
    let left = match keys {
        None => Left::All(Some((i64::MIN, i64::MIN, i64::MIN))),
        Some(keys) => Left::Keys { keys, inside: None },
    };
    let mut connection = db.own_reader().await?;
    // The moment is that of the first reading. Nothing ends the transaction but the end of the
    // connection.
    let begin = format!("BEGIN; SELECT 1 FROM {} LIMIT 1;", of.table());
    sqlx::raw_sql(AssertSqlSafe(begin))
        .execute(&mut connection)
        .await
        .map_err(db.fault(DOING))?;
    let pages = Pages {
        db,
        of,
        page_rows: batch_rows.saturating_mul(PAGE_BATCHES).min(PAGE_ROWS_MAX),
        connection,
        left,
    };
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let mut task = JoinSet::new();
    task.spawn(run(pages, batch_rows, sender));
    Ok(task_stream(receiver, task, DOING))
}

async fn run(mut pages: Pages, batch_rows: usize, sender: Sender<Result<RecordBatch>>) {
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
                // Nobody may be there any more, who would want to know.
                sender.send(Err(error)).await.ok();
                return;
            }
        }
    }
}

/// What a dump has yet to read.
#[derive(Debug)]
enum Left {
    /// Everything from a place on, if there is anything.
    All(Option<Place>),
    Keys {
        /// The keys that were not begun, ascending.
        keys: Vec<i64>,
        /// The rest of the key before them, from a place on.
        inside: Option<Place>,
    },
}

/// A dump as it goes on.
#[derive(Debug)]
struct Pages {
    db: Arc<Opened>,
    of: Grouped,
    page_rows: usize,
    connection: SqliteConnection,
    left: Left,
}

impl Pages {
    /// The rows of the next page; nothing at the end.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(asked) = self.ask() else {
                return Ok(None);
            };
            let page = self.read(&asked).await?;
            let is_full = page.batch.num_rows() >= self.page_rows;
            self.left.pass(page.last.filter(|_| is_full));
            if page.batch.num_rows() > 0 {
                return Ok(Some(page.batch));
            }
        }
    }

    /// What finds the rows of the next page, in order.
    fn ask(&self) -> Option<Asked> {
        let key = self.of.key();
        let (condition, place, keys) = match &self.left {
            Left::All(from) => {
                let condition = format!("({key}, athlete_id, id) >= (?1, ?2, ?3)");
                (condition, (*from)?, None)
            }
            Left::Keys {
                inside: Some(from), ..
            } => {
                let condition = format!("{key} = ?1 AND (athlete_id, id) >= (?2, ?3)");
                (condition, *from, None)
            }
            Left::Keys { keys, inside: None } if keys.is_empty() => return None,
            Left::Keys { keys, inside: None } => {
                let condition = format!("{key} IN (SELECT value FROM json_each(?5))");
                let keys = json_array(keys.iter().take(KEYS_AT_ONCE).copied());
                (condition, (0, 0, 0), Some(keys))
            }
        };
        // The inner limit ends the page; the outer one is there since SQLite would otherwise leave
        // the order out.
        let statement = format!(
            "SELECT {rows} FROM (
                 SELECT id AS found FROM (
                     SELECT id FROM {table} WHERE {condition}
                     ORDER BY {key}, athlete_id, id LIMIT ?4)
                 ORDER BY found LIMIT -1)
             CROSS JOIN {table} e ON e.id = found {join}",
            rows = self.of.columns(Dialect::Sqlite),
            table = self.of.table(),
            join = Grouped::JOIN,
        );
        Some(Asked {
            statement,
            place,
            keys,
        })
    }

    async fn read(&mut self, asked: &Asked) -> Result<DecodedRows> {
        let (key, member, id) = asked.place;
        let json: String = sqlx::query_scalar(AssertSqlSafe(asked.statement.clone()))
            .bind(key)
            .bind(member)
            .bind(id)
            .bind(i64::try_from(self.page_rows).unwrap_or(i64::MAX))
            .bind(asked.keys.as_deref())
            .fetch_one(&mut self.connection)
            .await
            .map_err(self.db.fault(DOING))?;
        let without = None;
        let rows = columns(self.of, vec![Text { json, without }]).await;
        rows.map_err(self.db.fault(DOING))
    }
}

/// A page that is asked for.
#[derive(Debug)]
struct Asked {
    statement: String,
    place: Place,
    keys: Option<String>,
}

impl Left {
    /// Goes on after what was asked for: all of it, or if the page was full, only what stands up to
    /// its last row.
    fn pass(&mut self, full_at: Option<Place>) {
        match self {
            Self::All(from) => *from = full_at.and_then(after),
            Self::Keys { keys, inside } => {
                let was_inside = inside.is_some();
                // The next place may be one of the next key; then this one has no more rows.
                *inside = full_at.and_then(|last| after(last).filter(|next| next.0 == last.0));
                if was_inside {
                    return;
                }
                let asked = keys.len().min(KEYS_AT_ONCE);
                let passed = full_at.map_or(asked, |last| {
                    keys.partition_point(|key| *key <= last.0).min(asked)
                });
                keys.drain(..passed);
            }
        }
    }
}

/// The first place after one.
fn after((key, member, id): Place) -> Option<Place> {
    if let Some(id) = id.checked_add(1) {
        return Some((key, member, id));
    }
    if let Some(member) = member.checked_add(1) {
        return Some((key, member, i64::MIN));
    }
    Some((key.checked_add(1)?, i64::MIN, i64::MIN))
}
