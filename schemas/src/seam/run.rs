//! The records of batch runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Cut, Epoch, Generation, NewLife, Offset};
use crate::named;

named! {
    /// How far a run has come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RunState {
        /// Its cuts are recorded and may still be replaced.
        Proposed = "proposed",
        /// Its cuts never change again.
        Sealed = "sealed",
        /// All its rows are published.
        Complete = "complete",
        /// Its result failed the check: the next run covers its events too.
        Abandoned = "abandoned",
    }
}

/// The record of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The epoch that it ends, which is also its number.
    pub epoch: Epoch,
    /// How far it has come.
    pub state: RunState,
    /// By partition: where the epoch ends.
    pub cuts: Vec<Cut>,
    /// The stamp of its rows, in microseconds: larger than that of every run before.
    pub stamp_us: i64,
    /// Which proposal it is.
    pub token: String,
}

/// The records of a source's runs. Run 0 is always there: complete, and before everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs(BTreeMap<Epoch, Run>);

impl Runs {
    /// The newest complete run; 0 before the first.
    #[must_use]
    pub fn newest(&self) -> Epoch {
        self.0
            .values()
            .rev()
            .find(|run| run.state == RunState::Complete)
            .map_or(0, |run| run.epoch)
    }

    /// The record of a run; run 0 has none.
    #[must_use]
    pub fn get(&self, epoch: Epoch) -> Option<&Run> {
        self.0.get(&epoch)
    }

    /// Where `epoch` ends in a partition, if that is recorded. A partition that was added later
    /// begins after the cut.
    #[must_use]
    pub fn cut(&self, epoch: Epoch, partition: usize) -> Option<Cut> {
        if epoch == 0 {
            return Some(Cut::start());
        }
        let run = self.0.get(&epoch)?;
        Some(run.cuts.get(partition).copied().unwrap_or_else(Cut::start))
    }

    /// Where `epoch` ends in a partition, if that can't change any more. Only such cuts have rows.
    #[must_use]
    pub fn sealed_cut(&self, epoch: Epoch, partition: usize) -> Option<Cut> {
        let proposed = |run: &Run| run.state == RunState::Proposed;
        if self.0.get(&epoch).is_some_and(proposed) {
            return None;
        }
        self.cut(epoch, partition)
    }

    /// The new life of a slot in a partition whose log ends at `log_end`: it begins at the newest
    /// complete run. `hint` as in [`NewLife`].
    #[must_use]
    pub fn new_life(&self, partition: usize, log_end: Offset, hint: Generation) -> NewLife {
        let newest = self.newest();
        NewLife {
            newest,
            cut: self.cut(newest, partition).unwrap_or_else(Cut::start),
            log_end,
            hint,
        }
    }

    /// How many partitions the log had at least, by the cuts that are recorded.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.0.values().map(|run| run.cuts.len()).max().unwrap_or(0)
    }

    /// The run that is under way, or died.
    #[must_use]
    pub fn open(&self) -> Option<&Run> {
        self.0
            .values()
            .next_back()
            .filter(|run| matches!(run.state, RunState::Proposed | RunState::Sealed))
    }

    /// The run that comes next, or is under way.
    #[must_use]
    pub fn next_epoch(&self) -> Epoch {
        match (self.open(), self.0.keys().next_back()) {
            (Some(run), _) => run.epoch,
            (None, Some(last)) => last + 1,
            (None, None) => 1,
        }
    }

    /// The records, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.0.values()
    }
}

impl FromIterator<Run> for Runs {
    fn from_iter<I: IntoIterator<Item = Run>>(runs: I) -> Self {
        Self(runs.into_iter().map(|run| (run.epoch, run)).collect())
    }
}
