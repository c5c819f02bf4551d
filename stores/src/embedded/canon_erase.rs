//! Taking an athlete out of the tables of `canon.db`.

use schemas::entities::Group;
use schemas::source::Source;
use sqlx::SqliteConnection;

use super::canon_outbox::{Touched, tell};
use super::canon_statement::Embedded;
use crate::canon::RowsOf;
use crate::canon_sql::erase::{self, Place};

type Sql<T> = Result<T, sqlx::Error>;

const SEGMENTS: Place = Place::segments("athlete_segments");
const NEW_SEGMENTS: Place = Place::segments("new_athlete_segments");

/// The tables of which rows may name an athlete, in the order in which they are emptied.
const OF_ATHLETES: [Place; 8] = [
    erase::AUTHORIZATIONS,
    erase::EFFORTS,
    SEGMENTS,
    NEW_SEGMENTS,
    erase::CLUBS,
    erase::FOLLOWS,
    erase::ATHLETES,
    erase::CONNECTIONS,
];

/// How many rows of each table name an athlete.
pub(super) async fn rows_of(
    connection: &mut SqliteConnection,
    athlete_id: i64,
) -> Sql<Vec<RowsOf>> {
    let link = &mut Embedded(connection);
    let mut found = Vec::new();
    for place in OF_ATHLETES.into_iter().chain([erase::OUTBOX]) {
        found.push(erase::count(link, place, athlete_id, false).await?);
    }
    Ok(found)
}

/// Rows of the first table that has any, at most `limit`.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    athlete_id: i64,
    limit: usize,
) -> Sql<Option<(Place, Vec<(i64, i64)>)>> {
    let link = &mut Embedded(connection);
    for place in OF_ATHLETES {
        let rows = erase::find(link, place, athlete_id, limit).await?;
        if !rows.is_empty() {
            return Ok(Some((place, rows)));
        }
    }
    Ok(None)
}

/// Deletes rows that were found, and tells of their groups if a moment is given. Call it within a transaction that
/// writes.
pub(super) async fn erase(
    connection: &mut SqliteConnection,
    (place, athlete_id): (Place, i64),
    rows: &[(i64, i64)],
    told_at_ms: Option<i64>,
) -> Sql<()> {
    erase::delete(&mut Embedded(connection), place, athlete_id, rows).await?;
    let Some(now_ms) = told_at_ms else {
        return Ok(());
    };
    let groups = || {
        let keys = erase::keys(rows).into_iter();
        let member = athlete_id;
        keys.map(|key| Group { key, member }).collect()
    };
    let mut touched = Touched::default();
    match place {
        erase::AUTHORIZATIONS => touched.authorizations = groups(),
        erase::EFFORTS => touched.efforts = groups(),
        _ => return Ok(()),
    }
    tell(connection, touched, now_ms).await.map(drop)
}

/// Deletes the rows of some groups.
pub(super) async fn erase_groups(
    connection: &mut SqliteConnection,
    source: Source,
    groups: &[Group],
) -> Sql<()> {
    let place = match source {
        Source::Authorizations => erase::AUTHORIZATIONS,
        _ => erase::EFFORTS,
    };
    for group in groups {
        let link = &mut Embedded(connection);
        let rows = erase::of_group(link, place, group.member, group.key).await?;
        erase::delete(link, place, group.member, &rows).await?;
    }
    Ok(())
}
