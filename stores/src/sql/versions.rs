//! Reads the stored versions of rows.

use std::collections::{BTreeMap, HashMap};

use schemas::entities::Entity;

use super::connection::{Sql, SqlConnection, Value};
use super::outbox::IDS_PER_STATEMENT;
use super::sqlite;

/// A table, and the columns of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(super) first: &'static str,
    /// `None` if the id is one column.
    pub(super) second: Option<&'static str>,
}

const fn pair_table(name: &'static str, first: &'static str, second: &'static str) -> Table {
    Table {
        name,
        first,
        second: Some(second),
    }
}

const fn id_table(name: &'static str) -> Table {
    Table {
        name,
        first: "id",
        second: None,
    }
}

/// The table of a row.
pub(crate) const fn table(row: &Entity) -> Table {
    match row {
        Entity::Effort(_) => id_table("efforts"),
        Entity::Athlete(_) => id_table("athletes"),
        Entity::Membership(_) => pair_table("clubs", "club_id", "athlete_id"),
        Entity::Follow(_) => pair_table("follows", "follower_id", "followed_id"),
        Entity::Authorization(_) => id_table("authorizations"),
        Entity::Application(_) => id_table("applications"),
    }
}

/// Returns the stored version of each row, or `None` for rows that are not stored.
pub(crate) async fn versions(
    connection: &mut SqlConnection<'_>,
    rows: &[Entity],
) -> Sql<Vec<Option<i64>>> {
    let mut tables: BTreeMap<Table, Vec<(i64, i64)>> = BTreeMap::new();
    for row in rows {
        tables.entry(table(row)).or_default().push(row.id());
    }
    let mut known = HashMap::with_capacity(rows.len());
    for (table, ids) in tables {
        for ids in ids.chunks(IDS_PER_STATEMENT) {
            let stored = stored(connection, table, ids).await?;
            known.extend(
                stored
                    .into_iter()
                    .map(|(first, second, version)| ((table, (first, second)), version)),
            );
        }
    }
    let version = |row: &Entity| known.get(&(table(row), row.id())).copied();
    Ok(rows.iter().map(version).collect())
}

/// Reads ids and versions. For pairs of ids, the result may include other rows.
async fn stored(
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
        return sqlite::pair_versions(connection, table, ids).await;
    }
    let seconds: Vec<i64> = ids.iter().map(|id| id.1).collect();
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED), CAST(version AS SIGNED)
         FROM {name} WHERE {first} IN ? AND {second} IN ?"
    );
    let values = [Value::Ints(&firsts), Value::Ints(&seconds)];
    connection.fetch_all(&statement, &values).await
}
