//! The laws of histories of boards, and what happens in them.

/// What must hold in every history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// What an answer says of a member is a state that it had at or after the last notification
    /// below the answer's position.
    Exact,
    /// A board has as many members as it says.
    Size,
    /// A sum is what the live states add up to, and a board has as many members as one says that counts.
    Summed,
    /// Once nothing is disturbed any more, every read is answered and holds the canonical rows.
    Whole,
    /// No run ends before the run before it.
    Forward,
}

/// What may happen in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A read was answered.
    Answered,
    /// A read was refused.
    Refused,
    /// An answer held an edition of a run that was not complete.
    HalfLoaded,
    /// A reader found that a node was gone, and began again.
    NodeMissing,
    /// A notification was lost before it was in the log, and waited in the outbox.
    Forgotten,
    /// A notification came from the outbox.
    Relayed,
    /// A notification stayed in the outbox though it was in the log.
    Repeated,
    /// A slot began anew.
    Healed,
    /// A slot vanished.
    Lost,
    /// A slot fell back to an earlier state.
    FailedOver,
    /// A micro-batch was refused.
    Fenced,
    /// A recorded cut was put back.
    Imposed,
    /// A run was sealed.
    Sealed,
    /// A proposal was overtaken.
    Overtaken,
    /// A run was given up.
    Abandoned,
    /// A run was given up of which another try had published something.
    HalfAbandoned,
    /// A run was completed.
    Completed,
    /// The newest run was made once more.
    Again,
    /// All keys were computed.
    Full,
    /// Only some keys were computed.
    Incremental,
    /// Results were there that may have been published in part.
    Dirty,
    /// A head was replaced.
    HeadReplaced,
    /// A head was replaced by one without rows.
    HeadEmptied,
    /// A head was left alone.
    HeadSkipped,
    /// A node of a new edition was there already.
    NodeShared,
    /// A node was deleted.
    NodeDeleted,
    /// A try was refused that another had taken the place of.
    Outdated,
    /// Live epochs were dropped.
    Dropped,
    /// A process died.
    Crashed,
    /// A sum of live states was made, or moved on.
    SumMade,
    /// A sum was against another edition or base than the present one.
    SumStale,
    /// A reader found a sum that counted.
    SumRead,
}

impl Event {
    /// What happens only where sums are kept.
    pub(super) const OF_SUMS: [Self; 3] = [Self::SumMade, Self::SumStale, Self::SumRead];

    pub(super) const ALL: [Self; 29] = [
        Self::Answered,
        Self::Refused,
        Self::HalfLoaded,
        Self::NodeMissing,
        Self::Forgotten,
        Self::Relayed,
        Self::Repeated,
        Self::Healed,
        Self::Lost,
        Self::FailedOver,
        Self::Fenced,
        Self::Imposed,
        Self::Sealed,
        Self::Overtaken,
        Self::Abandoned,
        Self::HalfAbandoned,
        Self::Completed,
        Self::Again,
        Self::Full,
        Self::Incremental,
        Self::Dirty,
        Self::HeadReplaced,
        Self::HeadEmptied,
        Self::HeadSkipped,
        Self::NodeShared,
        Self::NodeDeleted,
        Self::Outdated,
        Self::Dropped,
        Self::Crashed,
    ];
}

/// How often each thing happened.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally([u64; Event::ALL.len() + Event::OF_SUMS.len()]);

impl Tally {
    pub(super) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    pub(super) fn of(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}
