//! How a process is asked to end: the first signal drains, the next one after half a second ends at once.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// What comes so soon after the first signal is the same: some programs that end others signal the process and then its whole group.
const SAME: Duration = Duration::from_millis(500);

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
        tracing::info!(
            "ending: what is under way is finished first; another signal after half a second ends at once"
        );
        token.cancel();
        let is_over = sleep(SAME);
        tokio::pin!(is_over);
        loop {
            tokio::select! {
                () = &mut is_over => break,
                () = self.next() => {}
            }
        }
        self.next().await;
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
