//! Reconciliations: a numbered record of each comparison of a source.
//!
//! A scope holds a thousand numbers, so that no partition of a store grows without end. The next number is taken by the
//! insert of its record; the numbers record follows. It lags by one number if the writer died in between, so every
//! operation looks one number further, and the next writer brings it up to date.

use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::aged::AgedCount;
use crate::records::{
    Direction, Record, Records, RecordsRead, Scan, contended, number_name, parse_number, update,
};
use crate::{Error, Result};

/// Numbers of a scope.
const SCOPE_NUMBERS: u64 = 1_000;
/// Records that are read at once: one has some kilobytes.
const PAGE: usize = 100;
/// Numbers before the newest that are searched for a repeated [`add`].
const REPEAT_WINDOW: u64 = 100;
/// Attempts of [`add`] while other writers take the next number.
const ADD_ATTEMPTS: usize = 200;
/// The scope of the numbers records, one of each source.
const NUMBERS: &str = "numbers";

/// The record of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconciliation {
    /// Its number among those of its source, from 1.
    pub number: u64,
    /// Its unique id.
    pub id: String,
    /// When it began, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The request, the findings and the changes.
    pub record: Value,
}

/// The value of the record of a comparison.
#[derive(Debug, Serialize, Deserialize)]
struct StoredValue {
    id: String,
    at_ms: i64,
    record: Value,
}

/// Which numbers a source has.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// The version of the numbers record.
    version: Option<u64>,
    /// The oldest number that may exist.
    oldest: u64,
    /// The newest number.
    newest: u64,
    /// Whether the numbers record lags behind `newest`.
    lags: bool,
}

impl Reconciliation {
    fn from_record(scope: &str, record: Record) -> Result<Self> {
        let number = parse_number(scope, &record.name)?;
        let stored: StoredValue = serde_json::from_value(record.value).map_err(|error| {
            Error::broken(format!("reading the record {number} of {scope}"), error)
        })?;
        Ok(Self {
            number,
            id: stored.id,
            at_ms: stored.at_ms,
            record: stored.record,
        })
    }
}

/// The scope of a number of a source.
pub(crate) fn scope(source: &str, number: u64) -> String {
    format!(
        "reconciliations {source} {}",
        number_name(number / SCOPE_NUMBERS)
    )
}

/// The source and the number of the record of a comparison; `None` for other records.
#[cfg(feature = "cassandra")]
pub(crate) fn parse_key<'a>(scope: &'a str, name: &str) -> Option<(&'a str, i64)> {
    let source = scope.strip_prefix("reconciliations ")?.split(' ').next()?;
    Some((source, name.parse().ok()?))
}

/// The value of the record of a comparison.
pub(crate) fn value(id: &str, at_ms: i64, record: &Value) -> Value {
    json!({"id": id, "at_ms": at_ms, "record": record})
}

async fn read_numbers(records: &dyn RecordsRead, source: Source) -> Result<Numbers> {
    let stored = records.get(NUMBERS, source.name()).await?;
    let number = |field: &str| {
        let value = stored.as_ref().and_then(|record| record.value.get(field));
        value.and_then(Value::as_u64)
    };
    let newest = number("newest").unwrap_or(0);
    let next = newest + 1;
    let lags = records
        .get(&scope(source.name(), next), &number_name(next))
        .await?
        .is_some();
    Ok(Numbers {
        version: stored.as_ref().map(|record| record.version),
        oldest: number("oldest").unwrap_or(1),
        newest: newest + u64::from(lags),
        lags,
    })
}

/// Sets the numbers of a source, unless another writer has changed them since they were read.
async fn set_numbers(
    records: &dyn Records,
    source: Source,
    seen: Numbers,
    (oldest, newest): (u64, u64),
) -> Result<()> {
    let value = json!({"oldest": oldest, "newest": newest});
    records
        .compare_and_set(NUMBERS, source.name(), seen.version, Some(&value))
        .await?;
    Ok(())
}

/// The numbers of a source, after their record was brought up to date: a number must not be deleted or followed by
/// another one before.
async fn settle_numbers(records: &dyn Records, source: Source) -> Result<Numbers> {
    loop {
        let numbers = read_numbers(records, source).await?;
        if !numbers.lags {
            return Ok(numbers);
        }
        let range = (numbers.oldest, numbers.newest);
        set_numbers(records, source, numbers, range).await?;
    }
}

/// The records of the numbers from `first` to `last` that one scope holds, from the end that `direction` begins with.
async fn scan(
    records: &dyn RecordsRead,
    source: Source,
    (first, last): (u64, u64),
    direction: Direction,
    limit: usize,
) -> Result<Vec<(Reconciliation, u64)>> {
    let scope = scope(source.name(), last);
    let first = first.max(last / SCOPE_NUMBERS * SCOPE_NUMBERS);
    let (after, before) = (first.checked_sub(1).map(number_name), number_name(last + 1));
    let scan = Scan {
        after: after.as_deref(),
        before: Some(&before),
        direction,
        limit,
    };
    let found = records.scan(&scope, scan).await?;
    found
        .into_iter()
        .map(|record| {
            let version = record.version;
            Ok((Reconciliation::from_record(&scope, record)?, version))
        })
        .collect()
}

