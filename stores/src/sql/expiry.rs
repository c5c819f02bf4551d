//! Statements that count and delete expired records.

use super::connection::{Sql, SqlConnection, Value, to_sql_limit};
use crate::expiry::ExpiringRecords;

pub(crate) const COUNTING: &str = "counting expired records";
pub(crate) const DELETING: &str = "deleting expired records";

/// The table, the column of the time from which records age, and the condition on records that may
/// be deleted.
const fn choose_table(kind: ExpiringRecords) -> (&'static str, &'static str, &'static str) {
    match kind {
        ExpiringRecords::Audit => ("application_audit", "at_ms", "1 = 1"),
        ExpiringRecords::CapacityRequests => (
            "capacity_requests",
            "COALESCE(decided_at_ms, asked_at_ms)",
            "state <> 'open'",
        ),
        ExpiringRecords::CapacityNotices => (
            "capacity_notices",
            "made_at_ms",
            "done = 1 AND armed IS NULL",
        ),
    }
}

/// Builds the statement that returns the number of records, the oldest time, and the numbers of old
/// records that may and that may not be deleted.
pub(crate) fn build_count_statement(kind: ExpiringRecords) -> String {
    let (table, time_column, is_deletable) = choose_table(kind);
    format!(
        "SELECT count(*), min({time_column}),
            count(CASE WHEN {time_column} < ? AND {is_deletable} THEN 1 END),
            count(CASE WHEN {time_column} < ? AND NOT ({is_deletable}) THEN 1 END)
        FROM {table}"
    )
}

/// Deletes old records, at most `limit`. Call it within a write transaction.
pub(crate) async fn delete(
    connection: &mut SqlConnection<'_>,
    kind: ExpiringRecords,
    before_ms: i64,
    limit: usize,
) -> Sql<u64> {
    let (table, time_column, is_deletable) = choose_table(kind);
    let statement = format!(
        "SELECT id FROM {table} WHERE {time_column} < ? AND {is_deletable}
         ORDER BY id LIMIT ?"
    );
    let values = [Value::Int(before_ms), Value::Int(to_sql_limit(limit))];
    let ids: Vec<i64> = connection.fetch_all(&statement, &values).await?;
    if ids.is_empty() {
        return Ok(0);
    }
    let statement = format!("DELETE FROM {table} WHERE id IN ? AND {is_deletable}");
    connection.execute(&statement, &[Value::Ints(&ids)]).await
}
