//! Moves the rows of `erasures`, `reconciliations` and `reconciliation_notes` into `records`, as a step of `migrate`.
//!
//! It may be killed at any point and repeated: until it is done, no process of this version opens the keyspace.
//!
//! Processes of an earlier version may still run. Rows are copied first. Then the number of the newest erasure becomes -1:
//! those processes add an erasure only over the newest number that they have read, so they can add none any more. Rows
//! that changed meanwhile are copied again, and the tables are dropped. From then on those processes get errors and
//! ingest nothing.

use std::sync::Arc;

use scylla::deserialize::row::DeserializeRow;
use scylla::response::PagingState;
use serde_json::Value;

use super::records::CassandraRecords;
use super::session::{Cql, Outcome};
use crate::erasures::{Erasure, Key, records as erasures};
use crate::reconciliations;
use crate::records::{Records, number_name, update};
use crate::{Error, Result};

const DOING: &str = "moving rows to the record store";
/// The tables whose rows are moved. Erasures go first, so that processes of an earlier version stop.
const TABLES: [&str; 3] = ["erasures", "reconciliations", "reconciliation_notes"];
/// Rows that are read at once.
const PAGE_ROWS: i32 = 100;
/// In the place of the newest number: no erasure can be added.
const FENCED: i64 = -1;

/// A row of `erasures`: number, kind, person, begin, requester, reason, end, receipt.
type ErasureRow = (
    i64,
    Option<String>,
    Option<Vec<u8>>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<String>,
);
/// A row of `reconciliations`: source, number, id, time, record.
type ComparisonRow = (String, i64, Option<String>, Option<i64>, Option<String>);
/// A record to write: scope, name, value.
type NewRecord = (String, String, Value);

#[derive(Debug)]
struct Move<'a> {
    cql: &'a Cql,
    keyspace: &'a str,
    records: CassandraRecords,
}

/// Moves the rows, as far as they are not moved yet.
pub(super) async fn move_rows(cql: &Arc<Cql>, keyspace: &str) -> Result<()> {
    let this = Move {
        cql,
        keyspace,
        records: CassandraRecords::new(Arc::clone(cql)),
    };
    this.copy().await?;
    if this.has_table("erasures").await? {
        this.fence_erasures().await?;
        this.copy().await?;
        this.delete_leftovers().await?;
    }
    for table in TABLES {
        let drop = format!("DROP TABLE IF EXISTS {table}");
        cql.define(DOING, &drop).await?;
    }
    Ok(())
}

