//! The stores of batch runs: run records and results.

use std::rc::Rc;

use super::super::events::{Event, Law};
use super::super::records::{Results, RunResult};
use super::World;
use crate::seam::{Cut, Epoch, Run, RunState};

impl World {
    fn put(&mut self, run: Run) {
        let runs = self.runs.iter().cloned().chain([run]);
        self.runs = Rc::new(runs.collect());
    }

    fn last_run(&self) -> Option<&Run> {
        self.runs.iter().next_back()
    }

    fn next_stamp(&mut self) -> i64 {
        self.stamp += 1;
        self.stamp
    }

    /// Records cuts as proposed. Returns the token of the proposal; `None` if it is refused.
    pub(in super::super) fn propose(&mut self, epoch: Epoch, cuts: &[Cut]) -> Option<String> {
        let next = match self.last_run() {
            None => 1,
            Some(run) => match run.state {
                RunState::Proposed => run.epoch,
                RunState::Sealed => 0,
                RunState::Complete | RunState::Abandoned => run.epoch + 1,
            },
        };
        if epoch != next {
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

    pub(in super::super) fn seal(&mut self, epoch: Epoch, token: &str) {
        let Some(run) = self.runs.get(epoch).cloned() else {
            return;
        };
        if run.token != token || run.state != RunState::Proposed {
            return self.count_event(Event::Overtaken);
        }
        let back = (0..run.cuts.len()).find(|partition| {
            let before = self.runs.cut(epoch - 1, *partition);
            before.is_some_and(|before| before.next_offset > run.cuts[*partition].next_offset)
        });
        if let Some(partition) = back {
            let what = format!("run {epoch} ends before the previous run in partition {partition}");
            self.report_violation(Law::Monotonic, what);
        }
        self.put(Run {
            state: RunState::Sealed,
            ..run
        });
        self.count_event(Event::Sealed);
    }

    /// Begins to publish a result and takes a new stamp for its versions. Returns `None` if a newer
    /// run is recorded.
    pub(in super::super) fn begin_publishing(
        &mut self,
        epoch: Epoch,
        result: &RunResult,
    ) -> Option<i64> {
        let run = self.last_run().filter(|run| run.epoch == epoch)?.clone();
        let stamp_us = self.next_stamp();
        self.put(Run { stamp_us, ..run });
        self.results.started.push(result.clone());
        Some(stamp_us)
    }

    /// Returns whether a try may still publish.
    pub(in super::super) fn may_publish(&mut self, epoch: Epoch, stamp: i64) -> bool {
        let last = self.last_run().is_some_and(|run| run.epoch == epoch);
        let may = !self.rules.refuses_overtaken || (last && self.publishes(epoch, stamp));
        if !may {
            self.count_event(Event::TryOvertaken);
        }
        may
    }

    fn publishes(&self, epoch: Epoch, stamp: i64) -> bool {
        let can = |run: &Run| matches!(run.state, RunState::Sealed | RunState::Complete);
        let run = self.runs.get(epoch).filter(|run| can(run));
        run.is_some_and(|run| run.stamp_us == stamp)
    }

    pub(in super::super) fn complete(
        &mut self,
        epoch: Epoch,
        stamp: i64,
        result: RunResult,
        ends: bool,
    ) -> bool {
        if !self.publishes(epoch, stamp) {
            self.count_event(Event::TryOvertaken);
            return false;
        }
        self.newest = self.newest.max(epoch);
        if self.newest == epoch {
            self.results = Results {
                published: Some(result),
                started: Vec::new(),
            };
        }
        let run = self.runs.get(epoch).cloned();
        if let Some(run) = run.filter(|run| ends && run.state == RunState::Sealed) {
            self.put(Run {
                state: RunState::Complete,
                ..run
            });
        }
        true
    }

    pub(in super::super) fn abandon(&mut self, epoch: Epoch) {
        let run = self.runs.get(epoch).cloned();
        if let Some(run) = run.filter(|run| run.state == RunState::Sealed) {
            self.count_event(Event::Abandoned);
            if self.boards.iter().any(|boards| boards.epoch() == epoch) {
                self.count_event(Event::HalfAbandoned);
            }
            self.put(Run {
                state: RunState::Abandoned,
                ..run
            });
        }
    }
}
