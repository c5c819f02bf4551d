//! Facts: events are decoded, each counted once, and folded into deltas.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use async_trait::async_trait;
use jobs::TallyFold;
use schemas::avro::{Writers, is_framed};
use schemas::plays::{Decoded, Decoder, Line, identities, without_listeners};
use schemas::seam::{Fence, LastRecord, Offset, Slot};
use stores::erasures::Suppressed;
use stores::live::{Changes, Deltas, LiveWrite, SlotId};
use stores::log::{FetchLimit, Records};
use stores::registry::{Schemas, writers_of};

use crate::homes::Homes;
use crate::processor::{BatchOutcome, BatchProcessor, Before, Limits};
use crate::window::{Noted, Window};
use crate::{Error, Result};

/// A reread fetches 1/32 more records than `dedup_events_max`, because some records are not events.
const RECORDS_RESERVE: usize = 32;

/// The duplicate window, as of a checkpoint.
#[derive(Debug)]
struct Remembered {
    fence: Fence,
    window: Window,
    /// Events of a micro-batch that was not applied yet.
    unapplied: Vec<Noted>,
    /// The partition state was at this checkpoint when it was seen last.
    is_current: bool,
}

/// Counts the events of one partition.
#[derive(Debug)]
pub(crate) struct Facts {
    partition: u32,
    homes: Homes,
    fold: TallyFold,
    schemas: Arc<dyn Schemas>,
    /// Listeners who are taken out of events.
    suppressed: Arc<Suppressed>,
    /// Records from the fence on that were set aside before, by who did not come to move it.
    set_aside: BTreeSet<Offset>,
    window: Option<Remembered>,
    /// So many records at once were not too many lately.
    records_fit: usize,
}

impl Facts {
    pub(crate) fn new(partition: u32, fold: TallyFold, schemas: Arc<dyn Schemas>) -> Self {
        Self {
            partition,
            homes: Homes::new(partition),
            fold,
            schemas,
            suppressed: Arc::default(),
            set_aside: BTreeSet::new(),
            window: None,
            records_fit: usize::MAX,
        }
    }

    /// Reads the end of the log below `end` again, as far as a window holds it.
    async fn read_window(
        &self,
        before: &Before<'_>,
        end: Offset,
        last: LastRecord,
    ) -> Result<Window> {
        let options = before.options;
        let (log, topic) = (&before.ports.log, before.source.topic());
        let since_ms = last.logged_at_ms.saturating_sub(options.dedup_window_ms);
        let first = log.offset_at(topic, before.partition, since_ms).await?;
        let events_max = options.dedup_events_max.max(1);
        // Some records are no events.
        let mut records = events_max.saturating_add(events_max / RECORDS_RESERVE);
        loop {
            let back = Offset::try_from(records).unwrap_or(Offset::MAX);
            let from = first.max(end.saturating_sub(back));
            let (mut window, mut next) = (new_window(before), from);
            let events = self.remember(before, &mut window, (&mut next, end), last);
            if events.await? >= events_max || from == first {
                return Ok(window);
            }
            records = records.saturating_mul(2);
        }
    }

    /// Notes the events of the log from `next` on, which moves, up to `end`. Returns their number.
    async fn remember(
        &self,
        before: &Before<'_>,
        window: &mut Window,
        (next, end): (&mut Offset, Offset),
        last: LastRecord,
    ) -> Result<usize> {
        let options = before.options;
        let (log, topic) = (&before.ports.log, before.source.topic());
        // What could not be read at the time did not count, even if it can be read by now.
        let mut not_counted = None;
        let mut events = 0;
        while *next < end {
            let left = usize::try_from(end - *next).unwrap_or(usize::MAX);
            let limit = FetchLimit {
                records: options.records_max.min(left),
                bytes: options.bytes_max,
            };
            let fetched = log.fetch(topic, before.partition, *next, limit).await?;
            if fetched.next_offset == *next {
                break;
            }
            let offsets = fetched.records.offsets.values();
            let below = offsets.partition_point(|offset| *offset < end);
            let records = fetched.records.slice(0, below);
            let mut decoded = self.decode(&records).await?;
            if records.values.iter().flatten().any(is_framed) {
                if not_counted.is_none() {
                    let since_ms = last.logged_at_ms.saturating_sub(options.dedup_window_ms);
                    not_counted = Some(before.set_aside(since_ms).await?);
                }
                leave_out(&mut decoded, not_counted.as_ref())?;
            }
            events += note(window, &decoded.events)?.len();
            *next = fetched.next_offset;
        }
        Ok(events)
    }

