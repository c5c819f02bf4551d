//! Reconciliations: a numbered record of each comparison of a source.
//!
//! A scope has a thousand numbers, so that no partition of a store grows without bound. A writer
//! claims the next number by inserting its record, and then updates the numbers record. If the
//! writer dies in between, the numbers record lags by one. So every operation also checks the next
//! number, and the next writer updates the numbers record first.

use schemas::source::Source;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::expiry::ExpiryCount;
use crate::records::{
    Direction, Record, Records, RecordsRead, Scan, contention_error, format_number_name, update,
};
use crate::{Error, Result};

/// Numbers of a scope.
const NUMBERS_PER_SCOPE: u64 = 1_000;
/// Records per read. A record has a few kilobytes.
const PAGE_RECORDS: usize = 100;
/// Numbers before the newest that are searched for a repeated [`add`].
const REPEAT_WINDOW: u64 = 100;
/// Attempts of [`add`] while other writers claim the next number.
const ADD_ATTEMPTS: usize = 200;
/// The scope of the numbers records, one of each source.
const NUMBERS_SCOPE: &str = "numbers";

/// The record of a comparison.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Reconciliation {
    /// Its number among those of its source, from 1; the name of its record.
    #[serde(skip)]
    pub number: u64,
    /// Its unique id.
    pub id: String,
    /// When it began, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The request, the findings and the changes.
    pub record: Value,
}

/// The range of numbers of a source.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// The version of the numbers record.
    version: Option<u64>,
    /// The oldest number that may exist.
    oldest: u64,
    /// The newest number.
    newest: u64,
    /// True if the numbers record lags behind `newest`.
    is_lagging: bool,
}

/// Formats the scope of a number of a source.
pub(crate) fn format_scope(source: &str, number: u64) -> String {
    format!(
        "reconciliations {source} {}",
        format_number_name(number / NUMBERS_PER_SCOPE)
    )
}

async fn read_numbers(records: &dyn RecordsRead, source: Source) -> Result<Numbers> {
    let stored = records.get(NUMBERS_SCOPE, source.name()).await?;
    let read_number = |field: &str| {
        let value = stored.as_ref().and_then(|record| record.value.get(field));
        value.and_then(Value::as_u64)
    };
    let newest = read_number("newest").unwrap_or(0);
    let next = newest + 1;
    let is_lagging = records
        .get(
            &format_scope(source.name(), next),
            &format_number_name(next),
        )
        .await?
        .is_some();
    Ok(Numbers {
        version: stored.as_ref().map(|record| record.version),
        oldest: read_number("oldest").unwrap_or(1),
        newest: newest + u64::from(is_lagging),
        is_lagging,
    })
}

/// Sets the numbers of a source, unless another writer has changed them since they were read.
async fn set_numbers(
    records: &dyn Records,
    source: Source,
    expected: Numbers,
    oldest: u64,
    newest: u64,
) -> Result<()> {
    let value = json!({"oldest": oldest, "newest": newest});
    records
        .compare_and_set(NUMBERS_SCOPE, source.name(), expected.version, Some(&value))
        .await?;
    Ok(())
}

/// Updates the numbers record of a source if it lags, and returns the numbers. Call it before you
/// add or delete a number.
async fn settle_numbers(records: &dyn Records, source: Source) -> Result<Numbers> {
    loop {
        let numbers = read_numbers(records, source).await?;
        if !numbers.is_lagging {
            return Ok(numbers);
        }
        set_numbers(records, source, numbers, numbers.oldest, numbers.newest).await?;
    }
}

/// Returns the records from `first` to `last` that are in the scope of `last`, in this
/// direction, with their versions.
async fn scan(
    records: &dyn RecordsRead,
    source: Source,
    first: u64,
    last: u64,
    direction: Direction,
    limit: usize,
) -> Result<Vec<(Reconciliation, u64)>> {
    let scope = format_scope(source.name(), last);
    let first = first.max(last / NUMBERS_PER_SCOPE * NUMBERS_PER_SCOPE);
    let (after, before) = (
        first.checked_sub(1).map(format_number_name),
        format_number_name(last + 1),
    );
    let scan = Scan {
        after: after.as_deref(),
        before: Some(&before),
        direction,
        limit,
    };
    let page = records.scan(&scope, scan).await?.into_iter();
    let parse = |record: Record| {
        let (number, version) = (record.parse_number_name(&scope)?, record.version);
        let reconciliation = record.parse(&scope)?;
        Ok((
            Reconciliation {
                number,
                ..reconciliation
            },
            version,
        ))
    };
    page.map(parse).collect()
}

/// Reads records of a source before a number, newest first, at most `limit`.
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
    read_newest_first(records, source, numbers, before, limit).await
}

