//! Moves the rows of `erasures`, `reconciliations` and `reconciliation_notes` into `records`, as a
//! step of `migrate`.
//!
//! It may be killed at any point and repeated: until it is complete, no process of this version
//! opens the keyspace.
//!
//! Processes of an earlier version may still run. They add an erasure only if the newest number is
//! the one that they have read. So the move first sets this number to -1, which prevents new
//! erasures. It copies all rows and drops the table of erasures. From then on those processes get
//! errors and ingest nothing. Then it copies the changed other rows again, and drops their tables.

use std::sync::Arc;

use scylla::response::PagingState;
use scylla::statement::Consistency;
use serde_json::{Value, json};

use super::records::CassandraRecords;
use super::session::{CasOutcome, Cql};
use crate::erasures::records::{KEY, SCOPE as ERASURES, read_all as all_erasures};
use crate::reconciliations;
use crate::records::{Records, RecordsRead, format_number_name, update};
use crate::{Error, Result};

const OPERATION: &str = "moving rows to the record store";
/// The number of rows in a page.
const PAGE_ROWS: i32 = 100;
/// Replaces the newest number, so that no erasure can be added.
const FENCED: i64 = -1;

/// Record of the newest number before it was replaced. A repeated attempt finds only -1 in the
/// table.
const NEWEST_ERASURE: (&str, &str) = ("records move", "newest erasure");
/// Record that exists once all rows are copied. From then on, copies are not deleted.
const COPIED: (&str, &str) = ("records move", "copied");

/// A record to write: scope, name, value.
type NewRecord = (String, String, Value);
/// The name of a table, the statement that reads its rows as JSON, and the record of a row.
type OldTable = (&'static str, &'static str, fn(&Value) -> Result<NewRecord>);

/// In the order of dropping: without erasures, processes of an earlier version stop.
const TABLES: [OldTable; 3] = [
    (
        "erasures",
        "SELECT JSON number, kind, person, begun_at_ms, asked_by, reason, finished_at_ms, receipt
         FROM erasures WHERE scope = 'all' AND number > 0",
        to_erasure_record,
    ),
    (
        "reconciliations",
        "SELECT JSON source, number, id, at_ms, record FROM reconciliations",
        to_comparison_record,
    ),
    (
        "reconciliation_notes",
        "SELECT JSON scope, name, value FROM reconciliation_notes",
        |row| {
            Ok((
                read_text(row, "scope")?,
                read_text(row, "name")?,
                read_json(row, "value")?,
            ))
        },
    ),
];

struct RowMover<'a> {
    cql: &'a Cql,
    keyspace: &'a str,
    records: CassandraRecords,
}

/// Moves the rows that are not moved yet.
pub(super) async fn move_rows(cql: &Arc<Cql>, keyspace: &str) -> Result<()> {
    let this = RowMover {
        cql,
        keyspace,
        records: CassandraRecords::new(Arc::clone(cql)),
    };
    if !this.is_copied().await? {
        if this.has_table("erasures").await? {
            this.fence_erasures().await?;
            this.delete_copies().await?;
            this.copy().await?;
            this.expect_all_erasures().await?;
            this.drop_table("erasures").await?;
        }
        // Until now, a process of an earlier version may have changed other rows.
        this.delete_copies().await?;
        this.copy().await?;
        let (scope, name) = COPIED;
        let copied = (scope.to_owned(), name.to_owned(), json!(true));
        this.put(copied).await?;
    }
    for (table, ..) in TABLES {
        this.drop_table(table).await?;
    }
    Ok(())
}

