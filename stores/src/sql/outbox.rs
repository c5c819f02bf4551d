//! The outbox: notifications of changes that are not in the log yet.
//!
//! On a server, ids are assigned before a commit, so rows become visible out of order: 7 may be
//! visible while 6 is not. No notification is lost, because no reader stores a position in the
//! outbox. A row is deleted by its id once its notification is in the log. The next read finds all
//! other rows. A bound such as `newest_id` only ends one read.
//!
//! **Athletes.** A change of an athlete affects all groups of the athlete's efforts. The trigger
//! enters only the athlete (source `athletes`). The groups are looked up after the commit, by a
//! statement that sees everything committed before it. The trigger could miss groups, because its
//! transaction may see an older state. An effort that commits later has a notification of its own,
//! and by then the athlete's change is visible. One transaction replaces the athlete by the groups,
//! so a failure loses no notification. It also rechecks the athlete's connections
//! ([`super::deleted_athletes`]).

use schemas::entities::Group;
use schemas::source::Source;

use super::connection::{
    Dialect, FromSqlRow, Sql, SqlConnection, SqlRow, Value, decode_error, sort_unique,
};
#[cfg(feature = "mysql")]
use super::mysql;
use super::outbox_row::OutboxRow;
#[cfg(feature = "postgres")]
use super::postgres;
use super::sqlite;
use crate::entities::{NOTIFICATIONS_MAX, Notification};

/// Upper limit of the athletes that one transaction replaces by their groups.
const ATHLETES_PER_TRANSACTION: usize = 128;

/// The outbox source of athletes whose connections are rechecked ([`super::deleted_athletes`]).
pub(crate) const RECHECK_SOURCE: &str = "connections";

/// The number of lock buckets. The athletes of a bucket share its lock.
const BUCKETS: i64 = 64;

/// The groups and athletes that a change touched. Groups are ascending, each once.
#[derive(Debug, Default)]
pub(crate) struct TouchedGroups {
    /// Groups of efforts.
    pub(crate) efforts: Vec<Group>,
    /// Groups of authorizations.
    pub(crate) authorizations: Vec<Group>,
    /// Athletes, all of whose groups of efforts are touched; ascending, each once.
    pub(crate) athletes: Vec<i64>,
}

/// Locks the buckets of athletes until the commit: shared to change efforts, exclusively to change
/// the athletes.
///
/// Without the lock, a change of an athlete could miss an effort that is being added, and the
/// effort's notification could be processed before the athlete's change is visible. Then its board
/// would stay wrong.
pub(crate) async fn lock_athletes(
    connection: &mut SqlConnection<'_>,
    athletes: impl Iterator<Item = i64>,
    is_exclusive: bool,
) -> Sql<()> {
    let buckets = sort_unique(athletes.map(|id| id & (BUCKETS - 1)));
    if buckets.is_empty() {
        return Ok(());
    }
    match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => {
            postgres::lock_athletes(connection, &buckets, is_exclusive).await
        }
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(_) => {
            let lock = if is_exclusive {
                "FOR UPDATE"
            } else {
                "LOCK IN SHARE MODE"
            };
            let statement = format!(
                "SELECT bucket FROM athlete_locks WHERE bucket IN ? ORDER BY bucket {lock}"
            );
            let _locked: Vec<i64> = connection
                .fetch_all(&statement, &[Value::Ints(&buckets)])
                .await?;
            Ok(())
        }
        SqlConnection::Sqlite(_) => {
            let _ = is_exclusive;
            Ok(())
        }
    }
}

/// Puts notifications of touched groups into the outbox. Returns the first `NOTIFICATIONS_MAX` of
/// them, and whether there are more.
pub(crate) async fn enqueue_notifications(
    connection: &mut SqlConnection<'_>,
    touched: TouchedGroups,
    now_ms: i64,
) -> Sql<(Vec<Notification>, bool)> {
    let TouchedGroups {
        mut efforts,
        authorizations,
        athletes,
    } = touched;
    // All groups of these athletes are added anyway.
    efforts.retain(|group| athletes.binary_search(&group.member).is_err());
    let groups: Vec<(Source, Group)> = (efforts.into_iter().map(|group| (Source::Efforts, group)))
        .chain(
            authorizations
                .into_iter()
                .map(|group| (Source::Authorizations, group)),
        )
        .collect();
    if groups.is_empty() && athletes.is_empty() {
        return Ok((Vec::new(), false));
    }
    // One row more than the limit shows that there are more.
    let rows = match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => {
            postgres::enqueue_notifications(connection, &groups, &athletes, now_ms).await?
        }
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(connection) => {
            mysql::enqueue_notifications(connection, &groups, &athletes, now_ms).await?
        }
        SqlConnection::Sqlite(connection) => {
            sqlite::enqueue_notifications(connection, &groups, &athletes, now_ms).await?
        }
    };
    let notifications = rows.into_iter().map(to_notification);
    let mut notifications: Vec<Notification> = notifications.collect::<Sql<_>>()?;
    let has_more = notifications.len() > NOTIFICATIONS_MAX;
    notifications.truncate(NOTIFICATIONS_MAX);
    Ok((notifications, has_more))
}

