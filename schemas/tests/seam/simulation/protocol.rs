//! The rules of `schemas::seam` that the actors follow, and mutants of them.

use schemas::seam::{
    self, Checkpoint, CheckpointMismatch, Cut, Epoch, GenerationStart, PartitionState, Run,
    RunState, Runs, WorkerStep,
};

type Apply = fn(&mut PartitionState, &Checkpoint, Cut, &[&str]) -> Result<(), CheckpointMismatch>;
type Rebuild = fn(
    Option<&PartitionState>,
    Option<Checkpoint>,
    &GenerationStart,
) -> Result<PartitionState, CheckpointMismatch>;

/// The rules of `schemas::seam`.
#[derive(Clone, Copy)]
pub(crate) struct Protocol {
    pub(crate) apply: Apply,
    pub(crate) rebuild: Rebuild,
    pub(crate) next_step: fn(Option<&PartitionState>, usize, &Runs) -> WorkerStep,
    pub(crate) can_seal: fn(Option<&PartitionState>, usize, Epoch, Cut, &Runs) -> bool,
    pub(crate) is_readable: fn(&PartitionState, usize, Epoch, &Runs, &str) -> bool,
    /// A reader reads the run records before the partition states, not after the rows.
    pub(crate) reads_runs_first: bool,
}

pub(crate) const REAL: Protocol = Protocol {
    apply: PartitionState::apply,
    rebuild: PartitionState::rebuild,
    next_step: seam::next_step,
    can_seal: seam::can_seal,
    is_readable: seam::is_readable,
    reads_runs_first: true,
};

/// A micro-batch is applied if it moves the position forward, wherever the worker expected it.
pub(crate) const OFFSET_NOT_COMPARED: Protocol = Protocol {
    apply: |state, expected, next, views| {
        let actual = state.checkpoint();
        let is_forward = next.next_offset > actual.next_offset;
        if (actual.generation, actual.epoch) == (expected.generation, expected.epoch) && is_forward
        {
            state.apply(&actual, next, views)
        } else {
            Err(CheckpointMismatch {
                actual: Some(actual),
            })
        }
    },
    ..REAL
};

/// As [`OFFSET_NOT_COMPARED`], but a micro-batch never skips records; it may only repeat some.
pub(crate) const OFFSET_MAY_LAG: Protocol = Protocol {
    apply: |state, expected, next, views| {
        if expected.next_offset > state.position.next_offset {
            let actual = Some(state.checkpoint());
            return Err(CheckpointMismatch { actual });
        }
        (OFFSET_NOT_COMPARED.apply)(state, expected, next, views)
    },
    ..REAL
};

/// Readers do not compare the bound of the base epoch with the run's cut.
pub(crate) const BOUND_NOT_COMPARED: Protocol = Protocol {
    is_readable: |state, partition, base, runs, view| {
        let mut state = state.clone();
        if let Some(cut) = runs.cut(base, partition) {
            state.bounds.insert(base, cut);
        }
        seam::is_readable(&state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers do not check whether the epochs after the base are retained.
pub(crate) const OLDEST_NOT_CHECKED: Protocol = Protocol {
    is_readable: |state, partition, base, runs, view| {
        let mut state = state.clone();
        state.oldest = 0;
        seam::is_readable(&state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers do not check the offset since which the view has been counted.
pub(crate) const SINCE_NOT_CHECKED: Protocol = Protocol {
    is_readable: |state, partition, base, runs, view| {
        let mut state = state.clone();
        state.since.insert(view.to_owned(), 0);
        seam::is_readable(&state, partition, base, runs, view)
    },
    ..REAL
};

/// Readers trust a proposed cut, which may still be replaced.
pub(crate) const PROPOSAL_TRUSTED: Protocol = Protocol {
    is_readable: |state, partition, base, runs, view| {
        let seal = |run: &Run| match run.state {
            RunState::Proposed => Run {
                state: RunState::Sealed,
                ..run.clone()
            },
            _ => run.clone(),
        };
        let sealed: Runs = runs.iter().map(seal).collect();
        seam::is_readable(state, partition, base, &sealed, view)
    },
    ..REAL
};

/// Readers read the run records last.
pub(crate) const RUNS_READ_LAST: Protocol = Protocol {
    reads_runs_first: false,
    ..REAL
};

/// Workers fold across recorded cuts.
pub(crate) const FOLDS_ACROSS_CUTS: Protocol = Protocol {
    next_step: |state, partition, runs| match seam::next_step(state, partition, runs) {
        WorkerStep::Rebuild => WorkerStep::Rebuild,
        _ => WorkerStep::Fold { until: None },
    },
    ..REAL
};

/// A state that passed the cut of its epoch is not rebuilt if a newer run is complete.
pub(crate) const PASSED_OLD_CUT_ACCEPTED: Protocol = Protocol {
    next_step: |state, partition, runs| {
        let newest = runs.newest_complete();
        let recent: Runs = runs
            .iter()
            .filter(|run| run.epoch >= newest)
            .cloned()
            .collect();
        match (seam::next_step(state, partition, runs), state) {
            (WorkerStep::Rebuild, Some(state))
                if !seam::needs_rebuild(state, partition, &recent) =>
            {
                WorkerStep::Refresh
            }
            (step, _) => step,
        }
    },
    ..REAL
};

/// A run is sealed without verification of the partition states.
pub(crate) const SEALED_UNVERIFIED: Protocol = Protocol {
    can_seal: |_, _, _, _, _| true,
    ..REAL
};

/// Verification before a seal checks only the bound of the epoch, not those of earlier epochs.
pub(crate) const EARLIER_BOUNDS_NOT_VERIFIED: Protocol = Protocol {
    can_seal: |state, _, epoch, cut, _| {
        let bound = state.and_then(|state| state.bounds.get(&epoch));
        bound.is_some_and(|bound| bound.next_offset == cut.next_offset)
    },
    ..REAL
};

/// A generation number is reused after a partition state was lost.
pub(crate) const GENERATION_REUSED: Protocol = Protocol {
    rebuild: |state, expected, start| {
        let generation_min = 0;
        let start = GenerationStart {
            generation_min,
            ..*start
        };
        PartitionState::rebuild(state, expected, &start)
    },
    ..REAL
};

/// A rebuilt state does not know until where it replays the log.
pub(crate) const REPLAY_END_UNKNOWN: Protocol = Protocol {
    rebuild: |state, expected, start| {
        let log_end = 0;
        let start = GenerationStart { log_end, ..*start };
        PartitionState::rebuild(state, expected, &start)
    },
    ..REAL
};
