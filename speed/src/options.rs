//! What the speed layer is given, and what can be set.

use std::sync::Arc;

use schemas::clock::Clock;
use schemas::draws::Draws;
use schemas::options;
use schemas::seam::Slot;
use schemas::source::Source;
use stores::achievements::AchievementsWrite;
use stores::admin::CanonAdmin;
use stores::erasures::Suppressions;
use stores::live::{LiveWrite, SlotId};
use stores::log::{LogRead, LogWrite};
use stores::records::Records;
use stores::recounts::Recounts;
use stores::registry::Schemas;
use stores::views::ViewsRead;
use stores::webhook::Hook;

use crate::Result;

/// The stores that the speed layer works with.
#[derive(Debug, Clone)]
pub struct SpeedPorts {
    /// The log that it reads.
    pub log: Arc<dyn LogRead>,
    /// Where dead letters go, and notifications that were left behind.
    pub log_writes: Arc<dyn LogWrite>,
    /// The canonical rows that notifications are about, and the outbox.
    pub canon: Arc<dyn CanonAdmin>,
    /// Where the athletes of applications are counted anew: in the same store.
    pub recounts: Arc<dyn Recounts>,
    /// The live state that it keeps.
    pub live: Arc<dyn LiveWrite>,
    /// The run records, which it obeys.
    pub views: Arc<dyn ViewsRead>,
    /// Where what athletes achieve is written, and how far was told.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// The schemas of records of Avro.
    pub schemas: Arc<dyn Schemas>,
    /// Whose events count without them.
    pub suppressions: Suppressions,
    /// Records of alerts of reconciliations.
    pub records: Arc<dyn Records>,
    /// Where notices and alerts go besides the log, if anywhere.
    pub hook: Option<Arc<dyn Hook>>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// Random numbers, which decide what is counted anew.
    pub draws: Arc<dyn Draws>,
}

impl SpeedPorts {
    /// How many partitions the log of a source has.
    pub(crate) async fn partitions(&self, source: Source) -> Result<u32> {
        Ok(self.log.partitions_now(source.topic()).await?)
    }

    /// The slot of a partition, if there is one.
    pub(crate) async fn slot(&self, id: SlotId) -> Result<Option<Slot>> {
        let own = id.partition..id.partition.saturating_add(1);
        let slots = self.live.partition_states(id.source, own).await?;
        Ok(slots.into_iter().next().flatten())
    }
}

options! {
    /// What can be set.
    pub struct SpeedOptions {
        /// Records in one micro-batch, at most.
        pub records_max: usize = 50_000,
        /// Bytes of records in one micro-batch, at most.
        pub bytes_max: usize = 32 * 1024 * 1024,
        /// Partitions of a topic of notifications that is not there yet.
        #[serde(skip)]
        pub partitions: u32 = 4,
        /// The longest pause before a notice is posted again.
        #[serde(skip)]
        pub notice_retry_max_ms: u64 = 3_600_000,
        /// How old a notice may become before it is no longer posted.
        #[serde(skip)]
        pub notice_give_up_after_ms: u64 = 3 * 86_400_000,
        /// Groups whose rows are read again in one micro-batch of notifications, at most.
        pub groups_max: usize = 10_000,
        /// Rows of these groups in one micro-batch, at most; a group that has more comes alone.
        pub rows_max: usize = 100_000,
        /// Changes of boards and achievements of one partition that may wait to be told before no more are
        /// made.
        pub outbox_max: u64 = 10_000,
        /// Memory of cached boards of one source, in bytes, where live state is on a server; shared among the
        /// partitions. Those that were read least recently are dropped.
        pub board_cache_bytes_max: u64 = 1 << 30,
        /// Rows that are put into a cached board in one step while it is filled.
        pub board_fill_rows: usize = 4_000,
        /// How long after some rows of a cached board were compared others are.
        pub board_check_interval_ms: u64 = 10_000,
        /// How many live states of a key it takes until their sum is kept; more than 1,001 are taken for that.
        pub sum_states: u64 = 1_000,
        /// How long to wait at the end of the log before looking for more. One request for each source and
        /// interval, however many partitions are idle.
        pub poll_interval_ms: u64 = 100,
        /// How long to go on before looking at run records, erasures and partitions again. Idle workers look when
        /// something changed; lost live state is detected within this interval, at most 1 s.
        pub look_interval_ms: u64 = 1_000,
        /// How long to wait for a batch run that stands in the way, where the end of the log is to be
        /// reached.
        pub run_wait_ms: u64 = 30_000,
        /// How much log time the duplicate window holds.
        pub dedup_window_ms: i64 = 3_600_000,
        /// How many events the duplicate window of one partition holds, at most.
        pub dedup_events_max: usize = 2_000_000,
    }
}
