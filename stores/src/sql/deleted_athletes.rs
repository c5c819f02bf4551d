//! Excludes deleted athletes from the counters of connected athletes, until they are restored.
//!
//! The column `is_away` of `connections` says whether the pair's athlete is deleted, and the
//! counters exclude such pairs. It is set when the pair is created, and changes with the athlete.
//! (On MySQL, a pair that an app inserts by its own SQL counts until its notification is
//! processed.)
//!
//! A connection and a deletion may run concurrently, and neither sees the other's uncommitted
//! change. Locking athletes instead would let one long transaction of an app block all connections.
//! So both are rechecked *after* their commits: the athlete before its outbox row is deleted, the
//! pair in the statement that deletes its notification. The later one sees the other.
//!
//! The recheck never waits for a counter. A pair whose counter is locked stays unchanged, and so
//! does the athlete's row in the outbox (source [`RECHECK_SOURCE`]), until a later recheck.

use schemas::entities::Group;
use schemas::source::Source;

use super::connection::{Dialect, IDS_PER_STATEMENT, Sql, SqlConnection, Value, sort_unique};
#[cfg(feature = "mysql")]
use super::connection::{FromSqlRow, SqlRow};
use super::outbox::{RECHECK_SOURCE, TouchedGroups, enqueue_notifications, lock_athlete_rows};
#[cfg(feature = "postgres")]
use super::postgres;
use super::rows::{Conflict, TableRows};
use super::write::write;

/// The condition that a pair `c` differs from its athlete `t`.
const DIFFERS: &str = "c.is_away <> (t.is_deleted IS TRUE)";

/// Updates the pairs of athletes, and their counters, to the stored athletes. Skips pairs whose
/// counter is locked. Returns the changed pairs, ascending. Call it within a write transaction.
async fn update_pairs(connection: &mut SqlConnection<'_>, athletes: &[i64]) -> Sql<Vec<Group>> {
    let mut changed = Vec::new();
    for athletes in athletes.chunks(IDS_PER_STATEMENT) {
        let rows: Vec<(i64, i64)> = match connection {
            #[cfg(feature = "postgres")]
            SqlConnection::Postgres(connection) => {
                postgres::update_pairs(connection, athletes).await?
            }
            #[cfg(feature = "mysql")]
            SqlConnection::MySql(_) => update_pairs_stepwise(connection, athletes).await?,
            // Triggers updated them when the athlete was written.
            SqlConnection::Sqlite(_) => {
                let statement = "SELECT application_id, athlete_id FROM connections
                                 WHERE athlete_id IN ?";
                connection
                    .fetch_all(statement, &[Value::Ints(athletes)])
                    .await?
            }
        };
        changed.extend(rows.into_iter().map(|(key, member)| Group { key, member }));
    }
    changed.sort_unstable();
    Ok(changed)
}

/// [`update_pairs`] for MySQL, in several statements. Triggers on the pairs update the counters.
#[cfg(feature = "mysql")]
async fn update_pairs_stepwise(
    connection: &mut SqlConnection<'_>,
    athletes: &[i64],
) -> Sql<Vec<(i64, i64)>> {
    let statement = format!(
        "SELECT c.application_id, c.athlete_id, c.live, CAST(c.is_away AS SIGNED)
         FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
         WHERE c.athlete_id IN ? AND {DIFFERS}"
    );
    let mut pairs: Vec<DifferingPair> = connection
        .fetch_all(&statement, &[Value::Ints(athletes)])
        .await?;
    if pairs.is_empty() {
        return Ok(Vec::new());
    }
    let applications = sort_unique(pairs.iter().map(|pair| pair.application_id));
    let mut locked: Vec<i64> = Vec::with_capacity(applications.len());
    for ids in applications.chunks(IDS_PER_STATEMENT) {
        let statement = "SELECT application_id FROM connected WHERE application_id IN ?
                         ORDER BY application_id FOR UPDATE SKIP LOCKED";
        locked.extend(
            connection
                .fetch_all::<i64>(statement, &[Value::Ints(ids)])
                .await?,
        );
    }
    pairs.retain(|pair| locked.binary_search(&pair.application_id).is_ok());
    // No join, for which MySQL would lock the rows of the athletes. Through the primary key,
    // because the index of athletes leads to rows that other transactions have locked.
    for application in locked {
        for was_away in [0, 1] {
            let matching = pairs.iter();
            let matching = matching
                .filter(|pair| pair.application_id == application && pair.is_away == was_away);
            let athletes: Vec<i64> = matching.map(|pair| pair.athlete_id).collect();
            if !athletes.is_empty() {
                let statement = "UPDATE connections FORCE INDEX (PRIMARY) SET is_away = ?
                    WHERE application_id = ? AND athlete_id IN ?";
                let values = [
                    Value::Int(1 - was_away),
                    Value::Int(application),
                    Value::Ints(&athletes),
                ];
                connection.execute(statement, &values).await?;
            }
        }
    }
    // Pairs without authorizations remain in the table.
    pairs.retain(|pair| pair.live > 0);
    let ids = pairs.into_iter();
    Ok(ids
        .map(|pair| (pair.application_id, pair.athlete_id))
        .collect())
}

