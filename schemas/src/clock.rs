//! The clock that services receive as a parameter, so that tests control the time.

use std::fmt::Debug;

/// A source of the current time.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current time in milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// A clock for tests: it shows the time that was set last.
#[derive(Debug)]
pub struct FixedClock(std::sync::atomic::AtomicI64);

impl FixedClock {
    /// Creates a clock that shows `now_ms` until [`FixedClock::set_ms`] is called.
    #[must_use]
    pub const fn new(now_ms: i64) -> Self {
        Self(std::sync::atomic::AtomicI64::new(now_ms))
    }

    /// Sets the clock to `now_ms`.
    pub fn set_ms(&self, now_ms: i64) {
        self.0.store(now_ms, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Clock for FixedClock {
    fn now_ms(&self) -> i64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}