impl RowMover<'_> {
    async fn has_table(&self, table: &str) -> Result<bool> {
        let text = "SELECT table_name FROM system_schema.tables
                    WHERE keyspace_name = ? AND table_name = ?";
        let rows = self
            .cql
            .read(OPERATION, text, (self.keyspace, table))
            .await?;
        Ok(rows.rows_num() > 0)
    }

    async fn is_copied(&self) -> Result<bool> {
        let (scope, name) = COPIED;
        Ok(self.records.get(scope, name).await?.is_some())
    }

    async fn drop_table(&self, table: &str) -> Result<()> {
        let drop = format!("DROP TABLE IF EXISTS {table}");
        self.cql.run_ddl(OPERATION, &drop).await
    }

    /// Fails if a number is missing, because a replica may lack rows.
    async fn expect_all_erasures(&self) -> Result<()> {
        let (scope, name) = NEWEST_ERASURE;
        let newest = self.records.get(scope, name).await?;
        let newest = newest.and_then(|record| record.value.as_u64()).unwrap_or(0);
        let erasures = all_erasures(&self.records).await?;
        if (1..=newest).eq(erasures.iter().map(|erasure| erasure.number)) {
            return Ok(());
        }
        let reason = format!(
            "the newest erasure has the number {newest}, but {} erasures were read; repair the nodes (`nodetool repair`), then run `backstitch migrate` again",
            erasures.len()
        );
        Err(self.cql.broken(OPERATION, reason))
    }

    /// Deletes earlier copies, because their rows may have been deleted. Erasures are never
    /// deleted.
    async fn delete_copies(&self) -> Result<()> {
        let select = "SELECT JSON scope, name, version FROM records";
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (rows, next_page) = self.read_page(select, from).await?;
            next = next_page;
            for row in rows {
                let (scope, name) = (read_text(&row, "scope")?, read_text(&row, "name")?);
                if ![ERASURES, KEY.0, NEWEST_ERASURE.0].contains(&scope.as_str()) {
                    let version = row["version"].as_u64();
                    let delete = self.records.compare_and_set(&scope, &name, version, None);
                    delete.await?;
                }
            }
        }
        Ok(())
    }

    /// Copies all rows that are missing in `records` or have another value.
    async fn copy(&self) -> Result<()> {
        for (table, select, to_record) in TABLES {
            let mut next = match self.has_table(table).await? {
                true => Some(PagingState::start()),
                false => None,
            };
            while let Some(from) = next {
                let (rows, next_page) = self.read_page(select, from).await?;
                next = next_page;
                for row in rows {
                    self.put(to_record(&row)?).await?;
                }
            }
        }
        Ok(())
    }

    /// Prevents processes of an earlier version from adding an erasure. Then copies the key, which
    /// they set before the first erasure.
    async fn fence_erasures(&self) -> Result<()> {
        let head = "SELECT JSON secret, newest FROM erasures WHERE scope = 'all' LIMIT 1";
        let fence = "UPDATE erasures SET newest = ? WHERE scope = 'all' IF newest = ?";
        let retry_policy = self.cql.retry_policy();
        let secret = retry_policy.retry_steps(OPERATION, || async {
            let row: Option<(String,)> = self.cql.fetch_first_serial(OPERATION, head, ()).await?;
            let head = row.map_or(Ok(Value::Null), |(row,)| parse_json(&row))?;
            let newest = head["newest"].as_i64();
            if newest == Some(FENCED) {
                return Ok(head["secret"].clone());
            }
            let (scope, name) = NEWEST_ERASURE;
            let newest_record = json!(newest.unwrap_or(0));
            self.put((scope.to_owned(), name.to_owned(), newest_record))
                .await?;
            // The key is read again in any case, because it may have been set before the fence.
            let reason = match self
                .cql
                .compare_and_set(OPERATION, fence, (FENCED, newest))
                .await?
            {
                CasOutcome::Applied => "a read must confirm that no more erasures can be added",
                CasOutcome::NotApplied(_) => "an erasure was added at the same time",
                CasOutcome::Unknown(error) => return Err(error),
            };
            Err(retry_policy.unavailable(OPERATION, reason))
        });
        let secret = secret.await?;
        if secret.is_null() {
            return Ok(());
        }
        let (scope, name) = KEY;
        self.put((scope.to_owned(), name.to_owned(), to_hex(&secret)))
            .await
    }

    async fn read_page(
        &self,
        select: &str,
        from: PagingState,
    ) -> Result<(Vec<Value>, Option<PagingState>)> {
        // The configured consistency may be weaker, and rows that are not read are lost.
        let is_partition = select.contains("WHERE scope");
        let mut statement = if is_partition {
            self.cql.prepare_serial(OPERATION, select).await?
        } else {
            let mut statement = self.cql.prepare(OPERATION, select).await?;
            statement.set_consistency(Consistency::Quorum);
            statement
        };
        statement.set_page_size(PAGE_ROWS);
        let (page, next) = self.cql.read_page(OPERATION, &statement, &(), from).await?;
        let rows = page.rows::<(String,)>();
        let rows = rows.map_err(|error| self.cql.broken(OPERATION, error))?;
        let mut values = Vec::new();
        for row in rows {
            let (row,) = row.map_err(|error| self.cql.broken(OPERATION, error))?;
            values.push(parse_json(&row)?);
        }
        Ok((values, next))
    }

    async fn put(&self, record: NewRecord) -> Result<()> {
        let (scope, name, value) = record;
        update(&self.records, &scope, &name, |_| Ok(Some(value.clone()))).await
    }
}

fn to_erasure_record(row: &Value) -> Result<NewRecord> {
    let value = json!({
        "kind": row["kind"],
        "person": to_hex(&row["person"]),
        "begun_at_ms": row["begun_at_ms"],
        "by": row["asked_by"],
        "reason": row["reason"],
        "finished_at_ms": row["finished_at_ms"],
        "receipt": read_json(row, "receipt")?,
    });
    Ok((
        ERASURES.to_owned(),
        format_number_name(read_number(row)?),
        value,
    ))
}

fn to_comparison_record(row: &Value) -> Result<NewRecord> {
    let number = read_number(row)?;
    let scope = reconciliations::format_scope(&read_text(row, "source")?, number);
    let value =
        json!({"id": row["id"], "at_ms": row["at_ms"], "record": read_json(row, "record")?});
    Ok((scope, format_number_name(number), value))
}

/// Converts the bytes of a row to hexadecimal digits.
fn to_hex(bytes: &Value) -> Value {
    let digits = bytes.as_str().and_then(|bytes| bytes.strip_prefix("0x"));
    digits.map(Value::from).unwrap_or_default()
}

fn read_number(row: &Value) -> Result<u64> {
    let number = row["number"].as_u64();
    number.ok_or_else(|| Error::broken(OPERATION, format!("a row has no number: {row}")))
}

fn read_text(row: &Value, column: &str) -> Result<String> {
    let text = row[column].as_str().map(str::to_owned);
    text.ok_or_else(|| Error::broken(OPERATION, format!("a row has no {column}: {row}")))
}

/// Parses the JSON in a column.
fn read_json(row: &Value, column: &str) -> Result<Value> {
    parse_json(&read_text(row, column)?)
}

fn parse_json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Error::broken(OPERATION, error))
}
