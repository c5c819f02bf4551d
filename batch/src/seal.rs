//! Ending the epoch: roll every partition, record the cuts, look again, seal.

use std::time::{Duration, Instant};

use schemas::seam::{Cut, Epoch, Run, RunState, Runs, Slot, Step, next_step, sealable};
use schemas::source::Source;
use stores::live::SlotId;
use stores::log::recognise;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::error::lost_log;
use crate::{BatchOptions, BatchPorts, Error, Result};

const PAUSE_MS: u64 = 50;

/// The open run, sealed: the one that died, or the next one.
pub(crate) async fn sealed_run(
    ports: &BatchPorts,
    options: &BatchOptions,
    source: Source,
    partitions: u32,
    stop: &CancellationToken,
) -> Result<Run> {
    let deadline = Instant::now() + Duration::from_millis(options.roll_wait_ms);
    loop {
        let runs = ports.views.runs(source).await?.runs;
        if let Some(run) = runs.open().filter(|run| run.state == RunState::Sealed) {
            return Ok(run.clone());
        }
        let epoch = runs.next_epoch();
        let sealed = match roll_all(ports, source, epoch, partitions).await? {
            Ok(cuts) => {
                recognise_cuts(ports, source, &cuts).await?;
                propose_and_seal(ports, source, epoch, &cuts, &runs).await?
            }
            Err(why) => Err(why),
        };
        match sealed {
            Ok(run) => return Ok(run),
            Err(what) if Instant::now() >= deadline => return Err(Error::Roll { epoch, what }),
            Err(_) => {}
        }
        if stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS)).await;
    }
}

/// Checks that the log holds the records at which cuts were made. A run that is sealed at other ones
/// could never be carried out rightly.
pub(crate) async fn recognise_cuts(ports: &BatchPorts, source: Source, cuts: &[Cut]) -> Result<()> {
    let topic = source.topic();
    for (partition, cut) in (0..).zip(cuts) {
        let Some(last) = cut.last else { continue };
        if let Err(other) = recognise(&*ports.log, topic, partition, last).await? {
            return Err(lost_log(format!(
                "live state was counted from another log than {topic}/{partition}: {other}"
            )));
        }
    }
    Ok(())
}

/// Ends the epoch in every partition, or says what stands in the way.
async fn roll_all(
    ports: &BatchPorts,
    source: Source,
    epoch: Epoch,
    partitions: u32,
) -> Result<Result<Vec<Cut>, String>> {
    let mut cuts = Vec::new();
    for partition in 0..partitions {
        let slot = SlotId { source, partition };
        match ports.live.roll(slot, epoch).await? {
            Ok(cut) => cuts.push(cut),
            Err(refused) => {
                let why = refused.to_string();
                return put_right(ports, slot, epoch, &why).await.map(Err);
            }
        }
    }
    Ok(Ok(cuts))
}

/// Does for a slot what its worker would do, and says what stands in the way.
async fn put_right(ports: &BatchPorts, id: SlotId, epoch: Epoch, refused: &str) -> Result<String> {
    let own = id.partition..id.partition.saturating_add(1);
    let slots = ports.live.partition_states(id.source, own).await?;
    let index = usize::try_from(id.partition).map_err(|e| Error::fault("partition", e))?;
    let slot = slots.into_iter().next().flatten();
    let runs = ports.views.runs(id.source).await?.runs;
    let place = format!("{}/{}", id.source.topic(), id.partition);
    let fence = slot.as_ref().map(Slot::fence);
    match next_step(slot.as_ref(), index, &runs) {
        Step::Heal => {
            let spans = ports.log.spans(id.source.topic()).await?;
            let log_end = spans.get(index).map_or(0, |span| span.end);
            let hint = ports.clock.now_ms().unsigned_abs();
            let life = runs.new_life(index, log_end, hint);
            if ports.live.heal(id, fence, &life).await?.is_err() {
                return Ok(format!(
                    "{place}: another process changes it at the same time"
                ));
            }
            Ok(format!("{place}: live state was lost and starts anew"))
        }
        Step::Impose => {
            if let Some(fence) = fence
                && ports.live.impose(id, fence).await?.is_err()
            {
                return Ok(format!(
                    "{place}: another process changes it at the same time"
                ));
            }
            Ok(format!("{place}: it could not be brought to epoch {epoch}"))
        }
        Step::Fold { .. } | Step::LookAgain => Ok(format!(
            "{place}: {refused}, so it can't end epoch {epoch} before the speed layer has come to the cut of the run before: run `backstitch speed --until-caught-up`, then try again"
        )),
    }
}

/// Records the cuts, looks again whether every slot still has its boundaries, and seals; or says
/// what stands in the way. `runs` are the records from which the run was begun.
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
        Err(stores::Error::Refused(why)) => return Ok(Err(why)),
        Err(error) => return Err(error.into()),
    }
    let partitions = u32::try_from(cuts.len()).map_err(|e| Error::fault("partitions", e))?;
    let slots = ports.live.partition_states(source, 0..partitions).await?;
    for ((index, partition), cut) in (0..cuts.len()).zip(0..partitions).zip(cuts) {
        let slot = slots.get(index).and_then(Option::as_ref);
        if !sealable(slot, index, epoch, *cut, runs) {
            let id = SlotId { source, partition };
            let why = "its cut does not stand any more";
            return put_right(ports, id, epoch, why).await.map(Err);
        }
    }
    match ports.views.seal(source, epoch, &token).await {
        Ok(run) => Ok(Ok(run)),
        Err(stores::Error::Refused(why)) => Ok(Err(why)),
        Err(error) => Err(error.into()),
    }
}
