//! What run records allow: the rules of the views port that need no store, shared by all that keep
//! records.

use schemas::seam::{Cut, Epoch, Run, RunState};
use schemas::source::Source;

use crate::{Error, Result};

/// So many complete runs before the newest are told: a row or a slot may refer to one of them.
pub(crate) const OLD_RUNS: u64 = 64;

/// Records of so many runs are kept: those of a year that has one an hour.
pub const RUNS_KEPT: u64 = 10_000;

const US_PER_MS: i64 = 1000;

/// The last run before one; without one, the last of all. Nothing stands before the first.
pub(crate) const fn last_before(before: Option<Epoch>) -> Option<Epoch> {
    match before {
        None => Some(Epoch::MAX),
        Some(before) => before.checked_sub(1),
    }
}

/// The oldest run that is still told of.
pub(crate) fn floor(newest_run: Epoch, newest_of_views: impl Iterator<Item = Epoch>) -> Epoch {
    newest_of_views
        .fold(newest_run, Epoch::min)
        .saturating_sub(OLD_RUNS)
}

/// The run whose record goes once `epoch` is proposed, so that `kept` stay. None goes that is told of
/// (see [`floor`]).
pub(crate) fn outlived(epoch: Epoch, kept: u64, floor: Epoch) -> Option<Epoch> {
    let old = epoch.checked_sub(kept.max(1))?;
    (1..floor).contains(&old).then_some(old)
}

/// A stamp that is larger than all before it, also where the clock went back; `last_us` is the last
/// one.
pub(crate) fn next_stamp(last_us: Option<i64>, now_ms: i64) -> i64 {
    let now_us = now_ms.saturating_mul(US_PER_MS);
    last_us.map_or(now_us, |last_us| last_us.saturating_add(1).max(now_us))
}

/// The run that a proposal of `epoch` makes, if one may be made now; its stamp is yet to be taken.
pub(crate) fn proposal(
    source: Source,
    last: Option<&Run>,
    epoch: Epoch,
    cuts: &[Cut],
    token: &str,
) -> Result<Run> {
    let next = match last {
        None => 1,
        Some(run) if run.state == RunState::Proposed => run.epoch,
        Some(run) if run.state == RunState::Sealed => {
            let why = format!("run {} is sealed and not complete", run.epoch);
            return Err(refused(source, epoch, &why));
        }
        Some(run) => run.epoch + 1,
    };
    if epoch != next {
        return Err(refused(source, epoch, &format!("the next run is {next}")));
    }
    Ok(Run {
        epoch,
        state: RunState::Proposed,
        cuts: cuts.to_vec(),
        stamp_us: 0,
        token: token.to_owned(),
    })
}

/// The run sealed by the proposal that carries `token`; nothing if it is sealed already.
pub(crate) fn sealed(source: Source, run: &Run, token: &str) -> Result<Option<Run>> {
    if run.token != token {
        let why = "another proposal has taken the place of this one";
        return Err(refused(source, run.epoch, why));
    }
    match run.state {
        RunState::Sealed => Ok(None),
        RunState::Proposed => Ok(Some(in_state(run, RunState::Sealed))),
        state => {
            let why = format!("it is {} already", state.name());
            Err(refused(source, run.epoch, &why))
        }
    }
}

/// The run as one that is abandoned; nothing if it is already.
pub(crate) fn abandoned(source: Source, run: &Run) -> Result<Option<Run>> {
    match run.state {
        RunState::Abandoned => Ok(None),
        RunState::Complete => {
            let why = "it is complete, and its rows are being read";
            Err(refused(source, run.epoch, why))
        }
        RunState::Proposed | RunState::Sealed => Ok(Some(in_state(run, RunState::Abandoned))),
    }
}

pub(crate) fn in_state(run: &Run, state: RunState) -> Run {
    Run {
        state,
        ..run.clone()
    }
}

/// The run that must be there.
pub(crate) fn expect(source: Source, epoch: Epoch, run: Option<Run>) -> Result<Run> {
    run.ok_or_else(|| refused(source, epoch, "there is no such run"))
}

/// The record of run `epoch`, if no newer run than `last` has been recorded.
pub(crate) fn expect_last(source: Source, epoch: Epoch, last: Option<Run>) -> Result<Run> {
    match last {
        Some(run) if run.epoch == epoch => Ok(run),
        Some(run) if run.epoch > epoch => Err(refused(
            source,
            epoch,
            &format!("run {} has been recorded since", run.epoch),
        )),
        _ => Err(refused(source, epoch, "there is no such run")),
    }
}

/// Whether rows of the run may still be written with this stamp.
pub(crate) fn expect_publishing(source: Source, run: &Run, stamp_us: i64) -> Result<()> {
    if !matches!(run.state, RunState::Sealed | RunState::Complete) {
        let why = format!("it is {}, and only a sealed run has rows", run.state.name());
        return Err(refused(source, run.epoch, &why));
    }
    if run.stamp_us != stamp_us {
        let why = format!(
            "its stamp {stamp_us} was replaced by {}: somebody else publishes it now",
            run.stamp_us
        );
        return Err(refused(source, run.epoch, &why));
    }
    Ok(())
}

/// The record of run `at` if it is the last one and what is done with this stamp is still its own.
pub(crate) fn expect_at(
    source: Source,
    (epoch, stamp_us): (Epoch, i64),
    last: Option<Run>,
) -> Result<Run> {
    let run = expect_last(source, epoch, last)?;
    expect_publishing(source, &run, stamp_us)?;
    Ok(run)
}

/// The error of a change that a run no longer allows.
pub(crate) fn refused(source: Source, epoch: Epoch, why: &str) -> Error {
    Error::Refused(format!("run {epoch} of {source}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_that_nobody_is_told_of_go() {
        assert_eq!(outlived(100, 20, 90), Some(80));
        assert_eq!(outlived(100, 20, 80), None, "a view stands at that run");
        assert_eq!(outlived(20, 20, 10), None, "there is no run 0");
        assert_eq!(outlived(5, 20, 10), None);
        assert_eq!(floor(200, [150].into_iter()), 150 - OLD_RUNS);
    }
}
