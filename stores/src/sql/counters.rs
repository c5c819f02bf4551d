//! Compares the counters of connected athletes with the authorizations, and repairs them.
//!
//! Triggers maintain the counters (`connect`). Foreign-key cascades and TRUNCATE on MySQL, and rows
//! copied with triggers disabled, fire no trigger and leave the counters wrong. So `check`
//! compares, and `migrate` recounts where they differ.

use super::connect::lock_counters;
use super::connection::{Sql, SqlConnection, Value};

/// Finds applications whose counters differ from their authorizations, at most `limit`.
pub(crate) async fn find_differing(
    connection: &mut SqlConnection<'_>,
    limit: i64,
) -> Sql<Vec<i64>> {
    // One statement sees one state, in which triggers have updated both.
    let statement = "SELECT application_id FROM (
            SELECT application_id FROM (
                SELECT application_id, athlete_id, count(*) AS difference FROM authorizations
                WHERE revoked_at_us IS NULL GROUP BY application_id, athlete_id
                UNION ALL SELECT application_id, athlete_id, -live FROM connections) AS pairs
            GROUP BY application_id, athlete_id HAVING sum(difference) <> 0
            UNION
            SELECT c.application_id FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
            WHERE c.is_away <> (t.is_deleted IS TRUE)
                AND NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.source IN ('athletes', 'connections') AND o.member = c.athlete_id)
                AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.source = 'authorizations'
                    AND o.group_key = c.application_id AND o.member = c.athlete_id)
            UNION
            SELECT application_id FROM (
                SELECT application_id, count(*) AS difference FROM connections
                WHERE live > 0 AND NOT is_away GROUP BY application_id
                UNION ALL SELECT application_id, -athletes FROM connected) AS applications
            GROUP BY application_id HAVING sum(difference) <> 0) AS differing
        ORDER BY application_id LIMIT ?";
    connection.fetch_all(statement, &[Value::Int(limit)]).await
}

/// Recounts the athletes of an application. Call it within a write transaction.
///
/// A concurrent change of authorizations locks the counter before its commit. So either it commits
/// before the counter is locked here, or it is invisible here and changes the counter afterwards.
pub(crate) async fn recount(connection: &mut SqlConnection<'_>, application: i64) -> Sql<()> {
    lock_counters(connection, std::iter::once(application)).await?;
    let id = Value::Int(application);
    // MySQL's triggers count the pairs that are inserted again. Without the reset the counter would
    // be too high, and notices would be written.
    let statement = "UPDATE connected SET athletes = 0 WHERE application_id = ?";
    connection.execute(statement, &[id]).await?;
    connection
        .execute("DELETE FROM connections WHERE application_id = ?", &[id])
        .await?;
    let statement = "INSERT INTO connections (application_id, athlete_id, live, is_away)
        SELECT application_id, athlete_id, live, (t.is_deleted IS TRUE) FROM (
            SELECT application_id, athlete_id, count(*) AS live FROM authorizations
            WHERE application_id = ? AND revoked_at_us IS NULL
            GROUP BY application_id, athlete_id) AS pairs
        LEFT JOIN athletes t ON t.id = pairs.athlete_id";
    connection.execute(statement, &[id]).await?;
    let statement = "UPDATE connected SET athletes = (SELECT count(*) FROM connections c
            WHERE c.application_id = ? AND c.live > 0 AND NOT c.is_away)
        WHERE application_id = ?";
    connection.execute(statement, &[id, id]).await?;
    Ok(())
}
