//! Reading slots together with their parts: one script for each slot, all of them side by side.

use std::collections::BTreeMap;

use arrow::array::{BinaryBuilder, Int64Array, Int64Builder, UInt32Builder, UInt64Builder};
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, Slot};
use schemas::source::Source;

use super::fault;
use super::live::RedisLive;
use super::live_write::STATE;
use super::nodes::{Call, Request};
use super::record::{PlaceKind, Record, SlotKeys};
use super::script::{READ, SCAN};
use crate::live::{
    Deltas, LiveAnswer, LiveParts, LiveQuery, LiveStates, SlotId, StateQuery, StatesAnswer,
};
use crate::{Error, Result};

/// So many rows of one slot are read at once, at most.
const READ_ROWS: usize = 100_000;

/// So many groups of one place are scanned at once, at most.
const SCAN_GROUPS: usize = 5_000;

/// A group of up to so many rows is scanned as a whole.
const SCAN_ROWS: usize = 10_000;

/// So many rows of a larger one are asked for at once.
const LARGE_ROWS: usize = 5_000;

/// A question for one group of a view.
struct Question<'a> {
    view: &'a str,
    group: &'a [u8],
    partition: Option<u32>,
    kind: PlaceKind,
}

/// A row of a group, as it is stored.
struct Row {
    partition: u32,
    epoch: Epoch,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl RedisLive {
    pub(super) async fn read_parts(
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
            })
            .collect();
        let mut found: Vec<Found> = queries.iter().map(|_| Found::default()).collect();
        let slots = self
            .read_slots(doing, (source, partitions), &questions, |index, row| {
                let (Some(query), Some(found)) = (queries.get(index), found.get_mut(index)) else {
                    return Ok(());
                };
                let key = row.key.as_slice();
                let mut ranges = query.ranges.iter();
                let asked = ranges.any(|(begin, end)| {
                    key >= begin.as_slice() && end.as_deref().is_none_or(|end| key < end)
                });
                if asked {
                    found.add(&row, self.count(doing, &row.value)?);
                }
                Ok(())
            })
            .await?;
        let parts = found.into_iter().map(Found::finish).collect();
        Ok(LiveAnswer { slots, parts })
    }

    pub(super) async fn read_all_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        let doing = "reading live states";
        let questions: Vec<Question<'_>> = queries
            .iter()
            .map(|query| Question {
                view: &query.view,
                group: &query.key,
                partition: query.partition,
                kind: PlaceKind::States,
            })
            .collect();
        let mut found: Vec<FoundStates> = queries.iter().map(|_| FoundStates::default()).collect();
        let slots = self
            .read_slots(doing, (source, partitions), &questions, |index, row| {
                if let Some(found) = found.get_mut(index) {
                    found.add(&row);
                }
                Ok(())
            })
            .await?;
        let states = found.into_iter().map(FoundStates::finish).collect();
        Ok(StatesAnswer { slots, states })
    }

    /// Reads slots, and hands on the rows of the groups that are asked for, with the question's index.
    async fn read_slots(
        &self,
        doing: &str,
        (source, partitions): (Source, u32),
        questions: &[Question<'_>],
        mut row: impl FnMut(usize, Row) -> Result<()> + Send,
    ) -> Result<Vec<Option<Slot>>> {
        let requests: Vec<Request> = (0..partitions)
            .map(|partition| self.read_request(SlotId { source, partition }, questions))
            .collect();
        let patience = &self.nodes.patience;
        let answers = patience.repeated(doing, || self.nodes.ask(doing, &requests));
        let mut slots = Vec::with_capacity(requests.len());
        for (answer, partition) in answers.await?.into_iter().zip(0_u32..) {
            let keys = self.keys(SlotId { source, partition });
            let Value::Array(answer) = answer else {
                return Err(fault::strange(patience, doing));
            };
            let mut answer = answer.into_iter();
            let Some(record) = self.answered_record(doing, &keys, answer.next())? else {
                slots.push(None);
                continue;
            };
            for (index, question) in questions.iter().enumerate() {
                if question.partition.is_some_and(|only| only != partition) {
                    continue;
                }
                for (_, epoch) in record.places(question.view, question.kind) {
                    let rows = self.rows(doing, answer.next(), question.view)?;
                    for (key, value) in rows {
                        let epoch = *epoch;
                        row(
                            index,
                            Row {
                                partition,
                                epoch,
                                key,
                                value,
                            },
                        )?;
                    }
                }
            }
            slots.push(Some(record.slot));
        }
        Ok(slots)
    }

    fn read_request(&self, slot: SlotId, questions: &[Question<'_>]) -> Request {
        let keys = self.keys(slot);
        let kind = questions
            .first()
            .map_or(PlaceKind::Deltas, |first| first.kind);
        let mut arguments = vec![
            Bytes::from(keys.prefix),
            Bytes::from_static(kind.letter().as_bytes()),
            Bytes::from(READ_ROWS.to_string()),
        ];
        for question in questions {
            if question.partition.is_none_or(|only| only == slot.partition) {
                arguments.push(Bytes::copy_from_slice(question.view.as_bytes()));
                arguments.push(Bytes::copy_from_slice(question.group));
            }
        }
        Request {
            hash_slot: keys.hash_slot,
            call: Call::Script {
                script: &READ,
                key: keys.record,
                arguments,
            },
        }
    }

    fn answered_record(
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

    /// The rows of a group, by turns field and value.
    fn rows(
        &self,
        doing: &str,
        answer: Option<Value>,
        view: &str,
    ) -> Result<impl Iterator<Item = (Vec<u8>, Vec<u8>)>> {
        match answer {
            Some(Value::Array(values)) => pairs(values)
                .ok_or_else(|| fault::strange(&self.nodes.patience, doing))
                .map(Vec::into_iter),
            Some(Value::Int(rows)) => {
                let why = format!(
                    "a group of {view} has {rows} live rows, and one answer holds {READ_ROWS} of a partition; finish a batch run, so that old epochs are let go"
                );
                Err(self.nodes.patience.unavailable(doing, why))
            }
            _ => Err(fault::strange(&self.nodes.patience, doing)),
        }
    }

    fn count(&self, doing: &str, value: &[u8]) -> Result<i64> {
        let text = std::str::from_utf8(value).ok();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| fault::strange(&self.nodes.patience, doing))
    }
}

/// Fields and values, which come by turns.
fn pairs(values: Vec<Value>) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
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

/// The parts that answer one query, as they are found.
#[derive(Debug, Default)]
struct Found {
    partitions: UInt32Builder,
    epochs: UInt64Builder,
    rows: BinaryBuilder,
    counts: Int64Builder,
}

impl Found {
    fn add(&mut self, row: &Row, count: i64) {
        self.partitions.append_value(row.partition);
        self.epochs.append_value(row.epoch);
        self.rows.append_value(&row.key);
        self.counts.append_value(count);
    }

    fn finish(mut self) -> LiveParts {
        LiveParts {
            partitions: self.partitions.finish(),
            epochs: self.epochs.finish(),
            rows: self.rows.finish(),
            counts: self.counts.finish(),
        }
    }
}

/// The states that answer one query, as they are found.
#[derive(Debug, Default)]
struct FoundStates {
    partitions: UInt32Builder,
    epochs: UInt64Builder,
    members: BinaryBuilder,
    states: BinaryBuilder,
}

impl FoundStates {
    fn add(&mut self, row: &Row) {
        self.partitions.append_value(row.partition);
        self.epochs.append_value(row.epoch);
        self.members.append_value(&row.key);
        self.states.append_option(row.value.strip_prefix(&[STATE]));
    }

    fn finish(mut self) -> LiveStates {
        LiveStates {
            partitions: self.partitions.finish(),
            epochs: self.epochs.finish(),
            members: self.members.finish(),
            states: self.states.finish(),
        }
    }
}

/// A group and a row.
type Key = (Vec<u8>, Vec<u8>);

/// What a page is made of.
#[derive(Debug, Default)]
struct Page {
    sums: BTreeMap<Key, i64>,
    /// Whether every group of every place was read.
    is_last: bool,
}

/// The groups of one place from somewhere on.
struct Groups {
    /// Whether these are all.
    is_all: bool,
    /// Each with its rows, or with nothing if they are too many.
    groups: Vec<(Vec<u8>, Option<Vec<(Vec<u8>, Vec<u8>)>>)>,
}

/// A page that is being asked for.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    view: &'a str,
    epochs: (Epoch, Epoch),
    after: Option<&'a Key>,
    limit: usize,
}

