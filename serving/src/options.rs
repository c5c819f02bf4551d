//! Ports and options of the serving layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemas::clock::Clock;
use serde::{Deserialize, Serialize};
use stores::achievements::AchievementsRead;
use stores::admin::EntityAdmin;
use stores::counts::CountsRead;
use stores::erasures::Suppressions;
use stores::keys::Keys;
use stores::lease::Leases;
use stores::live::LiveRead;
use stores::log::{LogRead, LogWrite};
use stores::records::Records;
use stores::registry::SchemaSource;
use stores::views::ViewsRead;

use stores::Secret;

use crate::network::Network;
use crate::{Error, Result};

/// Minimum length of a session secret; a shorter one could be guessed.
const SESSION_SECRET_CHARS_MIN: usize = 32;

/// The ports to the stores.
#[derive(Debug, Clone)]
pub struct ServingPorts {
    /// The log: positions, lag, and dead letters.
    pub log: Arc<dyn LogRead>,
    /// Log for events that are ingested over HTTP, and for notifications.
    pub ingest: Arc<dyn LogWrite>,
    /// Schemas of Avro records, to reprocess dead letters.
    pub schemas: Arc<dyn SchemaSource>,
    /// Entity store: clubs, applications, and rows that are ingested over HTTP.
    pub entities: Arc<dyn EntityAdmin>,
    /// Live state.
    pub live: Arc<dyn LiveRead>,
    /// Batch rows and run records.
    pub views: Arc<dyn ViewsRead>,
    /// Achievements of athletes.
    pub achievements: Arc<dyn AchievementsRead>,
    /// Daily counts of members.
    pub counts: Arc<dyn CountsRead>,
    /// Records of reconciliations, corrections and approvals; only approvals are written.
    pub records: Arc<dyn Records>,
    /// API keys, and the audit log of administrators' actions.
    pub keys: Arc<dyn Keys>,
    /// Leases of batch runs, which show whether one is under way.
    pub leases: Arc<dyn Leases>,
    /// People who are erased: their events are not ingested.
    pub suppressions: Suppressions,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Renders the metrics for `/metrics` in Prometheus' text format.
#[derive(Clone)]
pub struct MetricsText(Arc<dyn Fn() -> String + Send + Sync>);

impl MetricsText {
    /// Creates a source of metrics; `render` is called for each request.
    pub fn new(render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(render))
    }

    pub(crate) fn render(&self) -> String {
        (self.0)()
    }
}

impl fmt::Debug for MetricsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsText").finish_non_exhaustive()
    }
}

/// Options of the serving layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServingOptions {
    /// Number of partitions of a topic that is created for the first events over HTTP.
    pub partitions: u32,
    /// How long a request waits for incomplete live state before it fails with 503.
    pub whole_wait_ms: u64,
    /// Maximum concurrent reads of statistics, which bounds memory; further ones wait. Requests by
    /// a column with many values (such as listener), or for distinct values over time, may use an
    /// eighth.
    pub tally_reads_max: usize,
    /// Maximum concurrent reads of boards and applications, which bounds memory; further ones wait.
    pub board_reads_max: usize,
    /// Memory for stale answers, in bytes, each for statistics and for boards. They are served
    /// while a store is unavailable.
    pub kept_bytes_max: u64,
    /// How long stale answers are cached.
    pub kept_for_ms: u64,
    /// Memory of the cache of batch rows, in bytes; 0 disables it.
    pub row_cache_bytes_max: u64,
    /// Maximum open connections; further ones wait. One address may open an eighth of them, except
    /// this machine and trusted proxies.
    pub connections_max: usize,
    /// Timeout for the head of a request.
    pub head_timeout_ms: u64,
    /// Timeout of a request, except for streamed responses.
    pub request_timeout_ms: u64,
    /// Maximum pause within a body of events, and timeout of any other body.
    pub body_idle_timeout_ms: u64,
    /// How long run records are cached: less than the grace period of the batch layer. Outdated
    /// records are read again before a request is answered. 0 disables the cache.
    pub runs_kept_for_ms: u64,
    /// Minimum average transfer rate of a body of events after `body_idle_timeout_ms`, as sent; 0
    /// for none.
    pub body_bytes_per_second_min: u64,
    /// Maximum bodies of events ingested concurrently; further requests are refused with 429.
    pub ingests_max: usize,
    /// Maximum bodies of events ingested concurrently per key; 0 for half of `ingests_max`.
    pub ingests_per_key_max: usize,
    /// Maximum size of a body of events, in bytes.
    pub body_bytes_max: u64,
    /// Maximum pages that follow live changes.
    pub followers_max: usize,
    /// Maximum concurrent requests, each until its client has received the answer; further ones are
    /// refused with 503. One address other than this machine may use an eighth of them.
    pub requests_max: usize,
    /// Maximum size of the head of a request, in bytes.
    pub head_bytes_max: u32,
    /// How long a key is cached: a revoked key is refused after this time.
    pub keys_kept_ms: u64,
    /// How long a cached key is used while the key store is unavailable.
    pub keys_kept_stale_ms: u64,
    /// Maximum requests per second of one key, with bursts of twice as many; 0 for no limit.
    pub key_requests_per_second_max: u32,
    /// Maximum requests per second of one address without a known key, with bursts of twice as
    /// many; 0 for no limit.
    pub stranger_requests_per_second_max: u32,
    /// Secret that signs session cookies, at least 32 characters, equal in all serving processes.
    /// Without it, each process generates its own: a sign-in is valid only there and until the
    /// process ends.
    pub session_secret: Secret,
    /// Addresses or networks of proxies whose header `X-Forwarded-For` is trusted: `10.0.0.7`,
    /// `10.0.0.0/8`.
    pub trusted_proxies: Vec<Network>,
    /// Accepted host names, besides those of this machine, while there is no API key.
    pub hosts: Vec<String>,
    /// Allowed CORS origins, such as `https://app.example.org`; empty for none.
    pub cors_origins: Vec<String>,
    /// How long requests in progress may run after shutdown began.
    pub drain_timeout_ms: u64,
}