    async fn take_all(&mut self, records: &Records, partitions: u32) -> Result<BatchOutcome> {
        let mut decoded = self.decode(records).await?;
        leave_out(&mut decoded, Some(&self.set_aside))?;
        let strays = self.has_strays(&decoded.events, partitions)?;
        let (mut events, noted) = self.first_of_each(&decoded.events)?;
        let suppressed = |id| self.suppressed.has_listener(id);
        if self.suppressed.newest_listener() > 0
            && let Some(without) = without_listeners(&events, suppressed)
        {
            events = without;
        }
        let mut deltas = Vec::new();
        if events.num_rows() > 0 {
            let folded = self.fold.run(&events).await?.into_iter();
            deltas.extend(folded.map(|of| Deltas {
                view: of.job.view().to_owned(),
                grouped_by: of.job.group().names(),
                groups: of.groups,
                rows: of.rows,
                counts: of.counts,
            }));
        }
        let taken = BatchOutcome {
            records: records.len(),
            changes: Changes {
                deltas,
                strays,
                ..Changes::default()
            },
            events: events.num_rows() as u64,
            duplicates: noted.saturating_sub(events.num_rows()) as u64,
            rejected: decoded.rejected,
            ..BatchOutcome::default()
        };
        Ok(taken)
    }

    async fn decode(&self, records: &Records) -> Result<Decoded> {
        let writers = writers_of(&*self.schemas, &records.values).await?;
        // Arrays are shared, so this copies no records.
        let (partition, records) = (self.partition, records.clone());
        let work = move || decode(partition, &records, &writers);
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Error::Fault(format!("decoding ended: {error}")))?
    }

    /// Whether an event's owner belongs to another partition.
    fn has_strays(&mut self, events: &RecordBatch, partitions: u32) -> Result<bool> {
        let owners = events
            .column_by_name("owner_id")
            .and_then(|column| column.as_primitive_opt::<Int64Type>())
            .ok_or_else(|| Error::Fault("events without owner_id".to_owned()))?;
        Ok(self.homes.has_strays(owners.values(), partitions))
    }

    /// The events that are the first of their identity in the window, and how many were looked at.
    fn first_of_each(&mut self, events: &RecordBatch) -> Result<(RecordBatch, usize)> {
        let Some(kept) = &mut self.window else {
            return Err(Error::Fault(
                "a micro-batch without a duplicate window".to_owned(),
            ));
        };
        let noted = note(&mut kept.window, events)?;
        let keep: BooleanArray = noted.iter().map(|noted| Some(noted.is_first())).collect();
        let count = noted.len();
        kept.unapplied = noted;
        let firsts = filter_record_batch(events, &keep)
            .map_err(|error| Error::Fault(format!("filtering duplicates: {error}")))?;
        Ok((firsts, count))
    }
}

#[async_trait]
impl BatchProcessor for Facts {
    fn views(&self) -> Vec<&str> {
        self.fold.views()
    }

    fn reaches(&self) -> Option<&Fence> {
        let current = self.window.as_ref().filter(|kept| kept.is_current);
        current.map(|kept| &kept.fence)
    }

