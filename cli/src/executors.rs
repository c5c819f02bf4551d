//! Executors of batch tasks on other machines.

use async_trait::async_trait;
use batch::Workers;
use tokio_util::sync::CancellationToken;

/// Executors that run the tasks of batch runs.
#[async_trait]
pub(crate) trait Executors: Workers {
    /// Connects, so that no run starts without executors.
    ///
    /// # Errors
    /// A scheduler that is unreachable or has no executor.
    async fn connect(&self, stop: &CancellationToken) -> anyhow::Result<()>;
}
