//! Signals that stop the process: the first one drains it, a second one after half a second stops
//! it at once.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Signals this soon after the first one belong to it: some supervisors signal the process and then
/// its group.
const REPEATED_SIGNAL_WINDOW: Duration = Duration::from_millis(500);

/// Signals that stop the process.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    /// A signal handler that cannot be installed.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Cancels `token` at the first signal, and returns at the second.
    pub(crate) async fn watch(mut self, token: CancellationToken) {
        self.wait_for_signal().await;
        tracing::info!(
            "stopping after the work in progress; another signal after half a second stops at once"
        );
        token.cancel();
        let window = sleep(REPEATED_SIGNAL_WINDOW);
        tokio::pin!(window);
        loop {
            tokio::select! {
                () = &mut window => break,
                () = self.wait_for_signal() => {}
            }
        }
        self.wait_for_signal().await;
    }

    async fn wait_for_signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Sleeps. Returns false as soon as `stop` is cancelled.
pub(crate) async fn sleep_unless_cancelled(duration: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = sleep(duration) => true,
    }
}
