//! Dumps from PostgreSQL: one connection exports its snapshot, others import it, and each reads
//! ranges of keys through cursors.
//!
//! The bounds of ranges are estimates from the server's statistics (`super::key_statistics`).
//! Views, and tables that were never analyzed, have no statistics; then the bounds are looked up in
//! the index, one after the other.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row};

use super::key_statistics::{read_statistics, split_keys, split_ranges};
use crate::sql::connection::{
    ConnectionPurpose, Dialect, OwnedConnection, Sql, decode_error, with_timeout,
};
use crate::sql::decode::GroupedSource;
use crate::sql::dump_parts::{ALL_KEYS, DumpSnapshot, Part, PartSink, Parts};
use crate::sql::server::Server;

/// The number of rows that one `FETCH` reads.
const FETCHED_ROWS: usize = 8192;

/// Begins a dump: plans its parts, and opens connections that share a snapshot.
pub(crate) async fn begin(
    server: &Server,
    mut first_connection: PgConnection,
    source: GroupedSource,
    keys: Option<&[i64]>,
) -> Sql<DumpSnapshot> {
    let parts = plan_parts(
        &mut first_connection,
        source,
        keys,
        server.options.dump_range_rows,
    )
    .await?;
    let connections_max = parts.count_connections(server.options.dump_connections);
    let snapshot = export_snapshot(&mut first_connection).await?;
    let mut connections = vec![OwnedConnection::Postgres(first_connection)];
    while connections.len() < connections_max {
        let mut connection = match server.connect(ConnectionPurpose::Dump).await {
            Ok(OwnedConnection::Postgres(connection)) => connection,
            #[cfg(feature = "mysql")]
            Ok(OwnedConnection::MySql(_)) => break,
            Err(error) if has_too_many_connections(&error) => {
                tracing::warn!(
                    connections = connections.len(),
                    "{} has no free connections; the dump continues with fewer",
                    server.name()
                );
                break;
            }
            Err(error) => return Err(error),
        };
        import_snapshot(&mut connection, &snapshot).await?;
        connections.push(OwnedConnection::Postgres(connection));
    }
    Ok(DumpSnapshot { connections, parts })
}

fn has_too_many_connections(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.code().as_deref() == Some("53300"))
}

async fn export_snapshot(connection: &mut PgConnection) -> Sql<String> {
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .execute(&mut *connection)
        .await?;
    sqlx::query_scalar("SELECT pg_export_snapshot()")
        .fetch_one(connection)
        .await
}

async fn import_snapshot(connection: &mut PgConnection, snapshot: &str) -> Sql<()> {
    let statements = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{snapshot}'"
    );
    let outcome = sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(connection)
        .await;
    match outcome {
        // The exporting transaction has ended, or this connection leads to another server.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("22023" | "55000" | "42704")) =>
        {
            Err(sqlx::Error::Protocol(format!(
                "cannot import the snapshot of the dump's first connection: {error}; if this persists, the address leads to several servers: configure one of them"
            )))
        }
        outcome => outcome.map(drop),
    }
}

/// Plans the parts of a dump.
async fn plan_parts(
    connection: &mut PgConnection,
    source: GroupedSource,
    keys: Option<&[i64]>,
    range_rows: u64,
) -> Sql<Parts> {
    let single_part = || {
        let part = keys.map_or(ALL_KEYS, |keys| Part::Keys(keys.to_vec()));
        Parts::from_list(vec![part])
    };
    let range_rows = range_rows.max(1);
    let rows = estimate_rows(connection, source).await?;
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let fraction = range_rows as f64 / rows.max(1.0);
    if fraction >= 0.5 || !is_indexed(connection, source.table(), source.key_column()).await? {
        return Ok(single_part());
    }
    let statistics = read_statistics(connection, source).await?;
    Ok(match (keys, statistics) {
        (None, Some(statistics)) => {
            Parts::from_list(split_ranges(&statistics.find_range_bounds(fraction)))
        }
        (None, None) => Parts::Scan {
            from: None,
            rows: range_rows,
        },
        (Some(keys), statistics) => {
            let key_fraction = |key| {
                let statistics = statistics.as_ref();
                statistics.map_or(0.0, |statistics| {
                    statistics.estimate_key_fraction(key, rows)
                })
            };
            Parts::from_list(split_keys(keys, key_fraction, fraction))
        }
    })
}

/// Returns the server's plan of a statement.
async fn explain(connection: &mut PgConnection, statement: &str) -> Sql<serde_json::Value> {
    let row: PgRow = sqlx::query(AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) {statement}")))
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let text: String = row.try_get_unchecked(0)?;
    serde_json::from_str(&text).map_err(decode_error)
}

