//! The stores of batch runs: run records, rows and results.

use std::rc::Rc;

use super::super::events::{Event, Law};
use super::super::rules::sealed;
use super::{Counts, KEYS, Row, RunRecords, RunResult, World};
use crate::seam::{Cut, Epoch, Run, RunState};

impl World {
    pub(in super::super) fn runs(&self) -> RunRecords {
        RunRecords {
            runs: Rc::clone(&self.runs),
            newest: [0, 1, 2].map(|view: usize| self.views[view].newest),
        }
    }

    fn put(&mut self, run: Run) {
        let runs = self.runs.iter().cloned().chain([run]);
        self.runs = Rc::new(runs.collect());
    }

    pub(super) fn last_run(&self) -> Option<&Run> {
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

    pub(in super::super) fn seal(&mut self, epoch: Epoch, token: &str) -> bool {
        let Some(run) = self.runs.get(epoch) else {
            return false;
        };
        if run.token != token || run.state != RunState::Proposed {
            self.count_event(Event::Overtaken);
            return false;
        }
        let run = sealed(run.clone());
        let back = (0..run.cuts.len()).find(|partition| {
            let before = self.runs.cut(epoch - 1, *partition);
            before.is_some_and(|before| before.next_offset > run.cuts[*partition].next_offset)
        });
        if let Some(partition) = back {
            let what = format!("run {epoch} ends before the previous run in partition {partition}");
            self.report_violation(Law::Monotonic, what);
        }
        self.put(run);
        self.count_event(Event::Sealed);
        true
    }

    /// Assigns a new stamp to a run, for its rows; `None` if a newer run is recorded.
    pub(in super::super) fn take_stamp(&mut self, epoch: Epoch) -> Option<i64> {
        let run = self.last_run().filter(|run| run.epoch == epoch)?.clone();
        let stamp_us = self.next_stamp();
        self.put(Run { stamp_us, ..run });
        Some(stamp_us)
    }

    pub(in super::super) fn complete(&mut self, epoch: Epoch, views: &[usize], run_ends: bool) {
        let Some(run) = self.runs.get(epoch).cloned() else {
            return;
        };
        if !matches!(run.state, RunState::Sealed | RunState::Complete) {
            return;
        }
        for view in views {
            let newest = &mut self.views[*view].newest;
            *newest = (*newest).max(Some(epoch));
        }
        if run_ends && run.state == RunState::Sealed {
            self.put(Run {
                state: RunState::Complete,
                ..run
            });
        }
    }

    pub(in super::super) fn abandon(&mut self, epoch: Epoch) {
        let run = self.runs.get(epoch).cloned();
        if let Some(run) = run.filter(|run| run.state == RunState::Sealed) {
            self.count_event(Event::Abandoned);
            self.put(Run {
                state: RunState::Abandoned,
                ..run
            });
        }
    }

    pub(in super::super) fn ensure_table(&mut self, view: usize) {
        self.views[view].table.get_or_insert([None; KEYS]);
    }

    /// Deletes the rows of a view. Its results stay.
    pub(in super::super) fn delete_view(&mut self, view: usize) {
        let view = &mut self.views[view];
        view.newest = None;
        view.table = None;
        view.deleted = true;
    }

    pub(in super::super) fn is_deleted(&self, view: usize) -> bool {
        self.views[view].deleted
    }

    /// Returns the published rows of a view, and the rows of all later results.
    pub(in super::super) fn results(&self, view: usize, newest: Epoch) -> (Counts, Vec<Counts>) {
        let view = &self.views[view];
        let pointer = view.published.filter(|(epoch, _)| *epoch <= newest);
        let mut published = [None; KEYS];
        let mut others = Vec::new();
        for result in &view.results {
            let id = (result.epoch, result.attempt);
            match pointer {
                Some(at) if id == at => published = result.rows,
                Some(at) if id < at => {}
                _ => others.push(result.rows),
            }
        }
        (published, others)
    }

    /// Records the rows that will be published.
    pub(in super::super) fn record(
        &mut self,
        view: usize,
        epoch: Epoch,
        rows: Counts,
    ) -> RunResult {
        self.attempts += 1;
        let result = RunResult {
            epoch,
            attempt: self.attempts,
            rows,
        };
        self.views[view].results.push(result);
        result
    }

    /// Marks a result as published and removes older ones.
    pub(in super::super) fn set_published(&mut self, view: usize, result: &RunResult) {
        let at = (result.epoch, result.attempt);
        let view = &mut self.views[view];
        view.published = Some(at);
        view.results
            .retain(|other| (other.epoch, other.attempt) >= at);
    }

    /// Writes a row unless a later stamp is stored. Returns whether publishing may continue.
    pub(in super::super) fn publish(&mut self, view: usize, key: usize, row: Row) -> bool {
        let current = self.last_run().map(|run| (run.epoch, run.stamp_us));
        if self.strict && current != Some((row.epoch, row.stamp)) {
            return false;
        }
        let Some(table) = &mut self.views[view].table else {
            return false;
        };
        let stored = &mut table[key];
        if stored.is_none_or(|stored| row.stamp > stored.stamp) {
            *stored = Some(row);
        }
        true
    }

    /// Returns the row of a key; `None` if the view has no table.
    pub(in super::super) fn row(&self, view: usize, key: usize) -> Option<Option<Row>> {
        self.views[view].table.map(|table| table[key])
    }
}
