//! The laws of histories, and their events.

/// A law that every history must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// An answer is the fold of the log up to its positions.
    Exact,
    /// After the faults end, every read is answered and includes the whole log.
    Complete,
    /// No run ends before an earlier run.
    Monotonic,
    /// A partition state is rebuilt only after a loss.
    Retained,
    /// An answer includes everything counted before the request, or says that it is incomplete.
    Fresh,
}

/// An event of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A read was answered.
    Answered,
    /// A read was refused.
    Refused,
    /// An answer included a row of an incomplete run.
    HalfLoaded,
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
    /// A single job was completed.
    Job,
    /// Live epochs were pruned.
    Pruned,
    /// A partition was added.
    Added,
    /// The views changed.
    Deployed,
    /// A partition state began to count a view.
    Merged,
    /// A process died.
    Crashed,
    /// An answer was marked as incomplete during a replay.
    Replaying,
}

impl Event {
    pub(super) const ALL: [Self; 18] = [
        Self::Answered,
        Self::Refused,
        Self::HalfLoaded,
        Self::Rebuilt,
        Self::Lost,
        Self::FailedOver,
        Self::ApplyRefused,
        Self::EpochClosed,
        Self::Sealed,
        Self::Overtaken,
        Self::Abandoned,
        Self::Job,
        Self::Pruned,
        Self::Added,
        Self::Deployed,
        Self::Merged,
        Self::Crashed,
        Self::Replaying,
    ];
}

/// The number of each event.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct EventCounts([u64; Event::ALL.len()]);

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
