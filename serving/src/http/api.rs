//! State that all handlers share: ports, caches, permits and limits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jobs::{Board, Job};
use schemas::source::Source;
use stores::intake::Intake;
use stores::relay::OutboxRelay;
use tokio::sync::{Mutex, OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

use super::access::key_cache::KeyCache;
use super::access::limits::RateLimits;
use super::permits::PermitPool;
use super::problem::Problem;
use crate::board::reading::BoardsReading;
use crate::board::recent_reads::RecentBoardReads;
use crate::metric::Metric;
use crate::options::{MetricsText, ServingOptions, ServingPorts};
use crate::pages::signer::CookieSigner;
use crate::read::{ReadCaches, Reading};
use crate::request_coalescer::RequestCoalescer;
use crate::stale_cache::StaleCache;

/// Maximum number of concurrent lists of applications. Some orders and filters scan all
/// applications.
const APPLICATION_LISTS_MAX: usize = 8;
/// Maximum number of concurrent reads of dead letters. Each uses some megabytes of memory.
const DEAD_LETTER_READS_MAX: usize = 2;
/// Divides the number of concurrent reads of statistics. The result bounds those with many values.
const LARGE_READS_DIVISOR: usize = 8;
/// Divides the numbers of connections and concurrent requests. The results bound each address.
pub(crate) const ADDRESS_DIVISOR: usize = 8;
/// Divides the number of streams of change events. The result bounds each key.
const KEY_FOLLOWERS_DIVISOR: usize = 8;
/// Maximum number of concurrent key lookups by sign-ins, which are not authenticated.
const SIGN_INS_MAX: usize = 32;
/// Maximum number of concurrent lookups of keys that are not cached, and may not exist.
const KEY_LOOKUPS_MAX: usize = 64;

/// State of the handlers.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) ports: ServingPorts,
    pub(crate) options: ServingOptions,
    pub(crate) metrics: BTreeMap<String, Metric>,
    pub(crate) boards: BTreeMap<String, Arc<Job<Board>>>,
    pub(crate) relay: OutboxRelay,
    pub(crate) metrics_text: Option<MetricsText>,
    /// Intake by source, opened by the first request.
    pub(crate) intakes: Mutex<BTreeMap<Source, Arc<OnceCell<Arc<Intake>>>>>,
    /// Permits for ingest requests, by key.
    pub(crate) ingest_permits: Arc<PermitPool<String>>,
    /// Permits for reads of statistics. A read that may return many values also needs a large one.
    pub(crate) stats_read_permits: Semaphore,
    pub(crate) large_stats_read_permits: Semaphore,
    /// Permits for reads of boards.
    pub(crate) board_read_permits: Semaphore,
    /// Permits for lists of applications.
    pub(crate) application_list_permits: Semaphore,
    /// Permits for reads of dead letters.
    pub(crate) dead_letter_read_permits: Semaphore,
    /// The single permit for replays of dead letters.
    pub(crate) replay_permits: Semaphore,
    /// Earlier results, for use while a store does not respond.
    pub(crate) stats_cache: StaleCache<Reading>,
    pub(crate) read_caches: ReadCaches,
    /// Reads of statistics in progress.
    pub(crate) stats_coalescer: RequestCoalescer<Result<Arc<Reading>, Problem>>,
    pub(crate) board_cache: StaleCache<BoardsReading>,
    /// Reads of boards in progress, and of the members that filter them.
    pub(crate) board_coalescer: RequestCoalescer<Result<Arc<BoardsReading>, Problem>>,
    pub(crate) member_coalescer: RequestCoalescer<Result<Arc<[i64]>, Problem>>,
    /// Recent reads and misses of cached boards.
    pub(crate) recent_board_reads: RecentBoardReads,
    /// Permits for requests, by client address. A request keeps its permit until its response is
    /// sent, because unsent bytes are in memory.
    pub(crate) request_permits: Arc<PermitPool<IpAddr>>,
    pub(crate) key_cache: KeyCache,
    pub(crate) rate_limits: RateLimits,
    /// Signs session cookies of pages.
    pub(crate) cookie_signer: CookieSigner,
    /// Cancelled at shutdown, which ends streams of change events.
    pub(crate) shutdown: CancellationToken,
    /// Permits for streams of change events, by key.
    pub(crate) follower_permits: Arc<PermitPool<String>>,
    /// Reads of the positions of sources in progress.
    pub(crate) position_coalescer: RequestCoalescer<Result<u128, Problem>>,
    /// Permits for key lookups by sign-ins.
    pub(crate) sign_in_permits: Semaphore,
    /// Permits for lookups of keys that are not cached.
    pub(crate) key_lookup_permits: Semaphore,
    pub(super) openapi: OnceLock<Bytes>,
}

impl Api {
    pub(crate) fn new(
        ports: ServingPorts,
        options: ServingOptions,
        metrics: BTreeMap<String, Metric>,
        boards: BTreeMap<String, Arc<Job<Board>>>,
        metrics_text: Option<MetricsText>,
    ) -> Self {
        let permits = |count: usize| Semaphore::new(count.min(Semaphore::MAX_PERMITS));
        Self {
            relay: OutboxRelay::new(
                Arc::clone(&ports.entities) as _,
                Arc::clone(&ports.ingest),
                Arc::clone(&ports.clock),
                options.partitions,
            ),
            stats_cache: StaleCache::new(&options),
            read_caches: ReadCaches::new(&options),
            stats_coalescer: RequestCoalescer::new(),
            board_cache: StaleCache::new(&options),
            board_coalescer: RequestCoalescer::new(),
            member_coalescer: RequestCoalescer::new(),
            recent_board_reads: RecentBoardReads::new(),
            ingest_permits: PermitPool::new(options.ingests_max, options.ingests_per_key()),
            stats_read_permits: permits(options.tally_reads_max),
            large_stats_read_permits: permits(
                options.tally_reads_max.div_ceil(LARGE_READS_DIVISOR),
            ),
            board_read_permits: permits(options.board_reads_max),
            application_list_permits: Semaphore::new(APPLICATION_LISTS_MAX),
            dead_letter_read_permits: Semaphore::new(DEAD_LETTER_READS_MAX),
            replay_permits: Semaphore::new(1),
            request_permits: PermitPool::new(
                options.requests_max,
                options.requests_max.div_ceil(ADDRESS_DIVISOR),
            ),
            key_cache: KeyCache::new(Arc::clone(&ports.keys), &options),
            rate_limits: RateLimits::new(&options),
            cookie_signer: CookieSigner::from_secret(&options.session_secret),
            shutdown: CancellationToken::new(),
            follower_permits: PermitPool::new(
                options.followers_max,
                (options.followers_max / KEY_FOLLOWERS_DIVISOR).max(1),
            ),
            position_coalescer: RequestCoalescer::new(),
            ports,
            options,
            metrics,
            boards,
            metrics_text,
            intakes: Mutex::default(),
            sign_in_permits: Semaphore::new(SIGN_INS_MAX),
            key_lookup_permits: Semaphore::new(KEY_LOOKUPS_MAX),
            openapi: OnceLock::new(),
        }
    }

    /// Returns the OpenAPI document, which is empty until the routes are built.
    pub(crate) fn openapi(&self) -> Bytes {
        self.openapi.get().cloned().unwrap_or_default()
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.ports.clock.now_ms()).unwrap_or_default()
    }
}
