//! Applies rows of all kinds within one transaction.
//!
//! Rows that can be rejected, or whose change touches groups, are read first. `decide` compares
//! them with the new ones. Then new rows are inserted and known rows updated. For the other kinds,
//! the database compares the versions.
//!
//! On a server, the stored rows are locked in the order of their ids. A concurrent insert of the
//! same id fails the whole call, which is then retried. Locks have one order: counters of
//! applications, buckets of athletes, efforts, athletes, authorizations, the rest; further counters
//! only if they are free (`deleted_athletes`). The server aborts one of two transactions that still
//! deadlock, and that call is retried. In a file, writers exclude each other.

use std::collections::HashMap;

use schemas::entities::{
    Application, Athlete, Authorization, Effort, Entity, Follow, Group, Membership,
};

use super::admin;
use super::connect::lock_counters;
use super::connection::{Dialect, IDS_PER_STATEMENT, Sql, SqlConnection, Value, sort_unique};
use super::decide::{ChangedAthletes, KnownRow, RowsToWrite, Versioned, VisibleAthlete};
use super::decode::GroupedSource;
use super::deleted_athletes;
use super::outbox::{TouchedGroups, enqueue_notifications, lock_athletes};
use super::rows::{Conflict, TableRows};
use super::sqlite;
use super::write::write;
use crate::entities::ApplyOutcome;

