//! Statements for capacity notices: the connected athletes of an application reached a threshold,
//! a percentage of its capacity.
//!
//! If athletes connect, triggers on their counter write the notices in the same transaction. If a
//! capacity changes, this module writes them.

use std::collections::HashMap;

use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value, sort_unique, to_sql_limit};
use crate::notices::{ClaimedNotice, DeliveryOutcome, Notice, THRESHOLDS_PERCENT};

/// Resets the thresholds of an application after its capacity changed, and writes notices for those
/// already reached. The caller has locked the counter.
pub(crate) async fn reset_thresholds(
    connection: &mut SqlConnection<'_>,
    id: i64,
    now_ms: i64,
) -> Sql<()> {
    let id = Value::Int(id);
    let statement = "UPDATE capacity_notices SET armed = NULL
                     WHERE application_id = ? AND armed = 1";
    connection.execute(statement, &[id]).await?;
    let statement = "SELECT CAST(p.athlete_capacity AS SIGNED), CAST(c.athletes AS SIGNED)
        FROM applications p JOIN connected c ON c.application_id = p.id WHERE p.id = ?";
    let usages: Vec<(i64, i64)> = connection.fetch_all(statement, &[id]).await?;
    for (capacity, connected) in usages {
        let is_reached = |threshold: &i64| {
            let product = |a: i64, b: i64| i128::from(a) * i128::from(b);
            (capacity > 0 || *threshold == 100)
                && connected > 0
                && product(connected, 100) >= product(capacity, *threshold)
        };
        for threshold in THRESHOLDS_PERCENT.into_iter().filter(is_reached) {
            let statement = "INSERT INTO capacity_notices
                    (application_id, threshold, athlete_capacity, connected, made_at_ms)
                VALUES (?, ?, ?, ?, ?)";
            let values = [threshold, capacity, connected, now_ms].map(Value::Int);
            let values = [&[id][..], &values[..]].concat();
            connection.execute(statement, &values).await?;
        }
    }
    Ok(())
}

pub(super) const READING: &str = "reading notices of capacities";

/// Selects notices `n`.
pub(super) const SELECT_NOTICES: &str =
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
            created_at_ms: row.get("made_at_ms")?,
            topic_at_ms: row.get("topic_at_ms")?,
            webhook_at_ms: row.get("webhook_at_ms")?,
            failed_at_ms: row.get("failed_at_ms")?,
            tries: row.get("tries")?,
            last_error: row.get("last_error")?,
        })
    }
}

/// The application of a notice. `owner` is JSON, unless a view contains other text.
struct NoticeApplication {
    name: String,
    owner: String,
    is_enforced: bool,
}

/// Reads applications by their ids, which fit into one statement.
async fn fetch_applications(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<HashMap<i64, NoticeApplication>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let statement = "SELECT CAST(p.id AS SIGNED), p.name, p.owner,
            CAST(CASE WHEN u.application_id IS NULL THEN 1 ELSE 0 END AS SIGNED)
        FROM applications p LEFT JOIN unlimited u ON u.application_id = p.id WHERE p.id IN ?";
    let rows: Vec<(i64, String, String, i64)> =
        connection.fetch_all(statement, &[Value::Ints(ids)]).await?;
    let to_entry = |(id, name, owner, enforced)| {
        let is_enforced = enforced != 0;
        let application = NoticeApplication {
            name,
            owner,
            is_enforced,
        };
        (id, application)
    };
    Ok(rows.into_iter().map(to_entry).collect())
}

/// Claims due notices, the longest waiting first. Call it within a write transaction. Of two
/// concurrent claims of a notice, the later one changes no row and so does not return the notice.
pub(crate) async fn claim(
    connection: &mut SqlConnection<'_>,
    now_ms: i64,
    until_ms: i64,
    limit: usize,
) -> Sql<Vec<ClaimedNotice>> {
    let statement = format!(
        "{SELECT_NOTICES} WHERE n.done = 0 AND n.next_try_ms <= ? AND n.claimed_until_ms <= ?
         ORDER BY n.next_try_ms, n.id LIMIT ?"
    );
    let values = [
        Value::Int(now_ms),
        Value::Int(now_ms),
        Value::Int(to_sql_limit(limit)),
    ];
    let notices: Vec<Notice> = connection.fetch_all(&statement, &values).await?;
    let ids = sort_unique(notices.iter().map(|notice| notice.application_id));
    let applications = fetch_applications(connection, &ids).await?;
    let mut claimed = Vec::with_capacity(notices.len());
    for notice in notices {
        let id = Value::Int(notice.id);
        let statement = "UPDATE capacity_notices SET claimed_until_ms = ?
                         WHERE id = ? AND done = 0 AND claimed_until_ms <= ?";
        let values = [Value::Int(until_ms), id, Value::Int(now_ms)];
        if connection.execute(statement, &values).await? == 0 {
            continue;
        }
        let (name, owner, is_enforced) = match applications.get(&notice.application_id) {
            Some(application) => {
                // An app's view may contain text that is not JSON. It must not block other notices.
                let as_text = || serde_json::Value::String(application.owner.clone());
                let owner = serde_json::from_str(&application.owner).unwrap_or_else(|_| as_text());
                (application.name.clone(), owner, application.is_enforced)
            }
            None => (String::new(), serde_json::Value::Null, true),
        };
        claimed.push(ClaimedNotice {
            until_ms,
            notice,
            name,
            owner,
            is_enforced,
        });
    }
    Ok(claimed)
}

/// Records the outcome of delivering a notice, whose claim ends at `claimed_until_ms`. Call it
/// within a write transaction. Does nothing if another process has claimed the notice since.
pub(crate) async fn record_outcome(
    connection: &mut SqlConnection<'_>,
    id: i64,
    claimed_until_ms: i64,
    outcome: &DeliveryOutcome,
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
        Value::Int(claimed_until_ms),
    ];
    connection.execute(statement, &values).await?;
    Ok(())
}