impl Default for ServingOptions {
    fn default() -> Self {
        Self {
            partitions: 4,
            whole_wait_ms: 2_000,
            tally_reads_max: 64,
            board_reads_max: 16,
            kept_bytes_max: 32 * 1024 * 1024,
            kept_for_ms: 3_600_000,
            row_cache_bytes_max: 64 * 1024 * 1024,
            connections_max: 1_024,
            head_timeout_ms: 10_000,
            request_timeout_ms: 30_000,
            body_idle_timeout_ms: 30_000,
            runs_kept_for_ms: 500,
            body_bytes_per_second_min: 512,
            ingests_max: 64,
            ingests_per_key_max: 0,
            body_bytes_max: 64 * 1024 * 1024,
            followers_max: 256,
            requests_max: 4_096,
            head_bytes_max: 64 * 1024,
            keys_kept_ms: 5_000,
            keys_kept_stale_ms: 900_000,
            key_requests_per_second_max: 1_000,
            stranger_requests_per_second_max: 50,
            session_secret: Secret::default(),
            trusted_proxies: Vec::new(),
            hosts: Vec::new(),
            cors_origins: Vec::new(),
            drain_timeout_ms: 10_000,
        }
    }
}

impl ServingOptions {
    /// Checks the options, as [`crate::Serving::new`] does.
    ///
    /// # Errors
    /// [`crate::Error::Option`] for the first invalid option.
    pub fn check(&self) -> Result<()> {
        let invalid = |option, value, advice| {
            Err(Error::Option {
                option,
                value,
                advice,
            })
        };
        let check_positive = |option, value: u64| match value {
            0 => invalid(option, value.to_string(), "set it to 1 or more"),
            _ => Ok(()),
        };
        check_positive("partitions", self.partitions.into())?;
        check_positive("tally_reads_max", self.tally_reads_max as u64)?;
        check_positive("board_reads_max", self.board_reads_max as u64)?;
        check_positive("ingests_max", self.ingests_max as u64)?;
        check_positive("connections_max", self.connections_max as u64)?;
        check_positive("head_timeout_ms", self.head_timeout_ms)?;
        check_positive("request_timeout_ms", self.request_timeout_ms)?;
        check_positive("body_idle_timeout_ms", self.body_idle_timeout_ms)?;
        check_positive("body_bytes_max", self.body_bytes_max)?;
        check_positive("requests_max", self.requests_max as u64)?;
        if !(8_192..=1_048_576).contains(&self.head_bytes_max) {
            let advice = "set it to a number from 8192 to 1048576";
            return invalid("head_bytes_max", self.head_bytes_max.to_string(), advice);
        }
        let secret_chars = self.session_secret.reveal().chars().count();
        if (1..SESSION_SECRET_CHARS_MIN).contains(&secret_chars) {
            let advice = "set it to at least 32 random characters";
            return invalid(
                "session_secret",
                format!("{secret_chars} characters"),
                advice,
            );
        }
        for origin in &self.cors_origins {
            let host = (origin.strip_prefix("https://")).or_else(|| origin.strip_prefix("http://"));
            let is_plain = |host: &str| {
                !host.is_empty()
                    && !host.contains(|char: char| char == '/' || !char.is_ascii_graphic())
            };
            if !host.is_some_and(is_plain) {
                let advice = "write each origin as in https://app.example.org, without a path";
                return invalid("cors_origins", origin.clone(), advice);
            }
        }
        Ok(())
    }

    pub(crate) const fn live_state_wait(&self) -> Duration {
        Duration::from_millis(self.whole_wait_ms)
    }

    pub(crate) const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    pub(crate) const fn body_idle_timeout(&self) -> Duration {
        Duration::from_millis(self.body_idle_timeout_ms)
    }

    /// Maximum concurrent bodies of events per key.
    pub(crate) fn ingests_per_key(&self) -> usize {
        match self.ingests_per_key_max {
            0 => self.ingests_max.div_ceil(2),
            configured_max => configured_max.min(self.ingests_max),
        }
    }
}
