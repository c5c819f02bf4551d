//! Restores the published entries of groups after a loss of live state, if later notifications of
//! the same groups are unpublished.
//!
//! A replay reads the current rows, not those at the time of a notification. Suppose a change of a
//! group was published, and the group changed again later. At the first notification, the replay
//! already sees the later change, but publishes nothing, since this notification was published. At
//! the later notification, nothing seems to change. So the later change would never be published.
//! The replay therefore reads the published entries from the log of board changes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use jobs::board::{BoardEntry, MemberEntries};
use jobs::{Board, Job};
use schemas::achievement::{BOARD_CHANGES_TOPIC, OutboxMessage};
use schemas::entities::{Group, Notifications};
use schemas::key::{KeyColumn, KeyKind, KeyShape, KeyValue};
use schemas::seam::{Offset, PartitionState};
use schemas::source::Source;
use serde_json::{Map, Value};
use stores::live::PartitionId;
use stores::log::{FetchLimit, Records};
use stores::registry::read_writer_schemas;

use super::previous::{PreviousEntryReader, ReadContext, RequestedMembers};
use crate::{Error, Result, SpeedPorts};

/// Limits of one fetch.
const FETCH_LIMIT: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};
/// Maximum difference between the clocks that timestamp a notification and its board change.
const CLOCK_SKEW_MS_MAX: i64 = 60_000;

/// View, key and member.
pub(super) type GroupName = (String, Vec<u8>, Vec<u8>);

/// The published entries of groups, each with the first unpublished offset.
pub(super) type PublishedEntries = BTreeMap<GroupName, (Offset, MemberEntries)>;

/// Groups with the offset of the first notification that names them.
type GroupOffsets = HashMap<Group, Offset>;

/// The last published entry of a group on each board.
type EntriesByBoard = BTreeMap<Vec<u8>, Option<BoardEntry>>;

/// A replay of the log of one partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replay<'a> {
    pub(super) ports: &'a SpeedPorts,
    pub(super) id: PartitionId,
    pub(super) state: &'a PartitionState,
    /// The changes of notifications before this offset have been published.
    pub(super) published_end: Offset,
}

