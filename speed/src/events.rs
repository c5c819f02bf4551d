//! Processes events: decodes them, drops duplicates and folds them into deltas.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use async_trait::async_trait;
use jobs::AggregateFold;
use schemas::avro::{WriterSchemas, is_framed};
use schemas::plays::{DecodedPlays, Decoder, Line, event_identities, redact_listeners};
use schemas::seam::{Checkpoint, LastRecord, Offset, PartitionState};
use stores::erasures::SuppressedPeople;
use stores::live::{Changes, Deltas, LiveWrite, PartitionId};
use stores::log::{FetchLimit, Records};
use stores::registry::{SchemaSource, read_writer_schemas};

use crate::ownership::OwnershipCache;
use crate::processor::{BatchContext, BatchOutcome, BatchProcessor, Limits};
use crate::window::{Window, WindowUpdate};
use crate::{Error, Result};

/// A reread fetches more records than `dedup_events_max` by this fraction (1/32), because some
/// records are not events.
const RESERVE_DIVISOR: usize = 32;

/// The duplicate window at a checkpoint.
#[derive(Debug)]
struct DedupWindow {
    checkpoint: Checkpoint,
    window: Window,
    /// Window updates of a micro-batch that was not applied yet.
    unapplied: Vec<WindowUpdate>,
    /// The partition state was at this checkpoint when it was last read.
    is_current: bool,
}

/// Counts the events of one partition.
#[derive(Debug)]
pub(crate) struct EventProcessor {
    partition: u32,
    ownership: OwnershipCache,
    fold: AggregateFold,
    schemas: Arc<dyn SchemaSource>,
    /// Listeners to remove from events.
    suppressed: Arc<SuppressedPeople>,
    /// Records after the checkpoint that an earlier worker dead-lettered without advancing the
    /// checkpoint.
    dead_lettered: BTreeSet<Offset>,
    dedup: Option<DedupWindow>,
    /// Number of records that recently fitted into one micro-batch.
    records_fit: usize,
}

impl EventProcessor {
    pub(crate) fn new(partition: u32, fold: AggregateFold, schemas: Arc<dyn SchemaSource>) -> Self {
        Self {
            partition,
            ownership: OwnershipCache::new(partition),
            fold,
            schemas,
            suppressed: Arc::default(),
            dead_lettered: BTreeSet::new(),
            dedup: None,
            records_fit: usize::MAX,
        }
    }

    /// Rereads the log before `end` to fill a duplicate window.
    async fn read_window(
        &self,
        context: &BatchContext<'_>,
        end: Offset,
        last: LastRecord,
    ) -> Result<Window> {
        let options = context.options;
        let (log, topic) = (&context.ports.log, context.source.topic());
        let since_ms = last.logged_at_ms.saturating_sub(options.dedup_window_ms);
        let first = log.offset_at(topic, context.partition, since_ms).await?;
        let events_max = options.dedup_events_max.max(1);
        // Some records are not events.
        let mut records = events_max.saturating_add(events_max / RESERVE_DIVISOR);
        loop {
            let count = Offset::try_from(records).unwrap_or(Offset::MAX);
            let start = first.max(end.saturating_sub(count));
            let (mut window, mut next) = (create_window(context), start);
            let events = self.read_events(context, &mut window, &mut next, end, last);
            if events.await? >= events_max || start == first {
                return Ok(window);
            }
            records = records.saturating_mul(2);
        }
    }

    /// Adds the events of the log from `next` to `end` to the window, and advances `next`. Returns
    /// the number of events.
    async fn read_events(
        &self,
        context: &BatchContext<'_>,
        window: &mut Window,
        next: &mut Offset,
        end: Offset,
        last: LastRecord,
    ) -> Result<usize> {
        let options = context.options;
        let (log, topic) = (&context.ports.log, context.source.topic());
        // Records that could not be decoded at the time did not count, even if they can be decoded
        // now.
        let mut dead_lettered = None;
        let mut events = 0;
        while *next < end {
            let remaining = usize::try_from(end - *next).unwrap_or(usize::MAX);
            let limit = FetchLimit {
                records: options.records_max.min(remaining),
                bytes: options.bytes_max,
            };
            let fetched = log.fetch(topic, context.partition, *next, limit).await?;
            if fetched.next_offset == *next {
                break;
            }
            let offsets = fetched.records.offsets.values();
            let count = offsets.partition_point(|offset| *offset < end);
            let records = fetched.records.slice(0, count);
            let mut decoded = self.decode(&records).await?;
            if records.values.iter().flatten().any(is_framed) {
                if dead_lettered.is_none() {
                    let since_ms = last.logged_at_ms.saturating_sub(options.dedup_window_ms);
                    dead_lettered = Some(context.dead_lettered_offsets(since_ms).await?);
                }
                drop_dead_letters(&mut decoded, dead_lettered.as_ref())?;
            }
            events += add_to_window(window, &decoded.events)?.len();
            *next = fetched.next_offset;
        }
        Ok(events)
    }