    /// Brings the duplicate window to the checkpoint: reads what the log has after the window of the same generation, or
    /// all that a new window holds.
    async fn begin(&mut self, before: &Before<'_>, slot: &Slot) -> Result<()> {
        let (fence, last) = (slot.fence(), slot.position.last);
        // A life that begins with the log has met nothing yet, but one before it may have.
        let since_ms = last.map_or(0, |last| last.logged_at_ms);
        let mut set_aside = before.set_aside(since_ms).await?;
        self.set_aside = set_aside.split_off(&fence.next_offset);
        let kept = self.window.take().filter(|kept| {
            let ahead = fence.next_offset.checked_sub(kept.fence.next_offset);
            let ahead = ahead.and_then(|records| usize::try_from(records).ok());
            let is_short = ahead.is_some_and(|records| records <= before.options.records_max);
            kept.fence.generation == fence.generation && is_short
        });
        if let (Some(mut kept), Some(last)) = (kept, last) {
            let (window, from) = (&mut kept.window, &mut kept.fence.next_offset);
            let read = self.remember(before, window, (from, fence.next_offset), last);
            let read = read.await;
            // Also where it failed: the window is whole up to where it has come.
            kept.is_current = read.is_ok();
            kept.fence = match read {
                Ok(_) => fence,
                Err(_) => kept.fence,
            };
            self.window = Some(kept);
            return read.map(drop);
        }
        let window = match last {
            Some(last) => self.read_window(before, fence.next_offset, last).await?,
            None => new_window(before),
        };
        self.window = Some(Remembered {
            fence,
            window,
            unapplied: Vec::new(),
            is_current: true,
        });
        Ok(())
    }

    /// Learns who is suppressed. Whoever was when the epoch began is among them if this is called after
    /// the slot was read.
    fn suppress(&mut self, suppressed: Arc<Suppressed>) {
        self.suppressed = suppressed;
    }

    /// Takes as many of the records as come to `limits.rows_max` rows, at least one: half of them as long as
    /// these are more.
    async fn process(&mut self, records: &Records, limits: Limits) -> Result<BatchOutcome> {
        let mut records = records.clone();
        loop {
            let taken = self.take_all(&records, limits.partitions).await?;
            let rows = taken.changes.rows();
            if rows <= limits.rows_max || records.len() <= 1 {
                if rows <= limits.rows_max / 2 {
                    self.records_fit = self.records_fit.saturating_mul(2);
                }
                return Ok(taken);
            }
            // The other half must not find itself in the window.
            if let Some(kept) = &mut self.window {
                kept.take_back();
            }
            self.records_fit = records.len() / 2;
            records = records.slice(0, self.records_fit);
        }
    }

    fn rows_max(&self, live: &dyn LiveWrite, slot: SlotId) -> usize {
        live.deltas_max(slot)
    }

    fn records_fit(&self) -> usize {
        self.records_fit
    }

    fn reached(&mut self, fence: Fence) {
        if let Some(kept) = &mut self.window {
            kept.fence = fence;
            kept.unapplied.clear();
        }
    }

    /// The last micro-batch may not count, and the partition state may have moved. What the window holds up to its checkpoint
    /// is a function of the log alone, and stays.
    fn forget(&mut self) {
        if let Some(kept) = &mut self.window {
            kept.take_back();
            kept.is_current = false;
        }
    }
}

impl Remembered {
    /// Restores the window to its checkpoint.
    fn take_back(&mut self) {
        self.window.take_back(std::mem::take(&mut self.unapplied));
    }
}

fn new_window(before: &Before<'_>) -> Window {
    let options = before.options;
    Window::new(options.dedup_window_ms, options.dedup_events_max)
}

fn decode(partition: u32, records: &Records, writers: &Writers) -> Result<Decoded> {
    let lines = (0..records.len()).map(|index| Line {
        offset: records.offsets.value(index),
        logged_at_ms: records.logged_at_ms.value(index),
        bytes: records.values.value(index),
    });
    Decoder::new(partition)
        .decode_records(lines, writers)
        .map_err(|error| Error::Fault(format!("decoding a micro-batch: {error}")))
}

/// Leaves out what became a dead letter, and so counts no more.
fn leave_out(decoded: &mut Decoded, set_aside: Option<&BTreeSet<Offset>>) -> Result<()> {
    if let Some(set_aside) = set_aside {
        let left_out = decoded.leave_out(set_aside);
        left_out.map_err(|error| Error::Fault(format!("leaving dead letters out: {error}")))?;
    }
    Ok(())
}

fn note(window: &mut Window, events: &RecordBatch) -> Result<Vec<Noted>> {
    let logged_at = events
        .column_by_name("logged_at")
        .and_then(|column| column.as_primitive_opt::<TimestampMillisecondType>())
        .ok_or_else(|| Error::Fault("events without logged_at".to_owned()))?;
    Ok(identities(events)
        .into_iter()
        .zip(logged_at.values())
        .map(|(identity, at)| window.note(identity, *at))
        .collect())
}
