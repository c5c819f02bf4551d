//! Leases of batch runs. A test holds them.

use async_trait::async_trait;
use stores::Result;
use stores::lease::{LeaseGuard, Leases};

use super::{MemoryStores, fail_unsupported};

#[async_trait]
impl Leases for MemoryStores {
    async fn acquire(&self, _: &str, _: &str) -> Result<Result<Box<dyn LeaseGuard>, String>> {
        fail_unsupported()
    }

    async fn holder(&self, name: &str) -> Result<Option<String>> {
        Ok(self.held_leases.lock().unwrap().get(name).cloned())
    }
}
