//! The worker of one partition. It refreshes its view of the stores, then processes micro-batches
//! until the next refresh.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use schemas::dead_letter::{DeadLetter, LogPosition, RAW_BYTES_MAX};
use schemas::entities::Group;
use schemas::plays::RejectedInput;
use schemas::seam::{Checkpoint, Cut, Offset, PartitionState, WorkerStep, next_step};
use schemas::source::Source;
use schemas::traces;
use stores::intake::append_dead_letters;
use stores::live::{Changes, PartitionId};
use stores::log::{FetchLimit, FetchedRecords, LOST_REMEDY, LogIdentityVerifier, Records};
use stores::relay;
use stores::views::RunRecords;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::boards::StepOutcome;
use crate::changes::ChangeOutbox;
use crate::idle::{IdleWatch, IdleWorker, Wake};
use crate::pause::pause;
use crate::processor::{BatchContext, BatchProcessor, Limits};
use crate::report::{Counts, SpeedReport};
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Attempts of a failing step if the worker must reach the end of the log.
const STEP_TRIES_MAX: u32 = 20;
/// Consecutive checks before a partition is believed to be missing. A broker may not know a new one
/// yet.
pub(crate) const MISSING_PARTITION_CHECKS: u32 = 6;
/// Consecutive refreshes with a full outbox before the worker logs that it waits.
const FULL_OUTBOX_REFRESHES: u32 = 5;
const FIRST_PAUSE_MS: u64 = 50;
const PAUSE_MS_MAX: u64 = 5_000;
/// Interval of background work of an idle worker.
const IDLE_STEP: Duration = Duration::from_secs(1);

/// The worker of one partition.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) ports: SpeedPorts,
    pub(crate) processor: Box<dyn BatchProcessor>,
    pub(crate) log_identity: LogIdentityVerifier,
    pub(crate) source: Source,
    pub(crate) partition: u32,
    pub(crate) options: SpeedOptions,
    pub(crate) counts: Arc<Counts>,
    /// The partitions of the topic, read after the current epoch began.
    pub(crate) partitions: u32,
    /// The run records of the last refresh.
    pub(crate) runs: RunRecords,
    /// Wakes the worker at the end of the log.
    pub(crate) idle: Arc<IdleWatch>,
    /// The change outbox, if the views are boards.
    pub(crate) outbox: Option<ChangeOutbox>,
    /// Consecutive refreshes with a full outbox.
    pub(crate) full_outbox_refreshes: u32,
    /// True if the worker ends at the end of the log.
    pub(crate) until_caught_up: bool,
    /// Consecutive failed steps.
    pub(crate) failures: u32,
}

/// The reason why a cycle of micro-batches ended.
enum CycleEnd {
    /// The worker must refresh.
    Refresh,
    /// The worker reached the end of the log and may stop.
    CaughtUp,
    /// The worker waits for a batch run.
    Waiting,
}

