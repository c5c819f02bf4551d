//! Pauses that end early when the process stops.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Waits for `wait_ms`, or until `stop` is cancelled.
pub(crate) async fn pause(wait_ms: u64, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
        () = stop.cancelled() => {}
    }
}
