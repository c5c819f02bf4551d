//! Applying rows of all kinds within one transaction.
//!
//! Rows that can be rejected, or whose change touches groups, are read first; `decide` compares them with the new ones; then new
//! rows are inserted and known rows updated. For the other kinds the database compares the versions.
//!
//! On a server, the stored rows are locked in the order of their ids, and a concurrent insert of the same id makes the whole call
//! fail and repeat. Locks have one order: counters of applications, buckets of athletes, efforts, athletes, authorizations, the
//! rest; further counters only where they are free (`away`). The server ends one of two transactions that still deadlock, and that
//! call is repeated. In a file, writers exclude each other.

use std::collections::HashMap;

use schemas::entities::{
    Application, Athlete, Authorization, Effort, Entity, Follow, Group, Membership,
};

use super::admin;
use super::away;
use super::connect::lock_counters;
use super::connection::{Dialect, Sql, SqlConnection, Value, ascending};
use super::decide::{ChangedAthletes, Decided, Known, Seen, Versioned};
use super::decode::Grouped;
use super::outbox::{AT_ONCE, Touched, lock_athletes, tell};
use super::rows::{Conflict, Rows, write};
use super::sqlite;
use crate::canon::Applied;

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
    /// Sorts rows; those that the server can't store are rejected at once.
    fn of(
        connection: &SqlConnection<'_>,
        rows: &'a [Entity],
        rejected: &mut Vec<(usize, String)>,
    ) -> Self {
        let mut kinds = Self::default();
        for (index, row) in rows.iter().enumerate() {
            if let Some(why) = unstorable(connection, row) {
                rejected.push((index, why));
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

/// Why a row can't be stored. PostgreSQL knows no text with the sign U+0000.
fn unstorable(connection: &SqlConnection<'_>, row: &Entity) -> Option<String> {
    if connection.dialect() != Dialect::Postgres {
        return None;
    }
    let has_null = |text: &str| text.contains('\0');
    let is_odd = |text: &Option<String>| text.as_deref().is_some_and(has_null);
    let field = match row {
        Entity::Effort(row) => has_null(&row.tz).then_some("tz"),
        Entity::Athlete(row) if is_odd(&row.name) => Some("name"),
        Entity::Athlete(row) => is_odd(&row.country).then_some("country"),
        Entity::Application(row) => has_null(&row.name).then_some("name"),
        // The owner is JSON, which writes the sign in letters.
        Entity::Membership(_) | Entity::Follow(_) | Entity::Authorization(_) => None,
    }?;
    Some(format!(
        "{field}: holds U+0000, which PostgreSQL can't store; leave it out"
    ))
}

/// Applies rows; call it within a transaction that writes.
pub(crate) async fn apply(
    connection: &mut SqlConnection<'_>,
    rows: &[Entity],
    actor: &str,
    now_ms: i64,
) -> Sql<Applied> {
    let mut rejected = Vec::new();
    let kinds = ByKind::of(connection, rows, &mut rejected);
    let applications = newest(&kinds.applications, |row| (row.id, 0), |row| row.version);
    let connecting = kinds.authorizations.iter();
    let connecting = connecting.map(|(_, row)| row.application_id);
    // Also of lines that seem to change nothing: somebody else may be changing a capacity, or connecting an athlete to
    // an application that is new.
    let changing = applications.iter().map(|row| row.id);
    lock_counters(connection, connecting.chain(changing)).await?;
    let changed = kinds.athletes.iter().map(|(_, row)| row.id);
    let with_efforts = kinds.efforts.iter().map(|(_, row)| row.athlete_id);
    // One lock after the other, and never a shared one that is to become another's obstacle.
    if kinds.athletes.is_empty() {
        lock_athletes(connection, with_efforts, false).await?;
    } else {
        lock_athletes(connection, changed.chain(with_efforts), true).await?;
    }
    let mut touched = Touched {
        efforts: efforts(connection, &kinds.efforts, &mut rejected).await?,
        ..Touched::default()
    };
    let athletes = athletes(connection, &kinds.athletes).await?;
    touched.athletes = athletes.seen;
    // Authorizations come after their athletes, and so count as these are then.
    let moved = away::moved(connection, &athletes.come_or_gone, now_ms).await?;
    let pairs = kinds.authorizations.iter();
    away::expect(connection, pairs.filter_map(|(_, row)| row.group())).await?;
    let changed = authorizations(connection, &kinds.authorizations, &mut rejected).await?;
    touched.authorizations = ascending(changed.into_iter().chain(moved));
    let id = |row: &Membership| (row.club_id, row.athlete_id);
    let memberships = newest(&kinds.memberships, id, |row| row.version);
    let memberships = Rows::memberships(&memberships);
    write(connection, &memberships, Conflict::Newer).await?;
    let id = |row: &Follow| (row.follower_id, row.followed_id);
    let follows = newest(&kinds.follows, id, |row| row.version);
    write(connection, &Rows::follows(&follows), Conflict::Newer).await?;
    write_applications(connection, &applications, actor, now_ms).await?;
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

/// Writes applications whose counters are held, and records which owners and capacities `actor` changes and what is
/// reached of them.
async fn write_applications(
    connection: &mut SqlConnection<'_>,
    rows: &[&Application],
    actor: &str,
    now_ms: i64,
) -> Sql<()> {
    for rows in rows.chunks(AT_ONCE) {
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let before = admin::stored(connection, &ids).await?;
        write(connection, &Rows::applications(rows), Conflict::Newer).await?;
        admin::record_lines(connection, &before, actor, now_ms).await?;
        admin::note_new(connection, &admin::new(&before, rows), now_ms).await?;
    }
    Ok(())
}

/// Of the rows with one id what they come to in their order: the last one among those with the
/// newest version; in the order of ids.
fn newest<'a, T>(
    rows: &[&'a T],
    id: impl Fn(&T) -> (i64, i64),
    version: impl Fn(&T) -> i64,
) -> Vec<&'a T> {
    let mut rows = rows.to_vec();
    // Rows that are equal in both stay in their order.
    rows.sort_by_key(|row| (id(row), version(row)));
    rows.reverse();
    rows.dedup_by_key(|row| id(row));
    rows.reverse();
    rows
}

/// Writes what was decided; answers the groups that it touches.
async fn put<T: Versioned>(
    connection: &mut SqlConnection<'_>,
    decided: &mut Decided<'_, T>,
    columns: impl Fn(&[&T]) -> Rows,
) -> Sql<Vec<Group>> {
    if connection.has_exclusive_writes() {
        // Neighbors in the index of groups are written together.
        decided
            .kept
            .sort_unstable_by_key(|row| (row.group(), row.id()));
    } else {
        decided.kept.sort_unstable_by_key(|row| row.id());
    }
    let (new, known): (Vec<&T>, Vec<&T>) =
        (decided.kept.iter()).partition(|row| decided.is_new(row));
    write(connection, &columns(&new), Conflict::Fail).await?;
    write(connection, &columns(&known), Conflict::Newer).await?;
    Ok(decided.groups(|_| true))
}

/// Writes efforts; answers the groups that they touch.
async fn efforts(
    connection: &mut SqlConnection<'_>,
    rows: &[(usize, &Effort)],
    rejected: &mut Vec<(usize, String)>,
) -> Sql<Vec<Group>> {
    let stored = stored(connection, Grouped::Efforts, rows).await?;
    let mut decided = Decided::of(rows, stored, rejected);
    let touched = put(connection, &mut decided, Rows::efforts).await?;
    if let Some(connection) = connection.as_sqlite() {
        let new = decided.groups(|row| decided.is_new(row));
        sqlite::add_segments(connection, &new).await?;
    }
    Ok(touched)
}

/// Writes authorizations; answers the groups that they touch.
async fn authorizations(
    connection: &mut SqlConnection<'_>,
    rows: &[(usize, &Authorization)],
    rejected: &mut Vec<(usize, String)>,
) -> Sql<Vec<Group>> {
    let stored = stored(connection, Grouped::Authorizations, rows).await?;
    let mut decided = Decided::of(rows, stored, rejected);
    put(connection, &mut decided, Rows::authorizations).await
}

/// Writes athletes; answers what changed of them.
async fn athletes(
    connection: &mut SqlConnection<'_>,
    rows: &[(usize, &Athlete)],
) -> Sql<ChangedAthletes> {
    type Stored = (i64, i64, Option<String>, Option<i64>, Option<f64>, bool);
    let statement = "SELECT id, version, gender, birth_year, weight_kg, is_deleted FROM athletes
                     WHERE id IN ? ORDER BY id FOR UPDATE";
    // An app may disqualify an athlete of whom there is no row.
    let disqualified = "SELECT athlete_id FROM disqualified WHERE athlete_id IN ?
                        ORDER BY athlete_id FOR UPDATE";
    let mut known = HashMap::with_capacity(rows.len());
    let mut seen = HashMap::with_capacity(rows.len());
    for ids in ids(rows).chunks(AT_ONCE) {
        let stored: Vec<Stored> = connection.rows(statement, &[Value::Ints(ids)]).await?;
        for (id, version, gender, birth_year, weight_kg, is_deleted) in stored {
            known.insert(id, Known::stored(None, version));
            let row = Seen {
                gender,
                birth_year,
                weight_kg,
                is_deleted,
                is_disqualified: false,
            };
            seen.insert(id, row);
        }
        let stored: Vec<i64> = connection.rows(disqualified, &[Value::Ints(ids)]).await?;
        for id in stored {
            let row: &mut Seen = seen.entry(id).or_default();
            row.is_disqualified = true;
        }
    }
    let mut decided = Decided::of(rows, known, &mut Vec::new());
    put(connection, &mut decided, Rows::athletes).await?;
    disqualify(connection, &decided.kept, &seen).await?;
    Ok(ChangedAthletes::of(&decided.kept, seen))
}

/// Brings the list of the disqualified to what athletes' rows say.
async fn disqualify(
    connection: &mut SqlConnection<'_>,
    rows: &[&Athlete],
    seen: &HashMap<i64, Seen>,
) -> Sql<()> {
    let was = |row: &Athlete| seen.get(&row.id).is_some_and(|seen| seen.is_disqualified);
    let rows = rows.iter().copied();
    let changed = rows.filter(|row| row.is_disqualified != was(row));
    let (more, fewer): (Vec<&Athlete>, Vec<&Athlete>) =
        changed.partition(|row| row.is_disqualified);
    write(connection, &Rows::disqualified(&more), Conflict::Fail).await?;
    let fewer: Vec<i64> = fewer.iter().map(|row| row.id).collect();
    for ids in fewer.chunks(AT_ONCE) {
        let statement = "DELETE FROM disqualified WHERE athlete_id IN ?";
        connection.run(statement, &[Value::Ints(ids)]).await?;
    }
    Ok(())
}

fn ids<T: Versioned>(rows: &[(usize, &T)]) -> Vec<i64> {
    ascending(rows.iter().map(|(_, row)| row.id()))
}

async fn stored<T: Versioned>(
    connection: &mut SqlConnection<'_>,
    of: Grouped,
    rows: &[(usize, &T)],
) -> Sql<HashMap<i64, Known>> {
    let statement = format!(
        "SELECT id, {key}, athlete_id, version FROM {table} WHERE id IN ? ORDER BY id FOR UPDATE",
        key = of.key(),
        table = of.table(),
    );
    let mut known = HashMap::with_capacity(rows.len());
    for ids in ids(rows).chunks(AT_ONCE) {
        let stored: Vec<(i64, i64, i64, i64)> =
            connection.rows(&statement, &[Value::Ints(ids)]).await?;
        for (id, key, member, version) in stored {
            known.insert(id, Known::stored(Some(Group { key, member }), version));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_rows_with_one_id_the_last_of_the_newest_stays() {
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
        let kept = newest(&all, |row| (row.club_id, row.athlete_id), |row| row.version);
        assert_eq!(kept, [&rows[2], &rows[0]]);
    }
}
