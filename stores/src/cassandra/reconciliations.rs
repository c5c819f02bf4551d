//! Records of comparisons: a thousand a partition, so that none grows for ever. Records and notes are changed by
//! lightweight transactions alone and read serially.
//!
//! The next number is taken by writing its record where none is; the note of the newest number follows. It may lag by
//! one, if whoever wrote died in between: readers look one further, and the next writer brings it up to date.

use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use schemas::source::Source;
use serde_json::{Value, json};

use super::session::{Cql, Outcome};
use crate::aged::AgedCount;
use crate::reconciliations::{Note, Reconciliation, Reconciliations, ReconciliationsRead};
use crate::{Error, Result};

/// Records of a partition.
const PART: i64 = 1_000;
/// Rows that are read at once: a record may have some kilobytes.
const STEP: i64 = 100;
/// Partitions whose headers are read at once.
const PARTS_AT_ONCE: usize = 8;
/// The scope of the notes that say which numbers there are.
const NUMBERS: &str = "numbers";

/// Comparisons in a keyspace.
#[derive(Debug)]
pub struct CassandraReconciliations {
    cql: Arc<Cql>,
}

/// Which numbers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    /// The version of the note; nothing if there is none.
    version: Option<u64>,
    oldest: i64,
    newest: i64,
}

/// A row without its record: number, id, time.
type Header = (i64, Option<String>, Option<i64>);

/// A row as it is stored: number, id, time, record.
type Stored = (i64, Option<String>, Option<i64>, Option<String>);

impl CassandraReconciliations {
    pub(super) const fn new(cql: Arc<Cql>) -> Self {
        Self { cql }
    }

    async fn numbers(&self, source: Source) -> Result<Numbers> {
        let note = self.note(NUMBERS, source.name()).await?;
        let of = |name: &str| {
            let value = note.as_ref().and_then(|note| note.value.get(name));
            value.and_then(Value::as_i64)
        };
        Ok(Numbers {
            version: note.as_ref().map(|note| note.version),
            oldest: of("oldest").unwrap_or(1),
            newest: of("newest").unwrap_or(0),
        })
    }

    /// Moves the numbers on; somebody else may have done so.
    async fn move_to(&self, source: Source, seen: Numbers, oldest: i64, newest: i64) -> Result<()> {
        let value = json!({"oldest": oldest, "newest": newest});
        self.change_note(NUMBERS, source.name(), seen.version, Some(&value))
            .await?;
        Ok(())
    }

    /// The records with numbers of one partition from `first` to `last`, newest first.
    async fn stretch(&self, source: Source, first: i64, last: i64) -> Result<Vec<Reconciliation>> {
        let doing = "reading comparisons";
        let text = "SELECT number, id, at_ms, record FROM reconciliations
                    WHERE source = ? AND part = ? AND number >= ? AND number <= ?";
        let values = (source.name(), last / PART, first, last);
        let page = self.cql.read_serial(doing, text, values).await?;
        let rows = page.rows::<Stored>();
        let rows = rows.map_err(|error| self.cql.broken(doing, error))?;
        rows.map(|row| {
            let row = row.map_err(|error| self.cql.broken(doing, error))?;
            let (number, id, at_ms, record) = row;
            let record = serde_json::from_str(&record.unwrap_or_default());
            Ok(Reconciliation {
                number: number.cast_unsigned(),
                id: id.unwrap_or_default(),
                at_ms: at_ms.unwrap_or_default(),
                record: record.map_err(|error| self.cql.broken(doing, error))?,
            })
        })
        .collect()
    }

    /// The same without the records, oldest first: a partition has less of them than a page.
    async fn headers(&self, source: Source, first: i64, last: i64) -> Result<Vec<Header>> {
        let doing = "reading comparisons";
        let text = "SELECT number, id, at_ms FROM reconciliations
                    WHERE source = ? AND part = ? AND number >= ? AND number <= ?
                    ORDER BY number ASC";
        let values = (source.name(), last / PART, first, last);
        let page = self.cql.read_serial(doing, text, values).await?;
        let rows = page.rows::<Header>();
        let rows = rows.map_err(|error| self.cql.broken(doing, error))?;
        rows.map(|row| row.map_err(|error| self.cql.broken(doing, error)))
            .collect()
    }

