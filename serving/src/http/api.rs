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
use super::access::limits::Limits;
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
const LISTINGS_MAX: usize = 8;
/// Maximum number of concurrent reads of dead letters. Each uses some megabytes of memory.
const DEAD_LETTER_READS_MAX: usize = 2;
/// One in this many concurrent reads of statistics may return many values.
const LARGE_SHARE: usize = 8;
/// One address may use one in this many connections and concurrent requests.
pub(crate) const ADDRESS_SHARE: usize = 8;
/// One key may use one in this many streams of change events.
const FOLLOWERS_SHARE: usize = 8;
/// Maximum number of concurrent key lookups by sign-ins, which are not authenticated.
const SIGN_INS_MAX: usize = 32;
/// Maximum number of concurrent lookups of keys that are not cached and may be made up.
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
    /// Permits for reads of statistics, and additional ones for those that may return many values.
    pub(crate) stats_reads: Semaphore,
    pub(crate) large_stats_reads: Semaphore,
    /// Permits for reads of boards.
    pub(crate) board_reads: Semaphore,
    /// Permits for lists of applications.
    pub(crate) listings: Semaphore,
    /// Permits for reads of dead letters.
    pub(crate) dead_letter_reads: Semaphore,
    /// The single permit for replays of dead letters.
    pub(crate) replays: Semaphore,
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
    pub(crate) limits: Limits,
    /// Signs session cookies of pages.
    pub(crate) cookie_signer: CookieSigner,
    /// Cancelled at shutdown, which ends streams of change events.
    pub(crate) shutdown: CancellationToken,
    /// Permits for streams of change events, by key.
    pub(crate) follower_permits: Arc<PermitPool<String>>,
    /// Reads of sources' positions in progress.
    pub(crate) position_reads: RequestCoalescer<Result<u128, Problem>>,
    /// Permits for key lookups by sign-ins.
    pub(crate) sign_ins: Semaphore,
    /// Permits for lookups of keys that are not cached.
    pub(crate) key_lookups: Semaphore,
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
        let permits = |max: usize| Semaphore::new(max.min(Semaphore::MAX_PERMITS));
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
            stats_reads: permits(options.tally_reads_max),
            large_stats_reads: permits(options.tally_reads_max.div_ceil(LARGE_SHARE)),
            board_reads: permits(options.board_reads_max),
            listings: Semaphore::new(LISTINGS_MAX),
            dead_letter_reads: Semaphore::new(DEAD_LETTER_READS_MAX),
            replays: Semaphore::new(1),
            request_permits: PermitPool::new(
                options.requests_max,
                options.requests_max.div_ceil(ADDRESS_SHARE),
            ),
            key_cache: KeyCache::new(Arc::clone(&ports.keys), &options),
            limits: Limits::new(&options),
            cookie_signer: CookieSigner::from_secret(&options.session_secret),
            shutdown: CancellationToken::new(),
            follower_permits: PermitPool::new(
                options.followers_max,
                (options.followers_max / FOLLOWERS_SHARE).max(1),
            ),
            position_reads: RequestCoalescer::new(),
            ports,
            options,
            metrics,
            boards,
            metrics_text,
            intakes: Mutex::default(),
            sign_ins: Semaphore::new(SIGN_INS_MAX),
            key_lookups: Semaphore::new(KEY_LOOKUPS_MAX),
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
