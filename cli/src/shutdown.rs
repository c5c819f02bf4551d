//! How a process is asked to end: the first signal drains, the second ends at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The signals that ask the process to end.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// If the system does not let us.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Cancels `token` at the first signal; answers at the second.
    pub(crate) async fn watch(mut self, token: CancellationToken) {
        self.next().await;
        tracing::info!("ending: what is under way is finished first; a second signal ends at once");
        token.cancel();
        self.next().await;
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
