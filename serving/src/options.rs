//! What the serving layer is given, and what can be set.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemas::clock::Clock;
use serde::{Deserialize, Serialize};
use stores::achievements::AchievementsRead;
use stores::admin::CanonAdmin;
use stores::counts::CountsRead;
use stores::erasures::Suppressions;
use stores::keys::Keys;
use stores::live::LiveRead;
use stores::log::{LogRead, LogWrite};
use stores::records::Records;
use stores::registry::Schemas;
use stores::views::ViewsRead;

use stores::Secret;

use crate::network::Network;
use crate::{Error, Result};

/// A shorter secret could be guessed.
const SESSION_SECRET_CHARS_MIN: usize = 32;

/// The stores that the serving layer works with.
#[derive(Debug, Clone)]
pub struct ServingPorts {
    /// The log, for positions, how far they lag, and dead letters.
    pub log: Arc<dyn LogRead>,
    /// Where events that come in over HTTP go, and notifications.
    pub ingest: Arc<dyn LogWrite>,
    /// What is known of the schemas of records that are Avro, for dead letters that are taken once more.
    pub schemas: Arc<dyn Schemas>,
    /// Clubs, applications, and rows that come in over HTTP.
    pub canon: Arc<dyn CanonAdmin>,
    /// Live state.
    pub live: Arc<dyn LiveRead>,
    /// Batch rows and run records.
    pub views: Arc<dyn ViewsRead>,
    /// What athletes have achieved.
    pub achievements: Arc<dyn AchievementsRead>,
    /// Counts of members by day.
    pub counts: Arc<dyn CountsRead>,
    /// Records of reconciliations, corrections and approvals; only approvals are written.
    pub records: Arc<dyn Records>,
    /// Keys of the API, and what administrators did.
    pub keys: Arc<dyn Keys>,
    /// Who is taken out of what comes in.
    pub suppressions: Suppressions,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
}

/// What `/metrics` answers: the text in Prometheus' format at the moment of the call.
#[derive(Clone)]
pub struct MetricsText(Arc<dyn Fn() -> String + Send + Sync>);

