//! The worker of one partition: look around, then fold micro-batches until it is time to look again.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use schemas::dead_letter::{DeadLetter, Place, RAW_BYTES_MAX};
use schemas::entities::Group;
use schemas::plays::Rejected;
use schemas::seam::{Cut, Fence, Offset, Slot, Step, next_step};
use schemas::source::Source;
use schemas::traces;
use stores::intake::append_dead_letters;
use stores::live::{Changes, SlotId};
use stores::log::{FetchLimit, Fetched, LOST_REMEDY, Recogniser, Records};
use stores::relay;
use stores::views::RunsSeen;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::boards::Stepped;
use crate::idle::{Idle, IdleWatch, Wake};
use crate::processor::{BatchProcessor, Before, Limits};
use crate::supervise::{Counts, SpeedReport};
use crate::tell::Outbox;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// How often a step that did not get through is tried again when the end is to be reached.
const TRIES_UNTIL_CAUGHT_UP: u32 = 20;
/// How often in a row a partition may not be there before it is believed: a broker may not have heard of
/// it yet.
pub(crate) const LOOKS_WITHOUT_PARTITION: u32 = 6;
/// After so many looks it is said that nothing is counted since too much waits to be told.
const FULL_LOOKS: u32 = 5;
const PAUSE_MS_FIRST: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;
/// How often an idle worker goes on with its cached boards.
const IDLE_STEP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) ports: SpeedPorts,
    pub(crate) processor: Box<dyn BatchProcessor>,
    pub(crate) recogniser: Recogniser,
    pub(crate) source: Source,
    pub(crate) partition: u32,
    pub(crate) options: SpeedOptions,
    pub(crate) counts: Arc<Counts>,
    /// How many partitions the topic has, as was seen after the epoch that is being filled had begun.
    pub(crate) partitions: u32,
    /// The run records of the last refresh.
    pub(crate) runs: RunsSeen,
    /// Wakes it at the end of the log.
    pub(crate) idle: Arc<IdleWatch>,
    /// What waits to be told of what it changes, where there is such.
    pub(crate) outbox: Option<Outbox>,
    /// How many looks in a row found too much waiting there.
    pub(crate) full_looks: u32,
    /// Whether it ends at the end of the log.
    pub(crate) until_caught_up: bool,
    /// How many steps in a row did not get through.
    pub(crate) failures: u32,
}

/// How a stretch of folding ended.
enum Ended {
    /// It is time to look around.
    Look,
    /// The end of the log was reached, which was to be.
    CaughtUp,
    /// A batch run has to go on first.
    Waiting,
}