/// Estimates the number of rows. The server derives the estimate from the size of the table.
async fn estimate_rows(connection: &mut PgConnection, source: GroupedSource) -> Sql<f64> {
    let statement = format!("SELECT {} FROM {}", source.key_column(), source.table());
    let plan = explain(connection, &statement).await?;
    let rows = plan.pointer("/0/Plan/Plan Rows");
    Ok(rows.and_then(serde_json::Value::as_f64).unwrap_or_default())
}

/// Returns whether the rows of a table, or of a view in its place, can be found by a column through
/// an index.
pub(crate) async fn is_indexed(connection: &mut PgConnection, table: &str, key: &str) -> Sql<bool> {
    // With this setting, the planner uses a sequential scan only if there is no other plan.
    sqlx::raw_sql("BEGIN; SET LOCAL enable_seqscan TO off")
        .execute(&mut *connection)
        .await?;
    let statement = format!("SELECT 1 FROM {table} WHERE {key} = '1'::bigint");
    let plan = explain(connection, &statement).await?;
    sqlx::raw_sql("ROLLBACK").execute(connection).await?;
    Ok(!has_sequential_scan(&plan))
}

fn has_sequential_scan(plan: &serde_json::Value) -> bool {
    match plan {
        serde_json::Value::Object(fields) => {
            let node = fields.get("Node Type").and_then(serde_json::Value::as_str);
            node == Some("Seq Scan") || fields.values().any(has_sequential_scan)
        }
        serde_json::Value::Array(values) => values.iter().any(has_sequential_scan),
        _ => false,
    }
}

/// Finds the key of the row that follows `rows` rows after the first one with a key of at least
/// `from`. `None` if there are fewer rows.
pub(crate) async fn find_key_after(
    connection: &mut PgConnection,
    source: GroupedSource,
    from: Option<i64>,
    rows: u64,
    timeout_ms: u64,
) -> Sql<Option<i64>> {
    let statement = format!(
        "SELECT e.{key}::bigint FROM {table} e WHERE e.{key} >= $1
         ORDER BY e.{key} LIMIT 1 OFFSET $2",
        table = source.table(),
        key = source.key_column(),
    );
    let query = sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(from.unwrap_or(i64::MIN))
        .bind(i64::try_from(rows).unwrap_or(i64::MAX))
        .fetch_optional(connection);
    with_timeout(Duration::from_millis(timeout_ms), query).await
}

/// Builds the statement that reads a part.
fn build_part_statement(source: GroupedSource, part: &Part) -> String {
    let key = source.key_column();
    // A cursor accepts no parameters. Numbers are safe in the text.
    let condition = match part {
        Part::Keys(keys) => {
            let keys: Vec<String> = keys.iter().map(i64::to_string).collect();
            format!("WHERE e.{key} = ANY ('{{{}}}'::bigint[])", keys.join(","))
        }
        Part::Range { from, before } => {
            let from = from.map(|from| format!("e.{key} >= '{from}'::bigint"));
            let before = before.map(|before| format!("e.{key} < '{before}'::bigint"));
            let bounds: Vec<String> = from.into_iter().chain(before).collect();
            if bounds.is_empty() {
                String::new()
            } else {
                format!("WHERE {}", bounds.join(" AND "))
            }
        }
    };
    format!(
        "SELECT {columns} FROM {table} e {join} {condition}
         ORDER BY e.{key}, e.athlete_id, e.id",
        columns = source.columns(Dialect::Postgres),
        table = source.table(),
        join = GroupedSource::JOIN,
    )
}

/// Reads the rows of a part through a cursor, and sends them to the sink.
pub(crate) async fn read_part(
    connection: &mut PgConnection,
    source: GroupedSource,
    part: &Part,
    sink: &mut PartSink,
    timeout_ms: u64,
) -> Sql<()> {
    let timeout = Duration::from_millis(timeout_ms);
    let statement = format!(
        "DECLARE dump NO SCROLL CURSOR FOR {}",
        build_part_statement(source, part)
    );
    let declare = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection);
    with_timeout(timeout, declare).await?;
    let statement = format!("FETCH FORWARD {FETCHED_ROWS} FROM dump");
    loop {
        let fetch = sqlx::query(AssertSqlSafe(statement.clone())).fetch_all(&mut *connection);
        let rows: Vec<PgRow> = with_timeout(timeout, fetch).await?;
        for row in &rows {
            if !sink.push(row).await? {
                return Ok(());
            }
        }
        if rows.len() < FETCHED_ROWS {
            break;
        }
    }
    let close = sqlx::raw_sql("CLOSE dump").execute(connection);
    with_timeout(timeout, close).await?;
    Ok(())
}
