//! Taking an athlete out of the tables that are ours: statements that all databases understand.
//!
//! Rows are found first, which may take long, since no index leads to all of them, and holds nothing. Then
//! they are deleted by their ids. Whatever comes meanwhile is found the next time.

use super::session::{Sql, Statements, Value};
use crate::canon::RowsOf;

/// What this is called in errors.
pub(crate) const FINDING: &str = "looking for an athlete's rows";
/// What this is called in errors.
pub(crate) const ERASING: &str = "erasing an athlete's rows";

/// A table whose rows may name an athlete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) table: &'static str,
    /// What is answered of a row: by the first it is deleted, the second is the key of its group.
    ids: (&'static str, &'static str),
    /// The columns that may be the athlete.
    athlete: &'static [&'static str],
    /// Of which rows it may be deleted.
    only: &'static str,
}

const fn place(
    table: &'static str,
    ids: (&'static str, &'static str),
    athlete: &'static [&'static str],
) -> Place {
    let only = "1 = 1";
    Place {
        table,
        ids,
        athlete,
        only,
    }
}

const ATHLETE: &[&str] = &["athlete_id"];

pub(crate) const AUTHORIZATIONS: Place = place("authorizations", ("id", "application_id"), ATHLETE);
pub(crate) const EFFORTS: Place = place("efforts", ("id", "segment_id"), ATHLETE);
pub(crate) const CLUBS: Place = place("clubs", ("club_id", "club_id"), ATHLETE);
pub(crate) const FOLLOWS: Place = place(
    "follows",
    ("follower_id", "followed_id"),
    &["follower_id", "followed_id"],
);
pub(crate) const DISQUALIFIED: Place = place("disqualified", ("athlete_id", "athlete_id"), ATHLETE);
pub(crate) const ATHLETES: Place = place("athletes", ("id", "id"), &["id"]);
/// Pairs whose authorizations are gone. Those that have some go with these, and the counters with them.
pub(crate) const CONNECTIONS: Place = Place {
    only: "live <= 0",
    ..place("connections", ("application_id", "application_id"), ATHLETE)
};
/// Notifications: they go to the log, and are deleted then.
pub(crate) const OUTBOX: Place = place("outbox", ("id", "id"), &["member"]);

impl Place {
    pub(crate) const fn segments(table: &'static str) -> Self {
        place(table, ("segment_id", "segment_id"), ATHLETE)
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

/// How many rows name an athlete.
pub(crate) async fn count(
    link: &mut impl Statements,
    place: Place,
    athlete_id: i64,
    are_apps: bool,
) -> Sql<RowsOf> {
    let (named, values) = place.named(athlete_id);
    let statement = format!("SELECT count(*) FROM {} WHERE {named}", place.table);
    let rows: Vec<(i64,)> = link.rows(&statement, &values).await?;
    Ok(RowsOf {
        table: place.table,
        rows: rows.first().map_or(0, |(count,)| count.unsigned_abs()),
        are_apps,
    })
}

/// The ids of rows that name an athlete and may be deleted, at most `limit`.
pub(crate) async fn find(
    link: &mut impl Statements,
    place: Place,
    athlete_id: i64,
    limit: usize,
) -> Sql<Vec<(i64, i64)>> {
    let (named, mut values) = place.named(athlete_id);
    let ((first, second), table, only) = (place.ids, place.table, place.only);
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED) FROM {table}
         WHERE {named} AND {only} LIMIT ?"
    );
    values.push(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
    link.rows(&statement, &values).await
}

/// The ids of an athlete's rows of a group.
pub(crate) async fn of_group(
    link: &mut impl Statements,
    place: Place,
    athlete_id: i64,
    key: i64,
) -> Sql<Vec<(i64, i64)>> {
    let ((first, second), table) = (place.ids, place.table);
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED) FROM {table}
         WHERE {second} = ? AND athlete_id = ?"
    );
    let values = [Value::Int(key), Value::Int(athlete_id)];
    link.rows(&statement, &values).await
}

/// Deletes rows that were found, of which there are few enough for one statement. Call it within a transaction that
/// writes, with what these rows count for held.
pub(crate) async fn delete(
    link: &mut impl Statements,
    place: Place,
    athlete_id: i64,
    rows: &[(i64, i64)],
) -> Sql<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut firsts: Vec<i64> = rows.iter().map(|row| row.0).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let ((first, _), table, only) = (place.ids, place.table, place.only);
    if place == FOLLOWS {
        let mut followed: Vec<i64> = rows.iter().map(|row| row.1).collect();
        followed.sort_unstable();
        followed.dedup();
        let statement = "DELETE FROM follows WHERE follower_id IN ? AND followed_id IN ?
            AND (follower_id = ? OR followed_id = ?)";
        let values = [
            Value::Ints(&firsts),
            Value::Ints(&followed),
            Value::Int(athlete_id),
            Value::Int(athlete_id),
        ];
        return link.run(statement, &values).await.map(drop);
    }
    let (named, of_athlete) = place.named(athlete_id);
    let statement = format!("DELETE FROM {table} WHERE {first} IN ? AND {named} AND {only}");
    let mut values = vec![Value::Ints(&firsts)];
    values.extend(of_athlete);
    link.run(&statement, &values).await.map(drop)
}

/// The second ids of rows, ascending, each once.
pub(crate) fn keys(rows: &[(i64, i64)]) -> Vec<i64> {
    let mut keys: Vec<i64> = rows.iter().map(|row| row.1).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}
