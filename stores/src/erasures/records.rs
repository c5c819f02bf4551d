//! Erasures as records: one per number, from 1 without gaps, never deleted; and the key of the
//! hashes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::erasure::{Erasure, Key, hex};
use crate::records::{
    Record, Records, RecordsRead, for_each, format_number_name, parse_number, to_value, update,
};
use crate::{Error, Result};

/// The scope of erasures.
pub(crate) const SCOPE: &str = "erasures";
/// The scope and the name of the key. In the scope of erasures, the last name is the newest number.
pub(crate) const KEY: (&str, &str) = ("erasure key", "key");
/// Erasures that are read at once.
const PAGE_RECORDS: usize = 1_000;

/// The value of the key's record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct StoredKey(#[serde(with = "hex")] Key);

/// Reads the number of the newest erasure; 0 if there is none. It is called often.
pub(super) async fn read_newest(records: &dyn RecordsRead) -> Result<u64> {
    let newest = records.last_name(SCOPE).await?;
    newest.map_or(Ok(0), |newest| parse_number(SCOPE, &newest))
}

/// Reads all erasures, the oldest first.
pub(crate) async fn read_all(records: &dyn RecordsRead) -> Result<Vec<Erasure>> {
    let mut erasures = Vec::new();
    for_each(records, SCOPE, PAGE_RECORDS, |record| {
        erasures.push(from_record(record)?);
        Ok(())
    })
    .await?;
    Ok(erasures)
}

/// Reads the key of the hashes. Adds `new_key` if there is no key.
pub(super) async fn read_key(records: &dyn Records, new_key: Key) -> Result<Key> {
    let (scope, name) = KEY;
    let value = to_value(scope, &StoredKey(new_key))?;
    loop {
        if let Some(record) = records.get(scope, name).await? {
            return record.parse::<StoredKey>(scope).map(|key| key.0);
        }
        records
            .compare_and_set(scope, name, None, Some(&value))
            .await?;
    }
}

/// Adds an erasure, durably, if its number follows the newest one. Returns whether it did.
pub(super) async fn add(records: &dyn Records, erasure: &Erasure) -> Result<bool> {
    if erasure.number > 1 {
        let previous = format_number_name(erasure.number - 1);
        if records.get(SCOPE, &previous).await?.is_none() {
            return Ok(false);
        }
    }
    let (name, value) = (
        format_number_name(erasure.number),
        to_value(SCOPE, erasure)?,
    );
    records
        .compare_and_set(SCOPE, &name, None, Some(&value))
        .await
}

/// Replaces the receipt of an erasure, and when it was finished.
pub(super) async fn set_receipt(
    records: &dyn Records,
    number: u64,
    finished_at_ms: Option<i64>,
    receipt: &Value,
) -> Result<()> {
    update(records, SCOPE, &format_number_name(number), |current| {
        let Some(current) = current else {
            let reason = format!("erasure {number} does not exist");
            return Err(Error::Refused(reason));
        };
        let mut erasure = from_record(current.clone())?;
        erasure.finished_at_ms = finished_at_ms;
        erasure.receipt.clone_from(receipt);
        to_value(SCOPE, &erasure).map(Some)
    })
    .await
}

fn from_record(record: Record) -> Result<Erasure> {
    Ok(Erasure {
        number: record.parse_number_name(SCOPE)?,
        ..record.parse(SCOPE)?
    })
}
