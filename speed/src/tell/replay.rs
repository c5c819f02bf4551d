//! What had been told of groups when live state was lost, where more of them was yet to be told.
//!
//! A replay reads rows again as they are now. So a group that was told of, and changed since, comes out
//! with the later change where it is named first, which is not told again; and where it is named by the
//! later notification nothing seems to change. What was told of it stands in the log of changes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use jobs::board::{GroupState, Place};
use jobs::{Board, Job};
use schemas::achievement::{BOARD_CHANGES, Told};
use schemas::entities::{Group, Notifications};
use schemas::key::{KeyColumn, KeyKind, KeyShape, KeyValue};
use schemas::seam::{Offset, Slot};
use schemas::source::Source;
use serde_json::{Map, Value};
use stores::live::SlotId;
use stores::log::{FetchLimit, Records};
use stores::registry::writers_of;

use super::before::{At, Before, Members};
use crate::{Error, Result, SpeedPorts};

const STEP: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};
/// A change is told after its notification was logged, but perhaps by another clock.
const CLOCKS_DIFFER_MS: i64 = 60_000;

/// View, key and member.
pub(super) type GroupName = (String, Vec<u8>, Vec<u8>);

/// What was told of groups, each with the first offset from which on it has yet to be told.
pub(super) type AsTold = BTreeMap<GroupName, (Offset, GroupState)>;

/// Groups, each with the offset that names it first.
type Groups = HashMap<Group, Offset>;

/// Boards of a group, each with what was told last to stand there.
type Rows = BTreeMap<Vec<u8>, Option<Place>>;

/// The log of one partition, as it is replayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replay<'a> {
    pub(super) ports: &'a SpeedPorts,
    pub(super) id: SlotId,
    pub(super) slot: &'a Slot,
    /// What is named before was told.
    pub(super) told_through: Offset,
}

