//! Reading slots together with their parts: one script for each slot, all of them side by side.

use arrow::array::{BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder};
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, Slot};
use schemas::source::Source;

use super::fault;
use super::live::RedisLive;
use super::live_write::STATE;
use super::nodes::{Call, Request};
use super::record::{PlaceKind, Record, SlotKeys};
use super::script::READ;
use crate::Result;
use crate::live::{LiveAnswer, LiveParts, LiveQuery, LiveStates, SlotId, StateQuery, StatesAnswer};

/// So many rows of one slot are read at once, at most.
const READ_ROWS: usize = 100_000;

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

    pub(super) fn count(&self, doing: &str, value: &[u8]) -> Result<i64> {
        let text = std::str::from_utf8(value).ok();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| fault::strange(&self.nodes.patience, doing))
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