impl Move<'_> {
    async fn has_table(&self, table: &str) -> Result<bool> {
        let text = "SELECT table_name FROM system_schema.tables
                    WHERE keyspace_name = ? AND table_name = ?";
        let found = self.cql.read(DOING, text, (self.keyspace, table)).await?;
        Ok(found.rows_num() > 0)
    }

    /// Key and newest number of erasures.
    async fn erasures_head(&self) -> Result<(Option<Vec<u8>>, Option<i64>)> {
        let text = "SELECT secret, newest FROM erasures WHERE scope = 'all' LIMIT 1";
        let page = self.cql.read_serial(DOING, text, ()).await?;
        let row = page.maybe_first_row();
        let row = row.map_err(|error| self.cql.broken(DOING, error))?;
        Ok(row.unwrap_or_default())
    }

    async fn fence_erasures(&self) -> Result<()> {
        let text = "UPDATE erasures SET newest = ? WHERE scope = 'all' IF newest = ?";
        let patience = self.cql.patience();
        patience
            .repeated_steps(DOING, || async {
                let (_, newest) = self.erasures_head().await?;
                if newest == Some(FENCED) {
                    return Ok(());
                }
                match self.cql.agree(DOING, text, (FENCED, newest)).await? {
                    Outcome::Applied => Ok(()),
                    Outcome::NotApplied(_) => {
                        Err(patience.unavailable(DOING, "an erasure was added at the same time"))
                    }
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    /// Copies all rows that `records` has not, or has with another value.
    async fn copy(&self) -> Result<()> {
        if self.has_table("erasures").await? {
            // This read also decides transactions whose outcome is open, for the reads that follow.
            if let (Some(key), _) = self.erasures_head().await? {
                let key: Key = key
                    .try_into()
                    .map_err(|_| self.cql.broken(DOING, "the key of erasures is damaged"))?;
                self.put(erasures::key_to_record(key)?).await?;
            }
            let text = "SELECT number, kind, person, begun_at_ms, asked_by, reason, finished_at_ms, receipt
                        FROM erasures WHERE scope = 'all' AND number > 0";
            self.copy_rows(text, erasure).await?;
        }
        if self.has_table("reconciliations").await? {
            let text = "SELECT source, number, id, at_ms, record FROM reconciliations";
            self.copy_rows(text, comparison).await?;
        }
        if self.has_table("reconciliation_notes").await? {
            let text = "SELECT scope, name, value FROM reconciliation_notes";
            let note = |(scope, name, value): (String, String, Option<String>)| {
                Ok((scope, name, json(value)?))
            };
            self.copy_rows(text, note).await?;
        }
        Ok(())
    }

    async fn copy_rows<R>(
        &self,
        text: &str,
        to_record: impl Fn(R) -> Result<NewRecord> + Send + Sync,
    ) -> Result<()>
    where
        R: Send + for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
    {
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (rows, rest) = self.page::<R>(text, from).await?;
            next = rest;
            for row in rows {
                self.put(to_record(row)?).await?;
            }
        }
        Ok(())
    }

    async fn page<R>(&self, text: &str, from: PagingState) -> Result<(Vec<R>, Option<PagingState>)>
    where
        R: Send + for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>,
    {
        let mut statement = self.cql.prepare(DOING, text).await?;
        statement.set_page_size(PAGE_ROWS);
        let (page, next) = self.cql.page(DOING, &statement, &(), from).await?;
        let rows = page.rows::<R>();
        let rows = rows.map_err(|error| self.cql.broken(DOING, error))?;
        let rows = rows.map(|row| row.map_err(|error| self.cql.broken(DOING, error)));
        Ok((rows.collect::<Result<_>>()?, next))
    }

    async fn put(&self, (scope, name, value): NewRecord) -> Result<()> {
        update(&self.records, (&scope, &name), |_| Ok(Some(value.clone()))).await
    }

    /// Deletes records that an attempt that was killed has copied, and whose rows were deleted since. Erasures never are.
    async fn delete_leftovers(&self) -> Result<()> {
        let text = "SELECT scope, name, version FROM records";
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (rows, rest) = self
                .page::<(String, String, Option<i64>)>(text, from)
                .await?;
            next = rest;
            for (scope, name, version) in rows {
                if !self.has_row(&scope, &name).await? {
                    let version = version.map(i64::cast_unsigned);
                    self.records
                        .compare_and_set(&scope, &name, version, None)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// Whether a record has a row in the old tables.
    async fn has_row(&self, scope: &str, name: &str) -> Result<bool> {
        if scope.starts_with("erasure") {
            return Ok(true);
        }
        let found = match reconciliations::parse_key(scope, name) {
            Some((source, number)) => {
                let text = "SELECT number FROM reconciliations
                            WHERE source = ? AND part = ? AND number = ?";
                let values = (source, number / 1_000, number);
                self.cql.read_serial(DOING, text, values).await?
            }
            None => {
                let text = "SELECT name FROM reconciliation_notes WHERE scope = ? AND name = ?";
                self.cql.read_serial(DOING, text, (scope, name)).await?
            }
        };
        Ok(found.rows_num() > 0)
    }
}

fn json(text: Option<String>) -> Result<Value> {
    serde_json::from_str(&text.unwrap_or_default()).map_err(|error| Error::broken(DOING, error))
}

fn erasure(row: ErasureRow) -> Result<NewRecord> {
    let (number, kind, person, begun, by, reason, finished_at_ms, receipt) = row;
    let broken = || Error::broken(DOING, format!("cannot read erasure {number}"));
    let kind = serde_json::from_value(kind.into());
    erasures::to_record(&Erasure {
        number: number.cast_unsigned(),
        kind: kind.map_err(|_| broken())?,
        person: person
            .and_then(|person| person.try_into().ok())
            .ok_or_else(broken)?,
        begun_at_ms: begun.unwrap_or_default(),
        by: by.unwrap_or_default(),
        reason: reason.unwrap_or_default(),
        finished_at_ms,
        receipt: json(Some(receipt.unwrap_or_else(|| "null".to_owned())))?,
    })
}

fn comparison((source, number, id, at_ms, record): ComparisonRow) -> Result<NewRecord> {
    let number = number.cast_unsigned();
    let (id, at_ms) = (id.unwrap_or_default(), at_ms.unwrap_or_default());
    let value = reconciliations::value(&id, at_ms, &json(record)?);
    let scope = reconciliations::scope(&source, number);
    Ok((scope, number_name(number), value))
}
