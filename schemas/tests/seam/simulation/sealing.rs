//! The first part of a batch run: it seals the cuts of an epoch.

use rand::Rng;
use schemas::seam::PartitionState;

use super::{RunRecords, SharedWorld, ViewKind, end_step};

/// Ends the next epoch in every partition, records the cuts, verifies and seals them. Returns early
/// if another run has overtaken this run, or after the repair of a partition state.
pub(crate) async fn seal_run<K: ViewKind>(world: &SharedWorld<K>, run_records: &RunRecords) {
    let epoch = run_records.runs.next_epoch();
    let partitions = world.borrow().partitions();
    let mut cuts = Vec::new();
    for partition in 0..partitions {
        end_step().await;
        let Some(cut) = world.borrow_mut().end_epoch(partition, epoch) else {
            return repair(world, partition).await;
        };
        cuts.push(cut);
    }
    end_step().await;
    let Some(token) = world.borrow_mut().propose(epoch, &cuts) else {
        return;
    };
    let can_seal = world.borrow().protocol.can_seal;
    for (partition, cut) in cuts.iter().enumerate() {
        end_step().await;
        let state = world.borrow().partition_state(partition);
        if !can_seal(state.as_deref(), partition, epoch, *cut, &run_records.runs) {
            return;
        }
    }
    // Other actors have two chances to act between the verification and the seal.
    end_step().await;
    end_step().await;
    world.borrow_mut().seal(epoch, &token);
}

/// Waits until readers no longer use the data that a run replaced. Slow readers use it
/// nevertheless.
pub(crate) async fn wait_grace_period<K: ViewKind>(world: &SharedWorld<K>) {
    let steps = world.borrow_mut().rng.random_range(0..4);
    for _ in 0..=steps {
        end_step().await;
    }
}

/// Performs the next step of the worker of a partition.
async fn repair<K: ViewKind>(world: &SharedWorld<K>, partition: usize) {
    end_step().await;
    let state = world.borrow().partition_state(partition);
    end_step().await;
    let runs = world.borrow().run_records().runs;
    let step = (world.borrow().protocol.next_step)(state.as_deref(), partition, &runs);
    end_step().await;
    let expected = state.as_deref().map(PartitionState::checkpoint);
    let mut world = world.borrow_mut();
    world.perform(partition, step, expected, &runs);
}
