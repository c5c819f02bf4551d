//! Ending the epoch: roll every partition, record the cuts, look again, seal.

use std::time::{Duration, Instant};

use schemas::seam::{Cut, Epoch, RollRefused, Run, RunState, Slot, Step, next_step};
use schemas::source::Source;
use stores::live::SlotId;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

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
        match roll_all(ports, source, epoch, partitions).await? {
            Ok(cuts) => {
                if let Some(run) = propose_and_seal(ports, source, epoch, &cuts).await? {
                    return Ok(run);
                }
            }
            Err(why) if Instant::now() >= deadline => {
                return Err(Error::Roll { epoch, what: why });
            }
            Err(_) => {}
        }
        if stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS)).await;
    }
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
            Err(refused) => return put_right(ports, slot, epoch, refused).await.map(Err),
        }
    }
    Ok(Ok(cuts))
}

/// Does for a slot what its worker would do, and says what stands in the way.
async fn put_right(
    ports: &BatchPorts,
    id: SlotId,
    epoch: Epoch,
    refused: RollRefused,
) -> Result<String> {
    let slots = ports
        .live
        .read(id.source, id.partition + 1, &[])
        .await?
        .slots;
    let index = usize::try_from(id.partition).map_err(|e| Error::fault("partition", e))?;
    let slot = slots.into_iter().nth(index).flatten();
    let runs = ports.views.runs(id.source).await?.runs;
    let place = format!("{}/{}", id.source.topic(), id.partition);
    let fence = slot.as_ref().map(Slot::fence);
    match next_step(slot.as_ref(), index, &runs) {
        Step::Heal => {
            let newest = runs.newest();
            let cut = runs.cut(newest, index).unwrap_or_else(Cut::start);
            let hint = ports.clock.now_ms().unsigned_abs();
            if ports
                .live
                .heal(id, fence, newest, cut, hint)
                .await?
                .is_err()
            {
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

/// Records the cuts, looks whether every boundary still stands, and seals; nothing if one does not
/// or another run was faster.
async fn propose_and_seal(
    ports: &BatchPorts,
    source: Source,
    epoch: Epoch,
    cuts: &[Cut],
) -> Result<Option<Run>> {
    let token = Uuid::new_v4().to_string();
    let now_ms = ports.clock.now_ms();
    match ports
        .views
        .propose(source, epoch, cuts, &token, now_ms)
        .await
    {
        Ok(_) => {}
        Err(stores::Error::Refused(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let partitions = u32::try_from(cuts.len()).map_err(|e| Error::fault("partitions", e))?;
    let slots = ports.live.read(source, partitions, &[]).await?.slots;
    let stands = |(slot, cut): (&Option<Slot>, &Cut)| {
        let bound = slot.as_ref().and_then(|slot| slot.bounds.get(&epoch));
        bound.is_some_and(|bound| bound.next_offset == cut.next_offset)
    };
    if slots.len() != cuts.len() || !slots.iter().zip(cuts).all(stands) {
        return Ok(None);
    }
    match ports.views.seal(source, epoch, &token).await {
        Ok(run) => Ok(Some(run)),
        Err(stores::Error::Refused(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
