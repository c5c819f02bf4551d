//! Applying rows of all kinds within one transaction.
//!
//! What is stored is read for all rows of a kind at once, what becomes of each is decided
//! (`canon_sql::decide`), and what stays is written by statements of many rows. Kinds don't bind each
//! other: in which order they are written shows nowhere.

use std::collections::HashMap;
use std::sync::LazyLock;

use schemas::entities::{
    Application, Athlete, Authorization, Effort, Entity, Follow, Gender, Group, Membership,
};
use sqlx::{Arguments, SqliteConnection};

use super::canon_outbox::{Touched, keep_segments, tell};
use super::canon_statement::{Embedded, RowsOf, json};
use crate::canon::Applied;
use crate::canon_sql::admin;
use crate::canon_sql::decide::{ChangedAthletes, Decided, Known, Seen, Versioned};

type Sql<T> = Result<T, sqlx::Error>;

static EFFORTS: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "efforts",
        &[
            "id",
            "segment_id",
            "athlete_id",
            "activity_id",
            "elapsed_time_s",
            "started_at_us",
            "tz",
            "is_hidden",
            "is_deleted",
            "version",
        ],
        "ON CONFLICT DO UPDATE
         SET activity_id = excluded.activity_id, elapsed_time_s = excluded.elapsed_time_s,
             started_at_us = excluded.started_at_us, tz = excluded.tz,
             is_hidden = excluded.is_hidden, is_deleted = excluded.is_deleted,
             version = excluded.version",
    )
});

static AUTHORIZATIONS: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "authorizations",
        &[
            "id",
            "application_id",
            "athlete_id",
            "created_at_us",
            "revoked_at_us",
            "version",
        ],
        "ON CONFLICT DO UPDATE
         SET created_at_us = excluded.created_at_us, revoked_at_us = excluded.revoked_at_us,
             version = excluded.version",
    )
});

static ATHLETES: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "athletes",
        &[
            "id",
            "name",
            "gender",
            "birth_year",
            "weight_kg",
            "country",
            "is_disqualified",
            "is_deleted",
            "version",
        ],
        "ON CONFLICT DO UPDATE
         SET name = excluded.name, gender = excluded.gender, birth_year = excluded.birth_year,
             weight_kg = excluded.weight_kg, country = excluded.country,
             is_disqualified = excluded.is_disqualified,
             is_deleted = excluded.is_deleted, version = excluded.version",
    )
});

static CLUBS: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "clubs",
        &["club_id", "athlete_id", "is_deleted", "version"],
        "ON CONFLICT DO UPDATE SET is_deleted = excluded.is_deleted, version = excluded.version
         WHERE excluded.version >= version",
    )
});

static FOLLOWS: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "follows",
        &["follower_id", "followed_id", "is_deleted", "version"],
        "ON CONFLICT DO UPDATE SET is_deleted = excluded.is_deleted, version = excluded.version
         WHERE excluded.version >= version",
    )
});

static APPLICATIONS: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "applications",
        &["id", "name", "owner", "athlete_capacity", "version"],
        "ON CONFLICT DO UPDATE
         SET name = excluded.name, owner = excluded.owner,
             athlete_capacity = excluded.athlete_capacity, version = excluded.version
         WHERE excluded.version >= version",
    )
});

