//! Athletes who are deleted are connected to nothing, until they come back.
//!
//! Each pair of `connections` says whether its athlete is deleted (`is_away`), and the counters leave such pairs
//! out. What a pair says comes from the athlete when the pair is made, and changes when the athlete does. (On MySQL a
//! pair that an app makes by its own SQL counts until it is told of.) The two can pass each other: neither sees what
//! the other has not committed, and to hold athletes while others connect would let one long transaction of an app
//! keep everybody away. So both are looked at again *after* they were committed, by what they left in the outbox: an
//! athlete by the row that names the athlete, before it is taken out; a pair by its notification, in the statement
//! that takes that out. Whichever is later sees the other.
//!
//! Nobody waits for a counter here: pairs whose counter somebody holds stay as they are, and the row of the outbox
//! that names their athlete (source [`SOURCE`]) stays too, until they could be moved.

use schemas::entities::Group;
use schemas::source::Source;

use super::connection::{Dialect, Sql, SqlConnection, Value, ascending};
use super::outbox::{AT_ONCE, Touched, named, tell};
#[cfg(feature = "postgres")]
use super::postgres;
use super::rows::{Conflict, Rows, write};

/// The source of rows of the outbox that name an athlete whose pairs are to be looked at again.
pub(crate) const SOURCE: &str = "connections";

/// That a pair `c` is not what its athlete `t` says.
const DIFFERS: &str = "c.is_away <> (t.is_deleted IS TRUE)";

/// Brings the pairs of some athletes to what is stored of these, and the counters with them, where nobody else holds
/// those; answers the pairs that changed, ascending. Call it within a transaction that writes.
async fn move_away(connection: &mut SqlConnection<'_>, athletes: &[i64]) -> Sql<Vec<Group>> {
    let mut moved = Vec::new();
    for athletes in athletes.chunks(AT_ONCE) {
        let rows: Vec<(i64, i64)> = match connection {
            #[cfg(feature = "postgres")]
            SqlConnection::Postgres(connection) => {
                postgres::move_away(connection, athletes).await?
            }
            #[cfg(feature = "mysql")]
            SqlConnection::MySql(_) => turn(connection, athletes).await?,
            // Triggers moved them when the athlete was written.
            SqlConnection::Sqlite(_) => {
                let statement = "SELECT application_id, athlete_id FROM connections
                                 WHERE athlete_id IN ?";
                connection.rows(statement, &[Value::Ints(athletes)]).await?
            }
        };
        moved.extend(rows.into_iter().map(|(key, member)| Group { key, member }));
    }
    moved.sort_unstable();
    Ok(moved)
}

/// As [`move_away`], statement by statement: triggers on the pairs move the counters.
#[cfg(feature = "mysql")]
async fn turn(connection: &mut SqlConnection<'_>, athletes: &[i64]) -> Sql<Vec<(i64, i64)>> {
    let statement = format!(
        "SELECT c.application_id, c.athlete_id, c.live, CAST(c.is_away AS SIGNED)
         FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
         WHERE c.athlete_id IN ? AND {DIFFERS}"
    );
    let mut rows: Vec<(i64, i64, i64, i64)> = connection
        .rows(&statement, &[Value::Ints(athletes)])
        .await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let applications = ascending(rows.iter().map(|row| row.0));
    let mut held: Vec<i64> = Vec::with_capacity(applications.len());
    for ids in applications.chunks(AT_ONCE) {
        let statement = "SELECT application_id FROM connected WHERE application_id IN ?
                         ORDER BY application_id FOR UPDATE SKIP LOCKED";
        held.extend(
            connection
                .rows::<i64>(statement, &[Value::Ints(ids)])
                .await?,
        );
    }
    rows.retain(|row| held.binary_search(&row.0).is_ok());
    // Without a join: MySQL would hold the rows of the athletes for it.
    // By application and athlete: through the index of athletes it would come to rows that others hold.
    for application in held {
        for was_away in [0, 1] {
            let turned = rows.iter();
            let turned = turned.filter(|row| row.0 == application && row.3 == was_away);
            let turned: Vec<i64> = turned.map(|row| row.1).collect();
            if !turned.is_empty() {
                let statement = "UPDATE connections FORCE INDEX (PRIMARY) SET is_away = ?
                    WHERE application_id = ? AND athlete_id IN ?";
                let values = [
                    Value::Int(1 - was_away),
                    Value::Int(application),
                    Value::Ints(&turned),
                ];
                connection.run(statement, &values).await?;
            }
        }
    }
    // Pairs that were parted stay there.
    rows.retain(|row| row.2 > 0);
    Ok(rows.into_iter().map(|row| (row.0, row.1)).collect())
}

/// Brings the pairs of athletes who are deleted now, or are not any more, to what was just written of them; answers the
/// pairs that changed. All of them are looked at again once this transaction is committed.
pub(crate) async fn moved(
    connection: &mut SqlConnection<'_>,
    come_or_gone: &[i64],
    now_ms: i64,
) -> Sql<Vec<Group>> {
    let moved = move_away(connection, come_or_gone).await?;
    if connection.has_exclusive_writes() {
        return Ok(moved);
    }
    for athletes in come_or_gone.chunks(AT_ONCE) {
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{SOURCE}', 0, id, CAST(? AS SIGNED) FROM athletes WHERE id IN ?"
        );
        let values = [Value::Int(now_ms), Value::Ints(athletes)];
        connection.run(&statement, &values).await?;
    }
    Ok(moved)
}