impl Replay<'_> {
    /// By group: what was told to stand on the boards, of those that are named both before and after
    /// what was told; with the offset that names it after.
    pub(super) async fn as_told(
        &self,
        jobs: &[Arc<Job<Board>>],
        before: &mut Before,
    ) -> Result<AsTold> {
        let end = self.end().await?;
        let mut both = self.named(self.decided()..end).await?;
        if both.is_empty() {
            return Ok(AsTold::new());
        }
        let named = self.named(self.begin()..self.decided()).await?;
        both.retain(|group, _| named.contains_key(group));
        if both.is_empty() {
            return Ok(AsTold::new());
        }
        let mut told = self.told(jobs, &both).await?;
        let partitions = self.ports.partitions(self.id.source).await?;
        let mut states = AsTold::new();
        for job in jobs {
            let mut asked: BTreeMap<Vec<u8>, Members> = BTreeMap::new();
            let mut named = HashMap::new();
            for (group, offset) in &both {
                let (key, member) = encoded(job, *group)?;
                named.insert((key.clone(), member.clone()), *offset);
                let boards = match job.boards().0.is_empty() {
                    true => vec![Vec::new()],
                    false => Vec::new(),
                };
                asked.entry(key).or_default().push((member, boards));
            }
            let at = At {
                job,
                fence: self.slot.fence(),
                partitions,
                // What the life has counted may be newer than what was told.
                is_live: false,
            };
            // Where nobody can tell, nothing was told either.
            let Some(found) = before.states(at, &asked).await? else {
                continue;
            };
            let found = found.into_iter().flat_map(|(key, members)| {
                let of_key = move |(member, state)| ((key.clone(), member), state);
                members.into_iter().map(of_key)
            });
            for ((key, member), mut state) in found {
                let offset = named.get(&(key.clone(), member.clone()));
                let offset = offset.copied().unwrap_or(self.told_through);
                let name = (job.view().to_owned(), key, member);
                for (board, place) in told.remove(&name).unwrap_or_default() {
                    state.places.retain(|place| place.board != board);
                    state.places.extend(place);
                }
                states.insert(name, (offset, state));
            }
        }
        Ok(states)
    }

    /// Where the life of the slot began.
    fn begin(&self) -> Offset {
        let begin = self.slot.bounds.values().next();
        begin.map_or(0, |begin| begin.next_offset)
    }

    /// What is named before was told, or waits to be.
    fn decided(&self) -> Offset {
        self.told_through.max(self.slot.position.next_offset)
    }

    async fn end(&self) -> Result<Offset> {
        let topic = self.id.source.topic();
        Ok(self.ports.log.end(topic, self.id.partition).await?)
    }

    /// The groups that a stretch of the log names.
    async fn named(&self, range: Range<Offset>) -> Result<Groups> {
        let (source, topic) = (self.id.source, self.id.source.topic());
        let mut groups = Groups::new();
        let mut at = range.start;
        while at < range.end {
            let log = &self.ports.log;
            let fetched = log.fetch(topic, self.id.partition, at, STEP).await?;
            if fetched.next_offset == at {
                break;
            }
            at = fetched.next_offset;
            let records = &fetched.records;
            let below = records.offsets.values();
            let below = below.partition_point(|offset| *offset < range.end);
            self.add_named(source, &records.slice(0, below), &mut groups)
                .await?;
        }
        Ok(groups)
    }

    async fn add_named(
        &self,
        source: Source,
        records: &Records,
        groups: &mut Groups,
    ) -> Result<()> {
        let writers = writers_of(&*self.ports.schemas, &records.values).await?;
        let bytes = records.values.iter().map(Option::unwrap_or_default);
        let notifications = Notifications::read(source, bytes, &writers)
            .map_err(|error| Error::Fault(format!("decoding notifications: {error}")))?;
        for (index, value) in records.values.iter().enumerate() {
            if let Ok(group) = notifications.group(index, value.unwrap_or_default()) {
                let offset = records.offsets.value(index);
                groups.entry(group).or_insert(offset);
            }
        }
        Ok(())
    }

    /// What was told of groups since the life began, and what waits to be.
    async fn told(
        &self,
        jobs: &[Arc<Job<Board>>],
        groups: &Groups,
    ) -> Result<BTreeMap<GroupName, Rows>> {
        let log = &self.ports.log;
        let since = self.slot.bounds.values().next();
        let since = since.and_then(|begin| begin.last);
        let since_ms = since.map_or(0, |last| last.logged_at_ms - CLOCKS_DIFFER_MS);
        let mut told = BTreeMap::new();
        for partition in 0..log.partitions(BOARD_CHANGES).await? {
            let mut at = log.offset_at(BOARD_CHANGES, partition, since_ms).await?;
            loop {
                let fetched = log.fetch(BOARD_CHANGES, partition, at, STEP).await?;
                if fetched.next_offset == at {
                    break;
                }
                at = fetched.next_offset;
                for value in fetched.records.values.iter().flatten() {
                    let Ok(message) = serde_json::from_slice(value) else {
                        continue;
                    };
                    for job in jobs {
                        self.take(job, groups, &message, &mut told);
                    }
                }
            }
        }
        let one = self.id.partition..self.id.partition.saturating_add(1);
        let live = &self.ports.live;
        let outboxes = live.outboxes(self.id.source, one, usize::MAX).await?;
        let entries = outboxes.iter().flatten().flat_map(|outbox| &outbox.entries);
        for waiting in entries.filter_map(|entry| Told::decode(entry).ok()) {
            for job in jobs {
                self.take(job, groups, &waiting.message, &mut told);
            }
        }
        Ok(told)
    }

    /// Takes what a message tells of a group of this stretch in a view; others' messages say nothing.
    fn take(
        &self,
        job: &Job<Board>,
        groups: &Groups,
        message: &Map<String, Value>,
        told: &mut BTreeMap<GroupName, Rows>,
    ) -> Option<()> {
        let of = |shape: &KeyShape| message.get(&shape.0.first()?.name)?.as_i64();
        let group = Group {
            key: of(job.key())?,
            member: of(job.member())?,
        };
        let position = message.get("position")?;
        let offset = position.get("offset")?.as_i64()?;
        let is_here = position.get("source")?.as_str() == Some(self.id.source.name())
            && position.get("partition")?.as_u64() == Some(self.id.partition.into())
            && (self.begin()..self.decided()).contains(&offset);
        if !is_here
            || message.get("board")?.as_str() != Some(job.board())
            || !groups.contains_key(&group)
        {
            return None;
        }
        let (key, member) = encoded(job, group).ok()?;
        let rows: &mut Rows = told
            .entry((job.view().to_owned(), key, member))
            .or_default();
        for change in message.get("changes")?.as_array()? {
            let board = bytes(job.boards(), change.as_object()?)?;
            let after = change.get("after")?;
            let place = match after.as_object() {
                None => None,
                Some(row) => Some(Place {
                    board: board.clone(),
                    score: bytes(job.score(), row)?,
                    payload: bytes(job.payload(), row)?,
                    weight: 1,
                }),
            };
            rows.insert(board, place);
        }
        Some(())
    }
}

pub(super) fn encoded(job: &Job<Board>, group: Group) -> Result<(Vec<u8>, Vec<u8>)> {
    let key = job.key().encode_values(&[KeyValue::Int(group.key)]);
    let member = job.member().encode_values(&[KeyValue::Int(group.member)]);
    let fault = |error| Error::Fault(format!("job {}: encoding a group: {error}", job.name()));
    Ok((key.map_err(fault)?, member.map_err(fault)?))
}

/// The columns of a row that a message shows, encoded; what it does not show is null.
fn bytes(shape: &KeyShape, row: &Map<String, Value>) -> Option<Vec<u8>> {
    let values: Option<Vec<KeyValue>> = shape.0.iter().map(|column| value(column, row)).collect();
    shape.encode_values(&values?).ok()
}

fn value(column: &KeyColumn, row: &Map<String, Value>) -> Option<KeyValue> {
    let value = row.get(&column.name).unwrap_or(&Value::Null);
    if value.is_null() {
        return Some(KeyValue::Null);
    }
    let instant = || value.as_str()?.parse::<Timestamp>().ok();
    Some(match column.kind {
        KeyKind::Int => KeyValue::Int(value.as_i64()?),
        KeyKind::Text => KeyValue::Text(value.as_str()?.to_owned()),
        KeyKind::Time => KeyValue::Time(instant()?.as_second()),
        KeyKind::Instant => KeyValue::Instant(instant()?.as_microsecond()),
    })
}
