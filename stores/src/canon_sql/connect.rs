//! Applications, and the athletes who connect to them.
//!
//! `connections` holds how many authorizations of a pair are not revoked, `connected` how many
//! pairs have one and an athlete who is not deleted, for each application. Triggers keep both. Whoever changes authorizations of an
//! application holds its row of `connected` first, so places are given one after the other.

use schemas::entities::{Application, Authorization, Group};

use super::admin::{ApplicationRow, application_from_row};
use super::apply::insert_authorization;
use super::connection::Link;
use super::outbox::{AT_ONCE, Touched, tell};
use super::session::{Sql, Value};
use crate::canon::{Authorized, Notification, Revoked};

const US_PER_MS: i64 = 1000;

/// Ids that are made up have so many bits: JSON readers hold such numbers exactly.
const ID_BITS: u32 = 53;

const COLUMNS: &str = "CAST(id AS SIGNED), name, owner, CAST(athlete_capacity AS SIGNED),
    CAST(version AS SIGNED)";

pub(crate) async fn application(link: &mut Link<'_>, id: i64) -> Sql<Option<Application>> {
    let statement = format!("SELECT {COLUMNS} FROM applications WHERE id = ?");
    let row: Option<ApplicationRow> = link.row(&statement, &[Value::Int(id)]).await?;
    row.map(application_from_row).transpose()
}

pub(crate) async fn applications(
    link: &mut Link<'_>,
    after: Option<i64>,
    limit: usize,
) -> Sql<Vec<Application>> {
    let Some(from) = after.map_or(Some(i64::MIN), |after| after.checked_add(1)) else {
        return Ok(Vec::new());
    };
    let statement = format!("SELECT {COLUMNS} FROM applications WHERE id >= ? ORDER BY id LIMIT ?");
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows: Vec<ApplicationRow> = link
        .rows(&statement, &[Value::Int(from), Value::Int(limit)])
        .await?;
    rows.into_iter().map(application_from_row).collect()
}

/// Holds the counters of some applications until the commit; those that are not there are made.
pub(crate) async fn lock_counters(
    link: &mut Link<'_>,
    applications: impl Iterator<Item = i64>,
) -> Sql<()> {
    let mut ids: Vec<i64> = applications.collect();
    ids.sort_unstable();
    ids.dedup();
    for ids in ids.chunks(AT_ONCE) {
        let statement = "SELECT application_id FROM connected WHERE application_id IN ?
                         ORDER BY application_id FOR UPDATE";
        let there: Vec<(i64,)> = link.rows(statement, &[Value::Ints(ids)]).await?;
        if there.len() == ids.len() {
            continue;
        }
        let missing = ids
            .iter()
            .filter(|id| there.binary_search(&(**id,)).is_err());
        let missing: Vec<String> = missing.map(|id| format!("({id})")).collect();
        let not_again = link.either(
            "ON CONFLICT DO NOTHING",
            "ON DUPLICATE KEY UPDATE athletes = athletes",
        );
        let make = format!(
            "INSERT INTO connected (application_id) VALUES {} {not_again}",
            missing.join(", ")
        );
        link.run(&make, &[]).await?;
        let _held: Vec<(i64,)> = link.rows(statement, &[Value::Ints(ids)]).await?;
    }
    Ok(())
}

/// Connects an athlete; call it within a transaction that writes.
pub(crate) async fn authorize(link: &mut Link<'_>, pair: Group, now_ms: i64) -> Sql<Authorized> {
    if application(link, pair.key).await?.is_none() {
        return Ok(Authorized::UnknownApplication);
    }
    lock_counters(link, [pair.key].into_iter()).await?;
    // What was read before the lock may be old by now.
    let statement = "SELECT CAST(p.athlete_capacity AS SIGNED), c.athletes,
            (SELECT count(*) FROM connections o
             WHERE o.application_id = ? AND o.athlete_id = ? AND o.live > 0),
            (SELECT count(*) FROM athletes t WHERE t.id = ? AND t.is_deleted),
            (SELECT count(*) FROM unlimited u WHERE u.application_id = p.id)
        FROM applications p JOIN connected c ON c.application_id = p.id WHERE p.id = ?";
    let values = [
        Value::Int(pair.key),
        Value::Int(pair.member),
        Value::Int(pair.member),
        Value::Int(pair.key),
    ];
    let found: Option<(i64, i64, i64, i64, i64)> = link.row(statement, &values).await?;
    let Some((capacity, connected, already, deleted, unlimited)) = found else {
        return Ok(Authorized::UnknownApplication);
    };
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
    // By chance, so that whoever makes up ids elsewhere will hardly meet it. If it is in use after
    // all, the insert fails and all of it is tried again with another.
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    let id = (random % (1 << ID_BITS)).max(1).cast_signed();
    let authorization = Authorization {
        id,
        application_id: pair.key,
        athlete_id: pair.member,
        created_at_us: now_ms.saturating_mul(US_PER_MS),
        revoked_at_us: None,
        version: 0,
    };
    insert_authorization(link, &authorization).await?;
    let notification = tell_of(link, pair, now_ms).await?;
    Ok(Authorized::New { id, notification })
}

/// Disconnects an athlete; call it within a transaction that writes.
pub(crate) async fn revoke(link: &mut Link<'_>, pair: Group, now_ms: i64) -> Sql<Revoked> {
    if application(link, pair.key).await?.is_none() {
        return Ok(Revoked::UnknownApplication);
    }
    lock_counters(link, [pair.key].into_iter()).await?;
    let statement = "UPDATE authorizations SET revoked_at_us = ?
                     WHERE application_id = ? AND athlete_id = ? AND revoked_at_us IS NULL";
    let values = [
        Value::Int(now_ms.saturating_mul(US_PER_MS)),
        Value::Int(pair.key),
        Value::Int(pair.member),
    ];
    if link.run(statement, &values).await? == 0 {
        return Ok(Revoked::Done(None));
    }
    let notification = tell_of(link, pair, now_ms).await?;
    Ok(Revoked::Done(Some(notification)))
}

async fn tell_of(link: &mut Link<'_>, pair: Group, now_ms: i64) -> Sql<Notification> {
    let touched = Touched {
        authorizations: vec![pair],
        ..Touched::default()
    };
    let (told, _) = tell(link, touched, now_ms).await?;
    told.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}
