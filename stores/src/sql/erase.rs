//! Statements that delete the rows of an erased athlete.
//!
//! Rows are found before they are deleted. Finding them may take long, because not every table has
//! an index by athlete, but it locks nothing. Then the rows are deleted by their ids. The next call
//! finds rows that were added in between.

use super::connection::{Dialect, Sql, SqlConnection, Value, sort_unique};
use crate::entities::AthleteRowCount;

pub(crate) const FINDING: &str = "finding an athlete's rows";
pub(crate) const ERASING: &str = "erasing an athlete's rows";

/// A table with rows of athletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AthleteTable {
    pub(crate) name: &'static str,
    /// Columns that are read from a row: the id by which it is deleted, and the key of its group.
    ids: (&'static str, &'static str),
    /// Columns that may contain the athlete.
    athlete: &'static [&'static str],
    /// The condition on rows that may be deleted.
    condition: &'static str,
}

const fn athlete_table(
    name: &'static str,
    ids: (&'static str, &'static str),
    athlete: &'static [&'static str],
) -> AthleteTable {
    AthleteTable {
        name,
        ids,
        athlete,
        condition: "1 = 1",
    }
}

const ATHLETE: &[&str] = &["athlete_id"];

pub(crate) const AUTHORIZATIONS: AthleteTable =
    athlete_table("authorizations", ("id", "application_id"), ATHLETE);
pub(crate) const EFFORTS: AthleteTable = athlete_table("efforts", ("id", "segment_id"), ATHLETE);
pub(crate) const CLUBS: AthleteTable = athlete_table("clubs", ("club_id", "club_id"), ATHLETE);
pub(crate) const FOLLOWS: AthleteTable = athlete_table(
    "follows",
    ("follower_id", "followed_id"),
    &["follower_id", "followed_id"],
);
pub(crate) const DISQUALIFIED: AthleteTable =
    athlete_table("disqualified", ("athlete_id", "athlete_id"), ATHLETE);
pub(crate) const ATHLETES: AthleteTable = athlete_table("athletes", ("id", "id"), &["id"]);
/// Pairs without unrevoked authorizations. Triggers maintain the other pairs and the counters.
pub(crate) const CONNECTIONS: AthleteTable = AthleteTable {
    condition: "live <= 0",
    ..athlete_table("connections", ("application_id", "application_id"), ATHLETE)
};
/// Notifications. They are deleted when they are in the log.
pub(crate) const OUTBOX: AthleteTable = athlete_table("outbox", ("id", "id"), &["member"]);

impl AthleteTable {
    const fn segments(name: &'static str) -> Self {
        athlete_table(name, ("segment_id", "segment_id"), ATHLETE)
    }

    /// The condition on rows of an athlete, and its values.
    fn athlete_condition(self, athlete_id: i64) -> (String, Vec<Value<'static>>) {
        let columns = self.athlete.iter();
        let columns: Vec<String> = columns.map(|column| format!("{column} = ?")).collect();
        let values = vec![Value::Int(athlete_id); columns.len()];
        (format!("({})", columns.join(" OR ")), values)
    }
}

/// Segments by athlete, on SQLite.
const SEGMENTS: AthleteTable = AthleteTable::segments("athlete_segments");
const NEW_SEGMENTS: AthleteTable = AthleteTable::segments("new_athlete_segments");

/// The tables with rows of athletes, in the order of deletion.
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

/// Counts the rows of an athlete in a table.
pub(crate) async fn count(
    connection: &mut SqlConnection<'_>,
    table: AthleteTable,
    athlete_id: i64,
    is_view: bool,
) -> Sql<AthleteRowCount> {
    let (athlete_condition, values) = table.athlete_condition(athlete_id);
    let statement = format!(
        "SELECT count(*) FROM {} WHERE {athlete_condition}",
        table.name
    );
    let rows: Option<i64> = connection.fetch_optional(&statement, &values).await?;
    Ok(AthleteRowCount {
        table: table.name,
        rows: rows.unwrap_or_default().unsigned_abs(),
        is_view,
    })
}

/// Finds the ids of rows of an athlete that may be deleted, at most `limit`.
pub(crate) async fn find(
    connection: &mut SqlConnection<'_>,
    table: AthleteTable,
    athlete_id: i64,
    limit: usize,
) -> Sql<Vec<(i64, i64)>> {
    let (athlete_condition, mut values) = table.athlete_condition(athlete_id);
    let ((first, second), name, condition) = (table.ids, table.name, table.condition);
    let statement = format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED) FROM {name}
         WHERE {athlete_condition} AND {condition} LIMIT ?"
    );
    values.push(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
    connection.fetch_all(&statement, &values).await
}

/// The statement that finds the ids of the rows of a group by its key and athlete.
pub(crate) fn build_group_rows_statement(table: AthleteTable) -> String {
    let ((first, second), name) = (table.ids, table.name);
    format!(
        "SELECT CAST({first} AS SIGNED), CAST({second} AS SIGNED) FROM {name}
         WHERE {second} = ? AND athlete_id = ?"
    )
}

/// Deletes rows by their ids, which must fit into one statement. Call it within a write
/// transaction, after locking the counters of the rows.
pub(crate) async fn delete(
    connection: &mut SqlConnection<'_>,
    table: AthleteTable,
    athlete_id: i64,
    rows: &[(i64, i64)],
) -> Sql<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let firsts = sort_unique(rows.iter().map(|row| row.0));
    let ((first, _), name, condition) = (table.ids, table.name, table.condition);
    if table == FOLLOWS {
        let followed = collect_keys(rows);
        let statement = "DELETE FROM follows WHERE follower_id IN ? AND followed_id IN ?
            AND (follower_id = ? OR followed_id = ?)";
        let values = [
            Value::Ints(&firsts),
            Value::Ints(&followed),
            Value::Int(athlete_id),
            Value::Int(athlete_id),
        ];
        return connection.execute(statement, &values).await.map(drop);
    }
    let (athlete_condition, athlete_values) = table.athlete_condition(athlete_id);
    let statement =
        format!("DELETE FROM {name} WHERE {first} IN ? AND {athlete_condition} AND {condition}");
    let mut values = vec![Value::Ints(&firsts)];
    values.extend(athlete_values);
    connection.execute(&statement, &values).await.map(drop)
}

/// The distinct second ids of rows, ascending.
pub(crate) fn collect_keys(rows: &[(i64, i64)]) -> Vec<i64> {
    sort_unique(rows.iter().map(|row| row.1))
}