impl Worker {
    /// Processes the log, and publishes the resulting changes concurrently.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<()> {
        let until_caught_up = self.until_caught_up;
        let Some(outbox) = self.outbox.clone() else {
            return self.work(stop).await;
        };
        let (done, stop) = (CancellationToken::new(), stop.child_token());
        let publish = outbox.clone().watch(until_caught_up, done.clone()).boxed();
        let work = self.work(stop.clone()).boxed();
        let worker = async {
            let result = work.await;
            done.cancel();
            result
        };
        let publishing = async {
            let result = publish.await;
            if result.is_err() {
                stop.cancel();
            }
            result
        };
        let (work_result, publish_result) = tokio::join!(worker, publishing);
        work_result.and(publish_result)?;
        if until_caught_up && !stop.is_cancelled() {
            outbox.publish_all(stop).boxed().await?;
        }
        Ok(())
    }

    async fn work(mut self, stop: CancellationToken) -> Result<()> {
        let until_caught_up = self.until_caught_up;
        let run_wait = Duration::from_millis(self.options.run_wait_ms);
        let mut missing_checks = 0;
        let mut waiting_since: Option<Instant> = None;
        while !stop.is_cancelled() {
            let outcome = self.run_once(&stop).await;
            if let Err(Error::Store(error @ stores::Error::NoPartition { .. })) = outcome {
                missing_checks += 1;
                if missing_checks >= MISSING_PARTITION_CHECKS {
                    return Err(self.missing_partition_error(error).await);
                }
                self.processor.reset();
                pause(FIRST_PAUSE_MS << missing_checks, &stop).await;
                continue;
            }
            missing_checks = 0;
            match outcome {
                Ok(CycleEnd::CaughtUp) => return Ok(()),
                Ok(CycleEnd::Refresh) => (self.failures, waiting_since) = (0, None),
                Err(Error::CheckpointMismatch) => {
                    self.handle_checkpoint_mismatch();
                    (self.failures, waiting_since) = (0, None);
                }
                Ok(CycleEnd::Waiting) => {
                    let since = *waiting_since.get_or_insert_with(Instant::now);
                    if until_caught_up && since.elapsed() >= run_wait {
                        return Err(Error::Waiting {
                            topic: self.source.topic(),
                            partition: self.partition,
                        });
                    }
                    pause(self.options.poll_interval_ms, &stop).await;
                }
                Err(error) if error.is_transient() => {
                    self.failures += 1;
                    if until_caught_up && self.failures >= STEP_TRIES_MAX {
                        return Err(error);
                    }
                    let wait_ms = PAUSE_MS_MAX.min(FIRST_PAUSE_MS << self.failures.min(10));
                    tracing::warn!(partition = self.partition, %error, wait_ms, "a step failed; trying again");
                    self.processor.reset();
                    pause(wait_ms, &stop).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the partition state, then the run records, and does the step that they require.
    async fn run_once(&mut self, stop: &CancellationToken) -> Result<CycleEnd> {
        let partition = self.partition;
        let state = self.ports.partition_state(self.partition_id()).await?;
        // After the partition state: the run that ended the previous epoch knew no more partitions
        // than exist now.
        let partitions = self.ports.partitions(self.source).await?;
        self.runs = self.ports.views.runs(self.source).await?;
        self.processor.set_newest_epochs(&self.runs.complete_epochs);
        // Also after the partition state. A run for an erasure ends the epoch. So a worker that
        // fills the next epoch knows the erasure, and micro-batches processed before are rejected.
        self.processor
            .suppress(self.ports.suppressions.current().await?);
        if partitions <= partition {
            let operation = format!("{}/{partition}", self.source.topic());
            return Err(stores::Error::NoPartition { operation }.into());
        }
        // The log may not know the newest partitions that a run or an earlier refresh has seen.
        let runs = &self.runs.runs;
        let recorded = u32::try_from(runs.partition_count()).unwrap_or(u32::MAX);
        self.partitions = self.partitions.max(partitions).max(recorded);
        let id = self.partition_id();
        match next_step(state.as_ref(), partition as usize, runs) {
            WorkerStep::Rebuild => {
                let believed = state.as_ref().map(PartitionState::checkpoint);
                let log_end = self.log_end().await?;
                let generation_min = self.ports.clock.now_ms().unsigned_abs();
                let start =
                    self.runs
                        .runs
                        .generation_start(partition as usize, log_end, generation_min);
                let rebuilt = self.ports.live.rebuild(id, believed, &start).await?;
                if rebuilt.is_ok() {
                    // The first state of a partition is not a loss.
                    if believed.is_some() || start.newest > 0 {
                        tracing::warn!(
                            partition,
                            epoch = start.newest,
                            offset = start.cut.next_offset,
                            log_end,
                            "live state was lost: it restarts at the newest batch run, and later events are replayed"
                        );
                    }
                    self.count(|all| &mut all.heals, "backstitch_speed_heals_total", 1);
                }
                Ok(CycleEnd::Refresh)
            }
            WorkerStep::CloseEpoch => {
                if let Some(checkpoint) = state.as_ref().map(PartitionState::checkpoint)
                    && self.ports.live.close_epoch(id, checkpoint).await?.is_err()
                {
                    self.count_refusal();
                }
                Ok(CycleEnd::Refresh)
            }
            WorkerStep::Refresh => Ok(CycleEnd::Waiting),
            WorkerStep::Fold { until } => match state {
                Some(state) => self.process_batches(&state, until, stop).await,
                None => Ok(CycleEnd::Refresh),
            },
        }
    }

    /// Returns whether the outbox is full, so that processing must wait.
    fn is_outbox_full(&self) -> bool {
        let waiting = self
            .outbox
            .as_ref()
            .map_or(0, ChangeOutbox::waiting_entries);
        waiting > self.options.outbox_max
    }

    async fn log_end(&self) -> Result<Offset> {
        let topic = self.source.topic();
        Ok(self.ports.log.end(topic, self.partition).await?)
    }

    /// Processes micro-batches from the checkpoint.
    async fn process_batches(
        &mut self,
        state: &PartitionState,
        until: Option<Offset>,
        stop: &CancellationToken,
    ) -> Result<CycleEnd> {
        let start = Instant::now();
        let refresh_interval = Duration::from_millis(self.options.look_interval_ms);
        let mut checkpoint = state.checkpoint();
        let mut last_record = state.position.last;
        self.begin(state).await?;
        self.full_outbox_refreshes = if self.is_outbox_full() {
            self.full_outbox_refreshes + 1
        } else {
            0
        };
        if self.full_outbox_refreshes == FULL_OUTBOX_REFRESHES {
            tracing::info!(
                partition = self.partition,
                "processing waits until pending board changes are published"
            );
        }
        while start.elapsed() < refresh_interval && !stop.is_cancelled() {
            if until.is_some_and(|cut| checkpoint.next_offset >= cut) {
                return Ok(CycleEnd::Refresh);
            }
            if self.is_outbox_full() {
                pause(self.options.poll_interval_ms, stop).await;
                continue;
            }
            let fetched = self.fetch(checkpoint.next_offset, until).await?;
            metrics::gauge!("backstitch_speed_lag_events", "source" => self.source.name(),
                "partition" => self.partition.to_string())
            .set(to_gauge_value(
                fetched.end.saturating_sub(fetched.next_offset),
            ));
            if fetched.next_offset == checkpoint.next_offset {
                if let Some(cut) = until {
                    return Err(self.other_log_error(format!(
                        "a batch run covers records before offset {cut}, but the log ends at {}: records were lost, or the topic was recreated",
                        fetched.end
                    )));
                }
                match self.wait_at_end(checkpoint, stop).await? {
                    Some(ended) => return Ok(ended),
                    None => continue,
                }
            }
            let end = Cut {
                next_offset: fetched.next_offset,
                last: last_record,
            };
            let span = tracing::info_span!(
                target: traces::TARGET, "micro-batch",
                source = %self.source, partition = self.partition,
                offset = checkpoint.next_offset, next_offset = end.next_offset,
            );
            let applied = self
                .apply(checkpoint, end, fetched.records)
                .instrument(span);
            let next = applied.await?;
            checkpoint.next_offset = next.next_offset;
            last_record = next.last;
            self.processor.on_applied(checkpoint);
            self.processor.step(checkpoint, self.partitions).await?;
        }
        Ok(CycleEnd::Refresh)
    }

    /// Waits at the end of the log. Returns `None` to fetch again.
    ///
    /// An idle worker refreshes when its partition state or the run records change. It also
    /// refreshes before it processes records again, because the refresh interval has passed by
    /// then, or is still running.
    async fn wait_at_end(
        &mut self,
        checkpoint: Checkpoint,
        stop: &CancellationToken,
    ) -> Result<Option<CycleEnd>> {
        self.failures = 0;
        let wait_start = self.idle.start_wait();
        while !stop.is_cancelled() {
            match self.processor.step(checkpoint, self.partitions).await? {
                StepOutcome::More => return Ok(None),
                StepOutcome::Idle if self.until_caught_up => return Ok(Some(CycleEnd::CaughtUp)),
                StepOutcome::Idle => {}
            }
            let idle = IdleWorker {
                partition: self.partition,
                partitions: self.partitions,
                checkpoint,
                runs: &self.runs,
                wait_start,
            };
            match self.idle.wait(idle, IDLE_STEP, stop).await {
                Wake::Log => return Ok(None),
                Wake::Refresh => return Ok(Some(CycleEnd::Refresh)),
                Wake::Timeout => {}
            }
        }
        Ok(None)
    }

    /// The partition state is not at the expected checkpoint.
    fn handle_checkpoint_mismatch(&mut self) {
        self.count_refusal();
        if let Some(outbox) = &self.outbox {
            // Another worker may have added outbox entries and stopped.
            outbox.record_advance(0);
        }
        self.processor.reset();
    }

    /// Fetches a micro-batch that ends at `until` or before.
    async fn fetch(&self, from: Offset, until: Option<Offset>) -> Result<FetchedRecords> {
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
            .map_err(|error| self.fetch_error(error))?;
        if let Some(cut) = until
            && fetched.next_offset > cut
        {
            let count = fetched
                .records
                .offsets
                .values()
                .partition_point(|offset| *offset < cut);
            fetched.records = fetched.records.slice(0, count);
            fetched.next_offset = cut;
        }
        Ok(fetched)
    }

    /// Processes as many records as fit, and applies the changes together with the checkpoint.
    /// Returns the new position. `end` is the position after the records, with the last record
    /// before them.
    async fn apply(&mut self, checkpoint: Checkpoint, end: Cut, records: Records) -> Result<Cut> {
        let limits = Limits {
            rows_max: self
                .processor
                .rows_max(&*self.ports.live, self.partition_id()),
            partitions: self.partitions,
            checkpoint,
        };
        let (log, topic) = (&*self.ports.log, self.source.topic());
        let identity = async {
            match end.last.or(records.first()) {
                Some(record) => {
                    let log_identity = &mut self.log_identity;
                    log_identity
                        .verify(log, topic, self.partition, record)
                        .await
                }
                None => Ok(Ok(())),
            }
        };
        // The log may have been replaced since the fetch. Its identity is verified while the
        // records are processed, and before their changes are applied.
        let (identity, batch) = tokio::join!(identity, self.processor.process(&records, limits));
        identity?.map_err(|other| self.other_log_error(other.to_string()))?;
        let mut batch = batch?;
        let next = find_end_after(&records, batch.records, end);
        self.append_rejected(&records, &batch.rejected).await?;
        self.forward(&batch.forwarded).await?;
        self.apply_changes(checkpoint, next, &mut batch.changes)
            .await?;
        if let Some(outbox) = &self.outbox {
            outbox.record_advance(batch.changes.outbox.len());
        }
        let rejected = batch.rejected.len() as u64;
        self.count(
            |all| &mut all.events,
            "backstitch_speed_events_total",
            batch.events,
        );
        self.count(
            |all| &mut all.duplicates,
            "backstitch_speed_duplicates_total",
            batch.duplicates,
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

    /// Applies changes to live state. If the store is full, it frees memory first.
    async fn apply_changes(
        &mut self,
        checkpoint: Checkpoint,
        next: Cut,
        changes: &mut Changes,
    ) -> Result<()> {
        loop {
            let (live, views) = (&self.ports.live, self.processor.views());
            let applied = live.apply(self.partition_id(), checkpoint, next, &views, changes);
            let full = match applied.await {
                Err(full @ stores::Error::Full { .. }) => full,
                applied => return applied?.map_err(|_| Error::CheckpointMismatch),
            };
            if self.processor.free_memory(checkpoint, changes).await? == StepOutcome::Idle {
                return Err(full.into());
            }
        }
    }

    /// Appends dead letters before the checkpoint passes them, so that none is lost. After a crash
    /// in between they are appended again; their origin shows that they are equal.
    async fn append_rejected(&self, records: &Records, rejected: &[RejectedInput]) -> Result<()> {
        let topic = self.source.topic();
        let dead_letter = |rejected: &RejectedInput| {
            let raw = records.values.value(rejected.index);
            let prefix = raw.get(..RAW_BYTES_MAX).unwrap_or(raw);
            let mut reason = rejected.reason.clone();
            if prefix.len() < raw.len() {
                // The origin still identifies the complete record.
                reason += &format!(
                    " (the first {} of {} bytes are kept)",
                    prefix.len(),
                    raw.len()
                );
            }
            let origin = LogPosition {
                topic,
                partition: self.partition,
                offset: records.offsets.value(rejected.index),
            };
            DeadLetter {
                source: self.source.name().to_owned(),
                reason,
                origin: origin.to_string(),
                at_ms: records.logged_at_ms.value(rejected.index),
                raw: prefix.to_vec(),
            }
        };
        let mut dead_letters: Vec<DeadLetter> = rejected.iter().map(dead_letter).collect();
        if !dead_letters.is_empty() {
            let suppressed = self.ports.suppressions.current().await?;
            for dead_letter in &mut dead_letters {
                suppressed.redact(self.source, dead_letter);
                // Searching binary data takes milliseconds.
                tokio::task::yield_now().await;
            }
        }
        append_dead_letters(
            &*self.ports.log_writes,
            self.source,
            &dead_letters,
            self.ports.clock.now_ms(),
        )
        .await?;
        Ok(())
    }

    /// Forwards notifications to their partition before the checkpoint passes them. After a crash
    /// in between they are sent again, which has no effect.
    async fn forward(&self, groups: &[Group]) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        let records = relay::build_notification_records(self.source, groups, self.partitions);
        let now_ms = self.ports.clock.now_ms();
        let topic = self.source.topic();
        let log_writes = &self.ports.log_writes;
        log_writes.append(topic, &records, now_ms).await?;
        let forwarded = "backstitch_speed_forwarded_total";
        metrics::counter!(forwarded, "source" => self.source.name()).increment(groups.len() as u64);
        Ok(())
    }

    /// Verifies that the partition state was computed from this log. Then the processor reads the
    /// required records before the checkpoint.
    async fn begin(&mut self, state: &PartitionState) -> Result<()> {
        let checkpoint = state.checkpoint();
        let is_current = self.processor.known_checkpoint().is_some_and(|known| {
            known.generation == checkpoint.generation && known.next_offset == checkpoint.next_offset
        });
        if is_current {
            return Ok(());
        }
        // The partition state may have been replaced.
        self.log_identity = LogIdentityVerifier::default();
        if let Some(last) = state.position.last {
            let topic = self.source.topic();
            self.log_identity
                .verify(&*self.ports.log, topic, self.partition, last)
                .await?
                .map_err(|other| self.other_log_error(other.to_string()))?;
        }
        let context = BatchContext {
            ports: &self.ports,
            source: self.source,
            partition: self.partition,
            options: &self.options,
            partitions: self.partitions,
        };
        self.processor
            .begin(&context, state)
            .await
            .map_err(|error| match error {
                Error::Store(error) => self.fetch_error(error),
                error => error,
            })
    }

    fn fetch_error(&self, error: stores::Error) -> Error {
        match error {
            stores::Error::OffsetOutOfRange { requested, end, .. } if requested > end => {
                self.other_log_error(format!(
                    "live state is at offset {requested}, but the log ends at {end}: records were lost, or the topic was recreated"
                ))
            }
            stores::Error::OffsetOutOfRange { requested, start, .. } => self.other_log_error(format!(
                "live state is at offset {requested}, but the log begins at {start}, after the newest batch run"
            )),
            other => other.into(),
        }
    }

    /// Explains a missing partition: of this topic, or of another one.
    async fn missing_partition_error(&self, error: stores::Error) -> Error {
        match self.ports.partitions(self.source).await {
            Ok(partitions) if partitions <= self.partition => {
                self.other_log_error("the topic was deleted".to_owned())
            }
            _ => error.into(),
        }
    }

    fn other_log_error(&self, problem: String) -> Error {
        Error::LogReplaced {
            topic: self.source.topic(),
            partition: self.partition,
            problem: format!("{problem}. Nothing was counted. {LOST_REMEDY}"),
        }
    }

    const fn partition_id(&self) -> PartitionId {
        PartitionId {
            source: self.source,
            partition: self.partition,
        }
    }

    fn count_refusal(&self) {
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

/// Finds the position after the first `processed` records. `end` is the position after all
/// records, with the last record before them.
fn find_end_after(records: &Records, processed: usize, end: Cut) -> Cut {
    let are_all_processed = processed >= records.len();
    Cut {
        next_offset: match are_all_processed {
            true => end.next_offset,
            false => records.offsets.value(processed),
        },
        last: records
            .slice(0, processed.min(records.len()))
            .last()
            .or(end.last),
    }
}

fn to_gauge_value(number: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    {
        number as f64
    }
}