impl Worker {
    /// Folds, and tells beside it what that brings.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<()> {
        let until_caught_up = self.until_caught_up;
        let Some(outbox) = self.outbox.clone() else {
            return self.work(stop).await;
        };
        let (over, stop) = (CancellationToken::new(), stop.child_token());
        let watched = outbox.clone().watch(until_caught_up, over.clone()).boxed();
        let working = self.work(stop.clone()).boxed();
        let work = async {
            let worked = working.await;
            over.cancel();
            worked
        };
        let telling = async {
            let told = watched.await;
            if told.is_err() {
                stop.cancel();
            }
            told
        };
        let (worked, told) = tokio::join!(work, telling);
        worked.and(told)?;
        if until_caught_up && !stop.is_cancelled() {
            outbox.tell_all(stop).boxed().await?;
        }
        Ok(())
    }

    async fn work(mut self, stop: CancellationToken) -> Result<()> {
        let until_caught_up = self.until_caught_up;
        let run_wait = Duration::from_millis(self.options.run_wait_ms);
        let mut gone = 0;
        let mut waiting: Option<Instant> = None;
        while !stop.is_cancelled() {
            let ended = self.look_and_fold(&stop).await;
            if let Err(Error::Store(error @ stores::Error::NoPartition { .. })) = ended {
                gone += 1;
                if gone >= LOOKS_WITHOUT_PARTITION {
                    return Err(self.without(error).await);
                }
                self.processor.forget();
                pause(PAUSE_MS_FIRST << gone, &stop).await;
                continue;
            }
            gone = 0;
            match ended {
                Ok(Ended::CaughtUp) => return Ok(()),
                Ok(Ended::Look) => (self.failures, waiting) = (0, None),
                Err(Error::Moved) => {
                    self.moved();
                    (self.failures, waiting) = (0, None);
                }
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
                    self.failures += 1;
                    if until_caught_up && self.failures >= TRIES_UNTIL_CAUGHT_UP {
                        return Err(error);
                    }
                    let wait_ms = PAUSE_MS_MAX.min(PAUSE_MS_FIRST << self.failures.min(10));
                    tracing::warn!(partition = self.partition, %error, wait_ms, "trying again");
                    self.processor.forget();
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
        let slot = self.ports.slot(self.slot_id()).await?;
        // After the slot: a run that ended the epoch before knew no more partitions than there are now.
        let partitions = self.ports.partitions(self.source).await?;
        self.runs = self.ports.views.runs(self.source).await?;
        self.processor.covers(&self.runs.newest);
        // After the slot as well: a run that ended the epoch before on behalf of an erasure is sure that
        // whoever fills the next one knows of it, since what was folded before is refused.
        self.processor
            .suppress(self.ports.suppressions.now().await?);
        if partitions <= partition {
            let what = format!("{}/{partition}", self.source.topic());
            return Err(stores::Error::NoPartition { what }.into());
        }
        // Who is asked may not have heard of the newest, which a run or an earlier look has seen.
        let runs = &self.runs.runs;
        let recorded = u32::try_from(runs.partitions()).unwrap_or(u32::MAX);
        self.partitions = self.partitions.max(partitions).max(recorded);
        let id = self.slot_id();
        match next_step(slot.as_ref(), partition as usize, runs) {
            Step::Heal => {
                let seen = slot.as_ref().map(Slot::fence);
                let log_end = self.log_end().await?;
                let hint = self.ports.clock.now_ms().unsigned_abs();
                let life = self.runs.runs.new_life(partition as usize, log_end, hint);
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
                    self.count(|all| &mut all.heals, "backstitch_speed_heals_total", 1);
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

    /// Whether so much waits to be told that no more is to be made.
    fn is_full(&self) -> bool {
        let waiting = self.outbox.as_ref().map_or(0, Outbox::waiting);
        waiting > self.options.outbox_max
    }

    async fn log_end(&self) -> Result<Offset> {
        let topic = self.source.topic();
        Ok(self.ports.log.end(topic, self.partition).await?)
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
        self.begin(slot).await?;
        self.full_looks = if self.is_full() {
            self.full_looks + 1
        } else {
            0
        };
        if self.full_looks == FULL_LOOKS {
            tracing::info!(
                partition = self.partition,
                "counting waits while what changed on boards is told; it goes on by itself"
            );
        }
        while looked.elapsed() < look_interval && !stop.is_cancelled() {
            if until.is_some_and(|cut| fence.next_offset >= cut) {
                return Ok(Ended::Look);
            }
            if self.is_full() {
                pause(self.options.poll_interval_ms, stop).await;
                continue;
            }
            let fetched = self.fetch(fence.next_offset, until).await?;
            metrics::gauge!("backstitch_speed_lag_events", "source" => self.source.name(),
                "partition" => self.partition.to_string())
            .set(as_f64(fetched.end.saturating_sub(fetched.next_offset)));
            if fetched.next_offset == fence.next_offset {
                if let Some(cut) = until {
                    return Err(self.other_log(format!(
                        "a batch run has taken records up to offset {cut}, the log ends at {}: records were lost, or the topic was made again",
                        fetched.end
                    )));
                }
                match self.at_end(fence, stop).await? {
                    Some(ended) => return Ok(ended),
                    None => continue,
                }
            }
            let at = Cut {
                next_offset: fetched.next_offset,
                last,
            };
            let span = tracing::info_span!(
                target: traces::TARGET, "micro-batch",
                source = %self.source, partition = self.partition,
                offset = fence.next_offset, next_offset = at.next_offset,
            );
            let applied = self.apply(fence, at, fetched.records).instrument(span);
            let next = applied.await?;
            fence.next_offset = next.next_offset;
            last = next.last;
            self.processor.reached(fence);
            self.processor.step(fence, self.partitions).await?;
        }
        Ok(Ended::Look)
    }

    /// Waits at the end of the log. Returns `None` to fetch again.
    ///
    /// An idle worker refreshes when its partition state or the run records change. It also refreshes before it folds again:
    /// the refresh interval has passed by then, or is still running.
    async fn at_end(&mut self, fence: Fence, stop: &CancellationToken) -> Result<Option<Ended>> {
        self.failures = 0;
        let began = self.idle.begin();
        while !stop.is_cancelled() {
            match self.processor.step(fence, self.partitions).await? {
                Stepped::More => return Ok(None),
                Stepped::Idle if self.until_caught_up => return Ok(Some(Ended::CaughtUp)),
                Stepped::Idle => {}
            }
            let idle = Idle {
                partition: self.partition,
                partitions: self.partitions,
                fence,
                runs: &self.runs,
                began,
            };
            match self.idle.wait(idle, IDLE_STEP, stop).await {
                Wake::Log => return Ok(None),
                Wake::Refresh => return Ok(Some(Ended::Look)),
                Wake::Timeout => {}
            }
        }
        Ok(None)
    }

    /// The slot is not where it was believed to be.
    fn moved(&mut self) {
        self.refused();
        if let Some(outbox) = &self.outbox {
            // Another worker may have added outbox entries and stopped.
            outbox.moved(0);
        }
        self.processor.forget();
    }

    /// Fetches a micro-batch that does not reach beyond `until`.
    async fn fetch(&self, from: Offset, until: Option<Offset>) -> Result<Fetched> {
        let limit = FetchLimit {
            records: self.options.records_max.min(self.processor.records_fit()),
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

    /// Processes as many of the records as fit, and applies the changes together with the checkpoint. Returns the new
    /// position. `end` is the position after the records, with the last one before them.
    async fn apply(&mut self, fence: Fence, end: Cut, records: Records) -> Result<Cut> {
        let limits = Limits {
            rows_max: self.processor.rows_max(&*self.ports.live, self.slot_id()),
            partitions: self.partitions,
            fence,
        };
        let (log, topic) = (&*self.ports.log, self.source.topic());
        let known = async {
            match end.last.or(records.first()) {
                Some(known) => {
                    let recogniser = &mut self.recogniser;
                    recogniser
                        .recognise(log, topic, self.partition, known)
                        .await
                }
                None => Ok(Ok(())),
            }
        };
        // The log may have become another one since these were asked for; the answer is waited for
        // while they are read, before anything comes of them.
        let (known, taken) = tokio::join!(known, self.processor.process(&records, limits));
        known?.map_err(|other| self.other_log(other.to_string()))?;
        let mut taken = taken?;
        let next = next_after(&records, taken.records, end);
        self.set_aside(&records, &taken.rejected).await?;
        self.forward(&taken.forwarded).await?;
        self.put(fence, next, &mut taken.changes).await?;
        if let Some(outbox) = &self.outbox {
            outbox.moved(taken.changes.outbox.len());
        }
        let rejected = taken.rejected.len() as u64;
        self.count(
            |all| &mut all.events,
            "backstitch_speed_events_total",
            taken.events,
        );
        self.count(
            |all| &mut all.duplicates,
            "backstitch_speed_duplicates_total",
            taken.duplicates,
        );
        self.count(
            |all| &mut all.dead_letters,
            "backstitch_speed_dead_letters_total",
            rejected,
        );
        self.count(
            |all| &mut all.micro_batches,
            "backstitch_speed_micro_batches_total",
            1,
        );
        Ok(next)
    }

    /// Applies changes to live state. A full store makes room first.
    async fn put(&mut self, fence: Fence, next: Cut, changes: &mut Changes) -> Result<()> {
        loop {
            let (live, views) = (&self.ports.live, self.processor.views());
            let applied = live.apply(self.slot_id(), fence, next, &views, changes);
            let full = match applied.await {
                Err(full @ stores::Error::Full { .. }) => full,
                applied => return applied?.map_err(|_| Error::Moved),
            };
            if self.processor.make_room(fence, changes).await? == Stepped::Idle {
                return Err(full.into());
            }
        }
    }

    /// Appends dead letters before the fence moves past them, so that none is lost. A crash in
    /// between appends them once more; their origin tells that they are the same.
    async fn set_aside(&self, records: &Records, rejected: &[Rejected]) -> Result<()> {
        let topic = self.source.topic();
        let letter = |rejected: &Rejected| {
            let raw = records.values.value(rejected.index);
            let kept = raw.get(..RAW_BYTES_MAX).unwrap_or(raw);
            let mut reason = rejected.reason.clone();
            if kept.len() < raw.len() {
                // Its place in the log still leads to all of it.
                reason += &format!(
                    " (the first {} of {} bytes are kept)",
                    kept.len(),
                    raw.len()
                );
            }
            let origin = Place {
                topic,
                partition: self.partition,
                offset: records.offsets.value(rejected.index),
            };
            DeadLetter {
                source: self.source.name().to_owned(),
                reason,
                origin: origin.to_string(),
                at_ms: records.logged_at_ms.value(rejected.index),
                raw: kept.to_vec(),
            }
        };
        let mut letters: Vec<DeadLetter> = rejected.iter().map(letter).collect();
        if !letters.is_empty() {
            let suppressed = self.ports.suppressions.now().await?;
            for letter in &mut letters {
                suppressed.redact(self.source, letter);
                // A search of binary data takes milliseconds.
                tokio::task::yield_now().await;
            }
        }
        append_dead_letters(
            &*self.ports.log_writes,
            self.source,
            &letters,
            self.ports.clock.now_ms(),
        )
        .await?;
        Ok(())
    }

    /// Sends notifications to the partition that they belong to, before the fence moves past them. A
    /// crash in between sends them once more, which changes nothing.
    async fn forward(&self, groups: &[Group]) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        let records = relay::records(self.source, groups, self.partitions);
        let now_ms = self.ports.clock.now_ms();
        let topic = self.source.topic();
        self.ports
            .log_writes
            .append(topic, &records, now_ms)
            .await?;
        let forwarded = "backstitch_speed_forwarded_total";
        metrics::counter!(forwarded, "source" => self.source.name()).increment(groups.len() as u64);
        Ok(())
    }

    /// Looks once whether the log is the one that the slot was made from, and lets what takes the
    /// records remember what it must of those before the fence.
    async fn begin(&mut self, slot: &Slot) -> Result<()> {
        let fence = slot.fence();
        let is_current = self.processor.reaches().is_some_and(|reaches| {
            reaches.generation == fence.generation && reaches.next_offset == fence.next_offset
        });
        if is_current {
            return Ok(());
        }
        // It may be another slot than before.
        self.recogniser = Recogniser::default();
        if let Some(last) = slot.position.last {
            let topic = self.source.topic();
            self.recogniser
                .recognise(&*self.ports.log, topic, self.partition, last)
                .await?
                .map_err(|other| self.other_log(other.to_string()))?;
        }
        let before = Before {
            ports: &self.ports,
            source: self.source,
            partition: self.partition,
            options: &self.options,
            partitions: self.partitions,
        };
        self.processor
            .begin(&before, slot)
            .await
            .map_err(|error| match error {
                Error::Store(error) => self.explain(error),
                error => error,
            })
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

    /// What it means that a partition is not there: this one, or one of another topic.
    async fn without(&self, error: stores::Error) -> Error {
        match self.ports.partitions(self.source).await {
            Ok(partitions) if partitions <= self.partition => {
                self.other_log("the topic was deleted".to_owned())
            }
            _ => error.into(),
        }
    }

    fn other_log(&self, what: String) -> Error {
        Error::OtherLog {
            topic: self.source.topic(),
            partition: self.partition,
            what: format!("{what}. Nothing was counted. {LOST_REMEDY}"),
        }
    }

    const fn slot_id(&self) -> SlotId {
        SlotId {
            source: self.source,
            partition: self.partition,
        }
    }

    fn refused(&self) {
        self.count(
            |all| &mut all.refusals,
            "backstitch_speed_refusals_total",
            1,
        );
    }

    fn count(&self, total: fn(&mut SpeedReport) -> &mut u64, name: &'static str, n: u64) {
        *total(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner)) += n;
        metrics::counter!(name, "source" => self.source.name()).increment(n);
    }
}

/// The position after the first `taken` of the records, where `end` is the one after all of them with
/// the last one before them.
fn next_after(records: &Records, taken: usize, end: Cut) -> Cut {
    let is_all = taken >= records.len();
    Cut {
        next_offset: match is_all {
            true => end.next_offset,
            false => records.offsets.value(taken),
        },
        last: records
            .slice(0, taken.min(records.len()))
            .last()
            .or(end.last),
    }
}

/// Waits, but not beyond `stop`.
pub(crate) async fn pause(wait_ms: u64, stop: &CancellationToken) {
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
