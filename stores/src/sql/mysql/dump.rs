//! Dumps from MySQL and MariaDB: one connection, whose transaction shows one moment, reads ranges of
//! keys one after the other.
//!
//! A table that is read as a whole in the order of keys would be sorted as a whole, in a file of the
//! server. A range is found through the index of groups, and its rows come in its order. Where ranges
//! end is looked up in the index. The server sends rows as fast as they are taken.

use std::time::Duration;

use futures::TryStreamExt;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use super::SNAPSHOT;
use crate::sql::connection::{Dialect, OwnedConnection, Sql, in_time};
use crate::sql::decode::Grouped;
use crate::sql::dump::{ALL, Begun, KEYS_AT_ONCE, Part, Parts, Sink};

/// Begins the transaction of a dump, which holds the moment.
pub(crate) async fn begin(
    mut connection: MySqlConnection,
    of: Grouped,
    keys: Option<&[i64]>,
    range_rows: u64,
) -> Sql<Begun> {
    let parts = match keys {
        Some(keys) => {
            let parts = keys.chunks(KEYS_AT_ONCE);
            Parts::these(parts.map(|keys| Part::Keys(keys.to_vec())).collect())
        }
        None if is_indexed(&mut connection, of.table(), of.key()).await? => Parts::Walk {
            from: None,
            rows: range_rows.max(1),
        },
        None => Parts::these(vec![ALL]),
    };
    sqlx::raw_sql(SNAPSHOT).execute(&mut connection).await?;
    Ok(Begun {
        connections: vec![OwnedConnection::MySql(connection)],
        parts,
    })
}

/// Whether rows of a table, or of a view in its place, are found by this column through an index.
pub(crate) async fn is_indexed(
    connection: &mut MySqlConnection,
    table: &str,
    key: &str,
) -> Sql<bool> {
    let statement = format!("EXPLAIN SELECT 1 FROM {table} WHERE {key} = 1");
    let steps = sqlx::query(AssertSqlSafe(statement))
        .persistent(false)
        .fetch_all(connection)
        .await?;
    for step in steps {
        let way: Option<String> = step.try_get("type")?;
        let possible: Option<String> = step.try_get("possible_keys")?;
        if way.as_deref() == Some("ALL") && possible.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The key of the row that stands so many rows after the first one with a key that is not smaller than
/// `from`; nothing if there are not so many.
pub(crate) async fn key_after(
    connection: &mut MySqlConnection,
    of: Grouped,
    from: Option<i64>,
    rows: u64,
    wait_ms: u64,
) -> Sql<Option<i64>> {
    let statement = format!(
        "SELECT CAST(e.{key} AS SIGNED) FROM {table} e WHERE e.{key} >= {from}
         ORDER BY e.{key} LIMIT 1 OFFSET {rows}",
        table = of.table(),
        key = of.key(),
        from = from.unwrap_or(i64::MIN),
    );
    let asking = sqlx::query_scalar(AssertSqlSafe(statement))
        .persistent(false)
        .fetch_optional(connection);
    in_time(Duration::from_millis(wait_ms), asking).await
}

/// The statement that reads a part.
fn reading(of: Grouped, is_view: bool, part: &Part) -> String {
    let key = of.key();
    let condition = match part {
        Part::Keys(keys) => {
            let keys: Vec<String> = keys.iter().map(i64::to_string).collect();
            format!("e.{key} IN ({})", keys.join(","))
        }
        // One end is said always: the order of a whole index is not used, that of a range is.
        Part::Range { from, before } => {
            let from = from.unwrap_or(i64::MIN);
            let before = before.map(|before| format!(" AND e.{key} < {before}"));
            format!("e.{key} >= {from}{}", before.unwrap_or_default())
        }
    };
    format!(
        "SELECT {columns} FROM {table} e {hint} {join} WHERE {condition}
         ORDER BY e.{key}, e.athlete_id, e.id",
        hint = if is_view { "" } else { of.hint() },
        columns = of.columns(Dialect::MySql),
        table = of.table(),
        join = Grouped::JOIN,
    )
}

/// Brings the rows of a part to where they go.
pub(crate) async fn pour(
    connection: &mut MySqlConnection,
    of: Grouped,
    is_view: bool,
    part: &Part,
    sink: &mut Sink,
    wait_ms: u64,
) -> Sql<()> {
    let wait = Duration::from_millis(wait_ms);
    let query = sqlx::query(AssertSqlSafe(reading(of, is_view, part))).persistent(false);
    let mut rows = query.fetch(connection);
    while let Some(row) = in_time(wait, rows.try_next()).await? {
        if !sink.push(&row).await? {
            break;
        }
    }
    Ok(())
}
