//! Avro in the Confluent framing: a byte 0, the id of the writer's schema in four bytes,
//! big-endian, then one record. JSON never begins with a byte 0, so a log may contain both.
//!
//! This module owns the framing, the fitting of writer schemas to ours, and the decoding of records
//! to columns. It knows no source. Schemas are parameters ([`WriterSchemas`]).

mod fit;
mod frames;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use frames::AvroRecords;

/// The first byte of an Avro record.
const MAGIC: u8 = 0;
/// The length of the framing before a record.
const HEAD_BYTES: usize = 5;

/// The schemas with which records were written, by their ids in the schema registry. For an unknown
/// id, the reason why its records cannot be read.
#[derive(Debug, Clone, Default)]
pub struct WriterSchemas(BTreeMap<u32, Result<Arc<str>, String>>);

impl WriterSchemas {
    /// Adds the schema of an id, or the reason why there is none.
    pub fn insert(&mut self, id: u32, schema: Result<Arc<str>, String>) {
        self.0.insert(id, schema);
    }

    /// Returns the reason why the schema of a record is missing; none if it is present.
    #[must_use]
    pub fn schema_error(&self, record: &[u8]) -> Option<&str> {
        let id = is_framed(record).then(|| schema_id(record))??;
        self.get(id)?.as_ref().err().map(String::as_str)
    }

    fn get(&self, id: u32) -> Option<&Result<Arc<str>, String>> {
        self.0.get(&id)
    }
}

/// Returns the ids of the schemas that these records need.
#[must_use]
pub fn schema_ids<'a>(records: impl IntoIterator<Item = &'a [u8]>) -> BTreeSet<u32> {
    let framed = records.into_iter().filter(|bytes| is_framed(bytes));
    framed.filter_map(schema_id).collect()
}

/// Returns whether a record is Avro.
#[must_use]
pub fn is_framed(bytes: &[u8]) -> bool {
    bytes.first() == Some(&MAGIC)
}

/// Returns the schema id of a framed record, if the framing is complete.
fn schema_id(bytes: &[u8]) -> Option<u32> {
    let id = bytes.get(1..HEAD_BYTES)?;
    Some(u32::from_be_bytes(id.try_into().ok()?))
}