/// Records of a source before a number, newest first, at most `limit`.
///
/// # Errors
/// Those of the store.
pub async fn list(
    records: &dyn RecordsRead,
    source: Source,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<Reconciliation>> {
    let numbers = read_numbers(records, source).await?;
    newest_first(records, source, numbers, before, limit).await
}

async fn newest_first(
    records: &dyn RecordsRead,
    source: Source,
    numbers: Numbers,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<Reconciliation>> {
    let end = before.unwrap_or(u64::MAX).min(numbers.newest + 1);
    let mut last = end.saturating_sub(1);
    let mut found = Vec::new();
    while last >= numbers.oldest && found.len() < limit {
        let range = (numbers.oldest, last);
        let left = limit - found.len();
        let page = scan(records, source, range, Direction::Descending, left).await?;
        found.extend(page.into_iter().map(|(one, _)| one));
        let Some(below) = (last / SCOPE_NUMBERS * SCOPE_NUMBERS).checked_sub(1) else {
            break;
        };
        last = below;
    }
    Ok(found)
}

/// Adds a record under the next number of its source, durably. Repeated with the same id, because an answer was lost, it
/// returns the same number.
///
/// # Errors
/// Those of the store.
pub async fn add(
    records: &dyn Records,
    source: Source,
    id: &str,
    at_ms: i64,
    record: &Value,
) -> Result<u64> {
    let value = value(id, at_ms, record);
    for _ in 0..ADD_ATTEMPTS {
        let numbers = settle_numbers(records, source).await?;
        let window = Numbers {
            oldest: numbers
                .oldest
                .max((numbers.newest + 1).saturating_sub(REPEAT_WINDOW)),
            ..numbers
        };
        let recent = newest_first(records, source, window, None, PAGE).await?;
        if let Some(same) = recent.iter().find(|recent| recent.id == id) {
            return Ok(same.number);
        }
        let next = numbers.newest + 1;
        let scope = scope(source.name(), next);
        if records
            .compare_and_set(&scope, &number_name(next), None, Some(&value))
            .await?
        {
            let range = (numbers.oldest, next);
            set_numbers(records, source, numbers, range).await?;
            return Ok(next);
        }
    }
    Err(contended(NUMBERS, source.name()))
}

/// Replaces the content of a record.
///
/// # Errors
/// [`Error::Refused`] if the number does not exist.
pub async fn replace(
    records: &dyn Records,
    source: Source,
    number: u64,
    record: &Value,
) -> Result<()> {
    let scope = scope(source.name(), number);
    update(records, (&scope, &number_name(number)), |current| {
        let Some(current) = current else {
            let why = format!("comparison {number} of {source} does not exist");
            return Err(Error::Refused(why));
        };
        let mut value = current.clone();
        if let Some(content) = value.get_mut("record") {
            content.clone_from(record);
        }
        Ok(Some(value))
    })
    .await
}

/// Counts the records of a source, and those older than a time. Records are visited in the order of their numbers, up to
/// the first that is younger.
///
/// # Errors
/// Those of the store.
pub async fn aged(records: &dyn RecordsRead, source: Source, before_ms: i64) -> Result<AgedCount> {
    let numbers = read_numbers(records, source).await?;
    let mut count = AgedCount {
        all: (numbers.newest + 1).saturating_sub(numbers.oldest),
        ..AgedCount::default()
    };
    let mut next = numbers.oldest;
    while next <= numbers.newest {
        let (page, after) = oldest_first(records, source, next, numbers).await?;
        for (one, _) in page {
            count.oldest_ms.get_or_insert(one.at_ms);
            if one.at_ms >= before_ms {
                return Ok(count);
            }
            count.aged += 1;
        }
        next = after;
    }
    Ok(count)
}

/// Deletes records of a source that are older than a time, the oldest first, at most `limit`. Returns their number.
///
/// # Errors
/// Those of the store.
pub async fn forget_aged(
    records: &dyn Records,
    source: Source,
    before_ms: i64,
    limit: usize,
) -> Result<u64> {
    let numbers = settle_numbers(records, source).await?;
    let (mut next, mut deleted) = (numbers.oldest, 0);
    'pages: while next <= numbers.newest {
        let (page, after) = oldest_first(records, source, next, numbers).await?;
        for (one, version) in page {
            next = one.number;
            if one.at_ms >= before_ms || deleted == limit {
                break 'pages;
            }
            let scope = scope(source.name(), one.number);
            let name = number_name(one.number);
            if !records
                .compare_and_set(&scope, &name, Some(version), None)
                .await?
            {
                // Another process has just replaced or deleted it; the next call continues here.
                break 'pages;
            }
            deleted += 1;
        }
        next = after;
    }
    if next > numbers.oldest {
        // If another writer has changed the numbers meanwhile, later calls find no records at the old ones.
        set_numbers(records, source, numbers, (next, numbers.newest)).await?;
    }
    Ok(deleted as u64)
}

/// A page of the records from a number on, oldest first, with their versions, and where the next page begins.
async fn oldest_first(
    records: &dyn RecordsRead,
    source: Source,
    first: u64,
    numbers: Numbers,
) -> Result<(Vec<(Reconciliation, u64)>, u64)> {
    let scope_end = (first / SCOPE_NUMBERS + 1) * SCOPE_NUMBERS;
    let last = numbers.newest.min(scope_end - 1);
    let page = scan(records, source, (first, last), Direction::Ascending, PAGE).await?;
    let next = match page.last() {
        Some((one, _)) if page.len() == PAGE => one.number + 1,
        _ => last + 1,
    };
    Ok((page, next))
}
