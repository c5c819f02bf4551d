//! The outbox: what was changed and is yet to be told to the log.
//!
//! On a server, numbers are assigned before a commit, so they become visible out of order: 7 may be there while 6 is
//! not committed. Nothing is lost by that, since no reader keeps a place in the outbox. What is in
//! the log is deleted by its number; everything else is still there when the outbox is read again.
//! A bound such as `newest` only ends a reading; a smaller number that shows up later is read by the
//! next one.
//!
//! **Athletes.** What views see of an athlete stands in all groups of the athlete's efforts. A trigger
//! that tells of an athlete names the athlete only (source `athletes`), and the groups are looked for
//! here, after the commit, in a statement that sees everything committed before it. The trigger could
//! miss some: its transaction may see an older state than the last one. An effort that is committed
//! after our statement is told of by itself, after the athlete's change can be seen. Groups take the
//! athlete's place in one transaction, so a change stays told of whatever fails. The athlete's connections are
//! looked at with them ([`super::away`]).

use schemas::entities::Group;
use schemas::source::Source;

use super::away;
use super::connection::{
    Dialect, FromSqlRow, Sql, SqlConnection, SqlRow, Value, ascending, undecodable,
};
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::sqlite;
use crate::canon::{NOTIFICATIONS_MAX, Notification};

/// So many numbers are named by one statement.
pub(crate) const AT_ONCE: usize = 8192;

/// So many athletes are replaced by their groups at once.
const ATHLETES_AT_ONCE: usize = 128;

/// Locks of athletes are on so many buckets of them.
const BUCKETS: i64 = 64;

/// What a change touched. Groups are ascending, each once.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Groups of efforts.
    pub(crate) efforts: Vec<Group>,
    /// Groups of authorizations.
    pub(crate) authorizations: Vec<Group>,
    /// Athletes, all of whose groups of efforts are touched; ascending, each once.
    pub(crate) athletes: Vec<i64>,
}

/// Until the commit, either many change efforts of some athletes, or one (`alone`) changes these
/// athletes. Otherwise the change of an athlete would not find an effort that is being added, and
/// that effort would be told of before the change is visible: then its board would stay wrong.
pub(crate) async fn lock_athletes(
    connection: &mut SqlConnection<'_>,
    athletes: impl Iterator<Item = i64>,
    alone: bool,
) -> Sql<()> {
    let buckets = ascending(athletes.map(|id| id & (BUCKETS - 1)));
    if buckets.is_empty() {
        return Ok(());
    }
    match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => {
            postgres::lock_athletes(connection, &buckets, alone).await
        }
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(_) => {
            let held = if alone {
                "FOR UPDATE"
            } else {
                "LOCK IN SHARE MODE"
            };
            let statement = format!(
                "SELECT bucket FROM athlete_locks WHERE bucket IN ? ORDER BY bucket {held}"
            );
            let _held: Vec<i64> = connection
                .rows(&statement, &[Value::Ints(&buckets)])
                .await?;
            Ok(())
        }
        SqlConnection::Sqlite(_) => {
            let _ = alone;
            Ok(())
        }
    }
}

/// Puts what was touched into the outbox; answers what is to be told now, and whether more waits.
pub(crate) async fn tell(
    connection: &mut SqlConnection<'_>,
    touched: Touched,
    now_ms: i64,
) -> Sql<(Vec<Notification>, bool)> {
    let Touched {
        mut efforts,
        authorizations,
        athletes,
    } = touched;
    // These come with all groups of the athlete.
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
    // One more than may be told says that more waits.
    let rows = match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => {
            postgres::tell(connection, &groups, &athletes, now_ms).await?
        }
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(connection) => {
            mysql::tell(connection, &groups, &athletes, now_ms).await?
        }
        SqlConnection::Sqlite(connection) => {
            sqlite::tell(connection, &groups, &athletes, now_ms).await?
        }
    };
    let told = rows.into_iter().map(notification);
    let mut told: Vec<Notification> = told.collect::<Sql<_>>()?;
    let more = told.len() > NOTIFICATIONS_MAX;
    told.truncate(NOTIFICATIONS_MAX);
    Ok((told, more))
}

