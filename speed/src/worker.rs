//! The worker of one partition: look around, then fold micro-batches until it is time to look again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use jobs::Fold;
use schemas::dead_letter::DeadLetter;
use schemas::plays::{Decoded, Decoder, Line, identities};
use schemas::seam::{Cut, Fence, LastRecord, Offset, Slot, Step, next_step};
use schemas::source::Source;
use stores::intake::append_dead_letters;
use stores::live::{Deltas, SlotId};
use stores::log::{FetchLimit, Fetched, Records, recognise};
use tokio_util::sync::CancellationToken;

use crate::supervise::Counts;
use crate::window::Window;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// How often a step that did not get through is tried again when the end is to be reached.
const TRIES_UNTIL_CAUGHT_UP: u32 = 20;
const PAUSE_MS_FIRST: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) ports: SpeedPorts,
    pub(crate) fold: Fold,
    pub(crate) source: Source,
    pub(crate) partition: u32,
    pub(crate) options: SpeedOptions,
    pub(crate) counts: Arc<Counts>,
    /// The duplicate window and the fence that it reaches up to.
    pub(crate) window: Option<(Fence, Window)>,
}

/// How a stretch of folding ended.
enum Ended {
    /// It is time to look around.
    Look,
    /// The end of the log was reached.
    CaughtUp,
    /// A batch run has to go on first.
    Waiting,
}