/// Leaves word that the connections of an athlete are to be looked at again once this transaction is committed.
pub(crate) async fn look_again(
    connection: &mut SqlConnection<'_>,
    athlete_id: i64,
    now_ms: i64,
) -> Sql<()> {
    let statement =
        "INSERT INTO outbox (source, group_key, member, made_at_ms) VALUES (?, 0, ?, ?)";
    let values = [
        Value::Text(SOURCE),
        Value::Int(athlete_id),
        Value::Int(now_ms),
    ];
    connection.run(statement, &values).await.map(drop)
}

/// On MySQL, before authorizations are written: creates the pairs of deleted athletes, so that these are never counted.
/// Elsewhere triggers look up the athlete.
pub(crate) async fn expect(
    connection: &mut SqlConnection<'_>,
    pairs: impl Iterator<Item = Group>,
) -> Sql<()> {
    if connection.dialect() != Dialect::MySql {
        return Ok(());
    }
    let mut pairs = ascending(pairs);
    let athletes = ascending(pairs.iter().map(|pair| pair.member));
    let mut deleted: Vec<i64> = Vec::new();
    for ids in athletes.chunks(AT_ONCE) {
        let statement = "SELECT CAST(id AS SIGNED) FROM athletes
                         WHERE id IN ? AND is_deleted ORDER BY id";
        deleted.extend(
            connection
                .rows::<i64>(statement, &[Value::Ints(ids)])
                .await?,
        );
    }
    pairs.retain(|pair| deleted.binary_search(&pair.member).is_ok());
    write(connection, &Rows::deleted_pairs(&pairs), Conflict::Keep).await
}

/// Looks again at the pairs of athletes whom the outbox names, of the rows from one number up to another, and tells of
/// those that change; answers the number where to go on, if there may be more. `of_view` says that authorizations are
/// an app's own: nobody keeps pairs of them, and all that these athletes have is told of. Call it within a transaction
/// that writes.
pub(crate) async fn settle(
    connection: &mut SqlConnection<'_>,
    (from, newest): (i64, i64),
    of_view: bool,
) -> Sql<Option<i64>> {
    let found = named(connection, SOURCE, (from, newest)).await?;
    let Some(made_at_ms) = found.rows.iter().map(|row| row.2).min() else {
        return Ok(found.next);
    };
    let athletes = found.athletes();
    let authorizations = if of_view {
        let statement = "SELECT DISTINCT CAST(application_id AS SIGNED), CAST(athlete_id AS SIGNED)
            FROM authorizations WHERE athlete_id IN ?";
        let rows: Vec<(i64, i64)> = connection
            .rows(statement, &[Value::Ints(&athletes)])
            .await?;
        let groups = rows.into_iter().map(|(key, member)| Group { key, member });
        groups.collect()
    } else {
        move_away(connection, &athletes).await?
    };
    let touched = Touched {
        authorizations,
        ..Touched::default()
    };
    tell(connection, touched, made_at_ms).await?;
    let statement = format!(
        "SELECT DISTINCT c.athlete_id FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
         WHERE c.athlete_id IN ? AND {DIFFERS}"
    );
    let left: Vec<i64> = connection
        .rows(&statement, &[Value::Ints(&athletes)])
        .await?;
    let done = found.rows.iter().filter(|row| !left.contains(&row.1));
    let done: Vec<i64> = done.map(|row| row.0).collect();
    if !done.is_empty() {
        connection
            .run("DELETE FROM outbox WHERE id IN ?", &[Value::Ints(&done)])
            .await?;
    }
    Ok(found.next)
}

/// Removes notifications from the outbox; `ids` fit into one statement. The athletes of pairs that differ from them enter
/// the outbox instead.
pub(crate) async fn take_out(connection: &mut SqlConnection<'_>, ids: &[i64]) -> Sql<()> {
    let (values, source) = ([Value::Ints(ids)], Source::Authorizations);
    if connection.dialect() == Dialect::Postgres {
        // With these limits only the index of each table is read, whatever the planner takes the number of rows for.
        let statement = format!(
            "WITH told AS (DELETE FROM outbox WHERE id IN ?
                 RETURNING source, group_key, member, made_at_ms)
             INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{SOURCE}', 0, o.member, o.made_at_ms FROM told o
             CROSS JOIN LATERAL (SELECT p.is_away FROM connections p
                 WHERE p.application_id = o.group_key AND p.athlete_id = o.member LIMIT 1) c
             LEFT JOIN LATERAL (SELECT a.is_deleted FROM athletes a
                 WHERE a.id = o.member LIMIT 1) t ON true
             WHERE o.source = '{source}' AND {DIFFERS}"
        );
        return connection.run(&statement, &values).await.map(drop);
    }
    if connection.dialect() == Dialect::MySql {
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms)
             SELECT '{SOURCE}', 0, o.member, o.made_at_ms FROM outbox o
             JOIN connections c ON c.application_id = o.group_key AND c.athlete_id = o.member
             LEFT JOIN athletes t ON t.id = o.member
             WHERE o.id IN ? AND o.source = '{source}' AND {DIFFERS}"
        );
        connection.run(&statement, &values).await?;
    }
    let statement = "DELETE FROM outbox WHERE id IN ?";
    connection.run(statement, &values).await.map(drop)
}
