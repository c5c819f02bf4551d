//! Reading slots together with their parts: one script for each slot, all of them side by side.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use arrow::array::BinaryArray;
use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, Slot};
use schemas::source::Source;

use super::fault;
use super::live::RedisLive;
use super::live_scan::Asked;
use super::live_write::STATE;
use super::nodes::Request;
use super::packed::{self, Sums, rows_of};
use super::record::{PlaceKind, Record, SlotKeys, has_chunks, number_of};
use super::script::READ;
use crate::board_cache::BoardCacheRead;
use crate::kept_sum::KeptSum;
use crate::live::{
    LiveAnswer, LiveParts, LiveQuery, LiveRead, LiveStatesBuilder, MembersQuery, Outbox, SlotId,
    StateQuery, StatesAnswer,
};
use crate::live_scan::{LivePlace, ScannedDeltas, ScannedStates};
use crate::{Error, Result};

/// So many rows of one slot are read at once, at most: a server is busy with them for some 50
/// milliseconds.
const READ_ROWS: usize = 50_000;

/// So many rows of one group are put together from several answers, at most.
const GROUP_ROWS: usize = 1_000_000;

/// So often a group that was changed meanwhile is read again.
pub(super) const GROUP_TRIES: usize = 8;

/// A question for one group of a view.
struct Question<'a> {
    view: &'a str,
    group: &'a [u8],
    partition: Option<u32>,
    kind: PlaceKind,
    /// Where rows must be, if they need not all be brought.
    ranges: Option<&'a [Range]>,
    /// Whether a sum that is made takes the place of rows: the same for all questions of a call.
    takes_sums: bool,
}

/// Row keys from one on, up to another.
type Range = (Vec<u8>, Option<Vec<u8>>);

fn is_within(ranges: &[Range], row: &[u8]) -> bool {
    ranges
        .iter()
        .any(|(begin, end)| row >= begin.as_slice() && end.as_deref().is_none_or(|end| row < end))
}

/// A row of a group, as it is stored.
struct Row {
    partition: u32,
    epoch: Epoch,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether it was packed: then other places may have the same row.
    is_packed: bool,
}

impl Row {
    /// Adds the state that it holds.
    fn add_state(&self, found: &mut LiveStatesBuilder) {
        let state = self.value.strip_prefix(&[STATE]);
        found.add((self.partition, self.epoch), &self.key, state);
    }

    fn of(partition: u32, epoch: Epoch, is_packed: bool) -> impl Fn((Vec<u8>, Vec<u8>)) -> Self {
        move |(key, value)| Self {
            partition,
            epoch,
            key,
            value,
            is_packed,
        }
    }
}

/// The rows of a view in a string, as they would be stored in a hash; nothing if it is no such string.
pub(super) fn unpacked(string: &[u8], view: usize) -> Option<Pairs> {
    Some(stored(rows_of(string, view)?))
}

/// The rows of chunks, in the same way; nothing if they are none.
pub(super) fn of_chunks(chunks: &Pairs) -> Option<Pairs> {
    let chunks = chunks.iter().map(|(_, chunk)| chunk.as_slice());
    Some(stored(packed::summed(chunks)?))
}

fn stored(sums: Sums<'_>) -> Pairs {
    let sums = sums.into_iter();
    let pairs = sums.map(|(row, sum)| (row.to_vec(), sum.to_string().into_bytes()));
    pairs.collect()
}

/// What was read of one slot.
struct SlotRows {
    /// The record's bytes.
    bytes: Bytes,
    record: Option<Record>,
    /// Each with the index of its question.
    rows: Vec<(usize, Row)>,
    /// The sums that are kept, each with the index of its question.
    sums: Vec<(usize, KeptSum)>,
    /// Groups that were too large.
    large: Option<Vec<LargeGroup>>,
}

/// A group that was too large: question, place and its epoch, rows.
type LargeGroup = (usize, (String, Epoch), usize);

/// So many rows are asked for at once where a group is read in several answers.
const PAGE_ROWS: usize = 5_000;
/// And so many chunks.
const PAGE_CHUNKS: usize = 200;

/// The cursor that a scan begins with, and ends with.
const FIRST_PAGE: &[u8] = b"0";

