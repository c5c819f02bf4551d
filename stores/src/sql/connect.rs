//! Connects athletes to applications, and disconnects them.
//!
//! `connections` counts the unrevoked authorizations of each pair. `connected` counts for each
//! application the pairs with such an authorization and an athlete who is not deleted. Triggers
//! maintain both. On a server, a transaction locks the row of `connected` before it changes
//! authorizations of an application, so concurrent connections are decided one after the other.

use schemas::entities::{Application, Authorization, Group};

use super::connection::{IDS_PER_STATEMENT, Sql, SqlConnection, Value, sort_unique};
use super::outbox::{TouchedGroups, enqueue_notifications};
use super::rows::{Conflict, TableRows};
use super::write::write;
use crate::entities::{AuthorizeOutcome, Notification, RevokeOutcome};

pub(super) const US_PER_MS: i64 = 1000;

/// The number of bits of random ids. JSON parsers represent such numbers exactly.
const ID_BITS: u32 = 53;

/// Selects applications `p`.
pub(crate) const SELECT_APPLICATIONS: &str = "SELECT CAST(p.id AS SIGNED) AS id, p.name, p.owner,
        CAST(p.athlete_capacity AS SIGNED) AS athlete_capacity, CAST(p.version AS SIGNED) AS version
    FROM applications p";

async fn has_application(connection: &mut SqlConnection<'_>, id: i64) -> Sql<bool> {
    let statement = format!("{SELECT_APPLICATIONS} WHERE p.id = ?");
    let application: Option<Application> = connection
        .fetch_optional(&statement, &[Value::Int(id)])
        .await?;
    Ok(application.is_some())
}

/// Locks the counters of applications until the commit. Creates missing ones.
pub(crate) async fn lock_counters(
    connection: &mut SqlConnection<'_>,
    applications: impl Iterator<Item = i64>,
) -> Sql<()> {
    if connection.has_exclusive_writes() {
        return Ok(());
    }
    for ids in sort_unique(applications).chunks(IDS_PER_STATEMENT) {
        let statement = "SELECT application_id FROM connected WHERE application_id IN ?
                         ORDER BY application_id FOR UPDATE";
        let existing: Vec<i64> = connection.fetch_all(statement, &[Value::Ints(ids)]).await?;
        if existing.len() == ids.len() {
            continue;
        }
        let is_missing = |id: &i64| existing.binary_search(id).is_err();
        let missing: Vec<i64> = ids.iter().copied().filter(is_missing).collect();
        write(connection, &TableRows::counters(&missing), Conflict::Keep).await?;
        let _locked: Vec<i64> = connection.fetch_all(statement, &[Value::Ints(ids)]).await?;
    }
    Ok(())
}

/// A random id for an authorization. Collisions are unlikely.
pub(crate) fn generate_id() -> i64 {
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    (random % (1 << ID_BITS)).max(1).cast_signed()
}

/// Connects an athlete by a new authorization with the given id. Call it within a write
/// transaction. A retry after a lost response finds the authorization with this id and returns the
/// same outcome.
pub(crate) async fn authorize(
    connection: &mut SqlConnection<'_>,
    pair: Group,
    id: i64,
    now_ms: i64,
) -> Sql<AuthorizeOutcome> {
    if !has_application(connection, pair.key).await? {
        return Ok(AuthorizeOutcome::UnknownApplication);
    }
    lock_counters(connection, [pair.key].into_iter()).await?;
    // Read after locking, because earlier reads may be outdated.
    let statement = "SELECT CAST(p.athlete_capacity AS SIGNED),
            CAST(coalesce(c.athletes, 0) AS SIGNED),
            (SELECT count(*) FROM connections o
             WHERE o.application_id = ? AND o.athlete_id = ? AND o.live > 0),
            (SELECT count(*) FROM authorizations a
             WHERE a.id = ? AND a.application_id = ? AND a.athlete_id = ?),
            (SELECT count(*) FROM athletes t WHERE t.id = ? AND t.is_deleted),
            (SELECT count(*) FROM unlimited u WHERE u.application_id = p.id)
        FROM applications p LEFT JOIN connected c ON c.application_id = p.id WHERE p.id = ?";
    let (application, athlete) = (Value::Int(pair.key), Value::Int(pair.member));
    let values = [
        application,
        athlete,
        Value::Int(id),
        application,
        athlete,
        athlete,
        application,
    ];
    let row: Option<(i64, i64, i64, i64, i64, i64)> =
        connection.fetch_optional(statement, &values).await?;
    let Some((capacity, connected, existing, committed, deleted, unlimited)) = row else {
        return Ok(AuthorizeOutcome::UnknownApplication);
    };
    // An earlier attempt of this call committed.
    if committed > 0 {
        let notification = enqueue_pair(connection, pair, now_ms).await?;
        return Ok(AuthorizeOutcome::New { id, notification });
    }
    if deleted > 0 {
        return Ok(AuthorizeOutcome::AthleteDeleted);
    }
    if existing > 0 {
        return Ok(AuthorizeOutcome::AlreadyConnected);
    }
    if connected >= capacity && unlimited == 0 {
        return Ok(AuthorizeOutcome::CapacityReached {
            connected,
            capacity,
        });
    }
    let authorization = Authorization {
        id,
        application_id: pair.key,
        athlete_id: pair.member,
        created_at_us: now_ms.saturating_mul(US_PER_MS),
        revoked_at_us: None,
        version: 0,
    };
    let new = TableRows::authorizations(&[&authorization]);
    write(connection, &new, Conflict::Fail).await?;
    let notification = enqueue_pair(connection, pair, now_ms).await?;
    Ok(AuthorizeOutcome::New { id, notification })
}

/// Disconnects an athlete. Call it within a write transaction. A retry after a lost response does
/// not revoke authorizations that were created after `created_max_us`.
pub(crate) async fn revoke(
    connection: &mut SqlConnection<'_>,
    pair: Group,
    created_max_us: i64,
    now_ms: i64,
) -> Sql<RevokeOutcome> {
    if !has_application(connection, pair.key).await? {
        return Ok(RevokeOutcome::UnknownApplication);
    }
    lock_counters(connection, [pair.key].into_iter()).await?;
    let statement = "UPDATE authorizations SET revoked_at_us = ?
        WHERE application_id = ? AND athlete_id = ? AND revoked_at_us IS NULL AND created_at_us <= ?";
    let values = [
        Value::Int(now_ms.saturating_mul(US_PER_MS)),
        Value::Int(pair.key),
        Value::Int(pair.member),
        Value::Int(created_max_us),
    ];
    if connection.execute(statement, &values).await? == 0 {
        return Ok(RevokeOutcome::Done(None));
    }
    let notification = enqueue_pair(connection, pair, now_ms).await?;
    Ok(RevokeOutcome::Done(Some(notification)))
}

async fn enqueue_pair(
    connection: &mut SqlConnection<'_>,
    pair: Group,
    now_ms: i64,
) -> Sql<Notification> {
    let touched = TouchedGroups {
        authorizations: vec![pair],
        ..TouchedGroups::default()
    };
    let (notifications, _) = enqueue_notifications(connection, touched, now_ms).await?;
    let notification = notifications.into_iter().next();
    notification.ok_or(sqlx::Error::RowNotFound)
}
