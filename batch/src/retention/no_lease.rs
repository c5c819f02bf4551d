//! A lease for reports, which delete nothing.

use stores::lease::LeaseGuard as Lease;
use tokio_util::sync::CancellationToken;

/// A lost lease for read-only use: nothing can be deleted with it.
#[derive(Debug)]
pub(super) struct NoLease;

impl Lease for NoLease {
    fn lost(&self) -> CancellationToken {
        let lost = CancellationToken::new();
        lost.cancel();
        lost
    }
}
