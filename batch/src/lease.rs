//! Work under a lease: how it stops, and how a lost lease is reported.

use stores::lease::LeaseGuard as Lease;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// Returns [`Error::Stopped`] if the run must stop.
pub(crate) fn check_stop(stop: &CancellationToken) -> Result<()> {
    if stop.is_cancelled() {
        return Err(Error::Stopped);
    }
    Ok(())
}

/// Runs `work`, and cancels `stop` when the lease is lost: another process may hold the lease then.
/// `work` must check this `stop` at each safe point.
pub(crate) async fn run_under_lease<T>(
    lease: &dyn Lease,
    stop: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let lost = lease.lost();
    let mut work = std::pin::pin!(work);
    let outcome = tokio::select! {
        outcome = &mut work => return outcome,
        () = lost.cancelled() => {
            tracing::error!("lost the lease of a batch run; the run stops");
            stop.cancel();
            work.await
        }
    };
    match outcome {
        Err(error) => match error.split_applied() {
            (Error::Stopped, applied) => {
                Err(lost_lease_error(lease, "a run").with_applied(applied))
            }
            (error, applied) => Err(error.with_applied(applied)),
        },
        outcome => outcome,
    }
}

/// Verifies in the lease's store that the lease is held. Then no other process held it when earlier
/// reads were made, even if this process stalled since.
pub(crate) async fn verify_lease(lease: &dyn Lease) -> Result<()> {
    if lease.is_held().await? {
        return Ok(());
    }
    Err(lost_lease_error(lease, "a run"))
}

/// Returns the error of work that stopped because its lease was lost. `holder` names the work.
pub(crate) fn lost_lease_error(lease: &dyn Lease, holder: &str) -> Error {
    let reason = lease
        .loss_reason()
        .unwrap_or_else(|| "it expired".to_owned());
    Error::Store(stores::Error::Unavailable {
        operation: format!("holding the lease of {holder}"),
        reason: format!("it was lost: {reason}; run again"),
    })
}
