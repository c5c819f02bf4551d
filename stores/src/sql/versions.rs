//! Reads the stored versions of rows.

use std::collections::{BTreeMap, HashMap};

use schemas::entities::Entity;

use super::connection::{IDS_PER_STATEMENT, Sql, SqlConnection, Value};
use super::sqlite;
use super::tables::{Table, find_table};

/// Returns the stored version of each row, or `None` for rows that are not stored.
pub(crate) async fn fetch_versions(
    connection: &mut SqlConnection<'_>,
    rows: &[Entity],
) -> Sql<Vec<Option<i64>>> {
    let mut tables: BTreeMap<Table, Vec<(i64, i64)>> = BTreeMap::new();
    for row in rows {
        tables.entry(find_table(row)).or_default().push(row.id());
    }
    let mut known = HashMap::with_capacity(rows.len());
    for (table, ids) in tables {
        for ids in ids.chunks(IDS_PER_STATEMENT) {
            let stored = fetch_stored(connection, table, ids).await?;
            known.extend(
                stored
                    .into_iter()
                    .map(|(first, second, version)| ((table, (first, second)), version)),
            );
        }
    }
    let version = |row: &Entity| known.get(&(find_table(row), row.id())).copied();
    Ok(rows.iter().map(version).collect())
}

/// Reads ids and versions. For pairs of ids, the result may include other rows.
async fn fetch_stored(
    connection: &mut SqlConnection<'_>,
    table: Table,
    ids: &[(i64, i64)],
) -> Sql<Vec<(i64, i64, i64)>> {
    let Table { name, first, .. } = table;
    let firsts: Vec<i64> = ids.iter().map(|id| id.0).collect();
    let Some(second) = table.second else {
        let statement = format!(
            "SELECT CAST({first} AS SIGNED), CAST(0 AS SIGNED), CAST(version AS SIGNED)
             FROM {name} WHERE {first} IN ?"
        );
        return connection
            .fetch_all(&statement, &[Value::Ints(&firsts)])
            .await;
    };
    if let Some(connection) = connection.as_sqlite() {
        return sqlite::fetch_pair_versions(connection, table, ids).await;
    }
    let seconds: Vec<i64> = ids.iter().map(|id| id.1).collect();
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED), CAST(version AS SIGNED)
         FROM {name} WHERE {first} IN ? AND {second} IN ?"
    );
    let values = [Value::Ints(&firsts), Value::Ints(&seconds)];
    connection.fetch_all(&statement, &values).await
}