impl RedisLive {
    pub(super) async fn scan_parts(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        (after, limit): (Option<Key>, usize),
    ) -> Result<Deltas> {
        let doing = "scanning live parts";
        let asked = Asked {
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        let tries = || self.try_scan(doing, slot, asked);
        let sums = self.nodes.patience.repeated(doing, tries).await?;
        let (mut groups, mut rows) = (BinaryBuilder::new(), BinaryBuilder::new());
        let mut counts = Vec::with_capacity(sums.len().min(limit));
        for ((group, row), count) in sums.into_iter().take(limit) {
            groups.append_value(group);
            rows.append_value(row);
            counts.push(count);
        }
        Ok(Deltas {
            view: view.to_owned(),
            groups: groups.finish(),
            rows: rows.finish(),
            counts: Int64Array::from(counts),
        })
    }

    /// The first rows of all places together, at least as many as are asked for if there are as many.
    async fn try_scan(
        &self,
        doing: &str,
        slot: SlotId,
        asked: Asked<'_>,
    ) -> Result<BTreeMap<Key, i64>> {
        let keys = self.keys(slot);
        let Some(record) = self.look(doing, &keys).await?.record else {
            return Ok(BTreeMap::new());
        };
        let places = places_of(&record, asked);
        let mut page = Page::default();
        let mut from = match asked.after {
            None => b"-".to_vec(),
            Some((group, _)) => [b"[", group.as_slice()].concat(),
        };
        while !page.is_last && page.sums.len() < asked.limit {
            let requests: Vec<Request> = places
                .iter()
                .map(|place| scan_request(&keys, place, &from, asked.limit))
                .collect();
            let mut read = Vec::with_capacity(places.len());
            for answer in self.nodes.ask(doing, &requests).await? {
                let (now, groups) = self.groups(doing, &keys, answer)?;
                // What was let go meanwhile may be half deleted.
                if now.is_none_or(|now| places_of(&now, asked) != places) {
                    let why = "epochs were let go meanwhile";
                    return Err(self.nodes.patience.unavailable(doing, why));
                }
                read.push(groups);
            }
            let end = read
                .iter()
                .filter(|groups| !groups.is_all)
                .filter_map(|groups| groups.groups.last().map(|(group, _)| group.clone()))
                .min();
            for (place, groups) in places.iter().zip(read) {
                for (group, rows) in groups.groups {
                    if end.as_ref().is_some_and(|end| group > *end) {
                        break;
                    }
                    let of_group = (&keys, place.as_str(), group.as_slice());
                    self.add_group(doing, of_group, rows, asked, &mut page)
                        .await?;
                }
            }
            page.is_last = end.is_none();
            from = [b"(", end.unwrap_or_default().as_slice()].concat();
        }
        Ok(page.sums)
    }

    /// Adds the rows of one group in one place to a page.
    async fn add_group(
        &self,
        doing: &str,
        (keys, place, group): (&SlotKeys, &str, &[u8]),
        rows: Option<Vec<(Vec<u8>, Vec<u8>)>>,
        asked: Asked<'_>,
        page: &mut Page,
    ) -> Result<()> {
        if let Some(rows) = rows {
            return self.add_rows(doing, group, rows, asked, page);
        }
        let key = [keys.prefix.as_bytes(), place.as_bytes(), b":", group].concat();
        let mut cursor = b"0".to_vec();
        // A row may come twice.
        let mut rows = BTreeMap::new();
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(&cursor).arg("COUNT").arg(LARGE_ROWS);
            let answer = self.one(doing, keys, Call::Command(command)).await?;
            let (next, values) = cursor_and_values(answer)
                .ok_or_else(|| fault::strange(&self.nodes.patience, doing))?;
            rows.extend(
                values
                    .into_iter()
                    .filter(|(row, _)| is_after(asked, group, row)),
            );
            // The first rows are enough, and more might not fit into memory.
            while rows.len() > asked.limit {
                rows.pop_last();
            }
            if next == b"0" {
                break;
            }
            cursor = next;
        }
        self.add_rows(doing, group, rows, asked, page)
    }

