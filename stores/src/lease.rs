//! The lease port: at most one process holds a name at a time.
//!
//! Readers never depend on a lease, because the stores prevent duplicate changes by
//! compare-and-set. But a batch run deletes result files that no manifest names, and relies on its
//! lease that no other run is about to name them. So a holder stops when its lease is lost. It
//! deletes listed files only if it still held the lease after the listing.

use async_trait::async_trait;
use schemas::source::Source;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// A held lease. It ends when it is released, dropped or lost, or when its holder dies.
#[async_trait]
pub trait LeaseGuard: std::fmt::Debug + Send + Sync {
    /// A token that is cancelled when the lease is lost, because another process may hold it soon.
    /// It never fires if only the end of the process ends a lease.
    fn lost(&self) -> CancellationToken {
        CancellationToken::new()
    }

    /// Returns whether the lease is still held, at a moment during the call: no other process has
    /// held it since it was acquired. A process that was suspended learns of the loss from this
    /// call first, and from [`LeaseGuard::lost`] only afterwards.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    async fn is_held(&self) -> Result<bool> {
        Ok(!self.lost().is_cancelled())
    }

    /// The reason of the loss, for messages: the store that did not answer, or the new holder.
    fn loss_reason(&self) -> Option<String> {
        None
    }

    /// Releases the lease, and waits until other processes can acquire it. After a drop they can
    /// acquire it a little later.
    async fn release(self: Box<Self>) {}
}

/// Grants leases.
#[async_trait]
pub trait Leases: std::fmt::Debug + Send + Sync {
    /// Acquires the lease `name` for `holder` (a description for messages), or returns the current
    /// holder, and since when it holds the lease if that is known. Does not wait. The lease of a
    /// dead holder may end some seconds later.
    ///
    /// # Errors
    /// [`Error::Refused`] for a name with other characters than letters, digits, `-`, `_` and `.`.
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
    ) -> Result<Result<Box<dyn LeaseGuard>, String>>;

    /// Returns the current holder of the lease `name`; `None` if it is free.
    ///
    /// # Errors
    /// [`Error::Refused`] for an invalid name, as in [`Leases::acquire`].
    async fn holder(&self, name: &str) -> Result<Option<String>>;
}

/// Returns the name of the lease that keeps two batch runs of a source apart.
#[must_use]
pub fn run_lease(source: Source) -> String {
    format!("batch-{source}")
}

/// Checks the name of a lease.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_allowed) {
        return Err(Error::Refused(format!(
            "{name:?} is not a valid lease name; use letters, digits, '-', '_' and '.'"
        )));
    }
    Ok(())
}