    async fn process_all(&mut self, records: &Records, partitions: u32) -> Result<BatchOutcome> {
        let mut decoded = self.decode(records).await?;
        drop_dead_letters(&mut decoded, Some(&self.dead_lettered))?;
        let has_misrouted = self.has_misrouted(&decoded.events, partitions)?;
        let (mut events, event_count) = self.select_first_events(&decoded.events)?;
        let suppressed = |id| self.suppressed.contains_listener(id);
        if self.suppressed.newest_listener() > 0
            && let Some(redacted) = redact_listeners(&events, suppressed)
        {
            events = redacted;
        }
        let mut deltas = Vec::new();
        if events.num_rows() > 0 {
            let folded = self.fold.run(&events).await?.into_iter();
            deltas.extend(folded.map(|rows| Deltas {
                view: rows.job.view().to_owned(),
                grouped_by: rows.job.group().join_names(),
                groups: rows.groups,
                rows: rows.rows,
                counts: rows.counts,
            }));
        }
        let outcome = BatchOutcome {
            records: records.len(),
            changes: Changes {
                deltas,
                has_misrouted,
                ..Changes::default()
            },
            events: events.num_rows() as u64,
            duplicates: event_count.saturating_sub(events.num_rows()) as u64,
            rejected: decoded.rejected,
            ..BatchOutcome::default()
        };
        Ok(outcome)
    }

    async fn decode(&self, records: &Records) -> Result<DecodedPlays> {
        let writers = read_writer_schemas(&*self.schemas, &records.values).await?;
        // Arrays are shared, so cloning copies no records.
        let (partition, records) = (self.partition, records.clone());
        let work = move || decode_all(partition, &records, &writers);
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Error::Fault(format!("the decoding task failed: {error}")))?
    }

    /// Returns whether the owner of an event belongs to another partition.
    fn has_misrouted(&mut self, events: &RecordBatch, partitions: u32) -> Result<bool> {
        let owners = events
            .column_by_name("owner_id")
            .and_then(|column| column.as_primitive_opt::<Int64Type>())
            .ok_or_else(|| Error::Fault("events have no column owner_id".to_owned()))?;
        Ok(self.ownership.has_misrouted(owners.values(), partitions))
    }

    /// Selects the first event of each identity. Also returns the number of all events.
    fn select_first_events(&mut self, events: &RecordBatch) -> Result<(RecordBatch, usize)> {
        let Some(dedup) = &mut self.dedup else {
            return Err(Error::Fault(
                "a micro-batch has no duplicate window".to_owned(),
            ));
        };
        let updates = add_to_window(&mut dedup.window, events)?;
        let keep: BooleanArray = updates
            .iter()
            .map(|update| Some(update.is_first()))
            .collect();
        let count = updates.len();
        dedup.unapplied = updates;
        let first_events = filter_record_batch(events, &keep)
            .map_err(|error| Error::Fault(format!("cannot filter duplicates: {error}")))?;
        Ok((first_events, count))
    }
}

#[async_trait]
impl BatchProcessor for EventProcessor {
    fn views(&self) -> Vec<&str> {
        self.fold.views()
    }

    fn known_checkpoint(&self) -> Option<&Checkpoint> {
        let current = self.dedup.as_ref().filter(|dedup| dedup.is_current);
        current.map(|dedup| &dedup.checkpoint)
    }

