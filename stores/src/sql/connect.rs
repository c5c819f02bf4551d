//! Applications, and the athletes who connect to them.
//!
//! `connections` holds how many authorizations of a pair are not revoked, `connected` how many
//! pairs have one and an athlete who is not deleted, for each application. Triggers keep both. On a server, a transaction locks the
//! row of `connected` before it changes authorizations of an application, so capacity is assigned in one order.

use schemas::entities::{Application, Authorization, Group};

use super::connection::{Sql, SqlConnection, Value, ascending};
use super::outbox::{AT_ONCE, Touched, tell};
use super::rows::{Conflict, Rows, write};
use crate::canon::{Authorized, Notification, Revoked};

pub(super) const US_PER_MS: i64 = 1000;

/// Ids that are made up have so many bits: JSON readers hold such numbers exactly.
const ID_BITS: u32 = 53;

/// Applications, as `p`.
pub(crate) const APPLICATIONS: &str = "SELECT CAST(p.id AS SIGNED) AS id, p.name, p.owner,
        CAST(p.athlete_capacity AS SIGNED) AS athlete_capacity, CAST(p.version AS SIGNED) AS version
    FROM applications p";

async fn has_application(connection: &mut SqlConnection<'_>, id: i64) -> Sql<bool> {
    let statement = format!("{APPLICATIONS} WHERE p.id = ?");
    let found: Option<Application> = connection.row(&statement, &[Value::Int(id)]).await?;
    Ok(found.is_some())
}

/// Locks the counters of some applications until the commit; creates those that are missing.
pub(crate) async fn lock_counters(
    connection: &mut SqlConnection<'_>,
    applications: impl Iterator<Item = i64>,
) -> Sql<()> {
    if connection.has_exclusive_writes() {
        return Ok(());
    }
    for ids in ascending(applications).chunks(AT_ONCE) {
        let statement = "SELECT application_id FROM connected WHERE application_id IN ?
                         ORDER BY application_id FOR UPDATE";
        let there: Vec<i64> = connection.rows(statement, &[Value::Ints(ids)]).await?;
        if there.len() == ids.len() {
            continue;
        }
        let is_missing = |id: &i64| there.binary_search(id).is_err();
        let missing: Vec<i64> = ids.iter().copied().filter(is_missing).collect();
        write(connection, &Rows::counters(&missing), Conflict::Keep).await?;
        let _held: Vec<i64> = connection.rows(statement, &[Value::Ints(ids)]).await?;
    }
    Ok(())
}

/// A random id for an authorization, which no other is likely to have.
pub(crate) fn random_id() -> i64 {
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    (random % (1 << ID_BITS)).max(1).cast_signed()
}

/// Connects an athlete by a new authorization with the given id. Call it within a transaction that writes. A retry after
/// a lost answer finds the authorization with this id and returns the same outcome.
pub(crate) async fn authorize(
    connection: &mut SqlConnection<'_>,
    pair: Group,
    id: i64,
    now_ms: i64,
) -> Sql<Authorized> {
    if !has_application(connection, pair.key).await? {
        return Ok(Authorized::UnknownApplication);
    }
    lock_counters(connection, [pair.key].into_iter()).await?;
    // What was read before the lock may be old by now.
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
    let found: Option<(i64, i64, i64, i64, i64, i64)> = connection.row(statement, &values).await?;
    let Some((capacity, connected, already, own, deleted, unlimited)) = found else {
        return Ok(Authorized::UnknownApplication);
    };
    if own > 0 {
        let notification = tell_of(connection, pair, now_ms).await?;
        return Ok(Authorized::New { id, notification });
    }
    if deleted > 0 {
        return Ok(Authorized::AthleteDeleted);
    }
    if already > 0 {
        return Ok(Authorized::Already);
    }
    if connected >= capacity && unlimited == 0 {
        return Ok(Authorized::Full {
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
    let new = Rows::authorizations(&[&authorization]);
    write(connection, &new, Conflict::Fail).await?;
    let notification = tell_of(connection, pair, now_ms).await?;
    Ok(Authorized::New { id, notification })
}

/// Disconnects an athlete. Call it within a transaction that writes. A retry after a lost answer leaves authorizations alone that
/// were created since `created_max_us`.
pub(crate) async fn revoke(
    connection: &mut SqlConnection<'_>,
    pair: Group,
    created_max_us: i64,
    now_ms: i64,
) -> Sql<Revoked> {
    if !has_application(connection, pair.key).await? {
        return Ok(Revoked::UnknownApplication);
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
    if connection.run(statement, &values).await? == 0 {
        return Ok(Revoked::Done(None));
    }
    let notification = tell_of(connection, pair, now_ms).await?;
    Ok(Revoked::Done(Some(notification)))
}

async fn tell_of(
    connection: &mut SqlConnection<'_>,
    pair: Group,
    now_ms: i64,
) -> Sql<Notification> {
    let touched = Touched {
        authorizations: vec![pair],
        ..Touched::default()
    };
    let (told, _) = tell(connection, touched, now_ms).await?;
    told.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}
