//! Whether the counters of connected athletes are what the authorizations give, and counting anew.
//!
//! Triggers keep the counters (`connect`). What fires none leaves them wrong for ever: a foreign key's
//! cascade and TRUNCATE on MySQL, rows that were copied in with triggers switched off. So `check`
//! compares, and `migrate` counts where it differs.

use super::connect::lock_counters;
use super::connection::{Sql, SqlConnection, Value};

/// The applications whose counters differ from their authorizations, some of them at most.
pub(crate) async fn differing(connection: &mut SqlConnection<'_>, limit: i64) -> Sql<Vec<i64>> {
    // One statement sees one state, in which triggers keep both alike.
    let statement = "SELECT application_id FROM (
            SELECT application_id FROM (
                SELECT application_id, athlete_id, count(*) AS more FROM authorizations
                WHERE revoked_at_us IS NULL GROUP BY application_id, athlete_id
                UNION ALL SELECT application_id, athlete_id, -live FROM connections) AS pairs
            GROUP BY application_id, athlete_id HAVING sum(more) <> 0
            UNION
            SELECT c.application_id FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
            WHERE c.is_away <> (t.is_deleted IS TRUE)
                AND NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.source IN ('athletes', 'connections') AND o.member = c.athlete_id)
                AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.source = 'authorizations'
                    AND o.group_key = c.application_id AND o.member = c.athlete_id)
            UNION
            SELECT application_id FROM (
                SELECT application_id, count(*) AS more FROM connections
                WHERE live > 0 AND NOT is_away GROUP BY application_id
                UNION ALL SELECT application_id, -athletes FROM connected) AS applications
            GROUP BY application_id HAVING sum(more) <> 0) AS differing
        ORDER BY application_id LIMIT ?";
    connection.rows(statement, &[Value::Int(limit)]).await
}

/// Counts the athletes of an application anew; call it within a transaction that writes.
///
/// Whoever changes authorizations waits for the counter after the change and before the commit: such a
/// change is not seen here and counted then, or is committed before the counter is held here.
pub(crate) async fn recount(connection: &mut SqlConnection<'_>, application: i64) -> Sql<()> {
    lock_counters(connection, std::iter::once(application)).await?;
    let id = Value::Int(application);
    // MySQL's triggers count the pairs that are put back, on top of what is there: more than there are would be
    // noted as reached.
    let statement = "UPDATE connected SET athletes = 0 WHERE application_id = ?";
    connection.run(statement, &[id]).await?;
    connection
        .run("DELETE FROM connections WHERE application_id = ?", &[id])
        .await?;
    let statement = "INSERT INTO connections (application_id, athlete_id, live, is_away)
        SELECT application_id, athlete_id, live, (t.is_deleted IS TRUE) FROM (
            SELECT application_id, athlete_id, count(*) AS live FROM authorizations
            WHERE application_id = ? AND revoked_at_us IS NULL
            GROUP BY application_id, athlete_id) AS pairs
        LEFT JOIN athletes t ON t.id = pairs.athlete_id";
    connection.run(statement, &[id]).await?;
    let statement = "UPDATE connected SET athletes = (SELECT count(*) FROM connections c
            WHERE c.application_id = ? AND c.live > 0 AND NOT c.is_away)
        WHERE application_id = ?";
    connection.run(statement, &[id, id]).await?;
    Ok(())
}