/// Replaces athletes in the outbox by their groups of efforts, and enters the athletes for a
/// recheck of their connections ([`super::deleted_athletes::recheck`]). Processes the first rows
/// from `from_id` up to `newest_id`. Returns the id to continue from, if there may be more. Call it
/// within a write transaction.
pub(crate) async fn resolve_athletes(
    connection: &mut SqlConnection<'_>,
    from_id: i64,
    newest_id: i64,
) -> Sql<Option<i64>> {
    let locked = lock_athlete_rows(connection, Source::Athletes.name(), from_id, newest_id).await?;
    let Some(created_at_ms) = locked.oldest_created_at_ms() else {
        return Ok(locked.next_id);
    };
    let statement = "INSERT INTO outbox (source, group_key, member, made_at_ms)
         SELECT ?, segment_id, athlete_id, CAST(? AS SIGNED) FROM efforts
         WHERE athlete_id IN ? GROUP BY athlete_id, segment_id";
    let athletes = &locked.athletes();
    let values = [
        Value::Text(Source::Efforts.name()),
        Value::Int(created_at_ms),
        Value::Ints(athletes),
    ];
    connection.execute(statement, &values).await?;
    let ids: Vec<i64> = locked.rows.iter().map(|row| row.id).collect();
    let statement = "UPDATE outbox SET source = ? WHERE id IN ?";
    let values = [Value::Text(RECHECK_SOURCE), Value::Ints(&ids)];
    connection.execute(statement, &values).await?;
    Ok(locked.next_id)
}

/// A row of the outbox for an athlete.
#[derive(Debug)]
pub(crate) struct OutboxAthlete {
    pub(crate) id: i64,
    pub(crate) athlete_id: i64,
    created_at_ms: i64,
}

impl FromSqlRow for OutboxAthlete {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let (id, athlete_id, created_at_ms): (i64, i64, i64) = FromSqlRow::from_row(row)?;
        Ok(Self {
            id,
            athlete_id,
            created_at_ms,
        })
    }
}

/// Rows of the outbox for athletes.
#[derive(Debug)]
pub(crate) struct OutboxAthletes {
    /// The rows, which are locked until the commit.
    pub(crate) rows: Vec<OutboxAthlete>,
    /// The id to continue from, if there may be more rows.
    pub(crate) next_id: Option<i64>,
}

impl OutboxAthletes {
    /// The athletes, ascending, each once.
    pub(crate) fn athletes(&self) -> Vec<i64> {
        sort_unique(self.rows.iter().map(|row| row.athlete_id))
    }

    /// The creation time of the oldest row; `None` without rows.
    pub(crate) fn oldest_created_at_ms(&self) -> Option<i64> {
        self.rows.iter().map(|row| row.created_at_ms).min()
    }
}

/// Locks and returns the first rows of a source of athletes, from `from_id` up to `newest_id`.
pub(crate) async fn lock_athlete_rows(
    connection: &mut SqlConnection<'_>,
    source: &str,
    from_id: i64,
    newest_id: i64,
) -> Sql<OutboxAthletes> {
    let statement = "SELECT id FROM outbox WHERE source = ? AND id >= ? AND id <= ?
                     ORDER BY id LIMIT ?";
    let values = [
        Value::Text(source),
        Value::Int(from_id),
        Value::Int(newest_id),
        Value::Int(i64::try_from(ATHLETES_PER_TRANSACTION).unwrap_or(i64::MAX)),
    ];
    let ids: Vec<i64> = connection.fetch_all(statement, &values).await?;
    let next_id = ids.last().and_then(|last| last.checked_add(1));
    let next_id = next_id.filter(|_| ids.len() == ATHLETES_PER_TRANSACTION);
    if ids.is_empty() {
        let rows = Vec::new();
        return Ok(OutboxAthletes { rows, next_id });
    }
    // Locks rows by their ids. To lock a range, MySQL would also wait for the row after it, which a
    // long transaction of an app may have locked.
    let statement = format!(
        "SELECT id, member, made_at_ms FROM outbox {} WHERE id IN ? AND source = '{source}'
         ORDER BY id FOR UPDATE",
        match connection.dialect() {
            Dialect::MySql => "FORCE INDEX (PRIMARY)",
            Dialect::Postgres | Dialect::Sqlite => "",
        }
    );
    let rows = connection
        .fetch_all(&statement, &[Value::Ints(&ids)])
        .await?;
    Ok(OutboxAthletes { rows, next_id })
}

impl FromSqlRow for Notification {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        to_notification(OutboxRow::from_row(row)?)
    }
}

fn to_notification(row: OutboxRow) -> Sql<Notification> {
    let (id, source, key, member) = row;
    Ok(Notification {
        id,
        source: source.parse().map_err(decode_error)?,
        group: Group { key, member },
    })
}
