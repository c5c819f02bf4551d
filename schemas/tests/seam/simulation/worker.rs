//! A worker of one partition.

use rand::Rng;
use schemas::seam::{Checkpoint, Offset, PartitionState, WorkerStep};

use super::{RunRecords, SharedWorld, ViewKind, end_step};

/// The folding of micro-batches, one after the other.
pub(crate) struct Fold {
    pub(crate) partition: usize,
    pub(crate) views: &'static [usize],
    pub(crate) checkpoint: Checkpoint,
    pub(crate) run_records: RunRecords,
    /// A cut that a micro-batch must not cross.
    until: Option<Offset>,
    micro_batches_left: u32,
}

/// Reads the partition state and the run records. Then it rebuilds the state, closes its epoch, or
/// folds micro-batches.
pub(super) async fn run_worker<K: ViewKind>(
    world: &SharedWorld<K>,
    partition: usize,
    views: &'static [usize],
) {
    loop {
        let state = world.borrow().partition_state(partition);
        end_step().await;
        let run_records = world.borrow().run_records();
        let next_step = world.borrow().protocol.next_step;
        match (
            next_step(state.as_deref(), partition, &run_records.runs),
            state,
        ) {
            (WorkerStep::Refresh, _) => {}
            (WorkerStep::Fold { until }, Some(state)) => {
                let micro_batches = 1..=K::MICRO_BATCHES_MAX;
                let fold = Fold {
                    partition,
                    views,
                    checkpoint: state.checkpoint(),
                    run_records,
                    until,
                    micro_batches_left: world.borrow_mut().rng.random_range(micro_batches),
                };
                fold_micro_batches(world, fold).await;
            }
            (step, state) => {
                end_step().await;
                let expected = state.as_deref().map(PartitionState::checkpoint);
                let mut world = world.borrow_mut();
                world.perform(partition, step, expected, &run_records.runs);
            }
        }
        end_step().await;
    }
}

async fn fold_micro_batches<K: ViewKind>(world: &SharedWorld<K>, mut fold: Fold) {
    loop {
        end_step().await;
        let start = fold.checkpoint.next_offset;
        let log_end = world.borrow().log_end(fold.partition);
        let end = log_end.min(fold.until.unwrap_or(Offset::MAX));
        let next = end.min(start + world.borrow_mut().rng.random_range(1..4));
        if next <= start || fold.micro_batches_left == 0 {
            return;
        }
        if !K::apply_micro_batch(world, &fold, next).await {
            return;
        }
        fold.checkpoint.next_offset = next;
        fold.micro_batches_left -= 1;
    }
}
