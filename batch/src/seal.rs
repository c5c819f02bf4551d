//! Seals a run: ends the epoch in every partition, records the cuts, verifies them, and seals.

use std::time::{Duration, Instant};

use schemas::seam::{
    Cut, Epoch, PartitionState, Run, RunState, Runs, WorkerStep, can_seal, next_step,
};
use schemas::source::Source;
use stores::live::PartitionId;
use stores::log::verify_log_identity;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::error::lost_log_error;
use crate::{BatchOptions, BatchPorts, Error, Result};

const RETRY_PAUSE_MS: u64 = 50;

/// Returns the open sealed run, or seals the next one. Retries for at most `roll_wait_ms`.
pub(crate) async fn seal_run(
    ports: &BatchPorts,
    options: &BatchOptions,
    source: Source,
    partitions: u32,
    stop: &CancellationToken,
) -> Result<Run> {
    let deadline = Instant::now() + Duration::from_millis(options.roll_wait_ms);
    loop {
        let runs = ports.views.runs(source).await?.runs;
        if let Some(run) = runs.open_run().filter(|run| run.state == RunState::Sealed) {
            return Ok(run.clone());
        }
        let epoch = runs.next_epoch();
        let sealed = match end_epochs(ports, source, epoch, partitions).await? {
            Ok(cuts) => {
                verify_cuts(ports, source, &cuts).await?;
                propose_and_seal(ports, source, epoch, &cuts, &runs).await?
            }
            Err(reason) => Err(reason),
        };
        match sealed {
            Ok(run) => return Ok(run),
            Err(reason) if Instant::now() >= deadline => {
                return Err(Error::EndEpoch { epoch, reason });
            }
            Err(_) => {}
        }
        if stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        tokio::time::sleep(Duration::from_millis(RETRY_PAUSE_MS)).await;
    }
}

/// Verifies that the log contains the records at the cuts. A run sealed at cuts of another log
/// could never be computed correctly.
pub(crate) async fn verify_cuts(ports: &BatchPorts, source: Source, cuts: &[Cut]) -> Result<()> {
    let topic = source.topic();
    for (partition, cut) in (0..).zip(cuts) {
        let Some(last) = cut.last else { continue };
        if let Err(other) = verify_log_identity(&*ports.log, topic, partition, last).await? {
            return Err(lost_log_error(format!(
                "live state was built from another log than {topic}/{partition}: {other}"
            )));
        }
    }
    Ok(())
}

/// Ends the epoch in every partition. Returns the cuts, or the reason why a partition cannot end
/// it.
async fn end_epochs(
    ports: &BatchPorts,
    source: Source,
    epoch: Epoch,
    partitions: u32,
) -> Result<Result<Vec<Cut>, String>> {
    let mut cuts = Vec::new();
    for partition in 0..partitions {
        let id = PartitionId { source, partition };
        match ports.live.end_epoch(id, epoch).await? {
            Ok(cut) => cuts.push(cut),
            Err(refusal) => {
                let reason = refusal.to_string();
                return repair(ports, id, epoch, &reason).await.map(Err);
            }
        }
    }
    Ok(Ok(cuts))
}

/// Does what the worker of a partition would do, and returns the reason why its epoch has not
/// ended.
async fn repair(ports: &BatchPorts, id: PartitionId, epoch: Epoch, reason: &str) -> Result<String> {
    let partitions = id.partition..id.partition.saturating_add(1);
    let states = ports.live.partition_states(id.source, partitions).await?;
    let index = usize::try_from(id.partition).map_err(|e| Error::fault("partition", e))?;
    let state = states.into_iter().next().flatten();
    let runs = ports.views.runs(id.source).await?.runs;
    let name = format!("{}/{}", id.source.topic(), id.partition);
    let checkpoint = state.as_ref().map(PartitionState::checkpoint);
    match next_step(state.as_ref(), index, &runs) {
        WorkerStep::Rebuild => {
            let spans = ports.log.spans(id.source.topic()).await?;
            let log_end = spans.get(index).map_or(0, |span| span.end);
            let hint = ports.clock.now_ms().unsigned_abs();
            let generation_start = runs.generation_start(index, log_end, hint);
            if ports
                .live
                .rebuild(id, checkpoint, &generation_start)
                .await?
                .is_err()
            {
                return Ok(format!(
                    "{name}: another process changed its live state at the same time"
                ));
            }
            Ok(format!("{name}: live state was lost and is being rebuilt"))
        }
        WorkerStep::CloseEpoch => {
            if let Some(checkpoint) = checkpoint
                && ports.live.close_epoch(id, checkpoint).await?.is_err()
            {
                return Ok(format!(
                    "{name}: another process changed its live state at the same time"
                ));
            }
            Ok(format!("{name}: epoch {epoch} has not started yet"))
        }
        WorkerStep::Fold { .. } | WorkerStep::Refresh => Ok(format!(
            "{name}: {reason}. Epoch {epoch} cannot end before the speed layer reaches the cut of the previous run: run `backstitch speed --until-caught-up`, then try again"
        )),
    }
}

/// Records the cuts, verifies that the epoch of every partition still ends at its cut, and seals.
/// Otherwise returns the reason. `runs` are the records from which the epoch was chosen.
async fn propose_and_seal(
    ports: &BatchPorts,
    source: Source,
    epoch: Epoch,
    cuts: &[Cut],
    runs: &Runs,
) -> Result<Result<Run, String>> {
    let token = Uuid::new_v4().to_string();
    let now_ms = ports.clock.now_ms();
    match ports
        .views
        .propose(source, epoch, cuts, &token, now_ms)
        .await
    {
        Ok(_) => {}
        Err(stores::Error::Refused(reason)) => return Ok(Err(reason)),
        Err(error) => return Err(error.into()),
    }
    let partitions = u32::try_from(cuts.len()).map_err(|e| Error::fault("partitions", e))?;
    let states = ports.live.partition_states(source, 0..partitions).await?;
    for ((index, partition), cut) in (0..cuts.len()).zip(0..partitions).zip(cuts) {
        let state = states.get(index).and_then(Option::as_ref);
        if !can_seal(state, index, epoch, *cut, runs) {
            let id = PartitionId { source, partition };
            let reason = "its epoch no longer ends at the cut";
            return repair(ports, id, epoch, reason).await.map(Err);
        }
    }
    match ports.views.seal(source, epoch, &token).await {
        Ok(run) => Ok(Ok(run)),
        Err(stores::Error::Refused(reason)) => Ok(Err(reason)),
        Err(error) => Err(error.into()),
    }
}
