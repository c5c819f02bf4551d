//! The schema registry: the schemas of the writers of Avro records.

#[cfg(feature = "http")]
mod client;

use std::collections::BTreeSet;
use std::fmt::Debug;

use arrow::array::BinaryArray;
use async_trait::async_trait;
use schemas::avro::{WriterSchemas, schema_ids};

#[cfg(feature = "http")]
pub use client::Registry;

use crate::Result;
pub use crate::options::RegistryOptions;

/// A source of the schemas of Avro records.
#[async_trait]
pub trait Schemas: Debug + Send + Sync {
    /// The text of each schema, or the reason why it is not available.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the registry does not answer, [`crate::Error::Broken`] if
    /// it can't be used.
    async fn writers(&self, ids: &BTreeSet<u32>) -> Result<WriterSchemas>;
}

/// Reads the schemas that `records` were written with. Sends no request if no record is Avro.
///
/// # Errors
/// As [`Schemas::writers`].
pub async fn read_writers(schemas: &dyn Schemas, records: &BinaryArray) -> Result<WriterSchemas> {
    let ids = schema_ids(records.iter().flatten());
    if ids.is_empty() {
        return Ok(WriterSchemas::default());
    }
    schemas.writers(&ids).await
}

/// The schema source of an installation without a registry.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRegistry;

#[async_trait]
impl Schemas for NoRegistry {
    async fn writers(&self, ids: &BTreeSet<u32>) -> Result<WriterSchemas> {
        let mut writers = WriterSchemas::default();
        for id in ids {
            let why =
                format!("cannot read a record with the Avro schema {id}: registry.url is not set");
            writers.insert(*id, Err(why));
        }
        Ok(writers)
    }
}
