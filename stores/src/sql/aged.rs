//! Letting go of old records: statements that every database understands.

use super::admin::bounded;
use super::connection::{Sql, SqlConnection, Value};
use crate::aged::Ageing;

/// What this is called in errors.
pub(crate) const COUNTING: &str = "counting old records";
/// What this is called in errors.
pub(crate) const FORGETTING: &str = "letting go of old records";

/// The table, the column of the moment that makes a record old, and which of them nobody needs.
const fn place(of: Ageing) -> (&'static str, &'static str, &'static str) {
    match of {
        Ageing::Audit => ("application_audit", "at_ms", "1 = 1"),
        Ageing::CapacityRequests => (
            "capacity_requests",
            "COALESCE(decided_at_ms, asked_at_ms)",
            "state <> 'open'",
        ),
        Ageing::CapacityNotices => (
            "capacity_notices",
            "made_at_ms",
            "done = 1 AND armed IS NULL",
        ),
    }
}

/// The statement that counts records: all, the oldest, and of old ones those that nobody needs and the others.
pub(crate) fn counting(of: Ageing) -> String {
    let (table, at, is_free) = place(of);
    format!(
        "SELECT count(*), min({at}),
            count(CASE WHEN {at} < ? AND {is_free} THEN 1 END),
            count(CASE WHEN {at} < ? AND NOT ({is_free}) THEN 1 END)
        FROM {table}"
    )
}

/// Call it within a transaction that writes.
pub(crate) async fn forget(
    connection: &mut SqlConnection<'_>,
    of: Ageing,
    before_ms: i64,
    limit: usize,
) -> Sql<u64> {
    let (table, at, is_free) = place(of);
    let statement =
        format!("SELECT id FROM {table} WHERE {at} < ? AND {is_free} ORDER BY id LIMIT ?");
    let values = [Value::Int(before_ms), Value::Int(bounded(limit))];
    let ids: Vec<i64> = connection.rows(&statement, &values).await?;
    if ids.is_empty() {
        return Ok(0);
    }
    let statement = format!("DELETE FROM {table} WHERE id IN ? AND {is_free}");
    connection.run(&statement, &[Value::Ints(&ids)]).await
}
