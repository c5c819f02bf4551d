//! The laws of board histories, and their events.

/// A law that every history must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// In an answer, the state of a member is one that it had at or after the last notification
    /// below the answer's position.
    Exact,
    /// The size of a board equals the number of its members.
    Size,
    /// A live count equals the sum of the live entries, and an applicable one gives the size of the
    /// board.
    LiveCount,
    /// After the faults end, every read is answered and equals the entity rows.
    Complete,
    /// No run ends before an earlier run.
    Monotonic,
}

/// An event of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A read was answered.
    Answered,
    /// A read was refused.
    Refused,
    /// An answer included a version of an incomplete run.
    HalfLoaded,
    /// A reader missed a node and started again.
    NodeMissing,
    /// A notification was lost from memory and stayed in the outbox.
    NotificationLost,
    /// A notification came from the outbox.
    Relayed,
    /// A notification stayed in the outbox although it was in the log.
    Repeated,
    /// A partition state was rebuilt.
    Rebuilt,
    /// A partition state vanished.
    Lost,
    /// A partition state reverted.
    FailedOver,
    /// A micro-batch was refused.
    ApplyRefused,
    /// An epoch was closed at its recorded cut.
    EpochClosed,
    /// A run was sealed.
    Sealed,
    /// A proposal was overtaken.
    Overtaken,
    /// A run was abandoned.
    Abandoned,
    /// A run was abandoned after another try had published a part of it.
    HalfAbandoned,
    /// A run was completed.
    Completed,
    /// The newest run was computed again.
    Recomputed,
    /// All keys were computed.
    Full,
    /// Only some keys were computed.
    Incremental,
    /// There were partly published results.
    PartlyPublished,
    /// A head was replaced.
    HeadReplaced,
    /// A head was replaced by one without rows.
    HeadEmptied,
    /// A head was not changed.
    HeadSkipped,
    /// A node of a new version was already stored.
    NodeShared,
    /// A node was deleted.
    NodeDeleted,
    /// An overtaken try was refused.
    TryOvertaken,
    /// Live epochs were pruned.
    Pruned,
    /// A process died.
    Crashed,
    /// A live count was computed or updated.
    CountComputed,
    /// A live count had another version or base than the current one.
    CountStale,
    /// A reader used a live count.
    CountRead,
}

impl Event {
    /// The events of histories with live counts.
    pub(super) const OF_LIVE_COUNTS: [Self; 3] =
        [Self::CountComputed, Self::CountStale, Self::CountRead];

    pub(super) const ALL: [Self; 29] = [
        Self::Answered,
        Self::Refused,
        Self::HalfLoaded,
        Self::NodeMissing,
        Self::NotificationLost,
        Self::Relayed,
        Self::Repeated,
        Self::Rebuilt,
        Self::Lost,
        Self::FailedOver,
        Self::ApplyRefused,
        Self::EpochClosed,
        Self::Sealed,
        Self::Overtaken,
        Self::Abandoned,
        Self::HalfAbandoned,
        Self::Completed,
        Self::Recomputed,
        Self::Full,
        Self::Incremental,
        Self::PartlyPublished,
        Self::HeadReplaced,
        Self::HeadEmptied,
        Self::HeadSkipped,
        Self::NodeShared,
        Self::NodeDeleted,
        Self::TryOvertaken,
        Self::Pruned,
        Self::Crashed,
    ];
}

/// The number of each event.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct EventCounts([u64; Event::ALL.len() + Event::OF_LIVE_COUNTS.len()]);

impl EventCounts {
    pub(super) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    pub(super) fn get(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}
