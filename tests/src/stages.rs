//! Actions at the beginning of a run's stage.

use std::fmt;

use batch::Progress;
use tokio_util::sync::CancellationToken;

/// Calls a function with the name of each stage that begins.
pub struct StageCallback<F>(pub F);

impl<F> fmt::Debug for StageCallback<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageCallback").finish_non_exhaustive()
    }
}

impl<F: Fn(&str) + Send + Sync> Progress for StageCallback<F> {
    fn stage(&self, name: &str, _: u64) {
        (self.0)(name);
    }

    fn advance(&self, _: u64) {}
}

/// Cancels a token when a stage begins.
pub fn cancel_at(stage: &'static str, token: &CancellationToken) -> impl Progress + use<> {
    let token = token.clone();
    StageCallback(move |name: &str| {
        if name == stage {
            token.cancel();
        }
    })
}

/// Blocks on a future from synchronous code, on a multithreaded runtime.
pub fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| runtime.block_on(future))
}
