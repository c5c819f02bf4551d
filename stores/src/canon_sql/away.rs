//! Athletes who are deleted are connected to nothing, until they come back.
//!
//! Each pair of `connections` says whether its athlete is deleted (`is_away`), and the counters leave such pairs
//! out. What a pair says comes from the athlete when the pair is made, and changes when the athlete does. (On MySQL a
//! pair that an app makes by its own SQL counts until it is told of.) The two can pass each other: neither sees what the other has not committed, and to hold athletes while others
//! connect would let one long transaction of an app keep everybody away. So both are looked at again *after* they
//! were committed, by what they left in the outbox: an athlete by the row that names the athlete, before it is
//! taken out; a pair by its notification, in the statement that takes that out. Whichever is later sees the other.

use schemas::entities::Group;
use schemas::source::Source;

use super::connect::lock_counters;
use super::outbox::{AT_ONCE, Touched, tell};
use super::session::{Link, Sql, Value};
use crate::postgres;

/// The source of rows of the outbox that name an athlete whose pairs are to be looked at again.
pub(crate) const SOURCE: &str = "connections";

/// Brings the pairs of some athletes to what is stored of these, and the counters with them; answers the pairs
/// that changed, ascending. Call it within a transaction that writes.
async fn move_away(link: &mut Link<'_>, athletes: &[i64]) -> Sql<Vec<Group>> {
    let mut moved = Vec::new();
    for athletes in athletes.chunks(AT_ONCE) {
        let rows: Vec<(i64, i64)> = if let Link::Postgres(link) = link {
            postgres::move_away(link, athletes).await?
        } else {
            turn(link, athletes).await?
        };
        moved.extend(rows.into_iter().map(|(key, member)| Group { key, member }));
    }
    moved.sort_unstable();
    Ok(moved)
}

/// As [`move_away`], statement by statement: triggers on the pairs move the counters.
async fn turn(link: &mut Link<'_>, athletes: &[i64]) -> Sql<Vec<(i64, i64)>> {
    let values = [Value::Ints(athletes)];
    let statement = "SELECT c.application_id, c.athlete_id, c.live, CAST(c.is_away AS SIGNED)
        FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
        WHERE c.athlete_id IN ? AND c.is_away <> COALESCE(t.is_deleted, FALSE)";
    let mut rows: Vec<(i64, i64, i64, i64)> = link.rows(statement, &values).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    lock_counters(link, rows.iter().map(|row| row.0)).await?;
    // Without a join: MySQL would hold the rows of the athletes for it.
    for was_away in [0, 1] {
        let turned = rows.iter().filter(|row| row.3 == was_away);
        let turned: Vec<i64> = turned.map(|row| row.1).collect();
        if !turned.is_empty() {
            let statement =
                "UPDATE connections SET is_away = ? WHERE athlete_id IN ? AND is_away = ?";
            let values = [
                Value::Int(1 - was_away),
                Value::Ints(&turned),
                Value::Int(was_away),
            ];
            link.run(statement, &values).await?;
        }
    }
    // Pairs that were parted stay there.
    rows.retain(|row| row.2 > 0);
    Ok(rows.into_iter().map(|row| (row.0, row.1)).collect())
}

/// Brings the pairs of athletes to what was just written of them: of those who were connected, and of those who are
/// deleted now or are not any more. Answers the pairs that changed.
pub(crate) async fn moved(
    link: &mut Link<'_>,
    connected: impl Iterator<Item = i64>,
    come_or_gone: &[i64],
    now_ms: i64,
) -> Sql<Vec<Group>> {
    let mut athletes = come_or_gone.to_vec();
    if let Link::MySql(_) = link {
        // PostgreSQL's triggers look who it is.
        athletes.extend(connected);
    }
    athletes.sort_unstable();
    athletes.dedup();
    let moved = move_away(link, &athletes).await?;
    look_again(link, come_or_gone, now_ms).await?;
    Ok(moved)
}

/// Leaves word that the pairs of some athletes are to be looked at again once this transaction is committed.
async fn look_again(link: &mut Link<'_>, athletes: &[i64], now_ms: i64) -> Sql<()> {
    for athletes in athletes.chunks(AT_ONCE) {
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{SOURCE}', 0, id, {now_ms} FROM athletes WHERE id IN ?"
        );
        link.run(&statement, &[Value::Ints(athletes)]).await?;
    }
    Ok(())
}

/// Looks again at the pairs of athletes who were named by the outbox, and tells of those that change. Of an app's
/// own authorizations nobody keeps pairs: then of all that these athletes have.
pub(crate) async fn settle(
    link: &mut Link<'_>,
    athletes: &[i64],
    of_view: bool,
    now_ms: i64,
) -> Sql<()> {
    let authorizations = if of_view {
        let statement = "SELECT DISTINCT CAST(application_id AS SIGNED), CAST(athlete_id AS SIGNED)
            FROM authorizations WHERE athlete_id IN ?";
        let mut groups = Vec::new();
        for athletes in athletes.chunks(AT_ONCE) {
            let rows: Vec<(i64, i64)> = link.rows(statement, &[Value::Ints(athletes)]).await?;
            groups.extend(rows.into_iter().map(|(key, member)| Group { key, member }));
        }
        groups
    } else {
        move_away(link, athletes).await?
    };
    let touched = Touched {
        authorizations,
        ..Touched::default()
    };
    tell(link, touched, now_ms).await.map(drop)
}

/// Of notifications that are about to leave the outbox the athletes of pairs that met a change of
/// theirs, each with when it was told of; `ids` are few enough for one statement. On PostgreSQL they
/// leave it in the same step.
pub(crate) async fn take_out(link: &mut Link<'_>, ids: &[i64]) -> Sql<Vec<(i64, i64)>> {
    let (values, source) = ([Value::Ints(ids)], Source::Authorizations);
    if let Link::Postgres(_) = link {
        // With these limits nothing but the index of each is looked at, whatever the planner takes
        // the number of rows for.
        let statement = format!(
            "WITH told AS (DELETE FROM outbox WHERE id IN ?
                 RETURNING source, group_key, member, made_at_ms)
             SELECT o.member, o.made_at_ms FROM told o
             CROSS JOIN LATERAL (SELECT p.is_away FROM connections p
                 WHERE p.application_id = o.group_key AND p.athlete_id = o.member LIMIT 1) c
             LEFT JOIN LATERAL (SELECT a.is_deleted FROM athletes a
                 WHERE a.id = o.member LIMIT 1) t ON true
             WHERE o.source = '{source}' AND c.is_away <> COALESCE(t.is_deleted, FALSE)"
        );
        return link.rows(&statement, &values).await;
    }
    let statement = format!(
        "SELECT o.member, o.made_at_ms FROM outbox o
         JOIN connections c ON c.application_id = o.group_key AND c.athlete_id = o.member
         LEFT JOIN athletes t ON t.id = o.member
         WHERE o.id IN ? AND o.source = '{source}'
             AND c.is_away <> COALESCE(t.is_deleted, FALSE)"
    );
    let differing = link.rows(&statement, &values).await?;
    link.run("DELETE FROM outbox WHERE id IN ?", &values)
        .await?;
    Ok(differing)
}
