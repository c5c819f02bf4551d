//! How often may be asked: by one key, and by one address that is not known to have one.

use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::options::ServingOptions;

/// After so many requests those are forgotten who have not asked for long.
const TIDY_EVERY: u64 = 10_000;
/// How many seconds' requests may come at once.
const BURST_SECONDS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// A limit of requests for each of many askers; none where it is 0.
pub(crate) struct Limit<K: Clone + Hash + Eq, C: Clock = DefaultClock> {
    limiter: Option<Limiter<K, C>>,
    clock: C,
    asked: AtomicU64,
}

type Limiter<K, C> =
    RateLimiter<K, DefaultKeyedStateStore<K>, C, NoOpMiddleware<<C as Clock>::Instant>>;

impl<K: Clone + Hash + Eq, C: Clock + Clone> Limit<K, C> {
    fn per_second(requests: u32, clock: C) -> Self {
        let limiter = NonZeroU32::new(requests).map(|requests| {
            let burst = requests.saturating_mul(BURST_SECONDS);
            let quota = Quota::per_second(requests).allow_burst(burst);
            RateLimiter::new(quota, DefaultKeyedStateStore::default(), clock.clone())
        });
        Self {
            limiter,
            clock,
            asked: AtomicU64::new(0),
        }
    }

    /// Whether one more request is within the limit; if not, after how long it is.
    pub(crate) fn take(&self, asker: &K) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else {
            return Ok(());
        };
        if self.asked.fetch_add(1, Ordering::Relaxed) % TIDY_EVERY == TIDY_EVERY - 1 {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
        let taken = limiter.check_key(asker);
        taken.map_err(|until| until.wait_time_from(self.clock.now()))
    }
}

impl<K: Clone + Hash + Eq, C: Clock> fmt::Debug for Limit<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").finish_non_exhaustive()
    }
}

/// All limits.
#[derive(Debug)]
pub(crate) struct Limits {
    /// By the id of a key.
    pub(crate) of_keys: Limit<String>,
    /// By the address of who is not known to have a key.
    pub(crate) of_strangers: Limit<IpAddr>,
}

impl Limits {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        Self {
            of_keys: Limit::per_second(
                options.key_requests_per_second_max,
                DefaultClock::default(),
            ),
            of_strangers: Limit::per_second(
                options.stranger_requests_per_second_max,
                DefaultClock::default(),
            ),
        }
    }
}

/// What stands for an address: of IPv6 the network that one customer has.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let prefix = u128::from(v6) & !u128::from(u64::MAX);
            IpAddr::V6(prefix.into())
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn each_asker_has_a_limit_of_its_own() {
        let clock = FakeRelativeClock::default();
        let limit = Limit::per_second(1, clock.clone());
        for _ in 0..BURST_SECONDS.get() {
            assert_eq!(limit.take(&"a"), Ok(()));
        }
        let second = Duration::from_secs(1);
        assert_eq!(limit.take(&"a"), Err(second));
        assert_eq!(limit.take(&"b"), Ok(()));
        clock.advance(second);
        assert_eq!(limit.take(&"a"), Ok(()));
        assert_eq!(limit.take(&"a"), Err(second));
        let none = Limit::per_second(0, clock);
        assert!((0..1_000).all(|_| none.take(&"a").is_ok()));
    }

    #[test]
    fn addresses_of_one_network_are_one_asker() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
