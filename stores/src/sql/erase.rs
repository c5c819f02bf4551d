//! Taking an athlete out of the tables that are ours: statements that all databases understand.
//!
//! Rows are found first, which may take long, since no index leads to all of them, and holds nothing. Then
//! they are deleted by their ids. Whatever comes meanwhile is found the next time.

use super::connection::{Dialect, Sql, SqlConnection, Value, ascending};
use crate::canon::RowsOf;

/// What this is called in errors.
pub(crate) const FINDING: &str = "looking for an athlete's rows";
/// What this is called in errors.
pub(crate) const ERASING: &str = "erasing an athlete's rows";

/// A table whose rows may name an athlete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AthleteTable {
    pub(crate) name: &'static str,
    /// What is answered of a row: by the first it is deleted, the second is the key of its group.
    ids: (&'static str, &'static str),
    /// The columns that may be the athlete.
    athlete: &'static [&'static str],
    /// Of which rows it may be deleted.
    only: &'static str,
}

const fn table(
    name: &'static str,
    ids: (&'static str, &'static str),
    athlete: &'static [&'static str],
) -> AthleteTable {
    let only = "1 = 1";
    AthleteTable {
        name,
        ids,
        athlete,
        only,
    }
}

const ATHLETE: &[&str] = &["athlete_id"];

pub(crate) const AUTHORIZATIONS: AthleteTable =
    table("authorizations", ("id", "application_id"), ATHLETE);
pub(crate) const EFFORTS: AthleteTable = table("efforts", ("id", "segment_id"), ATHLETE);
pub(crate) const CLUBS: AthleteTable = table("clubs", ("club_id", "club_id"), ATHLETE);
pub(crate) const FOLLOWS: AthleteTable = table(
    "follows",
    ("follower_id", "followed_id"),
    &["follower_id", "followed_id"],
);
pub(crate) const DISQUALIFIED: AthleteTable =
    table("disqualified", ("athlete_id", "athlete_id"), ATHLETE);
pub(crate) const ATHLETES: AthleteTable = table("athletes", ("id", "id"), &["id"]);
/// Pairs whose authorizations are gone. Those that have some go with these, and the counters with them.
pub(crate) const CONNECTIONS: AthleteTable = AthleteTable {
    only: "live <= 0",
    ..table("connections", ("application_id", "application_id"), ATHLETE)
};
/// Notifications: they go to the log, and are deleted then.
pub(crate) const OUTBOX: AthleteTable = table("outbox", ("id", "id"), &["member"]);

impl AthleteTable {
    const fn segments(name: &'static str) -> Self {
        table(name, ("segment_id", "segment_id"), ATHLETE)
    }

    /// Which rows name the athlete, with the values that this takes.
    fn named(self, athlete_id: i64) -> (String, Vec<Value<'static>>) {
        let columns: Vec<String> = self
            .athlete
            .iter()
            .map(|one| format!("{one} = ?"))
            .collect();
        let values = vec![Value::Int(athlete_id); columns.len()];
        (format!("({})", columns.join(" OR ")), values)
    }
}

/// Where SQLite finds the segments of an athlete.
const SEGMENTS: AthleteTable = AthleteTable::segments("athlete_segments");
const NEW_SEGMENTS: AthleteTable = AthleteTable::segments("new_athlete_segments");

/// The tables whose rows may name an athlete, in the order in which they are emptied.
pub(crate) const fn tables(dialect: Dialect) -> &'static [AthleteTable] {
    match dialect {
        Dialect::Postgres | Dialect::MySql => &[
            AUTHORIZATIONS,
            EFFORTS,
            CLUBS,
            FOLLOWS,
            DISQUALIFIED,
            ATHLETES,
            CONNECTIONS,
        ],
        Dialect::Sqlite => &[
            AUTHORIZATIONS,
            EFFORTS,
            SEGMENTS,
            NEW_SEGMENTS,
            CLUBS,
            FOLLOWS,
            DISQUALIFIED,
            ATHLETES,
            CONNECTIONS,
        ],
    }
}

/// How many rows name an athlete.
pub(crate) async fn count(
    connection: &mut SqlConnection<'_>,
    table: AthleteTable,
    athlete_id: i64,
    are_apps: bool,
) -> Sql<RowsOf> {
    let (named, values) = table.named(athlete_id);
    let statement = format!("SELECT count(*) FROM {} WHERE {named}", table.name);
    let rows: Option<i64> = connection.row(&statement, &values).await?;
    Ok(RowsOf {
        table: table.name,
        rows: rows.unwrap_or_default().unsigned_abs(),
        are_apps,
    })
}

/// The ids of rows that name an athlete and may be deleted, at most `limit`.
pub(crate) async fn find(
    connection: &mut SqlConnection<'_>,
    table: AthleteTable,
    athlete_id: i64,
    limit: usize,
) -> Sql<Vec<(i64, i64)>> {
    let (named, mut values) = table.named(athlete_id);
    let ((first, second), name, only) = (table.ids, table.name, table.only);
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED) FROM {name}
         WHERE {named} AND {only} LIMIT ?"
    );
    values.push(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
    connection.rows(&statement, &values).await
}

/// The statement that finds the ids of an athlete's rows of a group, by the group's key and the athlete.
pub(crate) fn finding_of_group(table: AthleteTable) -> String {
    let ((first, second), name) = (table.ids, table.name);
    format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED) FROM {name}
         WHERE {second} = ? AND athlete_id = ?"
    )
}

/// Deletes rows that were found, of which there are few enough for one statement. Call it within a transaction that
/// writes, with what these rows count for held.
pub(crate) async fn delete(
    connection: &mut SqlConnection<'_>,
    table: AthleteTable,
    athlete_id: i64,
    rows: &[(i64, i64)],
) -> Sql<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let firsts = ascending(rows.iter().map(|row| row.0));
    let ((first, _), name, only) = (table.ids, table.name, table.only);
    if table == FOLLOWS {
        let followed = keys(rows);
        let statement = "DELETE FROM follows WHERE follower_id IN ? AND followed_id IN ?
            AND (follower_id = ? OR followed_id = ?)";
        let values = [
            Value::Ints(&firsts),
            Value::Ints(&followed),
            Value::Int(athlete_id),
            Value::Int(athlete_id),
        ];
        return connection.run(statement, &values).await.map(drop);
    }
    let (named, of_athlete) = table.named(athlete_id);
    let statement = format!("DELETE FROM {name} WHERE {first} IN ? AND {named} AND {only}");
    let mut values = vec![Value::Ints(&firsts)];
    values.extend(of_athlete);
    connection.run(&statement, &values).await.map(drop)
}

/// The second ids of rows, ascending, each once.
pub(crate) fn keys(rows: &[(i64, i64)]) -> Vec<i64> {
    ascending(rows.iter().map(|row| row.1))
}
