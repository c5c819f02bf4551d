//! Processes the micro-batches of one partition.
//!
//! [`crate::events`] folds events into deltas. [`crate::entities`] reads the rows of notified
//! groups again and computes their entries. The worker decides where a micro-batch begins and
//! whether its changes count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use schemas::entities::Group;
use schemas::plays::RejectedInput;
use schemas::seam::{Checkpoint, Epoch, Offset, PartitionState};
use schemas::source::Source;
use stores::dead_letters::find_dead_lettered_offsets;
use stores::erasures::SuppressedPeople;
use stores::live::{Changes, LiveWrite, PartitionId};
use stores::log::Records;

use crate::boards::StepOutcome;
use crate::{Result, SpeedOptions, SpeedPorts};

/// The outcome of a micro-batch.
#[derive(Debug, Default)]
pub(crate) struct BatchOutcome {
    /// Number of processed records, from the first one; at least 1.
    pub(crate) records: usize,
    /// The changes to live state.
    pub(crate) changes: Changes,
    /// Groups whose notifications were misrouted. They are forwarded.
    pub(crate) forwarded: Vec<Group>,
    /// Number of events or groups that count.
    pub(crate) events: u64,
    /// Number of records that repeat another record.
    pub(crate) duplicates: u64,
    /// Rejected records, by index.
    pub(crate) rejected: Vec<RejectedInput>,
}

/// View and key.
pub(crate) type ViewKey = (String, Vec<u8>);

/// The limits of a micro-batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum changed rows of live state, unless one record changes more.
    pub(crate) rows_max: usize,
    /// The partitions of the topic.
    pub(crate) partitions: u32,
    /// The checkpoint of the partition state, as the worker knows it.
    pub(crate) checkpoint: Checkpoint,
}

/// The context in which a processor starts on a partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    pub(crate) ports: &'a SpeedPorts,
    pub(crate) source: Source,
    pub(crate) partition: u32,
    pub(crate) options: &'a SpeedOptions,
    /// The partitions of the topic.
    pub(crate) partitions: u32,
}

impl BatchContext<'_> {
    /// The offsets of records that became dead letters; complete for records logged at `since_ms`
    /// or later.
    pub(crate) async fn dead_lettered_offsets(&self, since_ms: i64) -> Result<BTreeSet<Offset>> {
        let log = &*self.ports.log;
        Ok(find_dead_lettered_offsets(log, self.source, self.partition, since_ms).await?)
    }
}

/// Processes the records of one partition.
#[async_trait]
pub(crate) trait BatchProcessor: Debug + Send + Sync {
    /// The views that it updates.
    fn views(&self) -> Vec<&str>;

    /// The checkpoint through which it knows the records. `None` if it must begin again.
    fn known_checkpoint(&self) -> Option<&Checkpoint>;

    /// Reads the required records before the checkpoint.
    async fn begin(&mut self, context: &BatchContext<'_>, state: &PartitionState) -> Result<()>;

    /// Sets the newest complete epoch of each view.
    fn set_newest_epochs(&mut self, _newest: &BTreeMap<String, Epoch>) {}

    /// Sets the suppressed people. The entity store contains no suppressed people.
    fn suppress(&mut self, _suppressed: Arc<SuppressedPeople>) {}

    /// Processes a micro-batch, or the first part of it, so that at most `rows_max` rows of live
    /// state change, unless one record changes more.
    async fn process(&mut self, records: &Records, limits: Limits) -> Result<BatchOutcome>;

    /// Maximum rows of live state in one change.
    fn rows_max(&self, live: &dyn LiveWrite, id: PartitionId) -> usize;

    /// Number of records that will probably be processed at once.
    fn records_fit(&self) -> usize {
        usize::MAX
    }

    /// Frees memory of a full store and adapts pending changes. Returns [`StepOutcome::Idle`] if
    /// nothing can be freed.
    async fn free_memory(
        &mut self,
        _checkpoint: Checkpoint,
        _changes: &mut Changes,
    ) -> Result<StepOutcome> {
        Ok(StepOutcome::Idle)
    }

    /// Called after the checkpoint advanced past the last micro-batch.
    fn on_applied(&mut self, checkpoint: Checkpoint);

    /// Discards pending changes, because the last micro-batch may not have been applied.
    fn reset(&mut self);

    /// Does a step of background work.
    async fn step(&mut self, _checkpoint: Checkpoint, _partitions: u32) -> Result<StepOutcome> {
        Ok(StepOutcome::Idle)
    }
}