/// A pair that differs from its athlete.
#[cfg(feature = "mysql")]
struct DifferingPair {
    application_id: i64,
    athlete_id: i64,
    live: i64,
    /// 0 or 1.
    is_away: i64,
}

#[cfg(feature = "mysql")]
impl FromSqlRow for DifferingPair {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let (application_id, athlete_id, live, is_away): (i64, i64, i64, i64) =
            FromSqlRow::from_row(row)?;
        Ok(Self {
            application_id,
            athlete_id,
            live,
            is_away,
        })
    }
}

/// Updates the pairs of athletes that this transaction deleted or restored, and enqueues a recheck
/// after its commit. Returns the changed pairs.
pub(crate) async fn update_written_athletes(
    connection: &mut SqlConnection<'_>,
    deleted_or_restored: &[i64],
    now_ms: i64,
) -> Sql<Vec<Group>> {
    let changed = update_pairs(connection, deleted_or_restored).await?;
    if connection.has_exclusive_writes() {
        return Ok(changed);
    }
    for athletes in deleted_or_restored.chunks(IDS_PER_STATEMENT) {
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{RECHECK_SOURCE}', 0, id, CAST(? AS SIGNED) FROM athletes WHERE id IN ?"
        );
        let values = [Value::Int(now_ms), Value::Ints(athletes)];
        connection.execute(&statement, &values).await?;
    }
    Ok(changed)
}

/// Enqueues a recheck of an athlete's connections after the commit.
pub(crate) async fn enqueue_recheck(
    connection: &mut SqlConnection<'_>,
    athlete_id: i64,
    now_ms: i64,
) -> Sql<()> {
    let statement =
        "INSERT INTO outbox (source, group_key, member, made_at_ms) VALUES (?, 0, ?, ?)";
    let values = [
        Value::Text(RECHECK_SOURCE),
        Value::Int(athlete_id),
        Value::Int(now_ms),
    ];
    connection.execute(statement, &values).await.map(drop)
}

/// Creates the pairs of deleted athletes on MySQL, so that the authorizations written afterwards do
/// not count. On other databases, triggers look up the athlete.
pub(crate) async fn create_deleted_pairs(
    connection: &mut SqlConnection<'_>,
    pairs: impl Iterator<Item = Group>,
) -> Sql<()> {
    if connection.dialect() != Dialect::MySql {
        return Ok(());
    }
    let mut pairs = sort_unique(pairs);
    let athletes = sort_unique(pairs.iter().map(|pair| pair.member));
    let mut deleted: Vec<i64> = Vec::new();
    for ids in athletes.chunks(IDS_PER_STATEMENT) {
        let statement = "SELECT CAST(id AS SIGNED) FROM athletes
                         WHERE id IN ? AND is_deleted ORDER BY id";
        deleted.extend(
            connection
                .fetch_all::<i64>(statement, &[Value::Ints(ids)])
                .await?,
        );
    }
    pairs.retain(|pair| deleted.binary_search(&pair.member).is_ok());
    write(
        connection,
        &TableRows::deleted_pairs(&pairs),
        Conflict::Keep,
    )
    .await
}

