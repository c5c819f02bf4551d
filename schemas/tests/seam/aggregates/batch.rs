//! A batch process: it seals runs and publishes them, or computes one view of a complete run again.

use rand::Rng;
use rand::seq::SliceRandom;
use schemas::seam::{Epoch, Offset, Run, RunState};

use super::rows::Row;
use super::stores::{Counts, KEYS, SharedWorld, World};
use crate::simulation::{RunRecords, end_step, seal_run, wait_grace_period};

/// The view that the last deployment no longer has.
const REPLACED_VIEW: usize = 1;

enum Task {
    None,
    SealRun,
    Publish(Publication),
}

struct Publication {
    run: Run,
    /// The views to compute.
    views: Vec<usize>,
    /// The run is complete, and one view is computed again.
    is_recompute: bool,
}

/// The rows of a view, and the keys whose rows must be written.
struct ViewChange {
    view: usize,
    rows: Counts,
    changed_keys: Vec<usize>,
}

/// Runs a batch process with the views of the deployment at its start.
pub(super) async fn run_batch(world: &SharedWorld, views: &[usize]) {
    loop {
        let run_records = world.borrow().run_records();
        let task = choose_task(&mut world.borrow_mut(), &run_records, views);
        match task {
            Task::None => {}
            Task::SealRun => seal_run(world, &run_records).await,
            Task::Publish(publication) => {
                let partitions = world.borrow().partitions();
                if publication.publish(world).await.is_some() {
                    delete_replaced_view(world, views).await;
                    prune(world, views, partitions).await;
                }
            }
        }
        end_step().await;
    }
}

fn choose_task(world: &mut World, run_records: &RunRecords, views: &[usize]) -> Task {
    let runs = &run_records.runs;
    if world.rng.random_ratio(1, 8) {
        let newest = runs.get(runs.newest_complete());
        return match newest.filter(|_| runs.open_run().is_none()) {
            Some(run) => Task::Publish(Publication {
                run: run.clone(),
                views: vec![views[world.rng.random_range(0..views.len())]],
                is_recompute: true,
            }),
            None => Task::None,
        };
    }
    match runs.open_run().filter(|run| run.state == RunState::Sealed) {
        Some(run) => Task::Publish(Publication {
            run: run.clone(),
            views: views.to_vec(),
            is_recompute: false,
        }),
        None => Task::SealRun,
    }
}

impl Publication {
    /// Computes the rows, records the results, and writes the changed rows. Returns `None` if the
    /// run is abandoned or overtaken, or if its process dies just before it completes the run.
    async fn publish(self, world: &SharedWorld) -> Option<()> {
        let epoch = self.run.epoch;
        end_step().await;
        let changes = self.compute_changes(&mut world.borrow_mut());
        end_step().await;
        let mut results = Vec::new();
        for ViewChange { view, rows, .. } in &changes {
            let result = world.borrow_mut().record_result(*view, epoch, *rows);
            results.push((*view, result));
        }
        end_step().await;
        if !self.is_recompute && world.borrow_mut().rng.random_ratio(1, 8) {
            world.borrow_mut().abandon(epoch);
            return None;
        }
        end_step().await;
        let stamp = world.borrow_mut().take_stamp(epoch)?;
        let mut rows = new_rows(&changes, epoch, stamp);
        rows.shuffle(&mut world.borrow_mut().rng);
        while let Some((view, key, row)) = rows.pop() {
            end_step().await;
            if !world.borrow_mut().write_row(view, key, row) {
                return None;
            }
        }
        end_step().await;
        if world.borrow_mut().rng.random_ratio(1, 8) {
            return None;
        }
        end_step().await;
        let ends_epoch = !self.is_recompute;
        world.borrow_mut().complete(epoch, &self.views, ends_epoch);
        while let Some((view, result)) = results.pop() {
            end_step().await;
            world.borrow_mut().set_published(view, &result);
        }
        Some(())
    }

    /// Computes the rows, and which of them to write: those that differ from the published ones,
    /// and those that a later result may have written differently.
    fn compute_changes(&self, world: &mut World) -> Vec<ViewChange> {
        let newest = world.run_records().newest;
        let offsets: Vec<Offset> = self.run.cuts.iter().map(|cut| cut.next_offset).collect();
        let mut changes = Vec::new();
        for view in self.views.iter().copied() {
            world.create_table(view);
            let (published, later) = world.results(view, newest[view]);
            let (mut rows, mut changed_keys) = ([None; KEYS], Vec::new());
            for key in 0..KEYS {
                rows[key] = world.sum_log(view, key, &offsets);
                let is_rewritten = world.stores.rules.rewrites_later_results
                    && later.iter().any(|rows| rows[key] != published[key]);
                let is_changed = rows[key] != published[key] || is_rewritten;
                if is_changed || world.rng.random_ratio(1, 10) {
                    changed_keys.push(key);
                }
            }
            changes.push(ViewChange {
                view,
                rows,
                changed_keys,
            });
        }
        changes
    }
}

/// Returns the rows to write, each with its view and key.
fn new_rows(changes: &[ViewChange], epoch: Epoch, stamp: i64) -> Vec<(usize, usize, Row)> {
    let mut new_rows = Vec::new();
    for change in changes {
        for key in change.changed_keys.iter().copied() {
            let count = change.rows[key];
            let row = Row {
                count,
                epoch,
                stamp,
            };
            new_rows.push((change.view, key, row));
        }
    }
    new_rows
}

/// Deletes the replaced view if the deployment does not have it.
async fn delete_replaced_view(shared: &SharedWorld, views: &[usize]) {
    end_step().await;
    let world = &mut *shared.borrow_mut();
    let is_replaced = !views.contains(&REPLACED_VIEW) && !world.is_deleted(REPLACED_VIEW);
    if is_replaced && world.rng.random_ratio(1, 3) {
        world.delete_view(REPLACED_VIEW);
    }
}

/// Prunes the epochs that all views have published, after the grace period.
async fn prune(world: &SharedWorld, views: &[usize], partitions: usize) {
    wait_grace_period(world).await;
    end_step().await;
    let run_records = world.borrow().run_records();
    let newest = views.iter().map(|view| run_records.newest[*view]).min();
    let Some(epoch) = newest.filter(|epoch| *epoch > 0) else {
        return;
    };
    for partition in 0..partitions {
        end_step().await;
        if let Some(cut) = run_records.runs.cut(epoch, partition) {
            world.borrow_mut().prune_through(partition, epoch, cut);
        }
    }
    end_step().await;
}