/// Rows by their kind, those of a kind in their order; where one may be rejected, with its index.
#[derive(Debug, Default)]
struct ByKind<'a> {
    efforts: Vec<(usize, &'a Effort)>,
    athletes: Vec<(usize, &'a Athlete)>,
    memberships: Vec<&'a Membership>,
    follows: Vec<&'a Follow>,
    authorizations: Vec<(usize, &'a Authorization)>,
    applications: Vec<&'a Application>,
}

impl<'a> ByKind<'a> {
    fn of(rows: &'a [Entity]) -> Self {
        let mut kinds = Self::default();
        for (index, row) in rows.iter().enumerate() {
            match row {
                Entity::Effort(row) => kinds.efforts.push((index, row)),
                Entity::Athlete(row) => kinds.athletes.push((index, row)),
                Entity::Membership(row) => kinds.memberships.push(row),
                Entity::Follow(row) => kinds.follows.push(row),
                Entity::Authorization(row) => kinds.authorizations.push((index, row)),
                Entity::Application(row) => kinds.applications.push(row),
            }
        }
        kinds
    }
}

/// Applies rows; call it within a transaction that writes.
pub(super) async fn apply(
    connection: &mut SqliteConnection,
    rows: &[Entity],
    actor: &str,
    now_ms: i64,
) -> Sql<Applied> {
    let kinds = ByKind::of(rows);
    let mut rejected = Vec::new();
    let athletes = athletes(connection, &kinds.athletes).await?;
    let mut touched = Touched {
        efforts: efforts(connection, &kinds.efforts, &mut rejected).await?,
        authorizations: authorizations(connection, &kinds.authorizations, &mut rejected).await?,
        athletes: athletes.seen,
    };
    if !athletes.come_or_gone.is_empty() {
        let moved = connections(connection, &athletes.come_or_gone).await?;
        touched.authorizations.extend(moved);
        touched.authorizations.sort_unstable();
        touched.authorizations.dedup();
    }
    CLUBS
        .run(connection, &kinds.memberships, |values, row| {
            values.add(row.club_id)?;
            values.add(row.athlete_id)?;
            values.add(row.is_deleted)?;
            values.add(row.version)
        })
        .await?;
    FOLLOWS
        .run(connection, &kinds.follows, |values, row| {
            values.add(row.follower_id)?;
            values.add(row.followed_id)?;
            values.add(row.is_deleted)?;
            values.add(row.version)
        })
        .await?;
    applications(connection, &kinds.applications, actor, now_ms).await?;
    let (notifications, more_pending) = tell(connection, touched, now_ms).await?;
    rejected.sort_unstable();
    Ok(Applied {
        erased: 0,
        accepted: (rows.len() - rejected.len()) as u64,
        rejected,
        notifications,
        more_pending,
    })
}

/// Writes applications, and records which owners and capacities `actor` changes.
async fn applications(
    connection: &mut SqliteConnection,
    rows: &[&Application],
    actor: &str,
    now_ms: i64,
) -> Sql<()> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let before = admin::stored(&mut Embedded(connection), &ids).await?;
    APPLICATIONS
        .run(connection, rows, |values, row| {
            values.add(row.id)?;
            values.add(&*row.name)?;
            values.add(row.owner.to_string())?;
            values.add(row.athlete_capacity)?;
            values.add(row.version)
        })
        .await?;
    let link = &mut Embedded(connection);
    admin::record_lines(link, &before, actor, now_ms).await?;
    admin::note_new(link, &admin::new(&before, rows), now_ms).await
}

/// Writes efforts; answers the groups that they touch.
async fn efforts(
    connection: &mut SqliteConnection,
    rows: &[(usize, &Effort)],
    rejected: &mut Vec<(usize, String)>,
) -> Sql<Vec<Group>> {
    let stored = stored(
        connection,
        "SELECT id, segment_id, athlete_id, version FROM efforts
         WHERE id IN (SELECT value FROM json_each(?))",
        rows,
    )
    .await?;
    let mut decided = Decided::of(rows, stored, rejected);
    // Neighbours in the index are written together.
    decided
        .kept
        .sort_unstable_by_key(|row| (row.group(), row.id));
    EFFORTS
        .run(connection, &decided.kept, |values, row| {
            values.add(row.id)?;
            values.add(row.segment_id)?;
            values.add(row.athlete_id)?;
            values.add(row.activity_id)?;
            values.add(row.elapsed_time_s)?;
            values.add(row.started_at_us)?;
            values.add(&*row.tz)?;
            values.add(row.is_hidden)?;
            values.add(row.is_deleted)?;
            values.add(row.version)
        })
        .await?;
    keep_segments(connection, &decided.groups(|row| decided.is_new(row))).await?;
    Ok(decided.groups(|_| true))
}

/// Writes authorizations; answers the groups that they touch.
async fn authorizations(
    connection: &mut SqliteConnection,
    rows: &[(usize, &Authorization)],
    rejected: &mut Vec<(usize, String)>,
) -> Sql<Vec<Group>> {
    let stored = stored(
        connection,
        "SELECT id, application_id, athlete_id, version FROM authorizations
         WHERE id IN (SELECT value FROM json_each(?))",
        rows,
    )
    .await?;
    let mut decided = Decided::of(rows, stored, rejected);
    decided
        .kept
        .sort_unstable_by_key(|row| (row.group(), row.id));
    write_authorizations(connection, &decided.kept).await?;
    Ok(decided.groups(|_| true))
}

pub(super) async fn write_authorizations(
    connection: &mut SqliteConnection,
    rows: &[&Authorization],
) -> Sql<()> {
    AUTHORIZATIONS
        .run(connection, rows, |values, row| {
            values.add(row.id)?;
            values.add(row.application_id)?;
            values.add(row.athlete_id)?;
            values.add(row.created_at_us)?;
            values.add(row.revoked_at_us)?;
            values.add(row.version)
        })
        .await
}

/// Writes athletes; answers what changed of them.
async fn athletes(
    connection: &mut SqliteConnection,
    rows: &[(usize, &Athlete)],
) -> Sql<ChangedAthletes> {
    if rows.is_empty() {
        return Ok(ChangedAthletes::default());
    }
    type Stored = (
        i64,
        i64,
        Option<String>,
        Option<i64>,
        Option<f64>,
        bool,
        bool,
    );
    let stored: Vec<Stored> = sqlx::query_as(
        "SELECT id, version, gender, birth_year, weight_kg, is_disqualified, is_deleted
         FROM athletes
         WHERE id IN (SELECT value FROM json_each(?))",
    )
    .bind(json(rows.iter().map(|(_, row)| row.id)))
    .fetch_all(&mut *connection)
    .await?;
    let mut known = HashMap::with_capacity(rows.len());
    let mut seen = HashMap::with_capacity(stored.len());
    for (id, version, gender, birth_year, weight_kg, is_disqualified, is_deleted) in stored {
        known.insert(id, Known::stored(None, version));
        let row = Seen {
            gender,
            birth_year,
            weight_kg,
            is_disqualified,
            is_deleted,
        };
        seen.insert(id, row);
    }
    let decided = Decided::of(rows, known, &mut Vec::new());
    ATHLETES
        .run(connection, &decided.kept, |values, row| {
            values.add(row.id)?;
            values.add(row.name.as_deref())?;
            values.add(row.gender.map(Gender::letter))?;
            values.add(row.birth_year)?;
            values.add(row.weight_kg)?;
            values.add(row.country.as_deref())?;
            values.add(row.is_disqualified)?;
            values.add(row.is_deleted)?;
            values.add(row.version)
        })
        .await?;
    Ok(ChangedAthletes::of(&decided.kept, seen))
}

/// What some athletes are connected to, or were while they were not deleted.
async fn connections(connection: &mut SqliteConnection, athletes: &[i64]) -> Sql<Vec<Group>> {
    let rows: Vec<(i64, i64)> = sqlx::query_as(
        "SELECT application_id, athlete_id FROM connections
         WHERE athlete_id IN (SELECT value FROM json_each(?))",
    )
    .bind(json(athletes.iter().copied()))
    .fetch_all(connection)
    .await?;
    let groups = rows.into_iter().map(|(key, member)| Group { key, member });
    Ok(groups.collect())
}

async fn stored<T: Versioned>(
    connection: &mut SqliteConnection,
    statement: &'static str,
    rows: &[(usize, &T)],
) -> Sql<HashMap<i64, Known>> {
    let mut known = HashMap::with_capacity(rows.len());
    if rows.is_empty() {
        return Ok(known);
    }
    let stored: Vec<(i64, i64, i64, i64)> = sqlx::query_as(statement)
        .bind(json(rows.iter().map(|(_, row)| row.id())))
        .fetch_all(connection)
        .await?;
    for (id, key, member, version) in stored {
        known.insert(id, Known::stored(Some(Group { key, member }), version));
    }
    Ok(known)
}