impl MetricsText {
    /// A text that `render` gives anew at each call.
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

/// What can be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServingOptions {
    /// Partitions of a topic that is made because the first events come in over HTTP.
    pub partitions: u32,
    /// How long an answer waits for live state to become whole before it is a 503.
    pub whole_wait_ms: u64,
    /// Reads of statistics at once, at most; more wait. An eighth of them may be by what may have many values, as by listener, or of
    /// different values over time. It bounds how many counts are in memory.
    pub tally_reads_max: usize,
    /// Reads of boards and applications at once, at most; more wait. It bounds how many live states are
    /// in memory.
    pub board_reads_max: usize,
    /// Memory of answers that are kept for when a store does not answer, in bytes, each for statistics and
    /// for boards.
    pub kept_bytes_max: u64,
    /// How long they are kept.
    pub kept_for_ms: u64,
    /// Memory of batch rows that were read and are right until the next run is complete, in bytes; 0 for none.
    pub row_cache_bytes_max: u64,
    /// Open connections, at most; more wait. An eighth of them may be of one address other than this machine's and trusted proxies.
    pub connections_max: usize,
    /// How long a client may take to send the head of a request.
    pub head_timeout_ms: u64,
    /// How long an answer may take; what is written has no such limit.
    pub request_timeout_ms: u64,
    /// How long a client that sends events may be silent, and how long any other body may take.
    pub body_idle_timeout_ms: u64,
    /// How long run records that were read are used, less than the batch layer's grace: where they are too old, they are
    /// read anew before anything is answered. 0 for not at all.
    pub runs_kept_for_ms: u64,
    /// Minimum average transfer rate of a body of events after `body_idle_timeout_ms`, as sent; 0 for none.
    pub body_bytes_per_second_min: u64,
    /// Bodies of events that are taken at once, at most; who comes then is asked to come again (429).
    pub ingests_max: usize,
    /// Bodies of events that one key may send at once, at most; 0 for half of `ingests_max`.
    pub ingests_per_key_max: usize,
    /// The largest body of events, in bytes.
    pub body_bytes_max: u64,
    /// Pages that are told when something has moved, at most.
    pub followers_max: usize,
    /// Requests that are answered at once, at most, each until its client has taken the answer, and an eighth of them of one address other
    /// than this machine's; who comes then is asked to come again (503).
    pub requests_max: usize,
    /// The largest head of a request, in bytes.
    pub head_bytes_max: u32,
    /// How long a key that was looked up is used: one that is taken back is refused after this time.
    pub keys_kept_ms: u64,
    /// How long it is used where the store of keys does not answer.
    pub keys_kept_stale_ms: u64,
    /// Requests of one key in a second, at most, and twice as many at once; 0 for no limit.
    pub key_requests_per_second_max: u32,
    /// Requests in a second from one address that is not known to have a key, at most, and twice as many at once; 0 for no limit.
    pub stranger_requests_per_second_max: u32,
    /// What who signs in on pages is known by, at least 32 characters: the same for all processes that serve. Without it each
    /// process draws one of its own, and knows nobody who has signed in at another one, or before it was started.
    pub session_secret: Secret,
    /// Addresses or networks of proxies, of which the header `X-Forwarded-For` is believed: `10.0.0.7`, `10.0.0.0/8`.
    pub trusted_proxies: Vec<Network>,
    /// Names by which it is reached while there is no key, besides those of this machine.
    pub hosts: Vec<String>,
    /// Origins of pages of others that may ask, as in `https://app.example.org`; none if empty.
    pub cors_origins: Vec<String>,
    /// How long requests that are under way may go on after a shutdown was asked for.
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
    /// Checks the options, as [`crate::Serving::build`] does.
    ///
    /// # Errors
    /// [`crate::Error::Option`] for the first one that can't be used.
    pub fn check(&self) -> Result<()> {
        let refused = |option, given, expected| {
            Err(Error::Option {
                option,
                given,
                expected,
            })
        };
        let positive = |option, value: u64| match value {
            0 => refused(option, value.to_string(), "set it to 1 or more"),
            _ => Ok(()),
        };
        positive("partitions", self.partitions.into())?;
        positive("tally_reads_max", self.tally_reads_max as u64)?;
        positive("board_reads_max", self.board_reads_max as u64)?;
        positive("ingests_max", self.ingests_max as u64)?;
        positive("connections_max", self.connections_max as u64)?;
        positive("head_timeout_ms", self.head_timeout_ms)?;
        positive("request_timeout_ms", self.request_timeout_ms)?;
        positive("body_idle_timeout_ms", self.body_idle_timeout_ms)?;
        positive("body_bytes_max", self.body_bytes_max)?;
        positive("requests_max", self.requests_max as u64)?;
        if !(8_192..=1_048_576).contains(&self.head_bytes_max) {
            let expected = "set it to a number from 8192 to 1048576";
            return refused("head_bytes_max", self.head_bytes_max.to_string(), expected);
        }
        let secret = self.session_secret.reveal().chars().count();
        if (1..SESSION_SECRET_CHARS_MIN).contains(&secret) {
            let expected = "set it to 32 characters or more that nobody can guess";
            return refused("session_secret", format!("{secret} characters"), expected);
        }
        for origin in &self.cors_origins {
            let rest = (origin.strip_prefix("https://")).or_else(|| origin.strip_prefix("http://"));
            let plain = |host: &str| {
                !host.is_empty()
                    && !host.contains(|char: char| char == '/' || !char.is_ascii_graphic())
            };
            if !rest.is_some_and(plain) {
                let expected = "write each origin as in https://app.example.org, without a path";
                return refused("cors_origins", origin.clone(), expected);
            }
        }
        Ok(())
    }

    pub(crate) const fn whole_wait(&self) -> Duration {
        Duration::from_millis(self.whole_wait_ms)
    }

    pub(crate) const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    pub(crate) const fn body_idle_timeout(&self) -> Duration {
        Duration::from_millis(self.body_idle_timeout_ms)
    }

    /// The most bodies of events that one key may send at once.
    pub(crate) fn ingests_share(&self) -> usize {
        match self.ingests_per_key_max {
            0 => self.ingests_max.div_ceil(2),
            share => share.min(self.ingests_max),
        }
    }
}
