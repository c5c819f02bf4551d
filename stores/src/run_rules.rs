//! The rules of run records that need no store, shared by all adapters of the views port.

use schemas::seam::{Cut, Epoch, Run, RunState};
use schemas::source::Source;

use crate::{Error, Result};

/// The number of complete runs before the newest that are returned: a row or a partition state may
/// refer to one of them.
pub(crate) const VISIBLE_OLD_RUNS: u64 = 64;

/// The maximum number of run records: a year of hourly runs.
pub const RUN_RECORDS_MAX: u64 = 10_000;

/// The epoch of a run, and the stamp in microseconds of the try that publishes it.
pub type RunStamp = (Epoch, i64);

const US_PER_MS: i64 = 1000;

/// The last run before `before`, or the last of all; `None` before the first.
pub(crate) const fn last_epoch_before(before: Option<Epoch>) -> Option<Epoch> {
    match before {
        None => Some(Epoch::MAX),
        Some(before) => before.checked_sub(1),
    }
}

/// The oldest run that is still returned.
pub(crate) fn find_oldest_visible_run(
    newest_run: Epoch,
    newest_of_views: impl Iterator<Item = Epoch>,
) -> Epoch {
    newest_of_views
        .fold(newest_run, Epoch::min)
        .saturating_sub(VISIBLE_OLD_RUNS)
}

/// The run whose record is deleted when `epoch` is proposed, so that `retained` records stay. Runs
/// that are still returned (see [`find_oldest_visible_run`]) are not deleted.
pub(crate) fn find_expired_run(
    epoch: Epoch,
    retained: u64,
    oldest_visible: Epoch,
) -> Option<Epoch> {
    let expired = epoch.checked_sub(retained.max(1))?;
    (1..oldest_visible).contains(&expired).then_some(expired)
}

/// A stamp larger than the last one, `last_us`, even if the clock went back.
pub(crate) fn next_stamp_us(last_us: Option<i64>, now_ms: i64) -> i64 {
    let now_us = now_ms.saturating_mul(US_PER_MS);
    last_us.map_or(now_us, |last_us| last_us.saturating_add(1).max(now_us))
}

/// The run that a proposal of `epoch` creates, if the last run permits it. Its stamp is assigned
/// later.
pub(crate) fn propose(
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
            let reason = format!("run {} is sealed and not complete yet", run.epoch);
            return Err(refused_error(source, epoch, &reason));
        }
        Some(run) => run.epoch + 1,
    };
    if epoch != next {
        return Err(refused_error(
            source,
            epoch,
            &format!("the next run is {next}"),
        ));
    }
    Ok(Run {
        epoch,
        state: RunState::Proposed,
        cuts: cuts.to_vec(),
        stamp_us: 0,
        token: token.to_owned(),
    })
}

/// Seals the run if the proposal carries `token`; `None` if it is sealed already.
pub(crate) fn seal(source: Source, run: &Run, token: &str) -> Result<Option<Run>> {
    if run.token != token {
        let reason = "another proposal has replaced this one";
        return Err(refused_error(source, run.epoch, reason));
    }
    match run.state {
        RunState::Sealed => Ok(None),
        RunState::Proposed => Ok(Some(with_state(run, RunState::Sealed))),
        state => {
            let reason = format!("it is {} already", state.name());
            Err(refused_error(source, run.epoch, &reason))
        }
    }
}

/// Abandons the run; `None` if it is abandoned already.
pub(crate) fn abandon(source: Source, run: &Run) -> Result<Option<Run>> {
    match run.state {
        RunState::Abandoned => Ok(None),
        RunState::Complete => {
            let reason = "it is complete, and readers use its rows";
            Err(refused_error(source, run.epoch, reason))
        }
        RunState::Proposed | RunState::Sealed => Ok(Some(with_state(run, RunState::Abandoned))),
    }
}

pub(crate) fn with_state(run: &Run, state: RunState) -> Run {
    Run {
        state,
        ..run.clone()
    }
}

/// The run, or an error if it does not exist.
pub(crate) fn expect(source: Source, epoch: Epoch, run: Option<Run>) -> Result<Run> {
    run.ok_or_else(|| refused_error(source, epoch, "the run does not exist"))
}

/// The record of run `epoch`, or an error if a newer run has been recorded.
pub(crate) fn expect_last(source: Source, epoch: Epoch, last: Option<Run>) -> Result<Run> {
    match last {
        Some(run) if run.epoch == epoch => Ok(run),
        Some(run) if run.epoch > epoch => Err(refused_error(
            source,
            epoch,
            &format!("run {} has been recorded since", run.epoch),
        )),
        _ => Err(refused_error(source, epoch, "the run does not exist")),
    }
}

/// Checks that rows of the run may still be written with this stamp.
pub(crate) fn expect_publishing(source: Source, run: &Run, stamp_us: i64) -> Result<()> {
    if !matches!(run.state, RunState::Sealed | RunState::Complete) {
        let reason = format!("it is {}, and only a sealed run has rows", run.state.name());
        return Err(refused_error(source, run.epoch, &reason));
    }
    if run.stamp_us != stamp_us {
        let reason = format!(
            "its stamp {stamp_us} was replaced by {}: another process publishes it now",
            run.stamp_us
        );
        return Err(refused_error(source, run.epoch, &reason));
    }
    Ok(())
}

/// The record of run `epoch`, or an error if it is not the last run or the stamp was replaced.
pub(crate) fn expect_last_publishing(
    source: Source,
    run_stamp: RunStamp,
    last: Option<Run>,
) -> Result<Run> {
    let (epoch, stamp_us) = run_stamp;
    let run = expect_last(source, epoch, last)?;
    expect_publishing(source, &run, stamp_us)?;
    Ok(run)
}

/// The error of a change that the state of a run does not allow.
pub(crate) fn refused_error(source: Source, epoch: Epoch, reason: &str) -> Error {
    Error::Refused(format!("run {epoch} of {source}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invisible_runs_expire() {
        assert_eq!(find_expired_run(100, 20, 90), Some(80));
        assert_eq!(find_expired_run(100, 20, 80), None, "a view is at that run");
        assert_eq!(find_expired_run(20, 20, 10), None, "there is no run 0");
        assert_eq!(find_expired_run(5, 20, 10), None);
        assert_eq!(
            find_oldest_visible_run(200, [150].into_iter()),
            150 - VISIBLE_OLD_RUNS
        );
    }
}
