//! The laws of histories, and what happens in them.

/// What must hold in every history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Law {
    /// An answer is the fold of the log up to the positions that it names.
    Exact,
    /// Once nothing is disturbed any more, every read is answered and holds everything.
    Whole,
    /// No run ends before the run before it.
    Forward,
    /// A slot begins anew only where something was lost.
    Kept,
    /// An answer holds all that had been counted before it was asked for, or says that it does not.
    Steady,
}

/// What may happen in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A read was answered.
    Answered,
    /// A read was refused.
    Refused,
    /// An answer held a row of a run that was not complete.
    HalfLoaded,
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
    /// A single job was completed.
    Job,
    /// Live epochs were dropped.
    Dropped,
    /// A partition was added.
    Added,
    /// The views changed.
    Deployed,
    /// A slot began to count a view.
    Joined,
    /// A process died.
    Crashed,
    /// An answer said that not all of the log is counted again.
    Replaying,
}

impl Event {
    pub(super) const ALL: [Self; 18] = [
        Self::Answered,
        Self::Refused,
        Self::HalfLoaded,
        Self::Healed,
        Self::Lost,
        Self::FailedOver,
        Self::Fenced,
        Self::Imposed,
        Self::Sealed,
        Self::Overtaken,
        Self::Abandoned,
        Self::Job,
        Self::Dropped,
        Self::Added,
        Self::Deployed,
        Self::Joined,
        Self::Crashed,
        Self::Replaying,
    ];
}

/// How often each thing happened.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally([u64; Event::ALL.len()]);

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
