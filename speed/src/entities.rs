//! Processes entity notifications. A notification names a group. The group's rows are read again,
//! and the views' results over these rows replace the group's entries.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::BinaryBuilder;
use async_trait::async_trait;
use jobs::board::{BoardEntry, MemberEntries};
use jobs::{Board, Fold, FoldOutput};
use schemas::achievement::NotificationPosition;
use schemas::entities::{CacheMiss, Group, Notifications};
use schemas::key::KeyValue;
use schemas::plays::RejectedInput;
use schemas::seam::{Checkpoint, Epoch, PartitionState};
use stores::entities::EntityRead;
use stores::live::{Changes, Entries, LiveWrite, PartitionId};
use stores::log::Records;
use stores::registry::{SchemaSource, read_writer_schemas};

use crate::boards::{CachedBoards, StepOutcome};
use crate::changes::{ChangeDetector, NotifiedGroup};
use crate::live_counts::LiveCounts;
use crate::processor::{BatchContext, BatchOutcome, BatchProcessor, Limits};
use crate::recount::RecountQueue;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Maximum cache misses that one micro-batch handles. Readers report the others again.
const MISSES_MAX: usize = 64;

/// Updates the live entries of one partition.
#[derive(Debug)]
pub(crate) struct EntityProcessor {
    id: PartitionId,
    entities: Arc<dyn EntityRead>,
    schemas: Arc<dyn SchemaSource>,
    fold: Fold<Board>,
    /// Maximum groups per read.
    groups_max: usize,
    /// Maximum rows per read, unless one group has more.
    rows_max: usize,
    /// Derives messages for the change outbox.
    change_detector: ChangeDetector,
    /// Maintains cached boards.
    boards: CachedBoards,
    /// Maintains live counts.
    live_counts: LiveCounts,
    /// Cache misses in the last processed micro-batch.
    missed: Vec<CacheMiss>,
    /// Receives the keys to recount, if any are recounted.
    recount_queue: Option<Arc<RecountQueue>>,
    /// The key of each group of the last processed micro-batch.
    recounted_keys: Vec<i64>,
    known_checkpoint: Option<Checkpoint>,
}

impl EntityProcessor {
    pub(crate) fn new(
        id: PartitionId,
        ports: &SpeedPorts,
        options: &SpeedOptions,
        fold: Fold<Board>,
    ) -> Self {
        let jobs = fold.jobs().map(Arc::clone).collect();
        Self {
            id,
            entities: Arc::clone(&ports.entities) as _,
            schemas: Arc::clone(&ports.schemas),
            fold,
            groups_max: options.groups_max.max(1),
            rows_max: options.rows_max,
            change_detector: ChangeDetector::new(id, ports),
            boards: CachedBoards::new(id, ports, jobs, options),
            live_counts: LiveCounts::new(id, ports, options),
            missed: Vec::new(),
            recount_queue: None,
            recounted_keys: Vec::new(),
            known_checkpoint: None,
        }
    }

    /// Adds the keys of applied micro-batches to a recount queue.
    pub(crate) fn with_recounts(mut self, queue: Option<Arc<RecountQueue>>) -> Self {
        if let Some(queue) = &queue {
            // The previous owner of the partition may have stopped before it recounted its keys.
            queue.mark_incomplete();
        }
        self.recount_queue = queue;
        self
    }

    fn queue_recounts(&mut self) {
        let recounted_keys = std::mem::take(&mut self.recounted_keys);
        if let Some(queue) = &self.recount_queue {
            queue.add_events(recounted_keys);
        }
    }

    /// Derives outbox messages and cache updates from the new entries.
    async fn derive_changes(
        &mut self,
        outcome: &mut BatchOutcome,
        notified: &[NotifiedGroup],
        limits: Limits,
    ) -> Result<()> {
        let jobs: Vec<_> = self.fold.jobs().map(Arc::clone).collect();
        let changes = &mut outcome.changes;
        changes.outbox = self
            .change_detector
            .detect(limits, &jobs, notified, &changes.entries)
            .await?;
        changes.boards = self
            .boards
            .compute_changes(limits.checkpoint, &changes.entries)
            .await?;
        Ok(())
    }

