//! The record store, which is empty and forgets writes.

use async_trait::async_trait;
use stores::Result;
use stores::records::{Record, Records, RecordsRead, Scan};

use super::MemoryStores;

#[async_trait]
impl RecordsRead for MemoryStores {
    async fn get(&self, _: &str, _: &str) -> Result<Option<Record>> {
        Ok(None)
    }

    async fn scan(&self, _: &str, _: Scan<'_>) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Records for MemoryStores {
    async fn compare_and_set(
        &self,
        _: &str,
        _: &str,
        _: Option<u64>,
        _: Option<&serde_json::Value>,
    ) -> Result<bool> {
        Ok(true)
    }
}
