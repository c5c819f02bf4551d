//! The store of run records.

use std::rc::Rc;

use schemas::seam::{Cut, Epoch, Run, RunState, Runs};

use super::{Event, Invariant, ViewKind, World};

/// The run records and the newest complete epochs, read in one step.
#[derive(Clone)]
pub(crate) struct RunRecords {
    pub(crate) runs: Rc<Runs>,
    /// By view; 0 before the first complete run.
    pub(crate) newest: Vec<Epoch>,
}

impl<K: ViewKind> World<K> {
    pub(crate) fn run_records(&self) -> RunRecords {
        RunRecords {
            runs: Rc::clone(&self.runs),
            newest: self.newest.clone(),
        }
    }

    pub(crate) fn last_run(&self) -> Option<&Run> {
        self.runs.iter().next_back()
    }

    fn put(&mut self, run: Run) {
        let runs = self.runs.iter().cloned().chain([run]);
        self.runs = Rc::new(runs.collect());
    }

    fn put_state(&mut self, epoch: Epoch, state: RunState) {
        if let Some(run) = self.runs.get(epoch).cloned() {
            self.put(Run { state, ..run });
        }
    }

    const fn next_stamp(&mut self) -> i64 {
        self.last_stamp += 1;
        self.last_stamp
    }

    /// Records cuts as proposed. Returns the token of the proposal; `None` if it is refused.
    pub(crate) fn propose(&mut self, epoch: Epoch, cuts: &[Cut]) -> Option<String> {
        let expected = match self.last_run().map(|run| (run.state, run.epoch)) {
            None => 1,
            Some((RunState::Proposed, epoch)) => epoch,
            Some((RunState::Sealed, _)) => return None,
            Some((RunState::Complete | RunState::Abandoned, epoch)) => epoch + 1,
        };
        if epoch != expected {
            return None;
        }
        let stamp_us = self.next_stamp();
        let token = stamp_us.to_string();
        self.put(Run {
            epoch,
            state: RunState::Proposed,
            cuts: cuts.to_vec(),
            stamp_us,
            token: token.clone(),
        });
        Some(token)
    }

    /// Seals the cuts of a run if they are still those of the proposal.
    pub(crate) fn seal(&mut self, epoch: Epoch, token: &str) {
        let Some(run) = self.runs.get(epoch) else {
            return;
        };
        if run.token != token || run.state != RunState::Proposed {
            return self.count_event(Event::ProposalOvertaken);
        }
        let decreased = (0..run.cuts.len()).find(|partition| {
            let earlier = self.runs.cut(epoch - 1, *partition);
            earlier.is_some_and(|earlier| earlier.next_offset > run.cuts[*partition].next_offset)
        });
        if let Some(partition) = decreased {
            let description =
                format!("run {epoch} ends before the previous run in partition {partition}");
            self.report_violation(Invariant::Monotonic, description);
        }
        self.put_state(epoch, RunState::Sealed);
        self.count_event(Event::Sealed);
    }

    /// Assigns a new stamp to a run; `None` if a newer run is recorded.
    pub(crate) fn take_stamp(&mut self, epoch: Epoch) -> Option<i64> {
        let run = self.last_run().filter(|run| run.epoch == epoch)?.clone();
        let stamp_us = self.next_stamp();
        self.put(Run { stamp_us, ..run });
        Some(stamp_us)
    }

    /// Returns a run whose rows may be published: it is sealed or complete.
    pub(crate) fn publishable_run(&self, epoch: Epoch) -> Option<&Run> {
        let run = self.runs.get(epoch);
        run.filter(|run| matches!(run.state, RunState::Sealed | RunState::Complete))
    }

    /// Records that the rows of some views are published, and completes the run if it
    /// `ends_epoch`.
    pub(crate) fn complete(&mut self, epoch: Epoch, views: &[usize], ends_epoch: bool) {
        if self.publishable_run(epoch).is_none() {
            return;
        }
        for view in views {
            self.newest[*view] = self.newest[*view].max(epoch);
        }
        if ends_epoch {
            self.put_state(epoch, RunState::Complete);
            self.count_event(Event::Completed);
        } else {
            self.count_event(Event::Recomputed);
        }
    }

    /// Abandons a run if it is sealed. Returns whether it was.
    pub(crate) fn abandon(&mut self, epoch: Epoch) -> bool {
        let run = self.runs.get(epoch);
        let is_sealed = run.is_some_and(|run| run.state == RunState::Sealed);
        if is_sealed {
            self.count_event(Event::Abandoned);
            self.put_state(epoch, RunState::Abandoned);
        }
        is_sealed
    }

    /// Forgets that a view has complete runs.
    pub(crate) fn reset_newest(&mut self, view: usize) {
        self.newest[view] = 0;
    }
}