/// Puts the groups of efforts of some athletes in their place, of the rows from one number up to another, and leaves word that
/// their connections are to be looked at again ([`away::settle`]); answers the number where to go on, if there may be
/// more. Call it within a transaction that writes.
pub(crate) async fn find_groups(
    connection: &mut SqlConnection<'_>,
    (from, newest): (i64, i64),
) -> Sql<Option<i64>> {
    let found = named(connection, Source::Athletes.name(), (from, newest)).await?;
    let Some(made_at_ms) = found.rows.iter().map(|row| row.2).min() else {
        return Ok(found.next);
    };
    let statement = "INSERT INTO outbox (source, group_key, member, made_at_ms)
         SELECT ?, segment_id, athlete_id, CAST(? AS SIGNED) FROM efforts
         WHERE athlete_id IN ? GROUP BY athlete_id, segment_id";
    let athletes = &found.athletes();
    let values = [
        Value::Text(Source::Efforts.name()),
        Value::Int(made_at_ms),
        Value::Ints(athletes),
    ];
    connection.run(statement, &values).await?;
    let ids: Vec<i64> = found.rows.iter().map(|row| row.0).collect();
    let statement = "UPDATE outbox SET source = ? WHERE id IN ?";
    let values = [Value::Text(away::SOURCE), Value::Ints(&ids)];
    connection.run(statement, &values).await?;
    Ok(found.next)
}

/// Rows of the outbox that name athletes.
#[derive(Debug)]
pub(crate) struct Named {
    /// Number, athlete and when each was made. They are held until the commit.
    pub(crate) rows: Vec<(i64, i64, i64)>,
    /// Where to go on, if there may be more.
    pub(crate) next: Option<i64>,
}

impl Named {
    /// The athletes, ascending, each once.
    pub(crate) fn athletes(&self) -> Vec<i64> {
        ascending(self.rows.iter().map(|row| row.1))
    }
}

/// The first rows of a source that names athletes, from a number up to another.
pub(crate) async fn named(
    connection: &mut SqlConnection<'_>,
    source: &str,
    (from, newest): (i64, i64),
) -> Sql<Named> {
    let statement = "SELECT id FROM outbox WHERE source = ? AND id >= ? AND id <= ?
                     ORDER BY id LIMIT ?";
    let values = [
        Value::Text(source),
        Value::Int(from),
        Value::Int(newest),
        Value::Int(i64::try_from(ATHLETES_AT_ONCE).unwrap_or(i64::MAX)),
    ];
    let ids: Vec<i64> = connection.rows(statement, &values).await?;
    let next = ids.last().and_then(|last| last.checked_add(1));
    let next = next.filter(|_| ids.len() == ATHLETES_AT_ONCE);
    if ids.is_empty() {
        let rows = Vec::new();
        return Ok(Named { rows, next });
    }
    // By their numbers: going through a range to hold rows, MySQL waits for whoever holds the row after it, which
    // may be an app's for as long as it likes.
    let statement = format!(
        "SELECT id, member, made_at_ms FROM outbox {} WHERE id IN ? AND source = '{source}'
         ORDER BY id FOR UPDATE",
        match connection.dialect() {
            Dialect::MySql => "FORCE INDEX (PRIMARY)",
            Dialect::Postgres | Dialect::Sqlite => "",
        }
    );
    let rows = connection.rows(&statement, &[Value::Ints(&ids)]).await?;
    Ok(Named { rows, next })
}

/// Takes notifications out of the outbox, in the order of their numbers.
pub(crate) async fn notified(connection: &mut SqlConnection<'_>, ids: &[i64]) -> Sql<()> {
    for ids in ascending(ids.iter().copied()).chunks(AT_ONCE) {
        away::take_out(connection, ids).await?;
    }
    Ok(())
}

/// A row of the outbox: number, source, key and member.
pub(crate) type Row = (i64, String, i64, i64);

impl FromSqlRow for Notification {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        notification(Row::from_row(row)?)
    }
}

fn notification((id, source, key, member): Row) -> Sql<Notification> {
    Ok(Notification {
        id,
        source: source.parse().map_err(undecodable)?,
        group: Group { key, member },
    })
}