async fn read_newest_first(
    records: &dyn RecordsRead,
    source: Source,
    numbers: Numbers,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<Reconciliation>> {
    let end = before.unwrap_or(u64::MAX).min(numbers.newest + 1);
    let mut last = end.saturating_sub(1);
    let mut reconciliations = Vec::new();
    while last >= numbers.oldest && reconciliations.len() < limit {
        let remaining = limit - reconciliations.len();
        let oldest = numbers.oldest;
        let page = scan(
            records,
            source,
            oldest,
            last,
            Direction::Descending,
            remaining,
        )
        .await?;
        reconciliations.extend(page.into_iter().map(|(reconciliation, _)| reconciliation));
        let Some(previous_last) = (last / NUMBERS_PER_SCOPE * NUMBERS_PER_SCOPE).checked_sub(1)
        else {
            break;
        };
        last = previous_last;
    }
    Ok(reconciliations)
}

/// Adds a record under the next number of its source, durably. A retry with the same id, after a
/// response was lost, returns the same number unless a hundred other records were added since.
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
    let value = json!({"id": id, "at_ms": at_ms, "record": record});
    for _ in 0..ADD_ATTEMPTS {
        let numbers = settle_numbers(records, source).await?;
        let window = Numbers {
            oldest: numbers
                .oldest
                .max((numbers.newest + 1).saturating_sub(REPEAT_WINDOW)),
            ..numbers
        };
        let recent = read_newest_first(records, source, window, None, PAGE_RECORDS).await?;
        if let Some(repeated) = recent.iter().find(|recent| recent.id == id) {
            return Ok(repeated.number);
        }
        let next = numbers.newest + 1;
        let scope = format_scope(source.name(), next);
        if records
            .compare_and_set(&scope, &format_number_name(next), None, Some(&value))
            .await?
        {
            set_numbers(records, source, numbers, numbers.oldest, next).await?;
            return Ok(next);
        }
    }
    Err(contention_error(NUMBERS_SCOPE, source.name()))
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
    let scope = format_scope(source.name(), number);
    update(records, &scope, &format_number_name(number), |current| {
        let Some(current) = current else {
            let reason = format!("comparison {number} of {source} does not exist");
            return Err(Error::Refused(reason));
        };
        let mut value = current.value.clone();
        if let Some(content) = value.get_mut("record") {
            content.clone_from(record);
        }
        Ok(Some(value))
    })
    .await
}

/// Counts the records of a source, and those older than a time. Records are visited in the order of
/// their numbers, up to the first that is younger.
///
/// # Errors
/// Those of the store.
pub async fn count_expired(
    records: &dyn RecordsRead,
    source: Source,
    before_ms: i64,
) -> Result<ExpiryCount> {
    let numbers = read_numbers(records, source).await?;
    let old = find_old(records, source, numbers, before_ms, usize::MAX).await?;
    Ok(ExpiryCount {
        total: (numbers.newest + 1).saturating_sub(numbers.oldest),
        oldest_ms: old.oldest_ms,
        expired: old.versions.len() as u64,
        retained: 0,
    })
}

/// Deletes records of a source that are older than a time, the oldest first, at most `limit`.
/// Returns their number.
///
/// # Errors
/// Those of the store.
pub async fn purge_expired(
    records: &dyn Records,
    source: Source,
    before_ms: i64,
    limit: usize,
) -> Result<u64> {
    let numbers = settle_numbers(records, source).await?;
    let old = find_old(records, source, numbers, before_ms, limit).await?;
    let (mut next, mut deleted) = (old.next, 0);
    for (number, version) in old.versions {
        let (scope, name) = (
            format_scope(source.name(), number),
            format_number_name(number),
        );
        if !records
            .compare_and_set(&scope, &name, Some(version), None)
            .await?
        {
            // Another process has just replaced or deleted it; the next call continues here.
            next = number;
            break;
        }
        deleted += 1;
    }
    if next > numbers.oldest {
        // If another writer has changed the numbers meanwhile, later calls find no records at the
        // old ones.
        set_numbers(records, source, numbers, next, numbers.newest).await?;
    }
    Ok(deleted)
}

/// Records that are older than a time.
struct OldRecords {
    /// Their numbers and versions.
    versions: Vec<(u64, u64)>,
    /// The first number after them.
    next: u64,
    /// The time of the oldest record of all.
    oldest_ms: Option<i64>,
}

/// Finds the oldest records of a source that are older than a time, at most `limit`.
async fn find_old(
    records: &dyn RecordsRead,
    source: Source,
    numbers: Numbers,
    before_ms: i64,
    limit: usize,
) -> Result<OldRecords> {
    let mut old = OldRecords {
        versions: Vec::new(),
        next: numbers.oldest,
        oldest_ms: None,
    };
    while old.next <= numbers.newest {
        let scope_end = (old.next / NUMBERS_PER_SCOPE + 1) * NUMBERS_PER_SCOPE;
        let last = numbers.newest.min(scope_end - 1);
        let page = scan(
            records,
            source,
            old.next,
            last,
            Direction::Ascending,
            PAGE_RECORDS,
        )
        .await?;
        let is_last = page.len() < PAGE_RECORDS;
        for (reconciliation, version) in page {
            old.oldest_ms.get_or_insert(reconciliation.at_ms);
            old.next = reconciliation.number;
            if reconciliation.at_ms >= before_ms || old.versions.len() == limit {
                return Ok(old);
            }
            old.versions.push((reconciliation.number, version));
            old.next += 1;
        }
        if is_last {
            old.next = last + 1;
        }
    }
    Ok(old)
}
