//! The record store. Records are changed only by lightweight transactions, and read serially, so a
//! read returns every change that was acknowledged before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::Value;

use super::session::Cql;
use crate::Result;
use crate::records::{Direction, Record, Records, RecordsRead, Scan};

/// Rows of the first request of a scan.
const FIRST_ROWS: usize = 100;
/// Most rows of a later request.
const ROWS_MAX: usize = 1_000;
/// Approximate bytes of values in a later request.
const BYTES: usize = 1 << 20;

/// Record store in a keyspace.
#[derive(Debug)]
pub struct CassandraRecords {
    cql: Arc<Cql>,
}

/// A stored row: name, version, value.
type Row = (String, Option<i64>, Option<String>);

impl CassandraRecords {
    pub(super) const fn new(cql: Arc<Cql>) -> Self {
        Self { cql }
    }

    fn decode_record(&self, operation: &str, row: Row) -> Result<Record> {
        let (name, version, value) = row;
        let value = serde_json::from_str(value.as_deref().unwrap_or_default());
        let value = value.map_err(|error| {
            self.cql
                .broken(operation, format!("record {name}: {error}"))
        })?;
        Ok(Record {
            name,
            version: version.unwrap_or_default().cast_unsigned(),
            value,
        })
    }
}

#[async_trait]
impl RecordsRead for CassandraRecords {
    async fn get(&self, scope: &str, name: &str) -> Result<Option<Record>> {
        let operation = "reading a record";
        let text = "SELECT name, version, value FROM records WHERE scope = ? AND name = ?";
        let row = self
            .cql
            .fetch_first_serial(operation, text, (scope, name))
            .await?;
        row.map(|row| self.decode_record(operation, row))
            .transpose()
    }

    async fn last_name(&self, scope: &str) -> Result<Option<String>> {
        let operation = "reading the last name of records";
        let text = "SELECT name FROM records WHERE scope = ? ORDER BY name DESC LIMIT 1";
        let row: Option<(String,)> = self
            .cql
            .fetch_first_serial(operation, text, (scope,))
            .await?;
        Ok(row.map(|(name,)| name))
    }

    async fn scan(&self, scope: &str, scan: Scan<'_>) -> Result<Vec<Record>> {
        let operation = "reading records";
        let text = match scan.direction {
            Direction::Ascending => {
                "SELECT name, version, value FROM records
                 WHERE scope = ? AND name > ? AND name < ? ORDER BY name ASC LIMIT ?"
            }
            Direction::Descending => {
                "SELECT name, version, value FROM records
                 WHERE scope = ? AND name > ? AND name < ? ORDER BY name DESC LIMIT ?"
            }
        };
        let statement = self.cql.prepare_serial(operation, text).await?;
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        while records.len() < scan.limit {
            let page_rows = match records.len() {
                0 => FIRST_ROWS,
                rows => (BYTES * rows / (bytes + 1)).clamp(1, ROWS_MAX),
            };
            let page_rows = page_rows.min(scan.limit - records.len());
            let (mut after, mut before) = scan.bounds();
            if let Some(last) = records.last() {
                match scan.direction {
                    Direction::Ascending => after = &last.name,
                    Direction::Descending => before = &last.name,
                }
            }
            let values = (scope, after, before, i32::try_from(page_rows).unwrap_or(1));
            let mut rows = Vec::new();
            let collect = |row: Row| {
                bytes += row.2.as_ref().map_or(0, String::len);
                rows.push(self.decode_record(operation, row)?);
                Ok(())
            };
            self.cql
                .for_each_row(operation, &statement, &values, collect)
                .await?;
            let is_last = rows.len() < page_rows;
            records.extend(rows);
            if is_last {
                break;
            }
        }
        Ok(records)
    }
}

#[async_trait]
impl Records for CassandraRecords {
    async fn compare_and_set(
        &self,
        scope: &str,
        name: &str,
        expected_version: Option<u64>,
        value: Option<&Value>,
    ) -> Result<bool> {
        let operation = "changing a record";
        // The columns of a missing row are null, and a row whose columns become null is deleted.
        let change = "UPDATE records SET version = ?, value = ?
                      WHERE scope = ? AND name = ? IF version = ?";
        let new_version = value.map(|_| expected_version.unwrap_or(0) + 1);
        let text = value.map(Value::to_string);
        let is_repeated = AtomicBool::new(false);
        self.cql
            .retry_policy()
            .retry_steps(operation, || async {
                if is_repeated.swap(true, Ordering::Relaxed) {
                    // The outcome of the previous attempt is unknown. This read decides it.
                    let current = self.get(scope, name).await?;
                    let current = current
                        .as_ref()
                        .map(|record| (record.version, &record.value));
                    if current == new_version.zip(value) {
                        return Ok(true);
                    }
                    if current.map(|(version, _)| version) != expected_version {
                        return Ok(false);
                    }
                }
                let versions = (
                    new_version.map(u64::cast_signed),
                    expected_version.map(u64::cast_signed),
                );
                let values = (versions.0, &text, scope, name, versions.1);
                self.cql
                    .compare_and_set(operation, change, values)
                    .await?
                    .into_applied()
            })
            .await
    }
}