    /// Brings the duplicate window to the checkpoint. It continues the window of the same
    /// generation, or fills a new one.
    async fn begin(&mut self, context: &BatchContext<'_>, state: &PartitionState) -> Result<()> {
        let (checkpoint, last) = (state.checkpoint(), state.position.last);
        // A generation that starts with the log has an empty window, but an earlier generation may
        // have dead-lettered records.
        let since_ms = last.map_or(0, |last| last.logged_at_ms);
        let mut dead_lettered = context.dead_lettered_offsets(since_ms).await?;
        self.dead_lettered = dead_lettered.split_off(&checkpoint.next_offset);
        let dedup = self.dedup.take().filter(|dedup| {
            let ahead = checkpoint
                .next_offset
                .checked_sub(dedup.checkpoint.next_offset);
            let ahead = ahead.and_then(|records| usize::try_from(records).ok());
            let is_near = ahead.is_some_and(|records| records <= context.options.records_max);
            dedup.checkpoint.generation == checkpoint.generation && is_near
        });
        if let (Some(mut dedup), Some(last)) = (dedup, last) {
            let (window, window_end) = (&mut dedup.window, &mut dedup.checkpoint.next_offset);
            let read = self.read_events(context, window, window_end, checkpoint.next_offset, last);
            let read = read.await;
            // After an error, the window is still complete up to its new checkpoint.
            dedup.is_current = read.is_ok();
            dedup.checkpoint = match read {
                Ok(_) => checkpoint,
                Err(_) => dedup.checkpoint,
            };
            self.dedup = Some(dedup);
            return read.map(drop);
        }
        let window = match last {
            Some(last) => {
                self.read_window(context, checkpoint.next_offset, last)
                    .await?
            }
            None => create_window(context),
        };
        self.dedup = Some(DedupWindow {
            checkpoint,
            window,
            unapplied: Vec::new(),
            is_current: true,
        });
        Ok(())
    }

    /// Sets the suppressed people. If called after the partition state was read, they include
    /// everyone who was suppressed when the epoch began.
    fn suppress(&mut self, suppressed: Arc<SuppressedPeople>) {
        self.suppressed = suppressed;
    }

    /// Processes the records, or the first part of them: the batch is halved until it changes at
    /// most `limits.rows_max` rows, or has one record.
    async fn process(&mut self, records: &Records, limits: Limits) -> Result<BatchOutcome> {
        let mut records = records.clone();
        loop {
            let outcome = self.process_all(&records, limits.partitions).await?;
            let rows = outcome.changes.rows();
            if rows <= limits.rows_max || records.len() <= 1 {
                if rows <= limits.rows_max / 2 {
                    self.records_fit = self.records_fit.saturating_mul(2);
                }
                return Ok(outcome);
            }
            // The next micro-batch must not find these records in the window.
            if let Some(dedup) = &mut self.dedup {
                dedup.undo();
            }
            self.records_fit = records.len() / 2;
            records = records.slice(0, self.records_fit);
        }
    }

    fn rows_max(&self, live: &dyn LiveWrite, id: PartitionId) -> usize {
        live.deltas_max(id)
    }

    fn records_fit(&self) -> usize {
        self.records_fit
    }

    fn on_applied(&mut self, checkpoint: Checkpoint) {
        if let Some(dedup) = &mut self.dedup {
            dedup.checkpoint = checkpoint;
            dedup.unapplied.clear();
        }
    }

    /// The last micro-batch may not count, and the partition state may have changed. The window up
    /// to its checkpoint depends only on the log, so it remains valid.
    fn reset(&mut self) {
        if let Some(dedup) = &mut self.dedup {
            dedup.undo();
            dedup.is_current = false;
        }
    }
}

impl DedupWindow {
    /// Restores the window to its checkpoint.
    fn undo(&mut self) {
        self.window.undo(std::mem::take(&mut self.unapplied));
    }
}

fn create_window(context: &BatchContext<'_>) -> Window {
    let options = context.options;
    Window::new(options.dedup_window_ms, options.dedup_events_max)
}

fn decode_all(partition: u32, records: &Records, writers: &WriterSchemas) -> Result<DecodedPlays> {
    let lines = (0..records.len()).map(|index| Line {
        offset: records.offsets.value(index),
        logged_at_ms: records.logged_at_ms.value(index),
        bytes: records.values.value(index),
    });
    Decoder::new(partition)
        .decode_records(lines, writers)
        .map_err(|error| Error::Fault(format!("cannot decode a micro-batch: {error}")))
}

/// Removes records that became dead letters. They never count.
fn drop_dead_letters(decoded: &mut DecodedPlays, offsets: Option<&BTreeSet<Offset>>) -> Result<()> {
    if let Some(offsets) = offsets {
        let excluded = decoded.exclude_offsets(offsets);
        excluded.map_err(|error| Error::Fault(format!("cannot exclude dead letters: {error}")))?;
    }
    Ok(())
}

fn add_to_window(window: &mut Window, events: &RecordBatch) -> Result<Vec<WindowUpdate>> {
    let logged_at = events
        .column_by_name("logged_at")
        .and_then(|column| column.as_primitive_opt::<TimestampMillisecondType>())
        .ok_or_else(|| Error::Fault("events have no column logged_at".to_owned()))?;
    Ok(event_identities(events)
        .into_iter()
        .zip(logged_at.values())
        .map(|(identity, logged_at_ms)| window.record(identity, *logged_at_ms))
        .collect())
}
