//! Notices of how much of a capacity is in use: statements that every database understands.
//!
//! They are made by triggers on the counters of connected athletes, so in the transaction that connects, and
//! here where a capacity changes.

use std::collections::HashMap;

use super::admin::bounded;
use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value, ascending};
use crate::notices::{Claimed, Notice, Outcome, THRESHOLDS};

/// After a capacity changed, while the counter is held: thresholds are noted anew, those that are reached
/// at once.
pub(crate) async fn arm(connection: &mut SqlConnection<'_>, id: i64, now_ms: i64) -> Sql<()> {
    let id = Value::Int(id);
    let statement = "UPDATE capacity_notices SET armed = NULL
                     WHERE application_id = ? AND armed = 1";
    connection.run(statement, &[id]).await?;
    let statement = "SELECT CAST(p.athlete_capacity AS SIGNED), CAST(c.athletes AS SIGNED)
        FROM applications p JOIN connected c ON c.application_id = p.id WHERE p.id = ?";
    let found: Vec<(i64, i64)> = connection.rows(statement, &[id]).await?;
    for (capacity, connected) in found {
        let is_reached = |threshold: &i64| {
            let product = |one: i64, other: i64| i128::from(one) * i128::from(other);
            (capacity > 0 || *threshold == 100)
                && connected > 0
                && product(connected, 100) >= product(capacity, *threshold)
        };
        for threshold in THRESHOLDS.into_iter().filter(is_reached) {
            let statement = "INSERT INTO capacity_notices
                    (application_id, threshold, athlete_capacity, connected, made_at_ms)
                VALUES (?, ?, ?, ?, ?)";
            let values = [threshold, capacity, connected, now_ms].map(Value::Int);
            let values = [&[id][..], &values[..]].concat();
            connection.run(statement, &values).await?;
        }
    }
    Ok(())
}

pub(super) const READING: &str = "reading notices of capacities";

/// Notices, as `n`.
pub(super) const NOTICES: &str =
    "SELECT n.id, n.application_id, n.threshold, n.athlete_capacity, n.connected,
        n.made_at_ms, n.topic_at_ms, n.webhook_at_ms, n.failed_at_ms, n.tries, n.last_error
    FROM capacity_notices n";

impl FromSqlRow for Notice {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        Ok(Self {
            id: row.get("id")?,
            application_id: row.get("application_id")?,
            threshold: row.get("threshold")?,
            athlete_capacity: row.get("athlete_capacity")?,
            connected: row.get("connected")?,
            made_at_ms: row.get("made_at_ms")?,
            topic_at_ms: row.get("topic_at_ms")?,
            webhook_at_ms: row.get("webhook_at_ms")?,
            failed_at_ms: row.get("failed_at_ms")?,
            tries: row.get("tries")?,
            last_error: row.get("last_error")?,
        })
    }
}

/// Name, owner and whether the capacity is enforced of those of some applications that are there; `ids` are few enough for
/// one statement.
async fn applications(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<HashMap<i64, (String, String, i64)>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let statement = "SELECT CAST(p.id AS SIGNED), p.name, p.owner,
            CAST(CASE WHEN u.application_id IS NULL THEN 1 ELSE 0 END AS SIGNED)
        FROM applications p LEFT JOIN unlimited u ON u.application_id = p.id WHERE p.id IN ?";
    let rows: Vec<(i64, String, String, i64)> =
        connection.rows(statement, &[Value::Ints(ids)]).await?;
    let shown = |(id, name, owner, enforced)| (id, (name, owner, enforced));
    Ok(rows.into_iter().map(shown).collect())
}

/// Claims notices that are to be delivered, those first that wait longest; call it within a transaction that writes. Two
/// who claim at once change one row after the other: the second one changes none.
pub(crate) async fn claim(
    connection: &mut SqlConnection<'_>,
    now_ms: i64,
    until_ms: i64,
    limit: usize,
) -> Sql<Vec<Claimed>> {
    let statement = format!(
        "{NOTICES} WHERE n.done = 0 AND n.next_try_ms <= ? AND n.claimed_until_ms <= ?
         ORDER BY n.next_try_ms, n.id LIMIT ?"
    );
    let values = [
        Value::Int(now_ms),
        Value::Int(now_ms),
        Value::Int(bounded(limit)),
    ];
    let notices: Vec<Notice> = connection.rows(&statement, &values).await?;
    let ids = ascending(notices.iter().map(|of| of.application_id));
    let applications = applications(connection, &ids).await?;
    let mut claimed = Vec::with_capacity(notices.len());
    for notice in notices {
        let id = Value::Int(notice.id);
        let statement = "UPDATE capacity_notices SET claimed_until_ms = ?
                         WHERE id = ? AND done = 0 AND claimed_until_ms <= ?";
        let values = [Value::Int(until_ms), id, Value::Int(now_ms)];
        if connection.run(statement, &values).await? == 0 {
            continue;
        }
        let (name, owner, is_enforced) = match applications.get(&notice.application_id) {
            Some((name, owner, enforced)) => {
                // A view may give any text; it holds up no other notice.
                let text = || serde_json::Value::String(owner.clone());
                let owner = serde_json::from_str(owner).unwrap_or_else(|_| text());
                (name.clone(), owner, *enforced != 0)
            }
            None => (String::new(), serde_json::Value::Null, true),
        };
        claimed.push(Claimed {
            until_ms,
            notice,
            name,
            owner,
            is_enforced,
        });
    }
    Ok(claimed)
}

/// Writes down what became of a notice that was claimed until then; call it within a transaction that writes. A claim
/// that somebody else has taken over by now is let be.
pub(crate) async fn settle(
    connection: &mut SqlConnection<'_>,
    (id, until_ms): (i64, i64),
    outcome: &Outcome,
) -> Sql<()> {
    let statement = "UPDATE capacity_notices SET topic_at_ms = ?, webhook_at_ms = ?,
            failed_at_ms = ?, tries = ?, last_error = ?, next_try_ms = ?, done = ?,
            claimed_until_ms = 0
        WHERE id = ? AND done = 0 AND claimed_until_ms = ?";
    let values = [
        Value::IntOrNull(outcome.topic_at_ms),
        Value::IntOrNull(outcome.webhook_at_ms),
        Value::IntOrNull(outcome.failed_at_ms),
        Value::Int(outcome.tries),
        Value::TextOrNull(outcome.last_error.as_deref()),
        Value::Int(outcome.next_try_ms),
        Value::Int(i64::from(outcome.is_done)),
        Value::Int(id),
        Value::Int(until_ms),
    ];
    connection.run(statement, &values).await?;
    Ok(())
}
