//! The only reader of the system clock.

use std::time::{SystemTime, UNIX_EPOCH};

use schemas::clock::Clock;

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "all other code receives a Clock; this is the real one"
    )]
    fn now_ms(&self) -> i64 {
        let to_ms =
            |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after_epoch) => to_ms(after_epoch),
            Err(error) => -to_ms(error.duration()),
        }
    }
}
