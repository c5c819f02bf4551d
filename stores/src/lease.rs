//! The lease port: one holder of a name at a time.
//!
//! What readers see never depends on a lease: what must not happen twice is kept from happening by
//! compare-and-set at the stores. But a batch run deletes result files that no manifest names, and
//! relies on its lease that nobody is about to name them.

use async_trait::async_trait;

use crate::Result;

/// A lease that is held until it is dropped, or its holder dies.
pub trait Held: std::fmt::Debug + Send + Sync {}

/// Handing out leases.
#[async_trait]
pub trait Leases: std::fmt::Debug + Send + Sync {
    /// Takes the lease `name` for `holder` (a text for people: who and what), or answers who holds
    /// it. It does not wait.
    async fn acquire(&self, name: &str, holder: &str) -> Result<Result<Box<dyn Held>, String>>;
}
