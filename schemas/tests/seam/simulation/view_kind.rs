//! The differences between the histories of aggregates and those of boards.

use rand::rngs::SmallRng;
use schemas::seam::{Epoch, Generation, Offset};

use super::{Fold, SharedWorld, World};

/// A kind of views, with the stores that only this kind has.
pub(crate) trait ViewKind: Sized + 'static {
    /// A record of the log, except dead letters.
    type Record: Copy;
    /// A summary of all records below an offset. Only invariants read it.
    type LogSummary: Copy + Default;
    /// The live data of a partition, beside its partition state.
    type LiveData: Clone + Default;

    /// The names of the views.
    const VIEWS: &'static [&'static str];
    /// The views of each deployment, in order.
    const DEPLOYMENTS: &'static [&'static [usize]];
    /// The maximum number of micro-batches that a worker folds before it reads the state again.
    const MICRO_BATCHES_MAX: u32;
    /// The speed of batch processes relative to other actors.
    const BATCH_SPEED: f64;

    fn add_to_summary(summary: &mut Self::LogSummary, record: Self::Record);

    /// Deletes some or all live data that is not of `generation`, or older than epoch `oldest`.
    fn delete_pruned(
        live_data: &mut Self::LiveData,
        generation: Generation,
        oldest: Epoch,
        rng: &mut SmallRng,
    );

    /// Folds the records up to `next` and applies them. Returns whether the checkpoint matched.
    async fn apply_micro_batch(world: &SharedWorld<Self>, fold: &Fold, next: Offset) -> bool;

    /// Returns the views of a batch process that starts.
    fn batch_views(world: &World<Self>) -> Vec<usize> {
        world.deployed_views().to_vec()
    }

    /// Seals and publishes runs.
    async fn run_batch(world: &SharedWorld<Self>, views: Vec<usize>);

    /// Reads, and checks the answers.
    async fn run_reader(world: &SharedWorld<Self>);

    /// Returns the maximum number of steps without a change that a worker with work takes.
    fn idle_steps_max(&self) -> usize;

    /// Reads all data after the faults have ended. Every read must be answered.
    fn read_everything(world: &SharedWorld<Self>, phase: Phase);
}

/// A point after the faults have ended at which everything is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Workers have finished their work. No run was needed.
    AfterWorkers,
    /// Two more runs are complete.
    AfterRuns,
}
