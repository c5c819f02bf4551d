//! The stores of rows: the table of each view, and the results of runs.

use schemas::seam::Epoch;

use super::stores::{Counts, KEYS, World};

#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) count: Option<i64>,
    pub(super) epoch: Epoch,
    pub(super) stamp: i64,
}

/// The number of a result among those of all runs. A later try has a larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ResultId {
    epoch: Epoch,
    attempt: u64,
}

/// The rows of one try of a run for a view, recorded before any of them is published.
#[derive(Clone, Copy)]
pub(super) struct RunResult {
    id: ResultId,
    rows: Counts,
}

/// The rows and results of a view.
#[derive(Default)]
pub(super) struct ViewRows {
    /// `None` until the first run, and after the view was deleted.
    table: Option<[Option<Row>; KEYS]>,
    results: Vec<RunResult>,
    /// The result that was published last.
    published: Option<ResultId>,
    is_deleted: bool,
}

impl World {
    pub(super) fn create_table(&mut self, view: usize) {
        self.stores.views[view].table.get_or_insert([None; KEYS]);
    }

    /// Deletes the rows of a view. Its results stay.
    pub(super) fn delete_view(&mut self, view: usize) {
        self.reset_newest(view);
        let rows = &mut self.stores.views[view];
        rows.table = None;
        rows.is_deleted = true;
    }

    pub(super) fn is_deleted(&self, view: usize) -> bool {
        self.stores.views[view].is_deleted
    }

    /// Returns the published rows of a view, and the rows of all later results. A result after
    /// epoch `newest` does not count as published.
    pub(super) fn results(&self, view: usize, newest: Epoch) -> (Counts, Vec<Counts>) {
        let view = &self.stores.views[view];
        let published = view.published.filter(|id| id.epoch <= newest);
        let is_published = |result: &&RunResult| Some(result.id) == published;
        let is_later = |result: &&RunResult| published.is_none_or(|id| result.id > id);
        let rows = view.results.iter().find(is_published);
        let later = view.results.iter().filter(is_later);
        (
            rows.map_or([None; KEYS], |result| result.rows),
            later.map(|result| result.rows).collect(),
        )
    }

    /// Records the rows that will be published.
    pub(super) fn record_result(&mut self, view: usize, epoch: Epoch, rows: Counts) -> RunResult {
        self.stores.results += 1;
        let attempt = self.stores.results;
        let id = ResultId { epoch, attempt };
        let result = RunResult { id, rows };
        self.stores.views[view].results.push(result);
        result
    }

    /// Marks a result as published and removes older ones.
    pub(super) fn set_published(&mut self, view: usize, result: &RunResult) {
        let view = &mut self.stores.views[view];
        view.published = Some(result.id);
        view.results.retain(|other| other.id >= result.id);
    }

    /// Writes a row unless a later stamp is stored. Returns whether publishing may continue.
    pub(super) fn write_row(&mut self, view: usize, key: usize, row: Row) -> bool {
        let current = self.last_run().map(|run| (run.epoch, run.stamp_us));
        if self.stores.refuses_overtaken && current != Some((row.epoch, row.stamp)) {
            return false;
        }
        let Some(table) = &mut self.stores.views[view].table else {
            return false;
        };
        let stored = &mut table[key];
        if stored.is_none_or(|stored| row.stamp > stored.stamp) {
            *stored = Some(row);
        }
        true
    }

    /// Returns the rows of a view; `None` if it has no table.
    pub(super) fn table(&self, view: usize) -> Option<[Option<Row>; KEYS]> {
        self.stores.views[view].table
    }
}
