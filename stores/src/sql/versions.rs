//! Which versions are stored.

use std::collections::{BTreeMap, HashMap};

use schemas::entities::Entity;

use super::connection::{Sql, SqlConnection, Value};
use super::outbox::AT_ONCE;
use super::sqlite;

/// A table, and the two columns of an id; the second is 0 where one is enough.
type Table = (&'static str, &'static str, &'static str);

/// The table of a row.
pub(crate) const fn table(row: &Entity) -> Table {
    match row {
        Entity::Effort(_) => ("efforts", "id", "0"),
        Entity::Athlete(_) => ("athletes", "id", "0"),
        Entity::Membership(_) => ("clubs", "club_id", "athlete_id"),
        Entity::Follow(_) => ("follows", "follower_id", "followed_id"),
        Entity::Authorization(_) => ("authorizations", "id", "0"),
        Entity::Application(_) => ("applications", "id", "0"),
    }
}

/// The stored version of each row, where there is one with its id.
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
        for ids in ids.chunks(AT_ONCE) {
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

/// Ids and versions; where ids are pairs, perhaps of some more rows than were asked for.
async fn stored(
    connection: &mut SqlConnection<'_>,
    (name, first, second): Table,
    ids: &[(i64, i64)],
) -> Sql<Vec<(i64, i64, i64)>> {
    let firsts: Vec<i64> = ids.iter().map(|id| id.0).collect();
    if second == "0" {
        let statement = format!(
            "SELECT CAST({first} AS SIGNED), CAST(0 AS SIGNED), CAST(version AS SIGNED)
             FROM {name} WHERE {first} IN ?"
        );
        return connection.rows(&statement, &[Value::Ints(&firsts)]).await;
    }
    if let Some(connection) = connection.as_sqlite() {
        return sqlite::pair_versions(connection, (name, first, second), ids).await;
    }
    let seconds: Vec<i64> = ids.iter().map(|id| id.1).collect();
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED), CAST(version AS SIGNED)
         FROM {name} WHERE {first} IN ? AND {second} IN ?"
    );
    let values = [Value::Ints(&firsts), Value::Ints(&seconds)];
    connection.rows(&statement, &values).await
}
