//! Dumps from PostgreSQL: one connection exports the moment that it sees, others take it over, and
//! each reads ranges of keys through cursors.
//!
//! Where ranges end is a guess that only has to be about right. It is taken from what the server has
//! counted (`super::counted`). Of a view, or a table that was never analyzed, nothing is known; then
//! the ends are looked up in the index, one after the other.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use super::counted::{counted, ranges, shares};
use crate::sql::Purpose;
use crate::sql::connection::{Dialect, OwnedConnection, Sql, in_time, undecodable};
use crate::sql::decode::Grouped;
use crate::sql::dump::{ALL, Begun, Part, Parts, Sink};
use crate::sql::server::Server;

/// Rows that are asked for at once.
const FETCHED_ROWS: usize = 8192;

/// What a session has for a dump: whole parts are read, and one is sorted in memory rather than in a file.
pub(super) const SETTINGS: &str = "SET cursor_tuple_fraction TO 1; SET work_mem TO '32MB';";

/// Begins a dump: plans its parts, and opens connections that see one moment.
pub(crate) async fn begin(
    server: &Server,
    mut first: PgConnection,
    of: Grouped,
    keys: Option<&[i64]>,
) -> Sql<Begun> {
    let parts = plan(&mut first, of, keys, server.options.dump_range_rows).await?;
    let wanted = parts.connections(server.options.dump_connections);
    let moment = export(&mut first).await?;
    let mut connections = vec![OwnedConnection::Postgres(first)];
    while connections.len() < wanted {
        let mut connection = match server.connect(Purpose::Dump).await {
            Ok(OwnedConnection::Postgres(connection)) => connection,
            #[cfg(feature = "mysql")]
            Ok(OwnedConnection::MySql(_)) => break,
            Err(error) if is_full(&error) => {
                tracing::warn!(
                    connections = connections.len(),
                    "{} has no more connections free; the dump goes on with fewer",
                    server.name()
                );
                break;
            }
            Err(error) => return Err(error),
        };
        take_over(&mut connection, &moment).await?;
        connections.push(OwnedConnection::Postgres(connection));
    }
    Ok(Begun { connections, parts })
}

fn is_full(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.code().as_deref() == Some("53300"))
}

async fn export(connection: &mut PgConnection) -> Sql<String> {
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut *connection)
        .await?;
    sqlx::query_scalar("SELECT pg_export_snapshot()")
        .fetch_one(connection)
        .await
}

async fn take_over(connection: &mut PgConnection, moment: &str) -> Sql<()> {
    let statements = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{moment}'"
    );
    let taken = sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(connection)
        .await;
    match taken {
        // The one that exports has ended, or this is another server.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("22023" | "55000" | "42704")) =>
        {
            Err(sqlx::Error::Protocol(format!(
                "the moment of the dump's first connection can't be taken over: {error}; if it stays so, the address leads to several servers: name one"
            )))
        }
        taken => taken.map(drop),
    }
}

/// What is read by one statement each.
async fn plan(
    connection: &mut PgConnection,
    of: Grouped,
    keys: Option<&[i64]>,
    range_rows: u64,
) -> Sql<Parts> {
    let whole = || Parts::these(vec![keys.map_or(ALL, |keys| Part::Keys(keys.to_vec()))]);
    let (range_rows, rows) = (range_rows.max(1), rows(connection, of).await?);
    #[expect(clippy::cast_precision_loss, reason = "a guess")]
    let share = range_rows as f64 / rows.max(1.0);
    if share >= 0.5 || !is_indexed(connection, of.table(), of.key()).await? {
        return Ok(whole());
    }
    let counted = counted(connection, of).await?;
    Ok(match (keys, counted) {
        (None, Some(counted)) => Parts::these(ranges(&counted.ends(share))),
        (None, None) => Parts::Walk {
            from: None,
            rows: range_rows,
        },
        (Some(keys), counted) => {
            let weight = |key| {
                counted
                    .as_ref()
                    .map_or(0.0, |counted| counted.weight(key, rows))
            };
            Parts::these(shares(keys, weight, share))
        }
    })
}

/// What the server would do, as it tells.
async fn explained(connection: &mut PgConnection, statement: &str) -> Sql<serde_json::Value> {
    let row: PgRow = sqlx::query(AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) {statement}")))
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let text: String = row.try_get_unchecked(0)?;
    serde_json::from_str(&text).map_err(undecodable)
}

