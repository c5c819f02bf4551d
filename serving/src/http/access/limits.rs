//! Rate limits of requests, by key and by client address.

use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::options::ServingOptions;

/// Number of requests after which idle senders are removed.
const CLEANUP_REQUESTS: u64 = 10_000;
/// Length of a burst: the requests of this many seconds may arrive at once.
const BURST_SECONDS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// A rate limit for each sender `K`. 0 disables it.
pub(crate) struct RateLimit<K: Clone + Hash + Eq, C: Clock = DefaultClock> {
    limiter: Option<Limiter<K, C>>,
    /// Number of requests of a burst.
    quota: u32,
    clock: C,
    requests: AtomicU64,
}

type Limiter<K, C> = RateLimiter<K, DefaultKeyedStateStore<K>, C, StateInformationMiddleware>;

/// Headers of the IETF draft "RateLimit header fields for HTTP".
pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The state of a sender's limit after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateState {
    /// Number of requests within [`BURST_SECONDS`].
    quota: u32,
    /// Number of requests that may arrive now.
    remaining: u32,
}

impl RateState {
    /// Adds the headers `RateLimit` and `RateLimit-Policy`.
    pub(crate) fn add_headers(self, headers: &mut HeaderMap) {
        let Self { quota, remaining } = self;
        let used = u64::from(quota.saturating_sub(remaining));
        let burst_seconds = u64::from(BURST_SECONDS.get());
        let reset_s = (used * burst_seconds).div_ceil(u64::from(quota.max(1)));
        let policy = format!("\"default\";q={quota};w={burst_seconds}");
        let state = format!("\"default\";r={remaining};t={reset_s}");
        for (name, value) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
}

/// A request exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateExceeded {
    /// Time after which a request is permitted.
    pub(crate) wait: Duration,
    pub(crate) state: RateState,
}

impl<K: Clone + Hash + Eq, C: Clock + Clone> RateLimit<K, C> {
    fn per_second(requests_per_second: u32, clock: C) -> Self {
        let limiter = NonZeroU32::new(requests_per_second).map(|requests_per_second| {
            let burst = requests_per_second.saturating_mul(BURST_SECONDS);
            let quota = Quota::per_second(requests_per_second).allow_burst(burst);
            RateLimiter::new(quota, DefaultKeyedStateStore::default(), clock.clone())
        });
        Self {
            limiter,
            quota: requests_per_second.saturating_mul(BURST_SECONDS.get()),
            clock,
            requests: AtomicU64::new(0),
        }
    }

    /// Counts a request. Returns the state of the sender's limit, if there is a limit.
    pub(crate) fn check(&self, sender: &K) -> Result<Option<RateState>, RateExceeded> {
        let Some(limiter) = &self.limiter else {
            return Ok(None);
        };
        let state = |remaining| RateState {
            quota: self.quota,
            remaining,
        };
        if self.requests.fetch_add(1, Ordering::Relaxed) % CLEANUP_REQUESTS == CLEANUP_REQUESTS - 1
        {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
        match limiter.check_key(sender) {
            Ok(snapshot) => Ok(Some(state(snapshot.remaining_burst_capacity()))),
            Err(until) => Err(RateExceeded {
                wait: until.wait_time_from(self.clock.now()),
                state: state(0),
            }),
        }
    }
}

impl<K: Clone + Hash + Eq, C: Clock> fmt::Debug for RateLimit<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").finish_non_exhaustive()
    }
}

/// The rate limits of the service.
#[derive(Debug)]
pub(crate) struct RateLimits {
    /// By id of the key.
    pub(crate) keys: RateLimit<String>,
    /// By network of clients without a known key.
    pub(crate) addresses: RateLimit<IpAddr>,
}

impl RateLimits {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        Self {
            keys: RateLimit::per_second(
                options.key_requests_per_second_max,
                DefaultClock::default(),
            ),
            addresses: RateLimit::per_second(
                options.stranger_requests_per_second_max,
                DefaultClock::default(),
            ),
        }
    }
}

/// Returns the network by which clients are limited: the IPv4 address, or the /64 network of an
/// IPv6 address, which a single customer usually has.
pub(crate) fn truncate_to_network(address: IpAddr) -> IpAddr {
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
    fn each_sender_has_its_own_limit() {
        let clock = FakeRelativeClock::default();
        let limit = RateLimit::per_second(1, clock.clone());
        let state = |remaining| RateState {
            quota: 2,
            remaining,
        };
        assert_eq!(limit.check(&"a"), Ok(Some(state(1))));
        assert_eq!(limit.check(&"a"), Ok(Some(state(0))));
        let second = Duration::from_secs(1);
        let exceeded = Err(RateExceeded {
            wait: second,
            state: state(0),
        });
        assert_eq!(limit.check(&"a"), exceeded);
        assert_eq!(limit.check(&"b"), Ok(Some(state(1))));
        clock.advance(second);
        assert_eq!(limit.check(&"a"), Ok(Some(state(0))));
        assert_eq!(limit.check(&"a"), exceeded);
        let unlimited = RateLimit::per_second(0, clock);
        assert!((0..1_000).all(|_| unlimited.check(&"a").is_ok()));
    }

    #[test]
    fn addresses_of_one_network_share_a_limit() {
        let network_of = |text: &str| truncate_to_network(text.parse().expect("an address"));
        assert_eq!(network_of("2001:db8::1"), network_of("2001:db8::ffff:0:1"));
        assert_ne!(network_of("2001:db8::1"), network_of("2001:db8:0:1::1"));
        assert_eq!(network_of("::ffff:10.0.0.1"), network_of("10.0.0.1"));
        assert_ne!(network_of("10.0.0.1"), network_of("10.0.0.2"));
    }
}
