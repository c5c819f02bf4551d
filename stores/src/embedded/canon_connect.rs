//! Applications, and the athletes who connect to them.
//!
//! `connections` holds the pairs that have an authorization which is not revoked, `connected` how
//! many those are for each application whose athlete is not deleted. Triggers keep both.

use schemas::entities::{Application, Authorization, Group};
use sqlx::SqliteConnection;

use super::canon_apply::write_authorizations;
use super::canon_outbox::{Touched, tell};
use crate::canon::{Authorized, Notification, Revoked};

type Sql<T> = Result<T, sqlx::Error>;

const US_PER_MS: i64 = 1000;

/// Ids that are made up have so many bits: JSON readers hold such numbers exactly.
const ID_BITS: u32 = 53;

/// So many ids are tried; that even one is in use is next to impossible.
const ID_TRIES: u32 = 16;

const COLUMNS: &str = "id, name, owner, athlete_capacity, version";

type Row = (i64, String, String, i64, i64);

fn of((id, name, owner, athlete_capacity, version): Row) -> Sql<Application> {
    let owner = serde_json::from_str(&owner);
    Ok(Application {
        id,
        name,
        owner: owner.map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        athlete_capacity,
        version,
    })
}

pub(super) async fn application(
    connection: &mut SqliteConnection,
    id: i64,
) -> Sql<Option<Application>> {
    let text = format!("SELECT {COLUMNS} FROM applications WHERE id = ?");
    let row: Option<Row> = sqlx::query_as(sqlx::AssertSqlSafe(text))
        .bind(id)
        .fetch_optional(connection)
        .await?;
    row.map(of).transpose()
}

pub(super) async fn applications(
    connection: &mut SqliteConnection,
    after: Option<i64>,
    limit: usize,
) -> Sql<Vec<Application>> {
    let Some(from) = after.map_or(Some(i64::MIN), |after| after.checked_add(1)) else {
        return Ok(Vec::new());
    };
    let text = format!("SELECT {COLUMNS} FROM applications WHERE id >= ? ORDER BY id LIMIT ?");
    let rows: Vec<Row> = sqlx::query_as(sqlx::AssertSqlSafe(text))
        .bind(from)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    rows.into_iter().map(of).collect()
}

/// Connects an athlete; call it within a transaction that writes.
pub(super) async fn authorize(
    connection: &mut SqliteConnection,
    pair: Group,
    now_ms: i64,
) -> Sql<Authorized> {
    let Some(application) = application(connection, pair.key).await? else {
        return Ok(Authorized::UnknownApplication);
    };
    let is_deleted: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM athletes WHERE id = ? AND is_deleted)")
            .bind(pair.member)
            .fetch_one(&mut *connection)
            .await?;
    if is_deleted {
        return Ok(Authorized::AthleteDeleted);
    }
    let already: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM connections WHERE application_id = ? AND athlete_id = ?)",
    )
    .bind(pair.key)
    .bind(pair.member)
    .fetch_one(&mut *connection)
    .await?;
    if already {
        return Ok(Authorized::Already);
    }
    let connected: i64 = sqlx::query_scalar(
        "SELECT coalesce((SELECT athletes FROM connected WHERE application_id = ?), 0)",
    )
    .bind(pair.key)
    .fetch_one(&mut *connection)
    .await?;
    let capacity = application.athlete_capacity;
    if connected >= capacity && is_enforced(connection, pair.key).await? {
        return Ok(Authorized::Full {
            connected,
            capacity,
        });
    }
    let id = free_id(connection).await?;
    let authorization = Authorization {
        id,
        application_id: pair.key,
        athlete_id: pair.member,
        created_at_us: now_ms.saturating_mul(US_PER_MS),
        revoked_at_us: None,
        version: 0,
    };
    write_authorizations(connection, &[&authorization]).await?;
    let notification = tell_of(connection, pair, now_ms).await?;
    Ok(Authorized::New { id, notification })
}

async fn is_enforced(connection: &mut SqliteConnection, id: i64) -> Sql<bool> {
    sqlx::query_scalar("SELECT NOT EXISTS (SELECT 1 FROM unlimited WHERE application_id = ?)")
        .bind(id)
        .fetch_one(connection)
        .await
}

/// Disconnects an athlete; call it within a transaction that writes.
pub(super) async fn revoke(
    connection: &mut SqliteConnection,
    pair: Group,
    now_ms: i64,
) -> Sql<Revoked> {
    if application(connection, pair.key).await?.is_none() {
        return Ok(Revoked::UnknownApplication);
    }
    let done = sqlx::query(
        "UPDATE authorizations SET revoked_at_us = ?
         WHERE application_id = ? AND athlete_id = ? AND revoked_at_us IS NULL",
    )
    .bind(now_ms.saturating_mul(US_PER_MS))
    .bind(pair.key)
    .bind(pair.member)
    .execute(&mut *connection)
    .await?;
    if done.rows_affected() == 0 {
        return Ok(Revoked::Done(None));
    }
    let notification = tell_of(connection, pair, now_ms).await?;
    Ok(Revoked::Done(Some(notification)))
}

async fn tell_of(connection: &mut SqliteConnection, pair: Group, now_ms: i64) -> Sql<Notification> {
    let touched = Touched {
        authorizations: vec![pair],
        ..Touched::default()
    };
    let (told, _) = tell(connection, touched, now_ms).await?;
    told.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}

/// An id that no authorization has: positive, and by chance, so that whoever makes up ids elsewhere
/// will hardly meet it.
async fn free_id(connection: &mut SqliteConnection) -> Sql<i64> {
    for _ in 0..ID_TRIES {
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        let id = (random % (1 << ID_BITS)).cast_signed();
        let taken: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM authorizations WHERE id = ?)")
                .bind(id)
                .fetch_one(&mut *connection)
                .await?;
        if id > 0 && !taken {
            return Ok(id);
        }
    }
    Err(sqlx::Error::Protocol(
        "no free id was found for an authorization; try again".to_owned(),
    ))
}
