//! Dumps from MySQL and MariaDB: one connection reads ranges of keys one after the other, in one
//! snapshot transaction.
//!
//! The server would sort a whole table in a temporary file. A range is found through the index of
//! groups, and its rows are in the order of the index. The ends of ranges are looked up in the
//! index. The server sends rows as fast as they are received.

use std::time::Duration;

use futures::TryStreamExt;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use super::SNAPSHOT;
use crate::sql::connection::{Dialect, OwnedConnection, Sql, with_timeout};
use crate::sql::decode::GroupedSource;
use crate::sql::dump_parts::{ALL_KEYS, DumpSnapshot, KEYS_PER_PART, Part, PartSink, Parts};

/// Begins the snapshot transaction of a dump, and plans the parts.
pub(crate) async fn begin(
    mut connection: MySqlConnection,
    source: GroupedSource,
    keys: Option<&[i64]>,
    range_rows: u64,
) -> Sql<DumpSnapshot> {
    let parts = match keys {
        Some(keys) => {
            let parts = keys.chunks(KEYS_PER_PART);
            Parts::from_list(parts.map(|keys| Part::Keys(keys.to_vec())).collect())
        }
        None if is_indexed(&mut connection, source.table(), source.key_column()).await? => {
            Parts::Scan {
                from: None,
                rows: range_rows.max(1),
            }
        }
        None => Parts::from_list(vec![ALL_KEYS]),
    };
    sqlx::raw_sql(SNAPSHOT).execute(&mut connection).await?;
    Ok(DumpSnapshot {
        connections: vec![OwnedConnection::MySql(connection)],
        parts,
    })
}

/// Returns whether the rows of a table, or of a view in its place, can be found by a column through
/// an index.
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
        let access_type: Option<String> = step.try_get("type")?;
        let possible_keys: Option<String> = step.try_get("possible_keys")?;
        if access_type.as_deref() == Some("ALL") && possible_keys.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Finds the key of the row that follows `rows` rows after the first one with a key of at least
/// `from`. `None` if there are fewer rows.
pub(crate) async fn find_key_after(
    connection: &mut MySqlConnection,
    source: GroupedSource,
    from: Option<i64>,
    rows: u64,
    timeout_ms: u64,
) -> Sql<Option<i64>> {
    let statement = format!(
        "SELECT CAST(e.{key} AS SIGNED) FROM {table} e WHERE e.{key} >= {from}
         ORDER BY e.{key} LIMIT 1 OFFSET {rows}",
        table = source.table(),
        key = source.key_column(),
        from = from.unwrap_or(i64::MIN),
    );
    let query = sqlx::query_scalar(AssertSqlSafe(statement))
        .persistent(false)
        .fetch_optional(connection);
    with_timeout(Duration::from_millis(timeout_ms), query).await
}

/// Builds the statement that reads a part.
fn build_part_statement(source: GroupedSource, is_view: bool, part: &Part) -> String {
    let key = source.key_column();
    let condition = match part {
        Part::Keys(keys) => {
            let keys: Vec<String> = keys.iter().map(i64::to_string).collect();
            format!("e.{key} IN ({})", keys.join(","))
        }
        // Always has a lower bound, because MySQL uses the order of the index only for a range.
        Part::Range { from, before } => {
            let from = from.unwrap_or(i64::MIN);
            let before = before.map(|before| format!(" AND e.{key} < {before}"));
            format!("e.{key} >= {from}{}", before.unwrap_or_default())
        }
    };
    format!(
        "SELECT {columns} FROM {table} e {hint} {join} WHERE {condition}
         ORDER BY e.{key}, e.athlete_id, e.id",
        hint = if is_view { "" } else { source.index_hint() },
        columns = source.columns(Dialect::MySql),
        table = source.table(),
        join = GroupedSource::JOIN,
    )
}

/// Reads the rows of a part, and sends them to the sink.
pub(crate) async fn read_part(
    connection: &mut MySqlConnection,
    source: GroupedSource,
    is_view: bool,
    part: &Part,
    sink: &mut PartSink,
    timeout_ms: u64,
) -> Sql<()> {
    let timeout = Duration::from_millis(timeout_ms);
    let query =
        sqlx::query(AssertSqlSafe(build_part_statement(source, is_view, part))).persistent(false);
    let mut rows = query.fetch(connection);
    while let Some(row) = with_timeout(timeout, rows.try_next()).await? {
        if !sink.push(&row).await? {
            break;
        }
    }
    Ok(())
}