    /// Updates live counts for the new entries and for readers that missed one.
    async fn update_live_counts(
        &mut self,
        outcome: &mut BatchOutcome,
        limits: Limits,
    ) -> Result<()> {
        let entries = &outcome.changes.entries;
        let missed = self
            .missed
            .iter()
            .filter(|miss| miss.wants_live_count)
            .cloned();
        let missed: Vec<CacheMiss> = missed.collect();
        if entries.is_empty() && missed.is_empty() {
            return Ok(());
        }
        let jobs: Vec<_> = self.fold.jobs().map(Arc::clone).collect();
        outcome.changes.live_counts = self
            .live_counts
            .compute_changes(limits, &jobs, entries, &missed)
            .await?;
        Ok(())
    }

    fn build_notified_group(&self, group: Group, records: &Records, index: usize) -> NotifiedGroup {
        let PartitionId { source, partition } = self.id;
        NotifiedGroup {
            group,
            position: NotificationPosition {
                source,
                partition,
                offset: records.offsets.value(index),
            },
            at_ms: records.logged_at_ms.value(index),
        }
    }

    async fn decode_notifications(&self, records: &Records) -> Result<Notifications> {
        let writers = read_writer_schemas(&*self.schemas, &records.values).await?;
        let bytes = records.values.iter().map(Option::unwrap_or_default);
        Notifications::read(self.id.source, bytes, &writers)
            .map_err(|error| Error::Fault(format!("cannot decode notifications: {error}")))
    }

    /// Computes the entries of the first groups, by view. Also returns the number of these groups.
    async fn compute_entries(&self, groups: &[Group]) -> Result<(Vec<Entries>, usize)> {
        let rows_max = self.rows_max;
        let read = self.entities.first_groups(self.id.source, groups, rows_max);
        let read = read.await?;
        let Some(groups) = groups
            .get(..read.groups)
            .filter(|groups| !groups.is_empty())
        else {
            let problem = format!(
                "the entity store returned {} groups of {}",
                read.groups,
                groups.len()
            );
            return Err(Error::Fault(problem));
        };
        let folded = self.fold.run(&read.rows).await?;
        let entries = folded
            .iter()
            .map(|folded| encode_group_entries(folded, groups));
        Ok((entries.collect::<Result<_>>()?, groups.len()))
    }
}

#[async_trait]
impl BatchProcessor for EntityProcessor {
    fn views(&self) -> Vec<&str> {
        self.fold.views()
    }

    fn known_checkpoint(&self) -> Option<&Checkpoint> {
        self.known_checkpoint.as_ref()
    }

    async fn begin(&mut self, context: &BatchContext<'_>, state: &PartitionState) -> Result<()> {
        let jobs: Vec<_> = self.fold.jobs().map(Arc::clone).collect();
        self.change_detector.begin(state, &jobs).await?;
        self.boards.begin(state, context.partitions).await?;
        self.known_checkpoint = Some(state.checkpoint());
        Ok(())
    }

    fn set_newest_epochs(&mut self, newest: &BTreeMap<String, Epoch>) {
        self.boards.set_newest_epochs(newest);
        self.live_counts.set_newest_epochs(newest);
    }

    /// Processes notifications until they reach the group limit, the row limit, or `rows_max`
    /// changed entries; a group has one in each view. A notification for another partition is
    /// forwarded, so that one partition stores all entries of a group.
    async fn process(&mut self, records: &Records, limits: Limits) -> Result<BatchOutcome> {
        let groups_max = (limits.rows_max / self.views().len().max(1)).clamp(1, self.groups_max);
        let (mut groups, mut seen_groups) = (Vec::new(), HashSet::new());
        // By group: the index of the first record that names it.
        let mut first_records = Vec::new();
        let mut misrouted = Vec::new();
        let mut outcome = BatchOutcome::default();
        self.missed.clear();
        let mut misses = 0;
        let notifications = self.decode_notifications(records).await?;
        let offsets = records.offsets.values();
        for (index, value) in records.values.iter().enumerate() {
            let first = offsets.first().zip(offsets.get(index));
            if first
                .is_some_and(|(first, offset)| self.change_detector.splits_batch(*first, *offset))
            {
                break;
            }
            match notifications.group(index, value.unwrap_or_default()) {
                Ok(group) if seen_groups.contains(&group) => {}
                Ok(group) if group.partition(limits.partitions) != self.id.partition => {
                    seen_groups.insert(group);
                    misrouted.push((index, group));
                }
                Ok(_) if groups.len() >= groups_max => break,
                Ok(group) => {
                    seen_groups.insert(group);
                    groups.push(group);
                    first_records.push(index);
                }
                Err(reason) => match CacheMiss::decode(self.id.source, value.unwrap_or_default()) {
                    Some(miss) => {
                        misses += 1;
                        if self.missed.len() < MISSES_MAX {
                            self.missed.push(miss);
                        }
                    }
                    None => outcome.rejected.push(RejectedInput { index, reason }),
                },
            }
            outcome.records = index + 1;
        }
        if !groups.is_empty() {
            let (entries, read_groups) = self.compute_entries(&groups).await?;
            outcome.changes.entries = entries;
            if let Some(next) = first_records.get(read_groups) {
                outcome.records = *next;
                outcome.rejected.retain(|rejected| rejected.index < *next);
            }
            groups.truncate(read_groups);
            let notified: Vec<NotifiedGroup> = groups
                .iter()
                .zip(&first_records)
                .map(|(group, index)| self.build_notified_group(*group, records, *index))
                .collect();
            self.derive_changes(&mut outcome, &notified, limits).await?;
        }
        self.update_live_counts(&mut outcome, limits).await?;
        misrouted.retain(|(index, _)| *index < outcome.records);
        outcome.forwarded = misrouted.into_iter().map(|(_, group)| group).collect();
        outcome.events = groups.len() as u64;
        self.recounted_keys = match &self.recount_queue {
            Some(_) => groups.iter().map(|group| group.key).collect(),
            None => Vec::new(),
        };
        let originals = groups.len() + outcome.rejected.len() + outcome.forwarded.len() + misses;
        outcome.duplicates = outcome.records.saturating_sub(originals) as u64;
        Ok(outcome)
    }

