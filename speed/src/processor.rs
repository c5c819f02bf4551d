//! Processes the micro-batches of one partition.
//!
//! [`crate::facts`] folds events into deltas. [`crate::entities`] reads the rows of notified groups again and computes
//! their states. The worker decides where a micro-batch begins and whether its changes count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use schemas::entities::Group;
use schemas::plays::Rejected;
use schemas::seam::{Epoch, Fence, Offset, Slot};
use schemas::source::Source;
use stores::dead_letters::set_aside;
use stores::erasures::Suppressed;
use stores::live::{Changes, LiveWrite, SlotId};
use stores::log::Records;

use crate::boards::Stepped;
use crate::{Result, SpeedOptions, SpeedPorts};

/// The outcome of a micro-batch.
#[derive(Debug, Default)]
pub(crate) struct BatchOutcome {
    /// The number of records that were processed, from the first one on; at least one.
    pub(crate) records: usize,
    /// The changes to live state.
    pub(crate) changes: Changes,
    /// Groups whose notifications were in the wrong partition. They are forwarded to the right one.
    pub(crate) forwarded: Vec<Group>,
    /// Events or groups that count.
    pub(crate) events: u64,
    /// Records that repeat another record.
    pub(crate) duplicates: u64,
    /// Records that are rejected, by their index.
    pub(crate) rejected: Vec<Rejected>,
}

/// The limits of a micro-batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Rows of live state that change, at most, unless one record changes more.
    pub(crate) rows_max: usize,
    /// The partitions of the topic.
    pub(crate) partitions: u32,
    /// The checkpoint that the worker believes the partition state to be at.
    pub(crate) fence: Fence,
}

/// Where the records before the checkpoint are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before<'a> {
    pub(crate) ports: &'a SpeedPorts,
    pub(crate) source: Source,
    pub(crate) partition: u32,
    pub(crate) options: &'a SpeedOptions,
    /// The partitions of the topic.
    pub(crate) partitions: u32,
}

impl Before<'_> {
    /// The records that became dead letters, of those that were logged since then.
    pub(crate) async fn set_aside(&self, since_ms: i64) -> Result<BTreeSet<Offset>> {
        let log = &*self.ports.log;
        Ok(set_aside(log, self.source, self.partition, since_ms).await?)
    }
}

/// Processes the records of one partition.
#[async_trait]
pub(crate) trait BatchProcessor: Debug + Send + Sync {
    /// The views that it updates.
    fn views(&self) -> Vec<&str>;

    /// The checkpoint up to which it remembers the records; none if it must begin again.
    fn reaches(&self) -> Option<&Fence>;

    /// Remembers what it needs of the records before the checkpoint.
    async fn begin(&mut self, before: &Before<'_>, slot: &Slot) -> Result<()>;

    /// Learns the newest complete epoch of each view.
    fn covers(&mut self, _newest: &BTreeMap<String, Epoch>) {}

    /// Learns who is suppressed. Rows in the entity store have no suppressed people.
    fn suppress(&mut self, _suppressed: Arc<Suppressed>) {}

    /// Processes a micro-batch, or the first part of it, so that at most `rows_max` rows of live state change, unless one
    /// record changes more.
    async fn process(&mut self, records: &Records, limits: Limits) -> Result<BatchOutcome>;

    /// The number of rows of live state that should change at once, at most.
    fn rows_max(&self, live: &dyn LiveWrite, slot: SlotId) -> usize;

    /// The number of records that is likely to be processed at once.
    fn records_fit(&self) -> usize {
        usize::MAX
    }

    /// Frees memory of a full store, and adapts changes that wait. [`Stepped::Idle`] if nothing can be freed.
    async fn make_room(&mut self, _fence: Fence, _changes: &mut Changes) -> Result<Stepped> {
        Ok(Stepped::Idle)
    }

    /// The checkpoint has passed the last micro-batch.
    fn reached(&mut self, fence: Fence);

    /// The last micro-batch may not count.
    fn forget(&mut self);

    /// Does a step of the work beside the micro-batches.
    async fn step(&mut self, _fence: Fence, _partitions: u32) -> Result<Stepped> {
        Ok(Stepped::Idle)
    }
}
