//! The rules of a history: the real ones, and mutants with one rule broken.

use crate::seam::{
    self, Checkpoint, CheckpointMismatch, Cut, Epoch, GenerationStart, PartitionState, Run,
    RunState, Runs, WorkerStep,
};

type Apply = fn(&mut PartitionState, &Checkpoint, Cut, &[&str]) -> Result<(), CheckpointMismatch>;
type Rebuild = fn(
    Option<&PartitionState>,
    Option<Checkpoint>,
    &GenerationStart,
) -> Result<PartitionState, CheckpointMismatch>;

/// The rules of the actors.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: Apply,
    pub(super) rebuild: Rebuild,
    pub(super) next_step: fn(Option<&PartitionState>, usize, &Runs) -> WorkerStep,
    pub(super) can_seal: fn(Option<&PartitionState>, usize, Epoch, Cut, &Runs) -> bool,
    pub(super) is_readable: fn(&PartitionState, usize, Epoch, &Runs, &str) -> bool,
    /// The number of partitions to read, from the log's partitions and the run records.
    pub(super) partitions: fn(usize, &Runs) -> usize,
    /// The newest complete run is read first, not last.
    pub(super) newest_first: bool,
    /// A run rewrites rows that any result since the published one may have written.
    pub(super) rewrites: bool,
    /// A view with a complete run but no table is not answered.
    pub(super) needs_table: bool,
}

pub(super) const REAL: Rules = Rules {
    apply: PartitionState::apply,
    rebuild: PartitionState::rebuild,
    next_step: seam::next_step,
    can_seal: seam::can_seal,
    is_readable: seam::is_readable,
    partitions: |log, runs| log.max(runs.partitions()),
    newest_first: true,
    rewrites: true,
    needs_table: true,
};

/// The checkpoint must only not be behind, instead of equal.
pub(super) const GT: Rules = Rules {
    apply: |partition_state, expected, next, views| {
        let actual = partition_state.checkpoint();
        let ahead = next.next_offset > actual.next_offset;
        if (actual.generation, actual.epoch) == (expected.generation, expected.epoch) && ahead {
            partition_state.apply(&actual, next, views)
        } else {
            Err(CheckpointMismatch {
                actual: Some(actual),
            })
        }
    },
    ..REAL
};

/// Readers do not compare the boundary with the run's cut.
pub(super) const NO_BOUND: Rules = Rules {
    is_readable: |partition_state, partition, base, runs, view| {
        let mut partition_state = partition_state.clone();
        if let Some(cut) = runs.cut(base, partition) {
            partition_state.bounds.insert(base, cut);
        }
        seam::is_readable(&partition_state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers do not check whether the epochs after the base are retained.
pub(super) const NO_OLDEST: Rules = Rules {
    is_readable: |partition_state, partition, base, runs, view| {
        let mut partition_state = partition_state.clone();
        partition_state.oldest = 0;
        seam::is_readable(&partition_state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers do not check the offset since which the view has been counted.
pub(super) const NO_SINCE: Rules = Rules {
    is_readable: |partition_state, partition, base, runs, view| {
        let mut partition_state = partition_state.clone();
        partition_state.since.insert(view.to_owned(), 0);
        seam::is_readable(&partition_state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers trust a cut that may still be replaced.
pub(super) const PROPOSED: Rules = Rules {
    is_readable: |partition_state, partition, base, runs, view| {
        let sealed: Runs = runs.iter().cloned().map(sealed).collect();
        seam::is_readable(partition_state, partition, base, &sealed, view)
    },
    ..REAL
};

/// The newest complete run is read last.
pub(super) const ORDER: Rules = Rules {
    newest_first: false,
    ..REAL
};

/// Workers fold across recorded cuts.
pub(super) const NO_SPLIT: Rules = Rules {
    next_step: |partition_state, partition, runs| match seam::next_step(
        partition_state,
        partition,
        runs,
    ) {
        WorkerStep::Rebuild => WorkerStep::Rebuild,
        _ => WorkerStep::Fold { until: None },
    },
    ..REAL
};

/// A state that passed the cut of its epoch is rebuilt only if no newer run is complete.
pub(super) const PASSED: Rules = Rules {
    next_step: |partition_state, partition, runs| {
        let newest = runs.newest();
        let recent: Runs = runs
            .iter()
            .filter(|run| run.epoch >= newest)
            .cloned()
            .collect();
        match (
            seam::next_step(partition_state, partition, runs),
            partition_state,
        ) {
            (WorkerStep::Rebuild, Some(partition_state))
                if !seam::needs_rebuild(partition_state, partition, &recent) =>
            {
                WorkerStep::Refresh
            }
            (step, _) => step,
        }
    },
    ..REAL
};

/// A run is sealed without verification of the partition states.
pub(super) const NO_VERIFY: Rules = Rules {
    can_seal: |_, _, _, _, _| true,
    ..REAL
};

/// Verification checks only the boundary, not whether the state needs a rebuild.
pub(super) const BOUND_ONLY: Rules = Rules {
    can_seal: |partition_state, _, epoch, cut, _| {
        let bound = partition_state.and_then(|partition_state| partition_state.bounds.get(&epoch));
        bound.is_some_and(|bound| bound.next_offset == cut.next_offset)
    },
    ..REAL
};

/// A generation number is reused after a partition state was lost.
pub(super) const REUSED_GENERATION: Rules = Rules {
    rebuild: |partition_state, expected, start| {
        PartitionState::rebuild(
            partition_state,
            expected,
            &GenerationStart {
                generation_min: 0,
                ..*start
            },
        )
    },
    ..REAL
};

/// A rebuilt state does not record the end of the log.
pub(super) const NO_REPLAY: Rules = Rules {
    rebuild: |partition_state, expected, start| {
        let log_end = 0;
        PartitionState::rebuild(
            partition_state,
            expected,
            &GenerationStart { log_end, ..*start },
        )
    },
    ..REAL
};

/// Readers read only the partitions of the log that they saw, although runs have more.
pub(super) const FEW_PARTITIONS: Rules = Rules {
    partitions: |log, _| log,
    ..REAL
};

/// A run does not rewrite rows that an abandoned run may have written.
pub(super) const NO_REWRITE: Rules = Rules {
    rewrites: false,
    ..REAL
};

/// A deleted table is read as an empty one.
pub(super) const NO_TABLE: Rules = Rules {
    needs_table: false,
    ..REAL
};

/// Returns a run as sealed.
pub(super) fn sealed(run: Run) -> Run {
    match run.state {
        RunState::Proposed => Run {
            state: RunState::Sealed,
            ..run
        },
        _ => run,
    }
}
