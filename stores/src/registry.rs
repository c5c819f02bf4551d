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
pub trait SchemaSource: Debug + Send + Sync {
    /// The text of each schema, or the reason why it is not available.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the registry does not respond, [`crate::Error::Broken`] if
    /// it can't be used.
    async fn fetch_writer_schemas(&self, ids: &BTreeSet<u32>) -> Result<WriterSchemas>;
}

/// Reads the schemas that `records` were written with. Sends no request if no record is Avro.
///
/// # Errors
/// As [`SchemaSource::fetch_writer_schemas`].
pub async fn read_writer_schemas(
    schemas: &dyn SchemaSource,
    records: &BinaryArray,
) -> Result<WriterSchemas> {
    fetch_schemas(schemas, &schema_ids(records.iter().flatten())).await
}

/// Fetches schemas. Sends no request without ids.
pub(crate) async fn fetch_schemas(
    schemas: &dyn SchemaSource,
    ids: &BTreeSet<u32>,
) -> Result<WriterSchemas> {
    match ids.is_empty() {
        true => Ok(WriterSchemas::default()),
        false => schemas.fetch_writer_schemas(ids).await,
    }
}

/// The schema source of an installation without a registry.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRegistry;

#[async_trait]
impl SchemaSource for NoRegistry {
    async fn fetch_writer_schemas(&self, ids: &BTreeSet<u32>) -> Result<WriterSchemas> {
        let mut writers = WriterSchemas::default();
        for id in ids {
            let reason =
                format!("cannot read a record with the Avro schema {id}: registry.url is not set");
            writers.insert(*id, Err(reason));
        }
        Ok(writers)
    }
}
