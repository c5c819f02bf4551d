//! Queries that somebody else wrote, on a connection of their own that can't write.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::db::Opened;
use crate::Result;
use crate::canon::Answered;
use crate::canon_sql::asked::{
    DOING, Dialect, as_table, as_texts, channel, names, naming, pour, refused, streamed,
};

/// How many steps SQLite takes before it looks whether it is too late.
const STEPS: i32 = 10_000;

/// Asks the file.
pub(super) async fn ask(db: Arc<Opened>, query: &str, wait_ms: u64) -> Result<Answered> {
    let table = as_table(query)?;
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let of = Arc::clone(&db);
    let fault = move |error: sqlx::Error| of.fault(DOING)(error);
    let mut connection = db.read_only().await?;
    {
        let mut handle = connection.lock_handle().await.map_err(&fault)?;
        handle.set_progress_handler(STEPS, move || Instant::now() < until);
    }
    let prepared = (&mut connection).prepare(naming(&table)).await;
    let columns = names(&prepared.map_err(|error| refused(&fault, error))?);
    let (sender, receiver) = channel();
    let mut task = JoinSet::new();
    let named = columns.clone();
    task.spawn(async move {
        let dialect = Dialect {
            quote: '"',
            text: "TEXT",
        };
        let statement = AssertSqlSafe(as_texts(&table, &named, dialect));
        let rows = sqlx::query(statement)
            .persistent(false)
            .fetch(&mut connection);
        let read = pour::<sqlx::Sqlite>(rows, named.len(), (&sender, until)).await;
        if let Err(error) = read {
            // Nobody may be there any more, who would want to know.
            sender.send(Err(error)).await.ok();
        }
    });
    Ok(Answered {
        columns,
        rows: streamed(receiver, task, fault),
    })
}
