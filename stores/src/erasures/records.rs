//! Erasures as records: one per number, from 1 without gaps, never deleted; and the key of the hashes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Erasure, Key};
use crate::records::{
    Direction, Record, Records, RecordsRead, Scan, number_name, parse_number, update,
};
use crate::{Error, Result};

/// The scope of erasures.
const SCOPE: &str = "erasures";
/// The scope and the name of the key: the newest erasure must be the last name of its own scope.
const KEY: (&str, &str) = ("erasure key", "key");
/// Erasures that are read at once.
const PAGE: usize = 1_000;

/// The value of the key's record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct StoredKey(#[serde(with = "hex")] Key);

/// The number of the newest erasure; 0 if there is none. It is read often.
pub(super) async fn newest(records: &dyn RecordsRead) -> Result<u64> {
    let scan = Scan {
        direction: Direction::Descending,
        limit: 1,
        ..Scan::default()
    };
    match records.scan(SCOPE, scan).await?.first() {
        Some(record) => parse_number(SCOPE, &record.name),
        None => Ok(0),
    }
}

/// All erasures, the oldest first.
pub(super) async fn all(records: &dyn RecordsRead) -> Result<Vec<Erasure>> {
    let mut all: Vec<Erasure> = Vec::new();
    loop {
        let last = all.last().map(|last| number_name(last.number));
        let scan = Scan {
            after: last.as_deref(),
            limit: PAGE,
            ..Scan::default()
        };
        let page = records.scan(SCOPE, scan).await?;
        let is_last = page.len() < PAGE;
        for record in page {
            all.push(from_record(record)?);
        }
        if is_last {
            return Ok(all);
        }
    }
}

/// The key of the hashes: `new_key`, unless a key exists.
pub(super) async fn key(records: &dyn Records, new_key: Key) -> Result<Key> {
    let (scope, name) = KEY;
    loop {
        if let Some(record) = records.get(scope, name).await? {
            return read_value::<StoredKey>(scope, record).map(|key| key.0);
        }
        let value = written(&StoredKey(new_key))?;
        records
            .compare_and_set(scope, name, None, Some(&value))
            .await?;
    }
}

/// Adds an erasure, durably, if its number follows the newest one. Returns whether it did.
pub(super) async fn add(records: &dyn Records, erasure: &Erasure) -> Result<bool> {
    if let Some(previous) = erasure.number.checked_sub(1).filter(|number| *number > 0)
        && records.get(SCOPE, &number_name(previous)).await?.is_none()
    {
        return Ok(false);
    }
    let value = written(erasure)?;
    records
        .compare_and_set(SCOPE, &number_name(erasure.number), None, Some(&value))
        .await
}

/// Replaces the receipt of an erasure, and when it was finished.
pub(super) async fn set_receipt(
    records: &dyn Records,
    number: u64,
    finished_at_ms: Option<i64>,
    receipt: &Value,
) -> Result<()> {
    let name = number_name(number);
    update(records, (SCOPE, &name), |current| {
        let Some(current) = current else {
            let why = format!("erasure {number} does not exist");
            return Err(Error::Refused(why));
        };
        let mut erasure: Erasure = parsed(SCOPE, &name, current.clone())?;
        erasure.finished_at_ms = finished_at_ms;
        erasure.receipt.clone_from(receipt);
        written(&erasure).map(Some)
    })
    .await
}

/// Scope, name and value of the record of an erasure.
#[cfg(feature = "cassandra")]
pub(crate) fn to_record(erasure: &Erasure) -> Result<(String, String, Value)> {
    Ok((
        SCOPE.to_owned(),
        number_name(erasure.number),
        written(erasure)?,
    ))
}

/// Scope, name and value of the record of the key.
#[cfg(feature = "cassandra")]
pub(crate) fn key_to_record(key: Key) -> Result<(String, String, Value)> {
    Ok((
        KEY.0.to_owned(),
        KEY.1.to_owned(),
        written(&StoredKey(key))?,
    ))
}

fn from_record(record: Record) -> Result<Erasure> {
    let number = parse_number(SCOPE, &record.name)?;
    let erasure: Erasure = read_value(SCOPE, record)?;
    Ok(Erasure { number, ..erasure })
}

fn read_value<T: for<'de> Deserialize<'de>>(scope: &str, record: Record) -> Result<T> {
    parsed(scope, &record.name, record.value)
}

fn parsed<T: for<'de> Deserialize<'de>>(scope: &str, name: &str, value: Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Error::broken(format!("reading the record {name} of {scope}"), error))
}

fn written(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::broken("writing an erasure", error))
}

/// Bytes as hexadecimal digits.
pub(super) mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer, const N: usize>(
        bytes: &[u8; N],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        to.serialize_str(&digits.collect::<String>())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        from: D,
    ) -> Result<[u8; N], D::Error> {
        let digits = String::deserialize(from)?;
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| D::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))
    }
}