/// Rows grouped by kind, in their order. Kinds whose rows may be rejected include each row's index.
#[derive(Debug, Default)]
struct RowsByKind<'a> {
    efforts: Vec<(usize, &'a Effort)>,
    athletes: Vec<(usize, &'a Athlete)>,
    memberships: Vec<&'a Membership>,
    follows: Vec<&'a Follow>,
    authorizations: Vec<(usize, &'a Authorization)>,
    applications: Vec<&'a Application>,
}

impl<'a> RowsByKind<'a> {
    /// Groups rows. Rejects rows that the server cannot store.
    fn new(
        connection: &SqlConnection<'_>,
        rows: &'a [Entity],
        rejected: &mut Vec<(usize, String)>,
    ) -> Self {
        let mut kinds = Self::default();
        for (index, row) in rows.iter().enumerate() {
            if let Some(reason) = find_unstorable(connection, row) {
                rejected.push((index, reason));
                continue;
            }
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

/// Why a row cannot be stored: PostgreSQL does not support U+0000 in text.
fn find_unstorable(connection: &SqlConnection<'_>, row: &Entity) -> Option<String> {
    if connection.dialect() != Dialect::Postgres {
        return None;
    }
    let has_null = |text: &str| text.contains('\0');
    let contains_null = |text: &Option<String>| text.as_deref().is_some_and(has_null);
    let field = match row {
        Entity::Effort(row) => has_null(&row.tz).then_some("tz"),
        Entity::Athlete(row) if contains_null(&row.name) => Some("name"),
        Entity::Athlete(row) => contains_null(&row.country).then_some("country"),
        Entity::Application(row) => has_null(&row.name).then_some("name"),
        // The owner is JSON, which escapes U+0000.
        Entity::Membership(_) | Entity::Follow(_) | Entity::Authorization(_) => None,
    }?;
    Some(format!(
        "{field}: contains U+0000, which PostgreSQL cannot store; remove it"
    ))
}

/// Applies rows. Call it within a write transaction.
pub(crate) async fn apply(
    connection: &mut SqlConnection<'_>,
    rows: &[Entity],
    actor: &str,
    now_ms: i64,
) -> Sql<ApplyOutcome> {
    let mut rejected = Vec::new();
    let kinds = RowsByKind::new(connection, rows, &mut rejected);
    let applications = newest_rows(&kinds.applications, |row| (row.id, 0), |row| row.version);
    let connecting = kinds.authorizations.iter();
    let connecting = connecting.map(|(_, row)| row.application_id);
    // Also locks counters of unchanged applications, because another transaction may be changing
    // the capacity or connecting an athlete.
    let changing = applications.iter().map(|row| row.id);
    lock_counters(connection, connecting.chain(changing)).await?;
    let changed = kinds.athletes.iter().map(|(_, row)| row.id);
    let with_efforts = kinds.efforts.iter().map(|(_, row)| row.athlete_id);
    // Locks once, because upgrading shared locks to exclusive ones would deadlock.
    if kinds.athletes.is_empty() {
        lock_athletes(connection, with_efforts, false).await?;
    } else {
        lock_athletes(connection, changed.chain(with_efforts), true).await?;
    }
    let mut touched = TouchedGroups {
        efforts: write_efforts(connection, &kinds.efforts, &mut rejected).await?,
        ..TouchedGroups::default()
    };
    let athletes = write_athletes(connection, &kinds.athletes).await?;
    touched.athletes = athletes.visible;
    // Authorizations are written after their athletes, so their counters see which athletes are
    // deleted.
    let changed_pairs = deleted_athletes::update_written_athletes(
        connection,
        &athletes.deleted_or_restored,
        now_ms,
    )
    .await?;
    let pairs = kinds.authorizations.iter();
    let pairs = pairs.filter_map(|(_, row)| row.group());
    deleted_athletes::create_deleted_pairs(connection, pairs).await?;
    let changed = write_authorizations(connection, &kinds.authorizations, &mut rejected).await?;
    touched.authorizations = sort_unique(changed.into_iter().chain(changed_pairs));
    let id = |row: &Membership| (row.club_id, row.athlete_id);
    let memberships = newest_rows(&kinds.memberships, id, |row| row.version);
    let memberships = TableRows::memberships(&memberships);
    write(connection, &memberships, Conflict::Newer).await?;
    let id = |row: &Follow| (row.follower_id, row.followed_id);
    let follows = newest_rows(&kinds.follows, id, |row| row.version);
    write(connection, &TableRows::follows(&follows), Conflict::Newer).await?;
    write_applications(connection, &applications, actor, now_ms).await?;
    let (notifications, more_pending) = enqueue_notifications(connection, touched, now_ms).await?;
    rejected.sort_unstable();
    Ok(ApplyOutcome {
        erased: 0,
        accepted: (rows.len() - rejected.len()) as u64,
        rejected,
        notifications,
        more_pending,
    })
}

/// Writes applications whose counters are locked. Adds audit records of changed owners and
/// capacities, and notices of reached thresholds.
async fn write_applications(
    connection: &mut SqlConnection<'_>,
    rows: &[&Application],
    actor: &str,
    now_ms: i64,
) -> Sql<()> {
    for rows in rows.chunks(IDS_PER_STATEMENT) {
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let before = admin::fetch_stored_applications(connection, &ids).await?;
        write(connection, &TableRows::applications(rows), Conflict::Newer).await?;
        admin::record_changes(connection, &before, actor, now_ms).await?;
        let new_ids = admin::find_new_ids(&before, rows);
        admin::write_notices_of_new(connection, &new_ids, now_ms).await?;
    }
    Ok(())
}

/// Returns one row for each id, in the order of ids: the last one with the newest version.
fn newest_rows<'a, T>(
    rows: &[&'a T],
    id: impl Fn(&T) -> (i64, i64),
    version: impl Fn(&T) -> i64,
) -> Vec<&'a T> {
    let mut rows = rows.to_vec();
    // The sort is stable, so rows with equal ids and versions remain in their order.
    rows.sort_by_key(|row| (id(row), version(row)));
    rows.reverse();
    rows.dedup_by_key(|row| id(row));
    rows.reverse();
    rows
}

/// Writes rows, and returns their groups.
async fn write_rows<T: Versioned>(
    connection: &mut SqlConnection<'_>,
    to_write: &mut RowsToWrite<'_, T>,
    columns: impl Fn(&[&T]) -> TableRows,
) -> Sql<Vec<Group>> {
    if connection.has_exclusive_writes() {
        // Sorted by group, so that adjacent entries of the index of groups are written together.
        to_write
            .rows
            .sort_unstable_by_key(|row| (row.group(), row.id()));
    } else {
        to_write.rows.sort_unstable_by_key(|row| row.id());
    }
    let (new, known): (Vec<&T>, Vec<&T>) =
        (to_write.rows.iter()).partition(|row| to_write.is_new(row));
    write(connection, &columns(&new), Conflict::Fail).await?;
    write(connection, &columns(&known), Conflict::Newer).await?;
    Ok(to_write.groups(|_| true))
}

/// Writes efforts, and returns the touched groups.
async fn write_efforts(
    connection: &mut SqlConnection<'_>,
    rows: &[(usize, &Effort)],
    rejected: &mut Vec<(usize, String)>,
) -> Sql<Vec<Group>> {
    let stored = lock_stored_rows(connection, GroupedSource::Efforts, rows).await?;
    let mut to_write = RowsToWrite::new(rows, stored, rejected);
    let touched = write_rows(connection, &mut to_write, TableRows::efforts).await?;
    if let Some(connection) = connection.as_sqlite() {
        let new = to_write.groups(|row| to_write.is_new(row));
        sqlite::add_segments(connection, &new).await?;
    }
    Ok(touched)
}

/// Writes authorizations, and returns the touched groups.
async fn write_authorizations(
    connection: &mut SqlConnection<'_>,
    rows: &[(usize, &Authorization)],
    rejected: &mut Vec<(usize, String)>,
) -> Sql<Vec<Group>> {
    let stored = lock_stored_rows(connection, GroupedSource::Authorizations, rows).await?;
    let mut to_write = RowsToWrite::new(rows, stored, rejected);
    write_rows(connection, &mut to_write, TableRows::authorizations).await
}

/// Writes athletes, and returns which changed.
async fn write_athletes(
    connection: &mut SqlConnection<'_>,
    rows: &[(usize, &Athlete)],
) -> Sql<ChangedAthletes> {
    type Stored = (i64, i64, Option<String>, Option<i64>, Option<f64>, bool);
    let statement = "SELECT id, version, gender, birth_year, weight_kg, is_deleted FROM athletes
                     WHERE id IN ? ORDER BY id FOR UPDATE";
    // An app may disqualify an athlete without a row.
    let disqualified = "SELECT athlete_id FROM disqualified WHERE athlete_id IN ?
                        ORDER BY athlete_id FOR UPDATE";
    let mut known = HashMap::with_capacity(rows.len());
    let mut before = HashMap::with_capacity(rows.len());
    for ids in collect_ids(rows).chunks(IDS_PER_STATEMENT) {
        let stored: Vec<Stored> = connection.fetch_all(statement, &[Value::Ints(ids)]).await?;
        for (id, version, gender, birth_year, weight_kg, is_deleted) in stored {
            known.insert(id, KnownRow::stored(None, version));
            let row = VisibleAthlete {
                gender,
                birth_year,
                weight_kg,
                is_deleted,
                is_disqualified: false,
            };
            before.insert(id, row);
        }
        let stored: Vec<i64> = connection
            .fetch_all(disqualified, &[Value::Ints(ids)])
            .await?;
        for id in stored {
            let row: &mut VisibleAthlete = before.entry(id).or_default();
            row.is_disqualified = true;
        }
    }
    let mut to_write = RowsToWrite::new(rows, known, &mut Vec::new());
    write_rows(connection, &mut to_write, TableRows::athletes).await?;
    update_disqualified(connection, &to_write.rows, &before).await?;
    Ok(ChangedAthletes::new(&to_write.rows, before))
}

/// Updates the table of disqualified athletes from the rows of athletes.
async fn update_disqualified(
    connection: &mut SqlConnection<'_>,
    rows: &[&Athlete],
    known: &HashMap<i64, VisibleAthlete>,
) -> Sql<()> {
    let was_disqualified =
        |row: &Athlete| (known.get(&row.id)).is_some_and(|known| known.is_disqualified);
    let rows = rows.iter().copied();
    let changed = rows.filter(|row| row.is_disqualified != was_disqualified(row));
    let (added, removed): (Vec<&Athlete>, Vec<&Athlete>) =
        changed.partition(|row| row.is_disqualified);
    write(connection, &TableRows::disqualified(&added), Conflict::Fail).await?;
    let removed: Vec<i64> = removed.iter().map(|row| row.id).collect();
    for ids in removed.chunks(IDS_PER_STATEMENT) {
        let statement = "DELETE FROM disqualified WHERE athlete_id IN ?";
        connection.execute(statement, &[Value::Ints(ids)]).await?;
    }
    Ok(())
}

fn collect_ids<T: Versioned>(rows: &[(usize, &T)]) -> Vec<i64> {
    sort_unique(rows.iter().map(|(_, row)| row.id()))
}

async fn lock_stored_rows<T: Versioned>(
    connection: &mut SqlConnection<'_>,
    source: GroupedSource,
    rows: &[(usize, &T)],
) -> Sql<HashMap<i64, KnownRow>> {
    let statement = format!(
        "SELECT id, {key}, athlete_id, version FROM {table} WHERE id IN ? ORDER BY id FOR UPDATE",
        key = source.key_column(),
        table = source.table(),
    );
    let mut known = HashMap::with_capacity(rows.len());
    for ids in collect_ids(rows).chunks(IDS_PER_STATEMENT) {
        let stored: Vec<(i64, i64, i64, i64)> = connection
            .fetch_all(&statement, &[Value::Ints(ids)])
            .await?;
        for (id, key, member, version) in stored {
            let group = Some(Group { key, member });
            known.insert(id, KnownRow::stored(group, version));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_returns_the_last_row_of_the_newest_version() {
        let row = |id: i64, version: i64, is_deleted: bool| Membership {
            club_id: id,
            athlete_id: 1,
            is_deleted,
            version,
        };
        let rows = [
            row(2, 1, false),
            row(1, 5, false),
            row(1, 5, true),
            row(1, 4, false),
            row(2, 0, true),
        ];
        let all: Vec<&Membership> = rows.iter().collect();
        let newest = newest_rows(&all, |row| (row.club_id, row.athlete_id), |row| row.version);
        assert_eq!(newest, [&rows[2], &rows[0]]);
    }
}