impl RedisLive {
    async fn read_all_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
        takes_sums: bool,
    ) -> Result<StatesAnswer> {
        let doing = "reading live states";
        let questions: Vec<Question<'_>> = queries
            .iter()
            .map(|query| Question {
                view: &query.view,
                group: &query.key,
                partition: query.partition,
                kind: PlaceKind::States,
                ranges: None,
                takes_sums,
            })
            .collect();
        let none = |_| LiveStatesBuilder::default();
        let mut found: Vec<_> = queries.iter().map(none).collect();
        let (slots, sums) = self
            .read_slots(doing, (source, partitions), &questions, |index, row| {
                if let Some(found) = found.get_mut(index) {
                    row.add_state(found);
                }
                Ok(())
            })
            .await?;
        for (index, partition, sum) in sums {
            if let Some(found) = found.get_mut(index) {
                found.sums.push((partition, sum));
            }
        }
        let states = found.into_iter().map(LiveStatesBuilder::finish).collect();
        Ok(StatesAnswer { slots, states })
    }

    /// Reads slots, and hands on the rows of the groups that are asked for, with the question's index.
    /// Answers the sums that are kept too, with question and partition.
    async fn read_slots(
        &self,
        doing: &str,
        (source, partitions): (Source, u32),
        questions: &[Question<'_>],
        mut row: impl FnMut(usize, Row) -> Result<()> + Send,
    ) -> Result<(Vec<Option<Slot>>, Vec<(usize, u32, KeptSum)>)> {
        let requests: Vec<Request> = (0..partitions)
            .map(|partition| self.read_request(SlotId { source, partition }, questions))
            .collect();
        let answers = self.nodes.ask_again(doing, &requests).await?;
        let (mut slots, mut sums) = (Vec::with_capacity(requests.len()), Vec::new());
        for (answer, partition) in answers.into_iter().zip(0_u32..) {
            let slot = SlotId { source, partition };
            let mut read = self.slot_rows(doing, slot, questions, answer)?;
            if read.large.is_some() {
                read = Box::pin(self.large_slot_rows(doing, slot, questions, read)).await?;
            }
            for (index, found) in read.rows {
                row(index, found)?;
            }
            let kept = read.sums.into_iter();
            sums.extend(kept.map(|(index, sum)| (index, partition, sum)));
            slots.push(read.record.map(|record| record.slot));
        }
        Ok((slots, sums))
    }

    /// What a script answers of one slot.
    fn slot_rows(
        &self,
        doing: &str,
        slot: SlotId,
        questions: &[Question<'_>],
        answer: Value,
    ) -> Result<SlotRows> {
        let strange = || fault::strange(&self.nodes.patience, doing);
        let Value::Array(answer) = answer else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let Some(Value::BulkString(bytes)) = answer.next() else {
            return Err(strange());
        };
        let bytes = Bytes::from(bytes);
        let seen = self.seen_as(doing, &self.keys(slot), bytes.clone())?;
        let mut rows = Vec::new();
        let (mut large, mut sums) = (Vec::new(), Vec::new());
        if let Some(record) = &seen.record {
            for (index, question) in questions.iter().enumerate() {
                if question
                    .partition
                    .is_some_and(|only| only != slot.partition)
                {
                    continue;
                }
                let Some(Value::BulkString(sum)) = answer.next() else {
                    return Err(strange());
                };
                let sum = KeptSum::stored(sum.into());
                let is_made = sum.as_ref().is_some_and(|sum| sum.content().is_some());
                sums.extend(sum.map(|sum| (index, sum)));
                if is_made && question.takes_sums {
                    continue;
                }
                for (place, epoch) in record.places(question.view, question.kind) {
                    let number = number_of(place);
                    let is_of_chunks = has_chunks(place);
                    let is_packed = number.is_some() || is_of_chunks;
                    let of_place = Row::of(slot.partition, *epoch, is_packed);
                    match answer.next() {
                        Some(Value::Int(rows)) => {
                            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
                            large.push((index, (place.clone(), *epoch), rows));
                        }
                        Some(Value::BulkString(string)) => {
                            let view = number.ok_or_else(strange)?;
                            let found = unpacked(&string, view).ok_or_else(strange)?;
                            rows.extend(found.into_iter().map(|pair| (index, of_place(pair))));
                        }
                        Some(Value::Array(values)) => {
                            let mut found = pairs(values).ok_or_else(strange)?;
                            if is_of_chunks {
                                found = of_chunks(&found).ok_or_else(strange)?;
                            }
                            rows.extend(found.into_iter().map(|pair| (index, of_place(pair))));
                        }
                        _ => return Err(strange()),
                    }
                }
            }
        }
        Ok(SlotRows {
            bytes,
            record: seen.record,
            rows,
            sums,
            large: (!large.is_empty()).then_some(large),
        })
    }

    /// Groups that are too large for one answer are read in several. They are of one moment if the
    /// record has not changed from before the first to after the last; else all is read again.
    async fn large_slot_rows(
        &self,
        doing: &str,
        slot: SlotId,
        questions: &[Question<'_>],
        mut read: SlotRows,
    ) -> Result<SlotRows> {
        let (keys, patience) = (self.keys(slot), &self.nodes.patience);
        let request = [self.read_request(slot, questions)];
        for _ in 0..GROUP_TRIES {
            for (index, (place, epoch), count) in read.large.take().unwrap_or_default() {
                let Some(question) = questions.get(index) else {
                    continue;
                };
                let of_group = (&keys, place.as_str(), question.group);
                let pages = || self.all_rows(doing, of_group, question.ranges, count);
                let found = patience.repeated(doing, pages).await?;
                let of_place = Row::of(slot.partition, epoch, has_chunks(&place));
                let rows = found.into_iter().map(|pair| (index, of_place(pair)));
                read.rows.extend(rows);
            }
            let now = patience.repeated(doing, || self.look(doing, &keys)).await?;
            if now.bytes == read.bytes {
                return Ok(read);
            }
            let again = self.nodes.ask_again(doing, &request).await?;
            let answer = again.into_iter().next().unwrap_or_default();
            read = self.slot_rows(doing, slot, questions, answer)?;
            if read.large.is_none() {
                return Ok(read);
            }
        }
        let why = format!(
            "a group has more live rows than the {READ_ROWS} that are read at one moment, and was written meanwhile each time; finish a batch run, so that old epochs are let go"
        );
        Err(patience.unavailable(doing, why))
    }

    /// The rows of a group within some ranges, in several answers.
    async fn all_rows(
        &self,
        doing: &str,
        of_group: (&SlotKeys, &str, &[u8]),
        ranges: Option<&[Range]>,
        expected: usize,
    ) -> Result<Pairs> {
        let mut rows = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if ranges.is_none_or(|ranges| is_within(ranges, &row)) {
                self.add_part(doing, &mut rows, (row, value))?;
            }
            if rows.len() <= GROUP_ROWS {
                return Ok(());
            }
            let why = format!(
                "a group has more than {GROUP_ROWS} live rows; finish a batch run, so that old epochs are let go"
            );
            Err(Error::broken(self.nodes.patience.what(doing), why))
        };
        self.each_row(doing, of_group, expected, keep).await?;
        Ok(rows.into_iter().collect())
    }

    /// Adds a part of a row, which others may have come of.
    pub(super) fn add_part(
        &self,
        doing: &str,
        rows: &mut BTreeMap<Vec<u8>, Vec<u8>>,
        (row, part): (Vec<u8>, Vec<u8>),
    ) -> Result<()> {
        let value = match rows.get(&row) {
            Some(others) => self.sum(doing, others, &part)?,
            None => part,
        };
        rows.insert(row, value);
        Ok(())
    }

    /// Hands on every row of a group, in no order, asking for some at a time: once, or, of chunks, as many times as parts
    /// of it come, which add up.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are fewer than expected: a node that takes over from another, or
    /// starts again, goes on from a cursor that means something else there.
    pub(super) async fn each_row(
        &self,
        doing: &str,
        of_group: (&SlotKeys, &str, &[u8]),
        expected: usize,
        mut keep: impl FnMut(Vec<u8>, Vec<u8>) -> Result<()> + Send,
    ) -> Result<()> {
        // A field may come twice. Two with one hash would be one too few, and all is read again.
        let (hashes, mut seen) = (RandomState::new(), HashSet::new());
        let is_of_chunks = has_chunks(of_group.1);
        let mut cursor = Some(FIRST_PAGE.to_vec());
        while let Some(from) = cursor {
            let (next, mut page) = self.row_page(doing, of_group, &from).await?;
            page.retain(|(field, _)| seen.insert(hashes.hash_one(field)));
            if is_of_chunks {
                let strange = || fault::strange(&self.nodes.patience, doing);
                page = of_chunks(&page).ok_or_else(strange)?;
            }
            for (row, value) in page {
                keep(row, value)?;
            }
            cursor = next;
        }
        if seen.len() >= expected {
            return Ok(());
        }
        if is_of_chunks && self.fields(doing, of_group).await? < expected {
            // They were put together meanwhile: then the record is another one, for which whoever asks looks.
            return Ok(());
        }
        let why = format!("{} of {expected} rows of a group came", seen.len());
        Err(self.nodes.patience.unavailable(doing, why))
    }

    /// How many fields the hash of a group has.
    async fn fields(
        &self,
        doing: &str,
        (keys, place, group): (&SlotKeys, &str, &[u8]),
    ) -> Result<usize> {
        let command = redis::cmd("HLEN").arg(keys.group(place, group)).take();
        match self.one(doing, Request::command(keys, command)).await? {
            Value::Int(fields) => Ok(usize::try_from(fields).unwrap_or(usize::MAX)),
            _ => Err(fault::strange(&self.nodes.patience, doing)),
        }
    }

    /// Some rows of a group, and where to go on.
    async fn row_page(
        &self,
        doing: &str,
        (keys, place, group): (&SlotKeys, &str, &[u8]),
        cursor: &[u8],
    ) -> Result<(Option<Vec<u8>>, Pairs)> {
        let key = keys.group(place, group);
        let mut command = redis::cmd("HSCAN");
        let fields = match has_chunks(place) {
            true => PAGE_CHUNKS,
            false => PAGE_ROWS,
        };
        command.arg(key).arg(cursor).arg("COUNT").arg(fields);
        let answer = self.one(doing, Request::command(keys, command)).await?;
        let strange = || fault::strange(&self.nodes.patience, doing);
        let Value::Array(answer) = answer else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        match (answer.next(), answer.next()) {
            (Some(Value::BulkString(next)), Some(Value::Array(values))) => {
                let next = (next != FIRST_PAGE).then_some(next);
                Ok((next, pairs(values).ok_or_else(strange)?))
            }
            _ => Err(strange()),
        }
    }

    fn read_request(&self, slot: SlotId, questions: &[Question<'_>]) -> Request {
        let kind = questions
            .first()
            .map_or(PlaceKind::Deltas, |first| first.kind);
        let takes_sums = questions.first().is_some_and(|first| first.takes_sums);
        let mut arguments = vec![
            Bytes::from_static(kind.letter().as_bytes()),
            Bytes::from(READ_ROWS.to_string()),
            Bytes::from_static(if takes_sums { "1" } else { "" }.as_bytes()),
        ];
        for question in questions {
            if question.partition.is_none_or(|only| only == slot.partition) {
                arguments.push(Bytes::copy_from_slice(question.view.as_bytes()));
                arguments.push(Bytes::copy_from_slice(question.group));
            }
        }
        Request::script_on_keys(&self.keys(slot), &READ, arguments)
    }

    pub(super) fn answered_record(
        &self,
        doing: &str,
        keys: &SlotKeys,
        answer: Option<Value>,
    ) -> Result<Option<Record>> {
        let Some(Value::BulkString(bytes)) = answer else {
            return Err(fault::strange(&self.nodes.patience, doing));
        };
        Ok(self.seen_as(doing, keys, bytes.into())?.record)
    }

    pub(super) fn count(&self, doing: &str, value: &[u8]) -> Result<i64> {
        let text = std::str::from_utf8(value).ok();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| fault::strange(&self.nodes.patience, doing))
    }
}

#[async_trait]
impl LiveRead for RedisLive {
    async fn read(
        &self,
        source: Source,
        partitions: u32,
        queries: &[LiveQuery],
    ) -> Result<LiveAnswer> {
        let doing = "reading live parts";
        let questions: Vec<Question<'_>> = queries
            .iter()
            .map(|query| Question {
                view: &query.view,
                group: &query.group,
                partition: query.partition,
                kind: PlaceKind::Deltas,
                ranges: Some(&query.ranges),
                takes_sums: false,
            })
            .collect();
        let mut found: Vec<Found> = queries.iter().map(|_| Found::default()).collect();
        let (slots, _) = self
            .read_slots(doing, (source, partitions), &questions, |index, row| {
                let (Some(query), Some(found)) = (queries.get(index), found.get_mut(index)) else {
                    return Ok(());
                };
                if is_within(&query.ranges, &row.key) {
                    let count = self.count(doing, &row.value)?;
                    found.add(row, count);
                }
                Ok(())
            })
            .await?;
        let finished = found.into_iter().map(|found| {
            found.finish().ok_or_else(|| {
                let why = "a count is larger than 64 bits can hold; look for wrong amounts among the events";
                Error::broken(self.nodes.patience.what(doing), why)
            })
        });
        let parts = finished.collect::<Result<_>>()?;
        Ok(LiveAnswer { slots, parts })
    }

    /// Reads the records, without a script.
    async fn partition_states(
        &self,
        source: Source,
        partitions: std::ops::Range<u32>,
    ) -> Result<Vec<Option<Slot>>> {
        let doing = "reading partition states";
        let slots = partitions.map(|partition| SlotId { source, partition });
        let requests: Vec<Request> = slots
            .clone()
            .map(|slot| {
                let keys = self.keys(slot);
                Request::command(&keys, redis::cmd("GET").arg(&keys.record).take())
            })
            .collect();
        let answers = self.nodes.ask_again(doing, &requests).await?;
        let mut found = Vec::with_capacity(requests.len());
        for (answer, slot) in answers.into_iter().zip(slots) {
            let known = self.read_last().get(&slot).cloned();
            let seen = self.answered_seen(doing, (slot, known.as_ref()), Some(answer))?;
            found.push(seen.record.as_ref().map(|record| record.slot.clone()));
        }
        Ok(found)
    }

    async fn read_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        self.read_all_states(source, partitions, queries, false)
            .await
    }

    async fn read_sums(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        self.read_all_states(source, partitions, queries, true)
            .await
    }

    fn cached_boards(&self) -> Option<&dyn BoardCacheRead> {
        Some(self)
    }

    async fn read_members(
        &self,
        source: Source,
        partitions: std::ops::Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<StatesAnswer> {
        self.read_states_of(source, partitions, queries).await
    }

    async fn outboxes(
        &self,
        source: Source,
        partitions: std::ops::Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        self.read_outboxes(source, partitions, limit).await
    }

    async fn scan_deltas(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedDeltas> {
        let asked = Asked {
            kind: PlaceKind::Deltas,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        self.scan_parts(slot, asked).await
    }

    async fn scan_states(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedStates> {
        let asked = Asked {
            kind: PlaceKind::States,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        self.scan_all_states(slot, asked).await
    }
}

/// Fields and values of a group.
pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Fields and values, which come by turns.
pub(super) fn pairs(values: Vec<Value>) -> Option<Pairs> {
    let mut pairs = Vec::with_capacity(values.len() / 2);
    let mut values = values.into_iter();
    while let Some(field) = values.next() {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, values.next()?) else {
            return None;
        };
        pairs.push((field, value));
    }
    Some(pairs)
}

/// The parts that answer one query, as they are found: partition, epoch, row and count.
#[derive(Debug, Default)]
struct Found {
    parts: Vec<(u32, Epoch, Vec<u8>, i64)>,
    /// Whether some were packed.
    is_packed: bool,
}

impl Found {
    fn add(&mut self, row: Row, count: i64) {
        self.is_packed |= row.is_packed;
        self.parts.push((row.partition, row.epoch, row.key, count));
    }

    /// Adds up what places have of a row; nothing if a sum is too large.
    fn finish(mut self) -> Option<LiveParts> {
        // A row comes twice only where it was packed.
        if self.is_packed && !self.parts.is_sorted() {
            self.parts.sort_unstable();
        }
        let mut is_summed = true;
        self.parts.dedup_by(|more, sum| {
            let is_same = (more.0, more.1, &more.2) == (sum.0, sum.1, &sum.2);
            if is_same {
                let both = sum.3.checked_add(more.3);
                is_summed &= both.is_some();
                sum.3 = both.unwrap_or(sum.3);
            }
            is_same
        });
        let parts = &self.parts;
        is_summed.then(|| LiveParts {
            partitions: parts.iter().map(|part| part.0).collect(),
            epochs: parts.iter().map(|part| part.1).collect(),
            rows: BinaryArray::from_iter_values(parts.iter().map(|part| &part.2)),
            counts: parts.iter().map(|part| part.3).collect(),
        })
    }
}
