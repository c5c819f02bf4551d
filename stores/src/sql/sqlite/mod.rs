//! The dialect of SQLite, and the tables of `canon.db`.
//!
//! A write transaction excludes all others (`SqlConnection::has_exclusive_writes`). So no row is
//! locked, and triggers see every change of an athlete or a connection.

pub(crate) mod dump;
pub(crate) mod groups;
pub(crate) mod keys;
mod rows;

use schemas::entities::Group;
use schemas::source::Source;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::connection::{Sql, SqlConnection, to_json_array, to_sql_limit};
use super::outbox_row::OutboxRow;
use super::rows::{ColumnValues, Conflict, TableRows};
use super::tables::Table;
use super::write::write;
use crate::embedded::db::{DatabaseSpec, Upgrade};
use crate::entities::NOTIFICATIONS_MAX;

/// Unsorted segments of athletes are sorted when they reach this number.
const UNSORTED_SEGMENTS_MAX: i64 = 1 << 18;

/// Includes a file of `tables`, which new databases and upgrades share. Never change the statements
/// of a released file; add another file. This is a macro because `concat!` accepts no constants.
macro_rules! table {
    ($name:literal) => {
        include_str!(concat!("tables/", $name, ".sql"))
    };
}

/// The database of entities.
pub(super) static ENTITIES: DatabaseSpec = DatabaseSpec {
    name: "canon.db",
    version: 8,
    tables: concat!(
        table!("entities"),
        table!("disqualified"),
        table!("deleted_athletes"),
        table!("applications"),
        table!("recounts"),
        table!("names"),
        table!("owner_changes"),
        table!("call_tokens"),
    ),
    upgrades: &[
        (
            1,
            Upgrade::Statements(
                "ALTER TABLE athletes ADD COLUMN is_disqualified INTEGER NOT NULL DEFAULT 0;",
            ),
        ),
        (2, Upgrade::Statements(table!("applications"))),
        (
            3,
            Upgrade::Statements(concat!(
                "ALTER TABLE connections ADD COLUMN is_away INTEGER NOT NULL DEFAULT 0;
                 DROP TRIGGER authorization_made; DROP TRIGGER authorization_restored;
                 DROP TRIGGER athlete_connected; DROP TRIGGER athlete_disconnected;",
                table!("deleted_athletes"),
                "UPDATE connections SET is_away = 1
                 WHERE athlete_id IN (SELECT id FROM athletes WHERE is_deleted);"
            )),
        ),
        (4, Upgrade::Statements(table!("recounts"))),
        (5, Upgrade::Statements(table!("names"))),
        (6, Upgrade::Statements(table!("owner_changes"))),
        (
            7,
            Upgrade::Statements(concat!(
                table!("disqualified"),
                "INSERT INTO disqualified SELECT id FROM athletes WHERE is_disqualified;
                 ALTER TABLE athletes DROP COLUMN is_disqualified;
                 ALTER TABLE outbox RENAME COLUMN key TO group_key;",
                table!("call_tokens"),
            )),
        ),
    ],
    is_replaceable: false,
    page_bytes: 4096,
    cache_kib: 128 * 1024,
    readers: 4,
    row_buffer: 512,
    remedy: "stop every process that uses this folder and restore canon.db from a copy, then run \
             `backstitch batch run --full`",
};

/// Inserts notifications for `groups` and for all groups of `athletes`. Returns the first
/// `NOTIFICATIONS_MAX + 1` of them.
pub(super) async fn enqueue_notifications(
    connection: &mut SqliteConnection,
    groups: &[(Source, Group)],
    athletes: &[i64],
    now_ms: i64,
) -> Sql<Vec<OutboxRow>> {
    let statement = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0)";
    let last_id: i64 = sqlx::query_scalar(statement)
        .fetch_one(&mut *connection)
        .await?;
    // The ids are known, so the rows need not be read again.
    let ids = (last_id + 1..).take(groups.len()).map(Some).collect();
    let rows = TableRows::notifications(groups, now_ms);
    let rows = rows.with_column("id", ColumnValues::Ints(ids));
    let mut writer = SqlConnection::Sqlite(connection);
    write(&mut writer, &rows, Conflict::Fail).await?;
    let numbered = (last_id + 1..).zip(groups).take(NOTIFICATIONS_MAX + 1);
    let mut notifications: Vec<OutboxRow> = numbered
        .map(|(id, (source, group))| (id, source.name().to_owned(), group.key, group.member))
        .collect();
    if athletes.is_empty() {
        return Ok(notifications);
    }
    sort_segments(connection).await?;
    sqlx::query(
        "INSERT INTO outbox (source, group_key, member, made_at_ms)
         SELECT ?, segment_id, athlete_id, ? FROM athlete_segments
         WHERE athlete_id IN (SELECT value FROM json_each(?)) ORDER BY athlete_id, segment_id",
    )
    .bind(Source::Efforts.name())
    .bind(now_ms)
    .bind(to_json_array(athletes.iter().copied()))
    .execute(&mut *connection)
    .await?;
    let of_athletes: Vec<OutboxRow> = sqlx::query_as(
        "SELECT id, source, group_key, member FROM outbox WHERE id > ? ORDER BY id LIMIT ?",
    )
    .bind(last_id + to_sql_limit(groups.len()))
    .bind(to_sql_limit(NOTIFICATIONS_MAX + 1 - notifications.len()))
    .fetch_all(connection)
    .await?;
    notifications.extend(of_athletes);
    Ok(notifications)
}

/// Records that athletes have efforts on segments.
pub(super) async fn add_segments(connection: &mut SqliteConnection, groups: &[Group]) -> Sql<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let rows = TableRows::new_segments(groups);
    let mut writer = SqlConnection::Sqlite(connection);
    write(&mut writer, &rows, Conflict::Fail).await?;
    let unsorted: Option<i64> = sqlx::query_scalar("SELECT max(id) FROM new_athlete_segments")
        .fetch_one(&mut *connection)
        .await?;
    if unsorted.unwrap_or_default() >= UNSORTED_SEGMENTS_MAX {
        sort_segments(connection).await?;
    }
    Ok(())
}

async fn sort_segments(connection: &mut SqliteConnection) -> Sql<()> {
    sqlx::raw_sql(
        "INSERT INTO athlete_segments (athlete_id, segment_id)
         SELECT DISTINCT athlete_id, segment_id FROM new_athlete_segments
         WHERE true ORDER BY athlete_id, segment_id
         ON CONFLICT DO NOTHING;
         DELETE FROM new_athlete_segments;",
    )
    .execute(connection)
    .await
    .map(drop)
}

/// Reads ids and versions of rows whose ids are pairs. `IN` for each column would look up every
/// combination.
pub(super) async fn fetch_pair_versions(
    connection: &mut SqliteConnection,
    table: Table,
    ids: &[(i64, i64)],
) -> Sql<Vec<(i64, i64, i64)>> {
    let (name, first) = (table.name, table.first);
    let second = table.second.unwrap_or(first);
    let statement = format!(
        "SELECT e.{first}, e.{second}, e.version FROM json_each(?) v
         CROSS JOIN {name} e ON e.{first} = v.value ->> 0 AND e.{second} = v.value ->> 1"
    );
    let ids = serde_json::to_string(ids).map_err(|error| sqlx::Error::Encode(error.into()))?;
    sqlx::query_as(AssertSqlSafe(statement))
        .bind(ids)
        .fetch_all(connection)
        .await
}

#[cfg(test)]
mod upgrade_tests;