/// About how many rows there are, as the server estimates by the size of what is stored.
async fn rows(connection: &mut PgConnection, of: Grouped) -> Sql<f64> {
    let statement = format!("SELECT {} FROM {}", of.key(), of.table());
    let plan = explained(connection, &statement).await?;
    let rows = plan.pointer("/0/Plan/Plan Rows");
    Ok(rows.and_then(serde_json::Value::as_f64).unwrap_or_default())
}

/// Whether rows of a table, or of a view in its place, are found by this column through an index.
pub(crate) async fn is_indexed(connection: &mut PgConnection, table: &str, key: &str) -> Sql<bool> {
    // With this setting a scan of everything is planned only where there is no other way.
    sqlx::raw_sql("BEGIN; SET LOCAL enable_seqscan TO off")
        .execute(&mut *connection)
        .await?;
    let statement = format!("SELECT 1 FROM {table} WHERE {key} = '1'::bigint");
    let plan = explained(connection, &statement).await?;
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(!scans_everything(&plan))
}

fn scans_everything(plan: &serde_json::Value) -> bool {
    match plan {
        serde_json::Value::Object(fields) => {
            let node = fields.get("Node Type").and_then(serde_json::Value::as_str);
            node == Some("Seq Scan") || fields.values().any(scans_everything)
        }
        serde_json::Value::Array(values) => values.iter().any(scans_everything),
        _ => false,
    }
}

/// The key of the row that stands so many rows after the first one with a key that is not smaller than
/// `from`; nothing if there are not so many.
pub(crate) async fn key_after(
    connection: &mut PgConnection,
    of: Grouped,
    from: Option<i64>,
    rows: u64,
    wait_ms: u64,
) -> Sql<Option<i64>> {
    let statement = format!(
        "SELECT e.{key}::bigint FROM {table} e WHERE e.{key} >= $1
         ORDER BY e.{key} LIMIT 1 OFFSET $2",
        table = of.table(),
        key = of.key(),
    );
    let asking = sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(from.unwrap_or(i64::MIN))
        .bind(i64::try_from(rows).unwrap_or(i64::MAX))
        .fetch_optional(connection);
    in_time(Duration::from_millis(wait_ms), asking).await
}

/// The statement that reads a part.
fn reading(of: Grouped, part: &Part) -> String {
    let key = of.key();
    // A cursor takes no values; these are numbers.
    let condition = match part {
        Part::Keys(keys) => {
            let keys: Vec<String> = keys.iter().map(i64::to_string).collect();
            format!("WHERE e.{key} = ANY ('{{{}}}'::bigint[])", keys.join(","))
        }
        Part::Range { from, before } => {
            let from = from.map(|from| format!("e.{key} >= '{from}'::bigint"));
            let before = before.map(|before| format!("e.{key} < '{before}'::bigint"));
            let both: Vec<String> = from.into_iter().chain(before).collect();
            if both.is_empty() {
                String::new()
            } else {
                format!("WHERE {}", both.join(" AND "))
            }
        }
    };
    format!(
        "SELECT {columns} FROM {table} e {join} {condition}
         ORDER BY e.{key}, e.athlete_id, e.id",
        columns = of.columns(Dialect::Postgres),
        table = of.table(),
        join = Grouped::JOIN,
    )
}

/// Brings the rows of a part to where they go.
pub(crate) async fn pour(
    connection: &mut PgConnection,
    of: Grouped,
    part: &Part,
    sink: &mut Sink,
    wait_ms: u64,
) -> Sql<()> {
    let wait = Duration::from_millis(wait_ms);
    let statement = format!("DECLARE dump NO SCROLL CURSOR FOR {}", reading(of, part));
    let declaring = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection);
    in_time(wait, declaring).await?;
    let statement = format!("FETCH FORWARD {FETCHED_ROWS} FROM dump");
    loop {
        let asking = sqlx::query(AssertSqlSafe(statement.clone())).fetch_all(&mut *connection);
        let rows: Vec<PgRow> = in_time(wait, asking).await?;
        for row in &rows {
            if !sink.push(row).await? {
                return Ok(());
            }
        }
        if rows.len() < FETCHED_ROWS {
            break;
        }
    }
    let closing = sqlx::raw_sql("CLOSE dump").execute(connection);
    in_time(wait, closing).await?;
    Ok(())
}
