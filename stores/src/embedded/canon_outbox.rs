//! What is told after a change: which groups it touched, and the outbox in which that waits.

use std::sync::LazyLock;

use schemas::entities::Group;
use schemas::source::Source;
use sqlx::{Arguments, SqliteConnection};

use super::canon_statement::{RowsOf, json};
use crate::canon::{NOTIFICATIONS_MAX, Notification, Waiting};

type Sql<T> = Result<T, sqlx::Error>;

/// So many segments of athletes may wait in the heap before they are put in order.
const WAITING_MAX: i64 = 1 << 18;

static OUTBOX: LazyLock<RowsOf> = LazyLock::new(|| {
    RowsOf::insert(
        "outbox",
        &["id", "source", "key", "member", "made_at_ms"],
        "",
    )
});

static SEGMENTS: LazyLock<RowsOf> =
    LazyLock::new(|| RowsOf::insert("new_athlete_segments", &["athlete_id", "segment_id"], ""));

/// What a change touched. Groups are ascending, each once.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Groups of efforts.
    pub(super) efforts: Vec<Group>,
    /// Groups of authorizations.
    pub(super) authorizations: Vec<Group>,
    /// Athletes, all of whose groups of efforts are touched; ascending, each once.
    pub(super) athletes: Vec<i64>,
}

/// Puts what was touched into the outbox; answers what is to be told now, and whether more waits.
pub(super) async fn tell(
    connection: &mut SqliteConnection,
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
    let groups = (efforts.into_iter().map(|group| (Source::Efforts, group))).chain(
        authorizations
            .into_iter()
            .map(|group| (Source::Authorizations, group)),
    );
    let last: i64 = sqlx::query_scalar(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0)",
    )
    .fetch_one(&mut *connection)
    .await?;
    let mut told: Vec<Notification> = (last + 1..)
        .zip(groups)
        .map(|(id, (source, group))| Notification { id, source, group })
        .collect();
    OUTBOX
        .run(connection, &told, |values, told| {
            values.add(told.id)?;
            values.add(told.source.name())?;
            values.add(told.group.key)?;
            values.add(told.group.member)?;
            values.add(now_ms)
        })
        .await?;
    let last = told.last().map_or(last, |told| told.id);
    let mut more = told.len() > NOTIFICATIONS_MAX;
    told.truncate(NOTIFICATIONS_MAX);
    if !athletes.is_empty() {
        let made = tell_of_athletes(connection, &athletes, now_ms).await?;
        let room = NOTIFICATIONS_MAX - told.len();
        more |= made > room as u64;
        told.extend(after(connection, last, room).await?);
    }
    Ok((told, more))
}

/// Remembers that athletes have efforts on segments.
pub(super) async fn keep_segments(connection: &mut SqliteConnection, groups: &[Group]) -> Sql<()> {
    if groups.is_empty() {
        return Ok(());
    }
    SEGMENTS
        .run(connection, groups, |values, group| {
            values.add(group.member)?;
            values.add(group.key)
        })
        .await?;
    let waiting: Option<i64> = sqlx::query_scalar("SELECT max(id) FROM new_athlete_segments")
        .fetch_one(&mut *connection)
        .await?;
    if waiting.unwrap_or_default() >= WAITING_MAX {
        order_segments(connection).await?;
    }
    Ok(())
}

async fn order_segments(connection: &mut SqliteConnection) -> Sql<()> {
    sqlx::raw_sql(
        "INSERT INTO athlete_segments (athlete_id, segment_id)
         SELECT DISTINCT athlete_id, segment_id FROM new_athlete_segments
         WHERE true ORDER BY athlete_id, segment_id
         ON CONFLICT DO NOTHING;
         DELETE FROM new_athlete_segments;",
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Tells of all groups of some athletes; answers how many those are.
async fn tell_of_athletes(
    connection: &mut SqliteConnection,
    athletes: &[i64],
    now_ms: i64,
) -> Sql<u64> {
    order_segments(connection).await?;
    let done = sqlx::query(
        "INSERT INTO outbox (source, key, member, made_at_ms)
         SELECT ?, segment_id, athlete_id, ? FROM athlete_segments
         WHERE athlete_id IN (SELECT value FROM json_each(?)) ORDER BY athlete_id, segment_id",
    )
    .bind(Source::Efforts.name())
    .bind(now_ms)
    .bind(json(athletes.iter().copied()))
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

async fn after(connection: &mut SqliteConnection, id: i64, limit: usize) -> Sql<Vec<Notification>> {
    let rows = sqlx::query_as(
        "SELECT id, source, key, member FROM outbox WHERE id > ? ORDER BY id LIMIT ?",
    )
    .bind(id)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    notifications(rows)
}

/// What waits in the outbox for the log of a source.
pub(super) async fn waiting(connection: &mut SqliteConnection, source: Source) -> Sql<Waiting> {
    let (notifications, newest): (i64, Option<i64>) =
        sqlx::query_as("SELECT count(*), max(id) FROM outbox WHERE source = ?")
            .bind(source.name())
            .fetch_one(connection)
            .await?;
    Ok(Waiting {
        notifications: notifications.unsigned_abs(),
        newest: newest.unwrap_or_default(),
    })
}

/// What waits in the outbox for the log of a source up to a number, oldest first.
pub(super) async fn pending(
    connection: &mut SqliteConnection,
    source: Source,
    newest: i64,
    limit: usize,
) -> Sql<Vec<Notification>> {
    let rows = sqlx::query_as(
        "SELECT id, source, key, member FROM outbox WHERE source = ? AND id <= ?
         ORDER BY id LIMIT ?",
    )
    .bind(source.name())
    .bind(newest)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    notifications(rows)
}

/// Takes notifications out of the outbox.
pub(super) async fn notified(connection: &mut SqliteConnection, ids: &[i64]) -> Sql<()> {
    sqlx::query("DELETE FROM outbox WHERE id IN (SELECT value FROM json_each(?))")
        .bind(json(ids.iter().copied()))
        .execute(connection)
        .await?;
    Ok(())
}

fn notifications(rows: Vec<(i64, String, i64, i64)>) -> Sql<Vec<Notification>> {
    let notification = |(id, source, key, member): (i64, String, i64, i64)| {
        let source = source
            .parse()
            .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
        Ok(Notification {
            id,
            source,
            group: Group { key, member },
        })
    };
    rows.into_iter().map(notification).collect()
}
