//! Which versions are stored.

use std::collections::{BTreeMap, HashMap};

use schemas::entities::Entity;
use sqlx::{AssertSqlSafe, SqliteConnection};

type Sql<T> = Result<T, sqlx::Error>;

/// A table `e`, and the two columns of an id; the second is 0 where one is enough.
type Table = (&'static str, &'static str, &'static str);

const fn table(row: &Entity) -> Table {
    match row {
        Entity::Effort(_) => ("efforts", "e.id", "0"),
        Entity::Athlete(_) => ("athletes", "e.id", "0"),
        Entity::Membership(_) => ("clubs", "e.club_id", "e.athlete_id"),
        Entity::Follow(_) => ("follows", "e.follower_id", "e.followed_id"),
        Entity::Authorization(_) => ("authorizations", "e.id", "0"),
        Entity::Application(_) => ("applications", "e.id", "0"),
    }
}

/// The stored version of each row, where there is one with its id.
pub(super) async fn versions(
    connection: &mut SqliteConnection,
    rows: &[Entity],
) -> Sql<Vec<Option<i64>>> {
    let mut tables: BTreeMap<Table, Vec<(i64, i64)>> = BTreeMap::new();
    for row in rows {
        tables.entry(table(row)).or_default().push(row.id());
    }
    let mut known = HashMap::with_capacity(rows.len());
    for (table, ids) in tables {
        let (name, first, second) = table;
        let statement = format!(
            "SELECT {first}, {second}, e.version FROM json_each(?) v
             CROSS JOIN {name} e ON {first} = v.value ->> 0 AND {second} = v.value ->> 1"
        );
        let ids = serde_json::to_string(&ids).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let stored: Vec<(i64, i64, i64)> = sqlx::query_as(AssertSqlSafe(statement))
            .bind(ids)
            .fetch_all(&mut *connection)
            .await?;
        let stored = stored.into_iter();
        known.extend(stored.map(|(first, second, version)| ((table, (first, second)), version)));
    }
    let version = |row: &Entity| known.get(&(table(row), row.id())).copied();
    Ok(rows.iter().map(version).collect())
}
