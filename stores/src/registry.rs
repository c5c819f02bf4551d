//! The schema registry: the schemas of the writers of Avro records.

#[cfg(feature = "http")]
mod client;

use std::collections::BTreeSet;
use std::fmt::Debug;

use arrow::array::BinaryArray;
use async_trait::async_trait;
use schemas::avro::{Writers, schema_ids};

#[cfg(feature = "http")]
pub use client::Registry;

use crate::Result;
pub use crate::options::RegistryOptions;

/// Where the schemas of records of Avro are.
#[async_trait]
pub trait Schemas: Debug + Send + Sync {
    /// What is known of each of these schemas: its text, or the reason why there is none.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the registry does not answer, [`crate::Error::Broken`] if it can't be used.
    async fn writers(&self, ids: &BTreeSet<u32>) -> Result<Writers>;
}

/// The schemas that are needed to read `records`; nothing is asked where none of them is Avro.
///
/// # Errors
/// As [`Schemas::writers`].
pub async fn writers_of(schemas: &dyn Schemas, records: &BinaryArray) -> Result<Writers> {
    let ids = schema_ids(records.iter().flatten());
    if ids.is_empty() {
        return Ok(Writers::default());
    }
    schemas.writers(&ids).await
}

/// What stands for the registry where none is set.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRegistry;

#[async_trait]
impl Schemas for NoRegistry {
    async fn writers(&self, ids: &BTreeSet<u32>) -> Result<Writers> {
        let mut writers = Writers::default();
        for id in ids {
            let why = format!(
                "a record of the Avro schema {id} can't be read: registry.url, where its schema is, is not set"
            );
            writers.insert(*id, Err(why));
        }
        Ok(writers)
    }
}
