//! Ports and options of the speed layer.

use std::sync::Arc;

use schemas::clock::Clock;
use schemas::options;
use schemas::random::RandomNumbers;
use schemas::seam::PartitionState;
use schemas::source::Source;
use stores::achievements::AchievementsWrite;
use stores::admin::EntityAdmin;
use stores::erasures::Suppressions;
use stores::live::{LiveWrite, PartitionId};
use stores::log::{LogRead, LogWrite};
use stores::records::Records;
use stores::recounts::Recounts;
use stores::registry::SchemaSource;
use stores::views::ViewsRead;
use stores::webhook::WebhookSender;

use crate::Result;

/// The stores that the speed layer uses.
#[derive(Debug, Clone)]
pub struct SpeedPorts {
    /// Reads the log.
    pub log: Arc<dyn LogRead>,
    /// Appends dead letters and leftover notifications.
    pub log_writes: Arc<dyn LogWrite>,
    /// Reads entities, and the outbox of the entity store.
    pub entities: Arc<dyn EntityAdmin>,
    /// Recounts the athletes of applications in the entity store.
    pub recounts: Arc<dyn Recounts>,
    /// Writes live state.
    pub live: Arc<dyn LiveWrite>,
    /// Reads run records.
    pub views: Arc<dyn ViewsRead>,
    /// Writes achievements, and the offset below which changes are published.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// Reads schemas of Avro records.
    pub schemas: Arc<dyn SchemaSource>,
    /// Reads the people whose events are anonymized.
    pub suppressions: Suppressions,
    /// Reads alerts of reconciliations.
    pub records: Arc<dyn Records>,
    /// Posts notices and alerts to a webhook, if one is configured.
    pub hook: Option<Arc<dyn WebhookSender>>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random numbers that decide which events cause a recount.
    pub draws: Arc<dyn RandomNumbers>,
}

impl SpeedPorts {
    /// The number of partitions of a source's log.
    pub(crate) async fn partitions(&self, source: Source) -> Result<u32> {
        Ok(self.log.current_partition_count(source.topic()).await?)
    }

    /// The state of a partition, if it exists.
    pub(crate) async fn partition_state(&self, id: PartitionId) -> Result<Option<PartitionState>> {
        let partitions = id.partition..id.partition.saturating_add(1);
        let states = self.live.partition_states(id.source, partitions).await?;
        Ok(states.into_iter().next().flatten())
    }
}

options! {
    /// Options of the speed layer.
    pub struct SpeedOptions {
        /// Maximum records of a micro-batch.
        pub records_max: usize = 50_000,
        /// Maximum bytes of the records of a micro-batch.
        pub bytes_max: usize = 32 * 1024 * 1024,
        /// Partitions of a notification topic that does not exist yet.
        #[serde(skip)]
        pub partitions: u32 = 4,
        /// Longest pause before a notice is posted again.
        #[serde(skip)]
        pub notice_retry_max_ms: u64 = 3_600_000,
        /// Age at which a notice is no longer posted.
        #[serde(skip)]
        pub notice_give_up_after_ms: u64 = 3 * 86_400_000,
        /// Maximum groups whose rows are read again in one micro-batch of notifications.
        pub groups_max: usize = 10_000,
        /// Maximum rows of these groups in one micro-batch. A group with more rows is processed
        /// alone.
        pub rows_max: usize = 100_000,
        /// Maximum unpublished board changes and achievements of one partition. Beyond it,
        /// processing waits.
        pub outbox_max: u64 = 10_000,
        /// Memory of cached boards of one source, in bytes, if live state is on a server. The
        /// partitions share it. The least recently read boards are dropped.
        pub board_cache_bytes_max: u64 = 1 << 30,
        /// Rows that are written into a cached board in one step while it is filled.
        pub board_fill_rows: usize = 4_000,
        /// Interval between comparisons of some rows of a cached board, in milliseconds.
        pub board_check_interval_ms: u64 = 10_000,
        /// Live entries of a key at which the speed layer starts to maintain a live count. Values
        /// above 1,001 have the effect of 1,001.
        pub sum_states: u64 = 1_000,
        /// Pause at the end of the log before the next read, in milliseconds. A source sends one
        /// request per interval, however many partitions are idle.
        pub poll_interval_ms: u64 = 100,
        /// Interval of refreshes of run records, erasures and partitions, in milliseconds. Idle
        /// workers refresh when something changes. Lost live state is detected within this
        /// interval, at most 1 s.
        pub look_interval_ms: u64 = 1_000,
        /// Maximum wait for an unfinished batch run, if the worker must reach the end of the log,
        /// in milliseconds.
        pub run_wait_ms: u64 = 30_000,
        /// Log time in the duplicate window, in milliseconds.
        pub dedup_window_ms: i64 = 3_600_000,
        /// Maximum events in the duplicate window of one partition.
        pub dedup_events_max: usize = 2_000_000,
    }
}
