//! Counting connected athletes anew, and recording it: statements that every database understands.

use std::collections::BTreeMap;

use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value};
use crate::recounts::{Countable, Recount, Recounted};

/// The athletes of some applications, whoever counts them: one row for each application that has any.
const COUNTED: &str = "SELECT CAST(a.application_id AS SIGNED), count(DISTINCT a.athlete_id)
    FROM authorizations a LEFT JOIN athletes t ON t.id = a.athlete_id
    WHERE a.revoked_at_us IS NULL AND NOT COALESCE(t.is_deleted, FALSE) AND a.application_id IN ?
    GROUP BY a.application_id";

/// What is known of applications, which are `p`.
pub(super) const COUNTABLES: &str = "SELECT CAST(p.id AS SIGNED) AS id,
        CAST(p.athlete_capacity AS SIGNED) AS athlete_capacity, r.connected, r.counted_at_ms
    FROM applications p LEFT JOIN recounts r ON r.application_id = p.id";

impl FromSqlRow for Countable {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let connected: Option<i64> = row.get("connected")?;
        let recounted = connected.zip(row.get("counted_at_ms")?);
        Ok(Self {
            application_id: row.get("id")?,
            athlete_capacity: row.get("athlete_capacity")?,
            recounted: recounted.map(|(connected, counted_at_ms)| Recounted {
                connected: connected.unsigned_abs(),
                counted_at_ms,
            }),
        })
    }
}

/// Draws a ticket for each of some applications, ascending and few enough for one statement; call it within a
/// transaction that writes, and count after its commit.
pub(crate) async fn tickets(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<Vec<(i64, i64)>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // One by one: so the rows are held in the order of the ids, as `record` holds them, in any database.
    for id in ids {
        let id = [Value::Int(*id)];
        let statement = "UPDATE recounts SET begun = begun + 1 WHERE application_id = ?";
        if connection.run(statement, &id).await? == 0 {
            // Somebody else may make one at the same moment: the loser tries again, and finds it.
            let statement = "INSERT INTO recounts (application_id, begun) VALUES (?, 1)";
            connection.run(statement, &id).await?;
        }
    }
    let statement = "SELECT application_id, begun FROM recounts WHERE application_id IN ?
                     ORDER BY application_id";
    connection.rows(statement, &[Value::Ints(ids)]).await
}

/// Counts applications for which tickets were drawn.
pub(crate) async fn recount(
    connection: &mut SqlConnection<'_>,
    tickets: &[(i64, i64)],
    now_ms: i64,
) -> Sql<Vec<Recount>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = tickets.iter().map(|(id, _)| *id).collect();
    let counted: Vec<(i64, i64)> = connection.rows(COUNTED, &[Value::Ints(&ids)]).await?;
    let counted: BTreeMap<i64, i64> = counted.into_iter().collect();
    let recount = |(application_id, ticket): &(i64, i64)| Recount {
        application_id: *application_id,
        ticket: *ticket,
        counted: Recounted {
            connected: counted
                .get(application_id)
                .map_or(0, |count| count.unsigned_abs()),
            counted_at_ms: now_ms,
        },
    };
    Ok(tickets.iter().map(recount).collect())
}

/// Records counts; call it within a transaction that writes.
pub(crate) async fn record(connection: &mut SqlConnection<'_>, recounts: &[Recount]) -> Sql<()> {
    for recount in recounts {
        let statement = "UPDATE recounts SET ticket = ?, connected = ?, counted_at_ms = ?
                         WHERE application_id = ? AND ticket < ?";
        let connected = i64::try_from(recount.counted.connected).unwrap_or(i64::MAX);
        let values = [
            recount.ticket,
            connected,
            recount.counted.counted_at_ms,
            recount.application_id,
            recount.ticket,
        ];
        connection.run(statement, &values.map(Value::Int)).await?;
    }
    Ok(())
}
