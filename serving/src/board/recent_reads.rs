//! Reports of misses and uses of cached boards, each at most once per interval.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::BinaryArray;
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::entities::CacheMiss;
use stores::board_cache::{BoardName, BoardQuery};
use stores::live::PartitionId;
use stores::log::NewRecords;
use tokio::task::JoinSet;

use crate::lock::lock;
use crate::options::ServingPorts;

/// Minimum interval between two reports of the same miss or use.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum boards remembered as reported.
const REMEMBERED_REPORTS_MAX: u64 = 100_000;
/// Maximum concurrent reports; further ones are dropped, since they will be repeated.
const CONCURRENT_REPORTS_MAX: usize = 64;

/// Misses and uses of cached boards that this process reported recently.
#[derive(Debug)]
pub(crate) struct RecentBoardReads {
    misses: Cache<BoardName, ()>,
    /// Boards of which only the size was missed.
    size_misses: Cache<BoardName, ()>,
    uses: Cache<BoardName, ()>,
    pending_reports: Mutex<JoinSet<()>>,
}

impl RecentBoardReads {
    pub(crate) fn new() -> Self {
        let cache = || {
            Cache::builder()
                .max_capacity(REMEMBERED_REPORTS_MAX)
                .time_to_live(REPORT_INTERVAL)
                .build()
        };
        Self {
            misses: cache(),
            size_misses: cache(),
            uses: cache(),
            pending_reports: Mutex::default(),
        }
    }

    /// Returns true if a report is due, and then records it as sent.
    fn claim_report(&self, recent: &Cache<BoardName, ()>, name: &BoardName) -> bool {
        if recent.contains_key(name) {
            return false;
        }
        recent.insert(name.clone(), ());
        true
    }

    /// Reports to the worker of the partition that a board is not cached.
    pub(super) fn report_missing_board(
        &self,
        ports: &ServingPorts,
        job: &Job<Board>,
        key: i64,
        query: &BoardQuery,
    ) {
        metrics::counter!("backstitch_serving_board_cache_misses_total").increment(1);
        self.report_miss(ports, job, key, false, &query.name, query.partition);
    }

    /// Reports to the worker of the partition that a board, or only its size, is not available.
    pub(super) fn report_miss(
        &self,
        ports: &ServingPorts,
        job: &Job<Board>,
        key: i64,
        wants_live_count: bool,
        name: &BoardName,
        partition: u32,
    ) {
        let recent = if wants_live_count {
            &self.size_misses
        } else {
            &self.misses
        };
        if !self.claim_report(recent, name) {
            return;
        }
        let source = job.source();
        let miss = CacheMiss {
            view: name.view.clone(),
            key,
            filtered_board: name.filtered_board.clone(),
            wants_live_count,
        };
        let records = NewRecords {
            partition,
            keys: BinaryArray::from_vec(vec![key.to_string().as_bytes()]),
            values: BinaryArray::from_vec(vec![&miss.encode(source)]),
            headers: Vec::new(),
        };
        let (log, now_ms) = (Arc::clone(&ports.ingest), ports.clock.now_ms());
        self.spawn_report(async move {
            if let Err(error) = log.append(source.topic(), &[records], now_ms).await {
                tracing::debug!(%error, "cannot report a missing cached board");
            }
        });
    }

    /// Reports that a cached board was used.
    pub(super) fn report_use(
        &self,
        ports: &ServingPorts,
        partition: PartitionId,
        name: &BoardName,
    ) {
        metrics::counter!("backstitch_serving_board_cache_hits_total").increment(1);
        if !self.claim_report(&self.uses, name) {
            return;
        }
        let (live, name, now_ms) = (Arc::clone(&ports.live), name.clone(), ports.clock.now_ms());
        self.spawn_report(async move {
            let Some(cache) = live.cached_boards() else {
                return;
            };
            if let Err(error) = cache.record_use(partition, &name, now_ms).await {
                tracing::debug!(%error, "cannot report the use of a cached board");
            }
        });
    }

    /// Sends a report in the background.
    fn spawn_report(&self, report: impl Future<Output = ()> + Send + 'static) {
        let mut pending_reports = lock(&self.pending_reports);
        while pending_reports.try_join_next().is_some() {}
        if pending_reports.len() < CONCURRENT_REPORTS_MAX {
            pending_reports.spawn(report);
        }
    }
}