/// Rechecks the pairs of athletes in the outbox, and enqueues notifications for changed pairs.
/// Processes the first rows from `from_id` up to `newest_id`. Returns the id to continue from, if
/// there may be more.
///
/// With `is_view`, authorizations are a view of an app. It has no pairs, so notifications are
/// enqueued for all authorizations of these athletes. Call it within a write transaction.
pub(crate) async fn recheck(
    connection: &mut SqlConnection<'_>,
    from_id: i64,
    newest_id: i64,
    is_view: bool,
) -> Sql<Option<i64>> {
    let locked = lock_athlete_rows(connection, RECHECK_SOURCE, from_id, newest_id).await?;
    let Some(created_at_ms) = locked.oldest_created_at_ms() else {
        return Ok(locked.next_id);
    };
    let athletes = locked.athletes();
    let authorizations = if is_view {
        let statement = "SELECT DISTINCT CAST(application_id AS SIGNED), CAST(athlete_id AS SIGNED)
            FROM authorizations WHERE athlete_id IN ?";
        let rows: Vec<(i64, i64)> = connection
            .fetch_all(statement, &[Value::Ints(&athletes)])
            .await?;
        let groups = rows.into_iter().map(|(key, member)| Group { key, member });
        groups.collect()
    } else {
        update_pairs(connection, &athletes).await?
    };
    let touched = TouchedGroups {
        authorizations,
        ..TouchedGroups::default()
    };
    enqueue_notifications(connection, touched, created_at_ms).await?;
    let statement = format!(
        "SELECT DISTINCT c.athlete_id FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
         WHERE c.athlete_id IN ? AND {DIFFERS}"
    );
    let still_differing: Vec<i64> = connection
        .fetch_all(&statement, &[Value::Ints(&athletes)])
        .await?;
    let finished = locked.rows.iter();
    let finished = finished.filter(|row| !still_differing.contains(&row.athlete_id));
    let finished: Vec<i64> = finished.map(|row| row.id).collect();
    if !finished.is_empty() {
        connection
            .execute(
                "DELETE FROM outbox WHERE id IN ?",
                &[Value::Ints(&finished)],
            )
            .await?;
    }
    Ok(locked.next_id)
}

/// Deletes notifications from the outbox, in the order of their numbers. If a pair differs from its
/// athlete, the athlete enters the outbox instead.
pub(crate) async fn remove_notifications(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<()> {
    for ids in sort_unique(ids.iter().copied()).chunks(IDS_PER_STATEMENT) {
        remove_chunk(connection, ids).await?;
    }
    Ok(())
}

/// [`remove_notifications`] whose numbers fit into one statement.
async fn remove_chunk(connection: &mut SqlConnection<'_>, ids: &[i64]) -> Sql<()> {
    let (values, source) = ([Value::Ints(ids)], Source::Authorizations);
    if connection.dialect() == Dialect::Postgres {
        // The limits make the planner use the indexes, regardless of the number of rows that it
        // estimates.
        let statement = format!(
            "WITH removed AS (DELETE FROM outbox WHERE id IN ?
                 RETURNING source, group_key, member, made_at_ms)
             INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{RECHECK_SOURCE}', 0, o.member, o.made_at_ms FROM removed o
             CROSS JOIN LATERAL (SELECT p.is_away FROM connections p
                 WHERE p.application_id = o.group_key AND p.athlete_id = o.member LIMIT 1) c
             LEFT JOIN LATERAL (SELECT a.is_deleted FROM athletes a
                 WHERE a.id = o.member LIMIT 1) t ON true
             WHERE o.source = '{source}' AND {DIFFERS}"
        );
        return connection.execute(&statement, &values).await.map(drop);
    }
    if connection.dialect() == Dialect::MySql {
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{RECHECK_SOURCE}', 0, o.member, o.made_at_ms FROM outbox o
             JOIN connections c ON c.application_id = o.group_key AND c.athlete_id = o.member
             LEFT JOIN athletes t ON t.id = o.member
             WHERE o.id IN ? AND o.source = '{source}' AND {DIFFERS}"
        );
        connection.execute(&statement, &values).await?;
    }
    let statement = "DELETE FROM outbox WHERE id IN ?";
    connection.execute(statement, &values).await.map(drop)
}
