//! The lease port: one holder of a name at a time.
//!
//! A lease only saves work. What must not happen twice is kept from happening by compare-and-set
//! at the stores.

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
