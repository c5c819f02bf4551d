//! Invariants of histories, and the events that histories count.

/// A condition that every history must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// Aggregates: an answer is the sum of the log below the answer's positions. Boards: the scores
    /// of a member are those of a moment at or after the last notification below the position.
    Exact,
    /// After the faults have ended, every read is answered and includes everything.
    Complete,
    /// No run ends before an earlier run.
    Monotonic,
    /// A partition state is rebuilt only after a loss.
    Retained,
    /// An answer includes everything that was counted before the request, or says that it is
    /// incomplete.
    Fresh,
    /// The size of a board equals the number of its members.
    Size,
    /// A live count equals the sum of the live entries, and gives the size of a board.
    LiveCount,
}

/// A violated invariant.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) seed: u64,
    pub(crate) invariant: Invariant,
    #[expect(dead_code, reason = "the message of a failed test has it")]
    pub(crate) description: String,
}

/// Defines the events, and a list of those in each part.
macro_rules! events {
    ($($part:ident: {$($(#[$doc:meta])* $event:ident,)+})+) => {
        /// An event of a history. Tests check that histories have many events of each kind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Event {
            $($($(#[$doc])* $event,)+)+
        }

        impl Event {
            $(pub(crate) const $part: &[Self] = &[$(Self::$event),+];)+
        }
    };
}

events! {
    COMMON: {
        /// A read was answered.
        Answered,
        /// A read was refused.
        Refused,
        /// An answer included a row or version of an incomplete run.
        AnsweredDuringRun,
        /// A process died.
        Crashed,
        /// A partition state was rebuilt.
        Rebuilt,
        /// A partition state vanished.
        Lost,
        /// A partition state reverted.
        FailedOver,
        /// A micro-batch was refused.
        ApplyRefused,
        /// A worker closed an epoch at its recorded cut.
        EpochClosed,
        /// Live data of old epochs was pruned.
        Pruned,
        /// A run was sealed.
        Sealed,
        /// A proposal was replaced before it was sealed.
        ProposalOvertaken,
        /// A run was abandoned.
        Abandoned,
        /// A run was completed.
        Completed,
        /// A complete run was computed again.
        Recomputed,
    }
    AGGREGATES: {
        /// An answer was marked as incomplete, because a partition state was replaying the log.
        AnsweredDuringReplay,
        /// A log partition was added.
        PartitionAdded,
        /// Other views were deployed.
        Deployed,
        /// A partition state began to count another view.
        ViewAdded,
    }
    BOARDS: {
        /// A reader missed a node and started again.
        NodeMissing,
        /// A notification was lost from memory and stayed in the outbox.
        NotificationLost,
        /// A notification came from the outbox.
        Relayed,
        /// A notification stayed in the outbox although it was in the log.
        NotificationRetained,
        /// A run was abandoned after another try had published a part of it.
        PartlyPublishedAbandoned,
        /// All keys were computed.
        AllKeysPlanned,
        /// Only some keys were computed.
        SomeKeysPlanned,
        /// A run found results that may be partly published.
        PartlyPublishedFound,
        /// A head was replaced.
        HeadReplaced,
        /// A head was replaced by one without nodes.
        HeadEmptied,
        /// A head did not have to change.
        HeadUnchanged,
        /// A node of a new version was already stored.
        NodeShared,
        /// A node was deleted.
        NodeDeleted,
        /// An overtaken try was refused.
        TryOvertaken,
    }
    LIVE_COUNTS: {
        /// A live count was computed or updated.
        CountComputed,
        /// A live count had another version or base than the current one.
        CountStale,
        /// A reader used a live count.
        CountRead,
    }
}

/// The number of occurrences of each event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventCounts([u64; Event::CountRead as usize + 1]);

impl EventCounts {
    pub(crate) const fn new() -> Self {
        Self([0; Event::CountRead as usize + 1])
    }

    pub(crate) const fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    pub(crate) const fn get(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (count, added) in self.0.iter_mut().zip(other.0) {
            *count += added;
        }
    }
}
