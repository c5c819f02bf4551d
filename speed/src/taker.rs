//! What becomes of records: a micro-batch of them is taken, and live state changes.
//!
//! Facts are folded into deltas ([`crate::facts`]); notifications name groups, whose rows are read
//! again and make states ([`crate::entities`]). Where the records stand, and whether they count, is
//! the worker's business.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemas::entities::Group;
use schemas::plays::Rejected;
use schemas::seam::{Epoch, Fence, Offset, Slot};
use schemas::source::Source;
use stores::dead_letters::set_aside;
use stores::erasures::Suppressed;
use stores::live::{Changes, LiveWrite, SlotId};
use stores::log::Records;

use crate::boards::Stepped;
use crate::entities::Entities;
use crate::facts::Facts;
use crate::{Result, SpeedOptions, SpeedPorts};

/// What a micro-batch came to.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// How many of the records were taken, from the first one on; at least one.
    pub(crate) records: usize,
    /// What live state changes.
    pub(crate) changes: Changes,
    /// Groups whose notifications came to the wrong partition, and go to the right one.
    pub(crate) forwarded: Vec<Group>,
    /// Events or groups that count.
    pub(crate) events: u64,
    /// Records that said what another had said.
    pub(crate) duplicates: u64,
    /// Records that can't be taken, by their index.
    pub(crate) rejected: Vec<Rejected>,
    /// Whether the slot was found elsewhere than the worker believes: then the rest says nothing.
    pub(crate) moved: bool,
}

/// Within what a micro-batch is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Rows of live state that change, at most, unless one record changes more.
    pub(crate) rows_max: usize,
    /// How many partitions the topic has.
    pub(crate) partitions: u32,
    /// Where the slot is believed to be.
    pub(crate) fence: Fence,
}

/// Where the records before the fence are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before<'a> {
    pub(crate) ports: &'a SpeedPorts,
    pub(crate) source: Source,
    pub(crate) partition: u32,
    pub(crate) options: &'a SpeedOptions,
    /// How many partitions the topic has.
    pub(crate) partitions: u32,
}

impl Before<'_> {
    /// The records that have become dead letters, of those that were logged since then at least.
    pub(crate) async fn set_aside(&self, since_ms: i64) -> Result<BTreeSet<Offset>> {
        let log = &*self.ports.log;
        Ok(set_aside(log, self.source, self.partition, since_ms).await?)
    }
}

/// What takes the records of one partition.
#[derive(Debug)]
pub(crate) enum Taker {
    Facts(Box<Facts>),
    Entities(Box<Entities>),
}

impl Taker {
    /// The views that it keeps.
    pub(crate) fn views(&self) -> Vec<&str> {
        match self {
            Self::Facts(facts) => facts.views(),
            Self::Entities(entities) => entities.views(),
        }
    }

    /// Whether it remembers the records right up to the fence.
    pub(crate) fn stands_at(&self, fence: &Fence) -> bool {
        let reaches = match self {
            Self::Facts(facts) => facts.reaches(),
            Self::Entities(entities) => entities.reaches(),
        };
        reaches.is_some_and(|reaches| {
            reaches.generation == fence.generation && reaches.next_offset == fence.next_offset
        })
    }

    /// Remembers what it must of the records before the fence; answers false if the slot is not there any
    /// more, and is to be looked at again.
    pub(crate) async fn begin(&mut self, before: &Before<'_>, slot: &Slot) -> Result<bool> {
        match self {
            Self::Facts(facts) => {
                let last = slot.position.last;
                facts.begin(before, slot.fence(), last).await?;
                Ok(true)
            }
            Self::Entities(entities) => entities.begin(slot, before.partitions).await,
        }
    }

    /// Learns the newest complete epoch of each view.
    pub(crate) fn covers(&mut self, newest: &BTreeMap<String, Epoch>) {
        match self {
            Self::Facts(_) => {}
            Self::Entities(entities) => entities.covers(newest),
        }
    }

    /// Learns who is suppressed.
    pub(crate) fn suppress(&mut self, suppressed: Arc<Suppressed>) {
        match self {
            Self::Facts(facts) => facts.suppress(suppressed),
            // What counts of entities is what is stored.
            Self::Entities(_) => {}
        }
    }

    /// The store is full: lets go of what can go there, and takes it out of some changes.
    /// [`Stepped::Idle`] if there is nothing.
    pub(crate) async fn make_room(
        &mut self,
        fence: Fence,
        changes: &mut Changes,
    ) -> Result<Stepped> {
        match self {
            Self::Facts(_) => Ok(Stepped::Idle),
            Self::Entities(entities) => entities.make_room(fence, changes).await,
        }
    }

    /// The fence has moved past what was taken last.
    pub(crate) fn reached(&mut self, fence: Fence) {
        match self {
            Self::Facts(facts) => facts.reached(fence),
            Self::Entities(entities) => entities.reached(fence),
        }
    }

    /// What was taken last may not count: nothing is remembered.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Facts(facts) => facts.forget(),
            Self::Entities(entities) => entities.forget(),
        }
    }

    /// Goes on with what there is to do beside the micro-batches.
    pub(crate) async fn step(&mut self, fence: Fence, partitions: u32) -> Result<Stepped> {
        match self {
            Self::Facts(_) => Ok(Stepped::Idle),
            Self::Entities(entities) => entities.step(fence, partitions).await,
        }
    }

    /// So many rows of live state should change at once, at most.
    pub(crate) fn rows_max(&self, live: &dyn LiveWrite, slot: SlotId) -> usize {
        match self {
            Self::Facts(_) => live.deltas_max(slot),
            Self::Entities(_) => live.states_max(),
        }
    }

    /// So many records at once are likely to be taken.
    pub(crate) const fn records_fit(&self) -> usize {
        match self {
            Self::Facts(facts) => facts.records_fit(),
            Self::Entities(_) => usize::MAX,
        }
    }

    /// Takes a micro-batch, or the first part of it: so much that at most `rows_max` rows of live
    /// state change, unless one record changes more.
    pub(crate) async fn take(&mut self, records: &Records, limits: Limits) -> Result<Taken> {
        match self {
            Self::Facts(facts) => facts.take(records, limits).await,
            Self::Entities(entities) => entities.take(records, limits).await,
        }
    }
}
