//! Where the present moment comes from: handed in, never taken, so that tests can move it.

use std::fmt::Debug;

/// A source of the present moment.
pub trait Clock: Debug + Send + Sync {
    /// Now, in milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// A clock that stands where it was set.
#[derive(Debug)]
pub struct FixedClock(std::sync::atomic::AtomicI64);

impl FixedClock {
    /// A clock that shows `now_ms` until it is set anew.
    #[must_use]
    pub fn at_ms(now_ms: i64) -> Self {
        Self(std::sync::atomic::AtomicI64::new(now_ms))
    }

    /// Moves the clock to `now_ms`.
    pub fn set_ms(&self, now_ms: i64) {
        self.0.store(now_ms, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Clock for FixedClock {
    fn now_ms(&self) -> i64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}