impl Replay<'_> {
    /// Reads the published entries of groups with notifications both before and after the published
    /// offset, each with the offset of the first later notification.
    pub(super) async fn read_published_entries(
        &self,
        jobs: &[Arc<Job<Board>>],
        previous: &mut PreviousEntryReader,
    ) -> Result<PublishedEntries> {
        let log_end = self.read_log_end().await?;
        let mut groups_in_both = self.read_groups(self.decided_end()..log_end).await?;
        if groups_in_both.is_empty() {
            return Ok(PublishedEntries::new());
        }
        let published_groups = self
            .read_groups(self.generation_start()..self.decided_end())
            .await?;
        groups_in_both.retain(|group, _| published_groups.contains_key(group));
        if groups_in_both.is_empty() {
            return Ok(PublishedEntries::new());
        }
        let mut published = self.read_published_changes(jobs, &groups_in_both).await?;
        let partitions = self.ports.partitions(self.id.source).await?;
        let mut published_entries = PublishedEntries::new();
        for job in jobs {
            let mut requested: BTreeMap<Vec<u8>, RequestedMembers> = BTreeMap::new();
            let mut offsets = HashMap::new();
            for (group, offset) in &groups_in_both {
                let (key, member) = encode_group(job, *group)?;
                offsets.insert((key.clone(), member.clone()), *offset);
                let boards = match job.board_columns().0.is_empty() {
                    true => vec![Vec::new()],
                    false => Vec::new(),
                };
                requested.entry(key).or_default().push((member, boards));
            }
            let context = ReadContext {
                job,
                checkpoint: self.state.checkpoint(),
                partitions,
                // Live entries of this generation may be newer than the published ones.
                is_live: false,
            };
            // If the entries are unknown, nothing was published either.
            let Some(entries_by_key) = previous.read_entries(context, &requested).await? else {
                continue;
            };
            let entries_by_key = entries_by_key.into_iter().flat_map(|(key, members)| {
                let add_key = move |(member, entries)| ((key.clone(), member), entries);
                members.into_iter().map(add_key)
            });
            for ((key, member), mut member_entries) in entries_by_key {
                let offset = offsets.get(&(key.clone(), member.clone()));
                let offset = offset.copied().unwrap_or(self.published_end);
                let group_name = (job.view().to_owned(), key, member);
                for (board, entry) in published.remove(&group_name).unwrap_or_default() {
                    member_entries.entries.retain(|entry| entry.board != board);
                    member_entries.entries.extend(entry);
                }
                published_entries.insert(group_name, (offset, member_entries));
            }
        }
        Ok(published_entries)
    }

    /// The start of the generation.
    fn generation_start(&self) -> Offset {
        let first_bound = self.state.bounds.values().next();
        first_bound.map_or(0, |bound| bound.next_offset)
    }

    /// The changes of notifications before this offset are published or in the outbox.
    fn decided_end(&self) -> Offset {
        self.published_end.max(self.state.position.next_offset)
    }

    async fn read_log_end(&self) -> Result<Offset> {
        let topic = self.id.source.topic();
        Ok(self.ports.log.end(topic, self.id.partition).await?)
    }

    /// Reads the groups that the notifications in a range of the log name.
    async fn read_groups(&self, range: Range<Offset>) -> Result<GroupOffsets> {
        let (source, topic) = (self.id.source, self.id.source.topic());
        let mut groups = GroupOffsets::new();
        let mut next_offset = range.start;
        while next_offset < range.end {
            let log = &self.ports.log;
            let fetched = log
                .fetch(topic, self.id.partition, next_offset, FETCH_LIMIT)
                .await?;
            if fetched.next_offset == next_offset {
                break;
            }
            next_offset = fetched.next_offset;
            let records = &fetched.records;
            let offsets = records.offsets.values();
            let count = offsets.partition_point(|offset| *offset < range.end);
            self.add_groups(source, &records.slice(0, count), &mut groups)
                .await?;
        }
        Ok(groups)
    }

    async fn add_groups(
        &self,
        source: Source,
        records: &Records,
        groups: &mut GroupOffsets,
    ) -> Result<()> {
        let writers = read_writer_schemas(&*self.ports.schemas, &records.values).await?;
        let bytes = records.values.iter().map(Option::unwrap_or_default);
        let notifications = Notifications::read(source, bytes, &writers)
            .map_err(|error| Error::Fault(format!("cannot decode notifications: {error}")))?;
        for (index, value) in records.values.iter().enumerate() {
            if let Ok(group) = notifications.group(index, value.unwrap_or_default()) {
                let offset = records.offsets.value(index);
                groups.entry(group).or_insert(offset);
            }
        }
        Ok(())
    }

    /// Reads the changes of groups in this generation: published ones and those in the outbox.
    async fn read_published_changes(
        &self,
        jobs: &[Arc<Job<Board>>],
        groups: &GroupOffsets,
    ) -> Result<BTreeMap<GroupName, EntriesByBoard>> {
        let log = &self.ports.log;
        let first_bound = self.state.bounds.values().next();
        let last_record = first_bound.and_then(|bound| bound.last);
        let since_ms = last_record.map_or(0, |last| last.logged_at_ms - CLOCK_SKEW_MS_MAX);
        let mut published = BTreeMap::new();
        for partition in 0..log.partition_count(BOARD_CHANGES_TOPIC).await? {
            let mut next_offset = log
                .offset_at(BOARD_CHANGES_TOPIC, partition, since_ms)
                .await?;
            loop {
                let fetched = log.fetch(BOARD_CHANGES_TOPIC, partition, next_offset, FETCH_LIMIT);
                let fetched = fetched.await?;
                if fetched.next_offset == next_offset {
                    break;
                }
                next_offset = fetched.next_offset;
                for value in fetched.records.values.iter().flatten() {
                    let Ok(message) = serde_json::from_slice(value) else {
                        continue;
                    };
                    for job in jobs {
                        self.apply_message(job, groups, &message, &mut published);
                    }
                }
            }
        }
        let partitions = self.id.partition..self.id.partition.saturating_add(1);
        let live = &self.ports.live;
        let outboxes = live
            .outboxes(self.id.source, partitions, usize::MAX)
            .await?;
        let entries = outboxes.iter().flatten().flat_map(|outbox| &outbox.entries);
        for entry in entries.filter_map(|entry| OutboxMessage::decode(entry).ok()) {
            for job in jobs {
                self.apply_message(job, groups, &entry.message, &mut published);
            }
        }
        Ok(published)
    }

    /// Applies a message to the published entries, if it names a requested group and its position
    /// is in this generation and before [`Self::decided_end`].
    fn apply_message(
        &self,
        job: &Job<Board>,
        groups: &GroupOffsets,
        message: &Map<String, Value>,
        published: &mut BTreeMap<GroupName, EntriesByBoard>,
    ) -> Option<()> {
        let column = |shape: &KeyShape| message.get(&shape.0.first()?.name)?.as_i64();
        let group = Group {
            key: column(job.key())?,
            member: column(job.member())?,
        };
        let position = message.get("position")?;
        let offset = position.get("offset")?.as_i64()?;
        let is_relevant = position.get("source")?.as_str() == Some(self.id.source.name())
            && position.get("partition")?.as_u64() == Some(self.id.partition.into())
            && (self.generation_start()..self.decided_end()).contains(&offset);
        if !is_relevant
            || message.get("board")?.as_str() != Some(job.board())
            || !groups.contains_key(&group)
        {
            return None;
        }
        let (key, member) = encode_group(job, group).ok()?;
        let entries: &mut EntriesByBoard = published
            .entry((job.view().to_owned(), key, member))
            .or_default();
        for change in message.get("changes")?.as_array()? {
            let board = encode_columns(job.board_columns(), change.as_object()?)?;
            let after = change.get("after")?;
            let entry = match after.as_object() {
                None => None,
                Some(row) => Some(BoardEntry {
                    board: board.clone(),
                    score: encode_columns(job.score(), row)?,
                    payload: encode_columns(job.payload(), row)?,
                    weight: 1,
                }),
            };
            entries.insert(board, entry);
        }
        Some(())
    }
}

