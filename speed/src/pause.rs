//! Pauses that end early when the process stops.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Waits, but not after `stop`.
pub(crate) async fn pause(wait_ms: u64, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
        () = stop.cancelled() => {}
    }
}
