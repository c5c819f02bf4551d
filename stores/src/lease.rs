//! The lease port: one holder of a name at a time.
//!
//! What readers see never depends on a lease: what must not happen twice is kept from happening by
//! compare-and-set at the stores. But a batch run deletes result files that no manifest names, and
//! relies on its lease that nobody is about to name them. So whoever holds a lease stops when it is
//! lost; and what was listed to be deleted is deleted only if the lease was held after the listing.

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// A lease that is held until it is let go or dropped, its holder dies, or it is lost.
#[async_trait]
pub trait Held: std::fmt::Debug + Send + Sync {
    /// Is cancelled when the lease is lost: somebody else may hold it soon. Where a lease ends with
    /// its process alone, this never happens.
    fn lost(&self) -> CancellationToken {
        CancellationToken::new()
    }

    /// Asks whether it is held still, which is as of a moment within the call: nobody else has held it
    /// since it was taken. Who stood still for long hears of a loss from this, and only then from
    /// [`Held::lost`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nobody answers.
    async fn is_held(&self) -> Result<bool> {
        Ok(!self.lost().is_cancelled())
    }

    /// Why it was lost, for people: what did not answer, or that somebody else has it.
    fn why_lost(&self) -> Option<String> {
        None
    }

    /// Lets it go, and waits a moment until others can take it. Where it is only dropped they can a
    /// little later.
    async fn let_go(self: Box<Self>) {}
}

/// Handing out leases.
#[async_trait]
pub trait Leases: std::fmt::Debug + Send + Sync {
    /// Takes the lease `name` for `holder` (a text for people: who and what), or answers who holds
    /// it, and since when where that is known. It does not wait. A lease whose holder died may end
    /// some seconds later.
    ///
    /// # Errors
    /// [`Error::Refused`] for a name with other signs than letters, digits, `-`, `_` and `.`.
    async fn acquire(&self, name: &str, holder: &str) -> Result<Result<Box<dyn Held>, String>>;
}

/// Whether a text can be the name of a lease.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(Error::Refused(format!(
            "{name:?} can't be the name of a lease; use letters, digits, '-', '_' and '.'"
        )));
    }
    Ok(())
}
