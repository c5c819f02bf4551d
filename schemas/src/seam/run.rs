//! The records of batch runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Cut, Epoch, Generation, GenerationStart, Offset};
use crate::named;

named! {
    /// The state of a batch run.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RunState {
        /// Its cuts are recorded and may still be replaced.
        Proposed = "proposed",
        /// Its cuts never change.
        Sealed = "sealed",
        /// All of its rows are published.
        Complete = "complete",
        /// Its result failed the check. The next run covers its events, too.
        Abandoned = "abandoned",
    }
}

/// The record of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The epoch that it ends. This is also the number of the run.
    pub epoch: Epoch,
    /// Its state.
    pub state: RunState,
    /// The end of the epoch in each partition.
    pub cuts: Vec<Cut>,
    /// The stamp of its rows, in microseconds: larger than the stamp of every earlier run.
    pub stamp_us: i64,
    /// Identifies the proposal.
    pub token: String,
}

/// The run records of a source. Run 0 has no record; it counts as complete, with its cuts at offset
/// 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs(BTreeMap<Epoch, Run>);

impl Runs {
    /// Returns the newest complete run, or 0 before the first.
    #[must_use]
    pub fn newest_complete(&self) -> Epoch {
        self.0
            .values()
            .rev()
            .find(|run| run.state == RunState::Complete)
            .map_or(0, |run| run.epoch)
    }

    /// Returns the record of a run. Run 0 has none.
    #[must_use]
    pub fn get(&self, epoch: Epoch) -> Option<&Run> {
        self.0.get(&epoch)
    }

    /// Returns the recorded end of `epoch` in a partition. A partition that was added later begins
    /// after the cut.
    #[must_use]
    pub fn cut(&self, epoch: Epoch, partition: usize) -> Option<Cut> {
        if epoch == 0 {
            return Some(Cut::start());
        }
        let run = self.0.get(&epoch)?;
        Some(run.cuts.get(partition).copied().unwrap_or_else(Cut::start))
    }

    /// Returns the end of `epoch` in a partition if it cannot change any more. Only such cuts have
    /// rows.
    #[must_use]
    pub fn sealed_cut(&self, epoch: Epoch, partition: usize) -> Option<Cut> {
        let is_proposed = |run: &Run| run.state == RunState::Proposed;
        if self.0.get(&epoch).is_some_and(is_proposed) {
            return None;
        }
        self.cut(epoch, partition)
    }

    /// Returns the start of a new generation in a partition whose log ends at `log_end`. The
    /// generation begins at the cut of the newest complete run.
    #[must_use]
    pub fn generation_start(
        &self,
        partition: usize,
        log_end: Offset,
        generation_min: Generation,
    ) -> GenerationStart {
        let newest = self.newest_complete();
        GenerationStart {
            newest,
            cut: self.cut(newest, partition).unwrap_or_else(Cut::start),
            log_end,
            generation_min,
        }
    }

    /// Returns the largest number of partitions that a recorded run has cuts for.
    #[must_use]
    pub fn partition_count(&self) -> usize {
        self.0.values().map(|run| run.cuts.len()).max().unwrap_or(0)
    }

    /// Returns the run that is open: it is in progress, or its process died.
    #[must_use]
    pub fn open_run(&self) -> Option<&Run> {
        self.0
            .values()
            .next_back()
            .filter(|run| matches!(run.state, RunState::Proposed | RunState::Sealed))
    }

    /// Returns the number of the open run, or else of the next one.
    #[must_use]
    pub fn next_epoch(&self) -> Epoch {
        match (self.open_run(), self.0.keys().next_back()) {
            (Some(run), _) => run.epoch,
            (None, Some(last)) => last + 1,
            (None, None) => 1,
        }
    }

    /// Iterates over the records, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.0.values()
    }
}

impl FromIterator<Run> for Runs {
    fn from_iter<I: IntoIterator<Item = Run>>(runs: I) -> Self {
        Self(runs.into_iter().map(|run| (run.epoch, run)).collect())
    }
}