/// Encodes the key and the member of a group.
pub(super) fn encode_group(job: &Job<Board>, group: Group) -> Result<(Vec<u8>, Vec<u8>)> {
    let key = job.key().encode_values(&[KeyValue::Int(group.key)]);
    let member = job.member().encode_values(&[KeyValue::Int(group.member)]);
    let fault = |error| {
        Error::Fault(format!(
            "job {}: cannot encode a group: {error}",
            job.name()
        ))
    };
    Ok((key.map_err(fault)?, member.map_err(fault)?))
}

/// Encodes columns of a JSON object in a message. Missing columns become null.
fn encode_columns(shape: &KeyShape, row: &Map<String, Value>) -> Option<Vec<u8>> {
    let values: Option<Vec<KeyValue>> = shape
        .0
        .iter()
        .map(|column| parse_value(column, row))
        .collect();
    shape.encode_values(&values?).ok()
}

fn parse_value(column: &KeyColumn, row: &Map<String, Value>) -> Option<KeyValue> {
    let value = row.get(&column.name).unwrap_or(&Value::Null);
    if value.is_null() {
        return Some(KeyValue::Null);
    }
    let parse_time = || value.as_str()?.parse::<Timestamp>().ok();
    Some(match column.kind {
        KeyKind::Int => KeyValue::Int(value.as_i64()?),
        KeyKind::Text => KeyValue::Text(value.as_str()?.to_owned()),
        KeyKind::Time => KeyValue::Time(parse_time()?.as_second()),
        KeyKind::Instant => KeyValue::Instant(parse_time()?.as_microsecond()),
    })
}
