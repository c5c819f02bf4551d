//! The record store: small JSON values under a scope and a name, each with a version.
//!
//! Erasures, reconciliations, alerts, approvals, the correction index and schedules are records.
//! The module that writes a value defines its meaning; adapters store JSON only.

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, Result};

/// Attempts of [`update`] while other writers change the same record.
const UPDATE_ATTEMPTS: usize = 50;

/// A record of a scope.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its name within the scope.
    pub name: String,
    /// 1 after the insert; each change adds one.
    pub version: u64,
    /// Its value.
    pub value: Value,
}

/// The order of names in a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest name.
    #[default]
    Ascending,
    /// From the largest name.
    Descending,
}

/// Which records of a scope a scan returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scan<'a> {
    /// Only names greater than this one.
    pub after: Option<&'a str>,
    /// Only names less than this one.
    pub before: Option<&'a str>,
    /// The order; it also decides which records a limit keeps.
    pub direction: Direction,
    /// The maximum number of records.
    pub limit: usize,
}

impl<'a> Scan<'a> {
    /// A bound above every name: no valid character follows this one.
    const NAMES_END: &'static str = "\u{10ffff}";

    /// The exclusive bounds of the names. Names are not empty.
    pub(crate) fn bounds(&self) -> (&'a str, &'a str) {
        let after = self.after.unwrap_or_default();
        (after, self.before.unwrap_or(Self::NAMES_END))
    }
}

/// Reads records. A read returns every change that was acknowledged before it began.
#[async_trait]
pub trait RecordsRead: std::fmt::Debug + Send + Sync {
    /// A record, if it exists.
    async fn get(&self, scope: &str, name: &str) -> Result<Option<Record>>;

    /// Records of a scope, ordered by the bytes of their names.
    async fn scan(&self, scope: &str, scan: Scan<'_>) -> Result<Vec<Record>>;

    /// The last name of a scope, without its value.
    async fn last_name(&self, scope: &str) -> Result<Option<String>> {
        let scan = Scan {
            direction: Direction::Descending,
            limit: 1,
            ..Scan::default()
        };
        let last = self.scan(scope, scan).await?;
        Ok(last.into_iter().next().map(|record| record.name))
    }
}

/// Reads and changes records.
#[async_trait]
pub trait Records: RecordsRead {
    /// Inserts, updates or deletes a record if its version is `expected_version` (`None`: if it
    /// does not exist), durably. Returns false if the version is another one.
    ///
    /// A call whose response was lost is recognized by its result: the next version with the same
    /// value. So two writers of equal values may both get true; a writer that needs certainty
    /// adds a unique part to its value.
    async fn compare_and_set(
        &self,
        scope: &str,
        name: &str,
        expected_version: Option<u64>,
        value: Option<&Value>,
    ) -> Result<bool>;
}

/// Changes a record. Repeats the change if another writer was faster. `change` gets the current
/// record and returns the new value (`None` deletes). An equal value writes nothing.
///
/// # Errors
/// Those of `change` and of the store; [`Error::Unavailable`] if other writers change the record
/// without end.
pub async fn update(
    records: &dyn Records,
    scope: &str,
    name: &str,
    change: impl Fn(Option<&Record>) -> Result<Option<Value>> + Send + Sync,
) -> Result<()> {
    for _ in 0..UPDATE_ATTEMPTS {
        let current = records.get(scope, name).await?;
        let value = change(current.as_ref())?;
        if current.as_ref().map(|record| &record.value) == value.as_ref() {
            return Ok(());
        }
        let expected_version = current.map(|record| record.version);
        if records
            .compare_and_set(scope, name, expected_version, value.as_ref())
            .await?
        {
            return Ok(());
        }
    }
    Err(contention_error(scope, name))
}

/// The error of a record that other writers change without end.
pub(crate) fn contention_error(scope: &str, name: &str) -> Error {
    Error::Unavailable {
        operation: format!("changing the record {name} of {scope}"),
        reason: "other processes change it at the same time".to_owned(),
    }
}

/// Calls `each` with every record of a scope, in the order of names. Reads
/// `batch_records` records at once.
pub(crate) async fn for_each(
    records: &dyn RecordsRead,
    scope: &str,
    batch_records: usize,
    each: impl FnMut(Record) -> Result<()> + Send,
) -> Result<()> {
    let (mut each, mut after) = (each, None::<String>);
    loop {
        let scan = Scan {
            after: after.as_deref(),
            limit: batch_records,
            ..Scan::default()
        };
        let batch = records.scan(scope, scan).await?;
        let is_last = batch.len() < batch_records;
        after = batch.last().map(|record| record.name.clone());
        batch.into_iter().try_for_each(&mut each)?;
        if is_last {
            return Ok(());
        }
    }
}

/// Reads all values of a scope, in the order of their names. Reads
/// `batch_records` records at once.
pub(crate) async fn read_all<T: DeserializeOwned + Send>(
    records: &dyn RecordsRead,
    scope: &str,
    batch_records: usize,
) -> Result<Vec<T>> {
    let mut values = Vec::new();
    let add_value = |record: Record| {
        values.push(record.parse(scope)?);
        Ok(())
    };
    for_each(records, scope, batch_records, add_value).await?;
    Ok(values)
}

/// Formats a number as a record name: names sort like the numbers.
pub(crate) fn format_number_name(number: u64) -> String {
    format!("{number:010}")
}

/// Parses a name that [`format_number_name`] wrote.
pub(crate) fn parse_number(scope: &str, name: &str) -> Result<u64> {
    name.parse()
        .map_err(|error| unreadable_error(scope, name, error))
}

impl Record {
    /// Parses the name, which [`format_number_name`] wrote.
    pub(crate) fn parse_number_name(&self, scope: &str) -> Result<u64> {
        parse_number(scope, &self.name)
    }

    /// Converts the value to a type.
    pub(crate) fn parse<T: DeserializeOwned>(self, scope: &str) -> Result<T> {
        serde_json::from_value(self.value)
            .map_err(|error| unreadable_error(scope, &self.name, error))
    }
}

fn unreadable_error(scope: &str, name: &str, reason: impl ToString) -> Error {
    Error::broken(format!("reading the record {name} of {scope}"), reason)
}

/// Converts a value of a scope to JSON.
pub(crate) fn to_value(scope: &str, value: &impl Serialize) -> Result<Value> {
    let value = serde_json::to_value(value);
    value.map_err(|error| Error::broken(format!("writing a record of {scope}"), error))
}