    fn add_rows(
        &self,
        doing: &str,
        group: &[u8],
        rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        asked: Asked<'_>,
        page: &mut Page,
    ) -> Result<()> {
        for (row, value) in rows {
            if !is_after(asked, group, &row) {
                continue;
            }
            let count = self.count(doing, &value)?;
            let sum = page.sums.entry((group.to_vec(), row)).or_default();
            *sum = sum.checked_add(count).ok_or_else(|| {
                let why = "the sum over epochs is larger than 64 bits can hold; look for wrong amounts among the events";
                Error::broken(self.nodes.patience.what(doing), why)
            })?;
        }
        Ok(())
    }

    /// The answer of the script.
    fn groups(
        &self,
        doing: &str,
        keys: &SlotKeys,
        answer: Value,
    ) -> Result<(Option<Record>, Groups)> {
        let strange = || fault::strange(&self.nodes.patience, doing);
        let Value::Array(answer) = answer else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let record = self.answered_record(doing, keys, answer.next())?;
        let Some(Value::Int(is_all)) = answer.next() else {
            return Err(strange());
        };
        let mut groups = Vec::new();
        while let Some(group) = answer.next() {
            let Value::BulkString(group) = group else {
                return Err(strange());
            };
            let rows = match answer.next() {
                Some(Value::Int(_)) => None,
                Some(Value::Array(values)) => Some(pairs(values).ok_or_else(strange)?),
                _ => return Err(strange()),
            };
            groups.push((group, rows));
        }
        let is_all = is_all == 1;
        Ok((record, Groups { is_all, groups }))
    }
}