    fn rows_max(&self, live: &dyn LiveWrite, _: PartitionId) -> usize {
        live.entries_max()
    }

    async fn free_memory(
        &mut self,
        checkpoint: Checkpoint,
        changes: &mut Changes,
    ) -> Result<StepOutcome> {
        self.boards
            .free_memory(checkpoint, &mut changes.boards)
            .await
    }

    fn on_applied(&mut self, checkpoint: Checkpoint) {
        self.change_detector.on_applied();
        let missed = std::mem::take(&mut self.missed).into_iter();
        for miss in missed.filter(|miss| !miss.wants_live_count) {
            self.boards.request(miss);
        }
        self.queue_recounts();
        self.known_checkpoint = Some(checkpoint);
    }

    fn reset(&mut self) {
        self.change_detector.reset();
        self.boards.reset();
        self.live_counts.reset();
        self.missed.clear();
        // It is unknown whether the micro-batch was applied. An unnecessary recount is harmless.
        self.queue_recounts();
        self.known_checkpoint = None;
    }

    async fn step(&mut self, checkpoint: Checkpoint, partitions: u32) -> Result<StepOutcome> {
        self.boards.step(checkpoint, partitions).await
    }
}

/// Encodes the entries of all `groups`, including groups without rows.
fn encode_group_entries(folded: &FoldOutput<Board>, groups: &[Group]) -> Result<Entries> {
    let job = &folded.job;
    let fault =
        |error: schemas::key::KeyError| Error::Fault(format!("cannot encode a group: {error}"));
    let mut entries_by_group: BTreeMap<(Vec<u8>, Vec<u8>), MemberEntries> = BTreeMap::new();
    for group in groups {
        let key = job.key().encode_values(&[KeyValue::Int(group.key)]);
        let member = job.member().encode_values(&[KeyValue::Int(group.member)]);
        entries_by_group.insert(
            (key.map_err(fault)?, member.map_err(fault)?),
            MemberEntries::default(),
        );
    }
    let rows = folded.encode_board_rows()?;
    for row in 0..rows.len() {
        let group = (
            rows.keys.value(row).to_vec(),
            rows.members.value(row).to_vec(),
        );
        let entries = entries_by_group.get_mut(&group).ok_or_else(|| {
            Error::Fault(format!(
                "job {}: the query returned a row of another group",
                job.name()
            ))
        })?;
        entries.entries.push(BoardEntry {
            board: rows.boards.value(row).to_vec(),
            score: rows.scores.value(row).to_vec(),
            payload: rows.payloads.value(row).to_vec(),
            weight: rows.weights.value(row),
        });
    }
    let mut keys = BinaryBuilder::new();
    let mut members = BinaryBuilder::new();
    let mut encoded_entries = BinaryBuilder::new();
    for ((key, member), entries) in entries_by_group {
        keys.append_value(key);
        members.append_value(member);
        if entries.entries.is_empty() {
            encoded_entries.append_null();
        } else {
            encoded_entries.append_value(entries.encode());
        }
    }
    Ok(Entries {
        view: job.view().to_owned(),
        keys: keys.finish(),
        members: members.finish(),
        entries: encoded_entries.finish(),
    })
}
