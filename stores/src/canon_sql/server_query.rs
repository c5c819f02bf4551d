//! Queries of users, run on a server.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::asked::{
    DOING, Dialect, as_table, as_texts, channel, names, naming, pour, refused, streamed,
};
use super::connection::Own;
use super::server::{Purpose, Server};
use super::session::Sql;
use crate::Result;
use crate::canon::{Answered, AnsweredRows};

/// Asks a server.
pub(super) async fn ask(
    server: std::sync::Arc<Server>,
    query: &str,
    wait_ms: u64,
) -> Result<Answered> {
    let table = as_table(query)?;
    let until = Instant::now() + Duration::from_millis(wait_ms);
    let name = server.name().to_owned();
    let of = std::sync::Arc::clone(&server);
    let fault = move |error: sqlx::Error| of.fault(DOING, &error);
    let mut own = server
        .tried(DOING, || server.connect(Purpose::Dump))
        .await?;
    let begun = begin(&mut own, &table, wait_ms).await;
    let columns = begun.map_err(|error| refused(&fault, error))?;
    tracing::debug!(server = name, columns = columns.len(), "a query was begun");
    let (sender, receiver) = channel();
    let mut task = JoinSet::new();
    let named = columns.clone();
    task.spawn(async move {
        let read = read(&mut own, &table, &named, (&sender, until)).await;
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

async fn begin(own: &mut Own, table: &str, wait_ms: u64) -> Sql<Vec<String>> {
    match own {
        #[cfg(feature = "postgres")]
        Own::Postgres(link) => {
            let begin = format!("BEGIN READ ONLY; SET LOCAL statement_timeout TO {wait_ms}");
            sqlx::raw_sql(AssertSqlSafe(begin))
                .execute(&mut *link)
                .await?;
            Ok(names(&(&mut *link).prepare(naming(table)).await?))
        }
        #[cfg(feature = "mysql")]
        Own::MySql(link) => {
            let version: String = sqlx::query_scalar("SELECT version()")
                .fetch_one(&mut *link)
                .await?;
            let limit = match version.to_ascii_lowercase().contains("mariadb") {
                true => format!("max_statement_time = {}", wait_ms.div_ceil(1000)),
                false => format!("max_execution_time = {wait_ms}"),
            };
            let begin = format!("SET SESSION {limit}; START TRANSACTION READ ONLY");
            sqlx::raw_sql(AssertSqlSafe(begin))
                .execute(&mut *link)
                .await?;
            Ok(names(&(&mut *link).prepare(naming(table)).await?))
        }
    }
}

async fn read(
    own: &mut Own,
    table: &str,
    columns: &[String],
    to: (&Sender<Sql<AnsweredRows>>, Instant),
) -> Sql<()> {
    let dialect = match own {
        #[cfg(feature = "postgres")]
        Own::Postgres(_) => Dialect {
            quote: '"',
            text: "text",
        },
        #[cfg(feature = "mysql")]
        Own::MySql(_) => Dialect {
            quote: '`',
            text: "CHAR",
        },
    };
    let statement = AssertSqlSafe(as_texts(table, columns, dialect));
    match own {
        #[cfg(feature = "postgres")]
        Own::Postgres(link) => {
            let rows = sqlx::query(statement).persistent(false).fetch(link);
            pour::<sqlx::Postgres>(rows, columns.len(), to).await
        }
        #[cfg(feature = "mysql")]
        Own::MySql(link) => {
            let rows = sqlx::query(statement).persistent(false).fetch(link);
            pour::<sqlx::MySql>(rows, columns.len(), to).await
        }
    }
}
