//! Statements that recount connected athletes and record the counts.

use std::collections::BTreeMap;

use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value};
use crate::recounts::{CountedApplication, RecordedCount, Recount};

/// Counts the athletes of applications from the authorizations. Applications without athletes have
/// no row.
const COUNT_ATHLETES: &str = "SELECT CAST(a.application_id AS SIGNED), count(DISTINCT a.athlete_id)
    FROM authorizations a LEFT JOIN athletes t ON t.id = a.athlete_id
    WHERE a.revoked_at_us IS NULL AND NOT COALESCE(t.is_deleted, FALSE) AND a.application_id IN ?
    GROUP BY a.application_id";

/// Selects applications `p` with their last recount.
pub(super) const SELECT_COUNTED_APPLICATIONS: &str = "SELECT CAST(p.id AS SIGNED) AS id,
        CAST(p.athlete_capacity AS SIGNED) AS athlete_capacity, r.connected, r.counted_at_ms
    FROM applications p LEFT JOIN recounts r ON r.application_id = p.id";

impl FromSqlRow for CountedApplication {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let connected: Option<i64> = row.get("connected")?;
        let recounted = connected.zip(row.get("counted_at_ms")?);
        Ok(Self {
            application_id: row.get("id")?,
            athlete_capacity: row.get("athlete_capacity")?,
            recorded: recounted.map(|(connected, counted_at_ms)| RecordedCount {
                connected: connected.unsigned_abs(),
                counted_at_ms,
            }),
        })
    }
}

/// Draws a ticket for each application. `ids` are ascending and fit into one statement. Call it
/// within a write transaction, and count after the commit.
pub(crate) async fn draw_tickets(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<Vec<(i64, i64)>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // One by one, so that rows are locked in the order of the ids, like in `record`.
    for id in ids {
        let id = [Value::Int(*id)];
        let statement = "UPDATE recounts SET begun = begun + 1 WHERE application_id = ?";
        if connection.execute(statement, &id).await? == 0 {
            // If another process inserts the row concurrently, this call fails, is retried and
            // finds the row.
            let statement = "INSERT INTO recounts (application_id, begun) VALUES (?, 1)";
            connection.execute(statement, &id).await?;
        }
    }
    let statement = "SELECT application_id, begun FROM recounts WHERE application_id IN ?
                     ORDER BY application_id";
    connection.fetch_all(statement, &[Value::Ints(ids)]).await
}

/// Counts the athletes of applications with tickets.
pub(crate) async fn recount(
    connection: &mut SqlConnection<'_>,
    tickets: &[(i64, i64)],
    now_ms: i64,
) -> Sql<Vec<Recount>> {
    if tickets.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<i64> = tickets.iter().map(|(id, _)| *id).collect();
    let counted: Vec<(i64, i64)> = connection
        .fetch_all(COUNT_ATHLETES, &[Value::Ints(&ids)])
        .await?;
    let counted: BTreeMap<i64, i64> = counted.into_iter().collect();
    let recount = |(application_id, ticket): &(i64, i64)| Recount {
        application_id: *application_id,
        ticket: *ticket,
        counted: RecordedCount {
            connected: counted
                .get(application_id)
                .map_or(0, |count| count.unsigned_abs()),
            counted_at_ms: now_ms,
        },
    };
    Ok(tickets.iter().map(recount).collect())
}

/// Records counts, unless a count with a later ticket is recorded. Call it within a write
/// transaction.
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
        connection
            .execute(statement, &values.map(Value::Int))
            .await?;
    }
    Ok(())
}