impl Worker {
    pub(crate) async fn run(
        mut self,
        until_caught_up: bool,
        stop: CancellationToken,
    ) -> Result<()> {
        let run_wait = Duration::from_millis(self.options.run_wait_ms);
        let mut failures = 0;
        let mut waiting: Option<Instant> = None;
        while !stop.is_cancelled() {
            match self.look_and_fold(&stop).await {
                Ok(Ended::CaughtUp) if until_caught_up => return Ok(()),
                Ok(Ended::CaughtUp) => {
                    (failures, waiting) = (0, None);
                    pause(self.options.poll_interval_ms, &stop).await;
                }
                Ok(Ended::Look) => (failures, waiting) = (0, None),
                Ok(Ended::Waiting) => {
                    let since = *waiting.get_or_insert_with(Instant::now);
                    if until_caught_up && since.elapsed() >= run_wait {
                        return Err(Error::Waiting {
                            topic: self.source.topic(),
                            partition: self.partition,
                        });
                    }
                    pause(self.options.poll_interval_ms, &stop).await;
                }
                Err(error) if error.may_pass() => {
                    failures += 1;
                    if until_caught_up && failures >= TRIES_UNTIL_CAUGHT_UP {
                        return Err(error);
                    }
                    let wait_ms = PAUSE_MS_MAX.min(PAUSE_MS_FIRST << failures.min(10));
                    tracing::warn!(partition = self.partition, %error, wait_ms, "trying again");
                    self.window = None;
                    pause(wait_ms, &stop).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the slot, then the runs, and does what they call for.
    async fn look_and_fold(&mut self, stop: &CancellationToken) -> Result<Ended> {
        let partition = self.partition;
        let seen = self
            .ports
            .live
            .read(self.source, partition + 1, &[])
            .await?;
        let slot = seen.slots.into_iter().nth(partition as usize).flatten();
        let runs = self.ports.views.runs(self.source).await?.runs;
        let id = self.slot_id();
        match next_step(slot.as_ref(), partition as usize, &runs) {
            Step::Heal => {
                let seen = slot.as_ref().map(Slot::fence);
                let log_end = self.log_end().await?;
                let hint = self.ports.clock.now_ms().unsigned_abs();
                let life = runs.new_life(partition as usize, log_end, hint);
                let healed = self.ports.live.heal(id, seen, &life).await?;
                if healed.is_ok() {
                    // The very first slot of a partition is no loss.
                    if seen.is_some() || life.newest > 0 {
                        tracing::warn!(
                            partition,
                            epoch = life.newest,
                            offset = life.cut.next_offset,
                            log_end,
                            "live state was lost: it starts anew at the newest run and is replayed"
                        );
                    }
                    self.count(&self.counts.heals, "backstitch_speed_heals_total", 1);
                }
                Ok(Ended::Look)
            }
            Step::Impose => {
                if let Some(fence) = slot.as_ref().map(Slot::fence)
                    && self.ports.live.impose(id, fence).await?.is_err()
                {
                    self.refused();
                }
                Ok(Ended::Look)
            }
            Step::LookAgain => Ok(Ended::Waiting),
            Step::Fold { until } => match slot {
                Some(slot) => self.fold_on(&slot, until, stop).await,
                None => Ok(Ended::Look),
            },
        }
    }

    async fn log_end(&self) -> Result<Offset> {
        let spans = self.ports.log.spans(self.source.topic()).await?;
        Ok(spans
            .get(self.partition as usize)
            .map_or(0, |span| span.end))
    }

    /// Folds micro-batches from where the slot stands.
    async fn fold_on(
        &mut self,
        slot: &Slot,
        until: Option<Offset>,
        stop: &CancellationToken,
    ) -> Result<Ended> {
        let looked = Instant::now();
        let look_interval = Duration::from_millis(self.options.look_interval_ms);
        let mut fence = slot.fence();
        let mut last = slot.position.last;
        self.open_window(fence, last).await?;
        while looked.elapsed() < look_interval && !stop.is_cancelled() {
            if until.is_some_and(|cut| fence.next_offset >= cut) {
                return Ok(Ended::Look);
            }
            let fetched = self.fetch(fence.next_offset, until).await?;
            metrics::gauge!("backstitch_speed_lag_events", "source" => self.source.name(),
                "partition" => self.partition.to_string())
            .set(as_f64(fetched.end.saturating_sub(fetched.next_offset)));
            if fetched.next_offset == fence.next_offset {
                return match until {
                    Some(cut) => Err(self.other_log(format!(
                        "a batch run has taken records up to offset {cut}, the log ends at {}: records were lost, or the topic was made again",
                        fetched.end
                    ))),
                    None => Ok(Ended::CaughtUp),
                };
            }
            let next = Cut {
                next_offset: fetched.next_offset,
                last: fetched.records.last().or(last),
            };
            if !self.apply(fence, next, fetched.records).await? {
                self.refused();
                self.window = None;
                return Ok(Ended::Look);
            }
            fence.next_offset = next.next_offset;
            last = next.last;
            if let Some((reaches, _)) = &mut self.window {
                *reaches = fence;
            }
        }
        Ok(Ended::Look)
    }

    /// Fetches a micro-batch that does not reach beyond `until`.
    async fn fetch(&self, from: Offset, until: Option<Offset>) -> Result<Fetched> {
        let limit = FetchLimit {
            records: self.options.records_max,
            bytes: self.options.bytes_max,
        };
        let topic = self.source.topic();
        let mut fetched = self
            .ports
            .log
            .fetch(topic, self.partition, from, limit)
            .await
            .map_err(|error| self.explain(error))?;
        if let Some(cut) = until
            && fetched.next_offset > cut
        {
            let below = fetched
                .records
                .offsets
                .values()
                .partition_point(|o| *o < cut);
            fetched.records = fetched.records.slice(0, below);
            fetched.next_offset = cut;
        }
        Ok(fetched)
    }

    /// Decodes, removes duplicates, folds and applies; answers whether the fence was where it was
    /// believed.
    async fn apply(&mut self, fence: Fence, next: Cut, records: Records) -> Result<bool> {
        let (records, decoded) = self.decode(records).await?;
        self.set_aside(&records, &decoded).await?;
        let (events, duplicates) = self.first_of_each(&decoded.events)?;
        let mut deltas = Vec::new();
        if events.num_rows() > 0 {
            for folded in self.fold.run(&events).await? {
                let (groups, rows, counts) = folded.encoded()?;
                deltas.push(Deltas {
                    view: folded.job.view().to_owned(),
                    groups,
                    rows,
                    counts,
                });
            }
        }
        let views = self.fold.views();
        let applied = self
            .ports
            .live
            .apply(self.slot_id(), fence, next, &views, &deltas)
            .await?
            .is_ok();
        if applied {
            let rows = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            let counts = &self.counts;
            self.count(
                &counts.events,
                "backstitch_speed_events_total",
                rows(events.num_rows()),
            );
            self.count(
                &counts.duplicates,
                "backstitch_speed_duplicates_total",
                duplicates,
            );
            self.count(
                &counts.dead_letters,
                "backstitch_speed_dead_letters_total",
                rows(decoded.rejected.len()),
            );
            self.count(
                &counts.micro_batches,
                "backstitch_speed_micro_batches_total",
                1,
            );
        }
        Ok(applied)
    }

    async fn decode(&self, records: Records) -> Result<(Records, Decoded)> {
        let partition = self.partition;
        let work = move || decode(partition, &records).map(|decoded| (records, decoded));
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Error::Fault(format!("decoding ended: {error}")))?
    }

    /// Appends dead letters before the fence moves past them, so that none is lost. A crash in
    /// between appends them once more; their origin tells that they are the same.
    async fn set_aside(&self, records: &Records, decoded: &Decoded) -> Result<()> {
        let topic = self.source.topic();
        let letters: Vec<DeadLetter> = decoded
            .rejected
            .iter()
            .map(|rejected| DeadLetter {
                source: self.source.name().to_owned(),
                reason: rejected.reason.clone(),
                origin: format!(
                    "{topic}/{}@{}",
                    self.partition,
                    records.offsets.value(rejected.index)
                ),
                at_ms: records.logged_at_ms.value(rejected.index),
                raw: records.values.value(rejected.index).to_vec(),
            })
            .collect();
        append_dead_letters(
            &*self.ports.dead_letters,
            self.source,
            &letters,
            self.ports.clock.now_ms(),
        )
        .await?;
        Ok(())
    }

    /// The events that are the first of their identity in the window.
    fn first_of_each(&mut self, events: &RecordBatch) -> Result<(RecordBatch, u64)> {
        let Some((_, window)) = &mut self.window else {
            return Err(Error::Fault(
                "a micro-batch without a duplicate window".to_owned(),
            ));
        };
        let keep = keep_first(window, events)?;
        let duplicates = keep.len() - keep.true_count();
        let kept = filter_record_batch(events, &keep)
            .map_err(|error| Error::Fault(format!("filtering duplicates: {error}")))?;
        Ok((kept, u64::try_from(duplicates).unwrap_or(u64::MAX)))
    }

    /// Makes sure that the duplicate window reaches exactly up to the fence, reading the stretch of
    /// the log again if it does not, and that the log is the one that the slot was made from.
    async fn open_window(&mut self, fence: Fence, last: Option<LastRecord>) -> Result<()> {
        let stands = self.window.as_ref().is_some_and(|(reaches, _)| {
            reaches.generation == fence.generation && reaches.next_offset == fence.next_offset
        });
        if stands {
            return Ok(());
        }
        let mut window = Window::new(self.options.dedup_window_ms, self.options.dedup_events_max);
        if let Some(last) = last {
            let topic = self.source.topic();
            recognise(&*self.ports.log, topic, self.partition, last)
                .await?
                .map_err(|other| self.other_log(other.to_string()))?;
            let since_ms = last
                .logged_at_ms
                .saturating_sub(self.options.dedup_window_ms);
            let log = &self.ports.log;
            let mut from = log.offset_at(topic, self.partition, since_ms).await?;
            while from < fence.next_offset {
                let fetched = self.fetch(from, Some(fence.next_offset)).await?;
                if fetched.next_offset == from {
                    break;
                }
                from = fetched.next_offset;
                let (_, decoded) = self.decode(fetched.records).await?;
                keep_first(&mut window, &decoded.events)?;
            }
        }
        self.window = Some((fence, window));
        Ok(())
    }

    fn explain(&self, error: stores::Error) -> Error {
        match error {
            stores::Error::OffsetOutOfRange { asked, end, .. } if asked > end => {
                self.other_log(format!(
                    "live state stands at offset {asked}, the log ends at {end}: records were lost, or the topic was made again"
                ))
            }
            stores::Error::OffsetOutOfRange { asked, start, .. } => self.other_log(format!(
                "live state stands at offset {asked}, the log begins at {start}: it no longer reaches back to the newest batch run"
            )),
            other => other.into(),
        }
    }

    fn other_log(&self, what: String) -> Error {
        Error::OtherLog {
            topic: self.source.topic(),
            partition: self.partition,
            what: format!(
                "{what}. Nothing was counted. Restore the log, or begin anew with an empty data folder (or another namespace) and ingest again"
            ),
        }
    }

    const fn slot_id(&self) -> SlotId {
        SlotId {
            source: self.source,
            partition: self.partition,
        }
    }

    fn refused(&self) {
        self.count(&self.counts.refusals, "backstitch_speed_refusals_total", 1);
    }

    fn count(&self, total: &AtomicU64, name: &'static str, n: u64) {
        total.fetch_add(n, Ordering::Relaxed);
        metrics::counter!(name, "source" => self.source.name()).increment(n);
    }
}

fn decode(partition: u32, records: &Records) -> Result<Decoded> {
    let lines = (0..records.len()).map(|index| Line {
        offset: records.offsets.value(index),
        logged_at_ms: records.logged_at_ms.value(index),
        bytes: records.values.value(index),
    });
    Decoder::new(partition)
        .decode(lines)
        .map_err(|error| Error::Fault(format!("decoding a micro-batch: {error}")))
}

fn keep_first(window: &mut Window, events: &RecordBatch) -> Result<BooleanArray> {
    use arrow::array::AsArray;
    use arrow::datatypes::TimestampMillisecondType;
    let logged_at = events
        .column_by_name("logged_at")
        .and_then(|column| column.as_primitive_opt::<TimestampMillisecondType>())
        .ok_or_else(|| Error::Fault("events without logged_at".to_owned()))?;
    Ok(identities(events)
        .into_iter()
        .zip(logged_at.values())
        .map(|(identity, at)| Some(window.is_first(identity, *at)))
        .collect())
}

async fn pause(wait_ms: u64, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
        () = stop.cancelled() => {}
    }
}

fn as_f64(n: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    {
        n as f64
    }
}
