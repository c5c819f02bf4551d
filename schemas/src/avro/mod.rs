//! Avro in the Confluent framing: a byte 0, the id of the writer's schema in four bytes, big-endian,
//! then one record. JSON never begins with a byte 0, so a log may hold both.
//!
//! It owns the framing, what writers' schemas are fitted to ours, and the reading of records into
//! columns. It must not know any source, nor where schemas come from: they are given as [`Writers`].

mod fit;
mod frames;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use frames::Frames;

/// The first byte of a record of Avro.
const MAGIC: u8 = 0;
/// How long the framing before a record is.
const HEAD_BYTES: usize = 5;

/// The schemas that records were written with, by their ids in the registry; or, for an id that the
/// registry does not know, the reason for which its records can't be read.
#[derive(Debug, Clone, Default)]
pub struct Writers(BTreeMap<u32, Result<Arc<str>, String>>);

impl Writers {
    /// Notes what is behind an id: the text of a schema, or the reason why there is none.
    pub fn insert(&mut self, id: u32, found: Result<Arc<str>, String>) {
        self.0.insert(id, found);
    }

    /// Why a record can't be read for want of its schema, if that is so.
    #[must_use]
    pub fn unreadable(&self, record: &[u8]) -> Option<&str> {
        let id = is_framed(record).then(|| schema_id(record))??;
        self.get(id)?.as_ref().err().map(String::as_str)
    }

    fn get(&self, id: u32) -> Option<&Result<Arc<str>, String>> {
        self.0.get(&id)
    }
}

/// The ids of the schemas that are needed to read these records.
#[must_use]
pub fn schema_ids<'a>(records: impl IntoIterator<Item = &'a [u8]>) -> BTreeSet<u32> {
    let framed = records.into_iter().filter(|bytes| is_framed(bytes));
    framed.filter_map(schema_id).collect()
}

/// Whether a record is Avro.
#[must_use]
pub fn is_framed(bytes: &[u8]) -> bool {
    bytes.first() == Some(&MAGIC)
}

/// The id in the framing of a record, if that is whole.
fn schema_id(bytes: &[u8]) -> Option<u32> {
    let id = bytes.get(1..HEAD_BYTES)?;
    Some(u32::from_be_bytes(id.try_into().ok()?))
}