    /// The oldest records, from a number on, that are older than a moment, at most `limit`.
    async fn old(
        &self,
        source: Source,
        numbers: Numbers,
        (before_ms, limit): (i64, usize),
    ) -> Result<OldRecords> {
        let parts = match numbers.newest >= numbers.oldest {
            true => numbers.oldest / PART..numbers.newest / PART + 1,
            false => 0..0,
        };
        let of_part = |part: i64| {
            let first = numbers.oldest.max(part * PART);
            self.headers(source, first, numbers.newest.min((part + 1) * PART - 1))
        };
        let mut parts = pin!(stream::iter(parts).map(of_part).buffered(PARTS_AT_ONCE));
        let mut old = OldRecords {
            numbers: Vec::new(),
            next: numbers.newest + 1,
            oldest_ms: None,
        };
        while let Some(rows) = parts.try_next().await? {
            for (number, _, at_ms) in rows {
                let at_ms = at_ms.unwrap_or_default();
                old.oldest_ms.get_or_insert(at_ms);
                if at_ms >= before_ms || old.numbers.len() == limit {
                    old.next = number;
                    return Ok(old);
                }
                old.numbers.push(number);
            }
        }
        Ok(old)
    }
}

/// Records that are older than a moment.
#[derive(Debug)]
struct OldRecords {
    numbers: Vec<i64>,
    /// The first number that is none of them.
    next: i64,
    /// When the oldest of all records was made.
    oldest_ms: Option<i64>,
}