/// The places of a view within some epochs.
fn places_of(record: &Record, asked: Asked<'_>) -> Vec<String> {
    let (first, last) = asked.epochs;
    record
        .places(asked.view, PlaceKind::Deltas)
        .filter(|(_, epoch)| (first..=last).contains(epoch))
        .map(|(name, _)| name.clone())
        .collect()
}

fn scan_request(keys: &SlotKeys, place: &str, from: &[u8], limit: usize) -> Request {
    Request {
        hash_slot: keys.hash_slot,
        call: Call::Script {
            script: &SCAN,
            key: keys.record.clone(),
            arguments: vec![
                Bytes::from(keys.prefix.clone()),
                Bytes::copy_from_slice(place.as_bytes()),
                Bytes::copy_from_slice(from),
                Bytes::from(limit.clamp(1, SCAN_GROUPS).to_string()),
                Bytes::from(SCAN_ROWS.to_string()),
            ],
        },
    }
}

fn is_after(asked: Asked<'_>, group: &[u8], row: &[u8]) -> bool {
    asked.after.is_none_or(|(last_group, last_row)| {
        (group, row) > (last_group.as_slice(), last_row.as_slice())
    })
}

/// The answer to `HSCAN`.
fn cursor_and_values(answer: Value) -> Option<(Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>)> {
    let Value::Array(answer) = answer else {
        return None;
    };
    let mut answer = answer.into_iter();
    match (answer.next()?, answer.next()?) {
        (Value::BulkString(cursor), Value::Array(values)) => Some((cursor, pairs(values)?)),
        _ => None,
    }
}