#[async_trait]
impl ReconciliationsRead for CassandraReconciliations {
    async fn reconciliations(
        &self,
        source: Source,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Reconciliation>> {
        let numbers = self.numbers(source).await?;
        let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
        let mut last = (numbers.newest + 1).min(before.saturating_sub(1));
        let mut found = Vec::new();
        while last >= numbers.oldest && found.len() < limit {
            let first = (last - STEP + 1)
                .max(last / PART * PART)
                .max(numbers.oldest);
            found.extend(self.stretch(source, first, last).await?);
            last = first - 1;
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn note(&self, scope: &str, name: &str) -> Result<Option<Note>> {
        let doing = "reading notes of reconciliations";
        let text = "SELECT version, value FROM reconciliation_notes WHERE scope = ? AND name = ?";
        let page = self.cql.read_serial(doing, text, (scope, name)).await?;
        let row = page.maybe_first_row::<(Option<i64>, Option<String>)>();
        let row = row.map_err(|error| self.cql.broken(doing, error))?;
        row.map(|(version, value)| self.read(doing, version, value))
            .transpose()
    }

    async fn notes(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Note)>> {
        let doing = "reading notes of reconciliations";
        let text = "SELECT name, version, value FROM reconciliation_notes
                    WHERE scope = ? AND name > ? ORDER BY name ASC LIMIT ?";
        let mut found: Vec<(String, Note)> = Vec::new();
        while found.len() < limit {
            let last = found.last().map(|(name, _)| name.as_str()).or(after);
            let step = i64::try_from(limit - found.len()).unwrap_or(STEP).min(STEP);
            let step = i32::try_from(step).unwrap_or(1);
            let values = (scope, last.unwrap_or_default(), step);
            let page = self.cql.read_serial(doing, text, values).await?;
            let rows = page.rows::<(String, Option<i64>, Option<String>)>();
            let before = found.len();
            for row in rows.map_err(|error| self.cql.broken(doing, error))? {
                let row = row.map_err(|error| self.cql.broken(doing, error))?;
                let (name, version, value) = row;
                found.push((name, self.read(doing, version, value)?));
            }
            if found.len() - before < usize::try_from(step).unwrap_or(usize::MAX) {
                break;
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl Reconciliations for CassandraReconciliations {
    async fn add(&self, source: Source, id: &str, at_ms: i64, record: &Value) -> Result<u64> {
        let doing = "recording a comparison";
        let text = "INSERT INTO reconciliations (source, part, number, id, at_ms, record)
                    VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS";
        let record = record.to_string();
        let patience = self.cql.patience();
        patience
            .repeated_steps(doing, || async {
                let numbers = self.numbers(source).await?;
                // An answer may have been lost, and others may have written since.
                let first = (numbers.newest / PART * PART).max(numbers.newest - STEP + 1);
                let mut near = self.headers(source, first, numbers.newest).await?;
                let next = numbers.newest + 1;
                near.extend(self.headers(source, next, next).await?);
                let mine = near.iter().find(|(_, of, _)| of.as_deref() == Some(id));
                if let Some((mine, ..)) = mine {
                    let newest = numbers.newest.max(*mine);
                    self.move_to(source, numbers, numbers.oldest, newest)
                        .await?;
                    return Ok(mine.cast_unsigned());
                }
                let values = (source.name(), next / PART, next, id, at_ms, &record);
                match self.cql.agree(doing, text, values).await? {
                    Outcome::Applied => {
                        self.move_to(source, numbers, numbers.oldest, next).await?;
                        Ok(next.cast_unsigned())
                    }
                    Outcome::NotApplied(_) => {
                        self.move_to(source, numbers, numbers.oldest, next).await?;
                        Err(patience.unavailable(doing, "somebody else was quicker"))
                    }
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    async fn replace(&self, source: Source, number: u64, record: &Value) -> Result<()> {
        let doing = "recording a comparison";
        let text = "UPDATE reconciliations SET record = ?
                    WHERE source = ? AND part = ? AND number = ? IF EXISTS";
        let at = number.cast_signed();
        self.cql
            .patience()
            .repeated_steps(doing, || async {
                let values = (record.to_string(), source.name(), at / PART, at);
                match self.cql.agree(doing, text, values).await? {
                    Outcome::Applied => Ok(()),
                    Outcome::NotApplied(_) => Err(Error::Refused(format!(
                        "there is no comparison {number} of {source}"
                    ))),
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    async fn aged(&self, source: Source, before_ms: i64) -> Result<AgedCount> {
        let numbers = self.numbers(source).await?;
        let old = self.old(source, numbers, (before_ms, usize::MAX)).await?;
        Ok(AgedCount {
            all: (numbers.newest - numbers.oldest + 1).max(0).cast_unsigned(),
            oldest_ms: old.oldest_ms,
            aged: old.numbers.len() as u64,
            needed: 0,
        })
    }

    async fn forget_aged(&self, source: Source, before_ms: i64, limit: usize) -> Result<u64> {
        let doing = "deleting comparisons";
        let numbers = self.numbers(source).await?;
        let OldRecords {
            numbers: old, next, ..
        } = self.old(source, numbers, (before_ms, limit)).await?;
        let text =
            "DELETE FROM reconciliations WHERE source = ? AND part = ? AND number = ? IF EXISTS";
        for number in &old {
            let patience = self.cql.patience();
            patience
                .repeated_steps(doing, || async {
                    let values = (source.name(), number / PART, *number);
                    match self.cql.agree(doing, text, values).await? {
                        Outcome::Applied | Outcome::NotApplied(_) => Ok(()),
                        Outcome::Unknown(error) => Err(error),
                    }
                })
                .await?;
        }
        if next > numbers.oldest {
            // If somebody else has moved the numbers meanwhile, the next call finds nothing where these were.
            self.move_to(source, numbers, next, numbers.newest).await?;
        }
        Ok(old.len() as u64)
    }

    async fn change_note(
        &self,
        scope: &str,
        name: &str,
        seen: Option<u64>,
        value: Option<&Value>,
    ) -> Result<bool> {
        let doing = "changing notes of reconciliations";
        let version = seen.map(u64::cast_signed);
        let next = version.unwrap_or(0) + 1;
        let text = value.map(Value::to_string);
        let patience = self.cql.patience();
        let is_again = std::sync::atomic::AtomicBool::new(false);
        patience
            .repeated_steps(doing, || async {
                if is_again.swap(true, std::sync::atomic::Ordering::Relaxed) {
                    // What became of the try before is not known.
                    let now = self.note(scope, name).await?;
                    let is_done = match (&now, value) {
                        (Some(now), Some(value)) => {
                            now.version == next.cast_unsigned() && now.value == *value
                        }
                        (None, None) => true,
                        _ => false,
                    };
                    if is_done {
                        return Ok(true);
                    }
                    if now.map(|now| now.version) != seen {
                        return Ok(false);
                    }
                }
                let outcome = match (version, &text) {
                    (None, Some(text)) => {
                        let insert =
                            "INSERT INTO reconciliation_notes (scope, name, version, value)
                                      VALUES (?, ?, 1, ?) IF NOT EXISTS";
                        self.cql.agree(doing, insert, (scope, name, text)).await?
                    }
                    (Some(version), Some(text)) => {
                        let update = "UPDATE reconciliation_notes SET version = ?, value = ?
                                      WHERE scope = ? AND name = ? IF version = ?";
                        let values = (next, text, scope, name, version);
                        self.cql.agree(doing, update, values).await?
                    }
                    (Some(version), None) => {
                        let delete = "DELETE FROM reconciliation_notes
                                      WHERE scope = ? AND name = ? IF version = ?";
                        self.cql
                            .agree(doing, delete, (scope, name, version))
                            .await?
                    }
                    (None, None) => return Ok(self.note(scope, name).await?.is_none()),
                };
                match outcome {
                    Outcome::Applied => Ok(true),
                    Outcome::NotApplied(_) => Ok(false),
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }
}

impl CassandraReconciliations {
    fn read(&self, doing: &str, version: Option<i64>, value: Option<String>) -> Result<Note> {
        let value = serde_json::from_str(&value.unwrap_or_default());
        Ok(Note {
            version: version.unwrap_or_default().cast_unsigned(),
            value: value.map_err(|error| self.cql.broken(doing, error))?,
        })
    }
}
