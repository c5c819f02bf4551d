//! What waits in slots to be told, and the states of some members: one script for each slot.

use std::ops::Range;

use bytes::Bytes;
use redis::Value;
use schemas::source::Source;

use super::fault;
use super::live::RedisLive;
use super::live_write::STATE;
use super::nodes::Request;
use super::record::PlaceKind;
use super::script::{MEMBERS, OUTBOX, TAKE_OUT};
use crate::Result;
use crate::kept_sum::KeptSum;
use crate::live::{LiveStatesBuilder, MembersQuery, Outbox, SlotId, StatesAnswer};

/// So many members of one slot are asked for by one script, about.
const MEMBERS_MAX: usize = 20_000;

impl RedisLive {
    /// The states of some members. All questions of a slot are asked at one moment, up to
    /// [`MEMBERS_MAX`]; who asks for more looks whether the slots have moved.
    pub(super) async fn read_states_of(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<StatesAnswer> {
        let doing = "reading live states of members";
        let patience = &self.nodes.patience;
        let strange = || fault::strange(patience, doing);
        let all: usize = queries.iter().map(|query| query.members.len()).sum();
        if all > MEMBERS_MAX {
            return Err(crate::Error::Refused(format!(
                "{doing}: {all} members are more than the {MEMBERS_MAX} that are read at one moment; ask for fewer"
            )));
        }
        let requests: Vec<Request> = partitions
            .clone()
            .map(|partition| self.members_request(SlotId { source, partition }, queries))
            .collect();
        let answers = self.nodes.ask_again(doing, &requests).await?;
        let mut slots = Vec::with_capacity(requests.len());
        let none = |_| LiveStatesBuilder::default();
        let mut found: Vec<_> = queries.iter().map(none).collect();
        for (answer, partition) in answers.into_iter().zip(partitions) {
            let slot = SlotId { source, partition };
            let Value::Array(answer) = answer else {
                return Err(strange());
            };
            let mut answer = answer.into_iter();
            let record = self.answered_record(doing, &self.keys(slot), answer.next())?;
            if let Some(record) = &record {
                for (query, found) in queries.iter().zip(&mut found) {
                    if query.of.partition.is_some_and(|only| only != partition) {
                        continue;
                    }
                    for (_, epoch) in record.places(&query.of.view, PlaceKind::States) {
                        let Some(Value::Array(values)) = answer.next() else {
                            return Err(strange());
                        };
                        for (member, value) in query.members.iter().zip(values) {
                            match value {
                                Value::BulkString(value) => {
                                    let state = value.strip_prefix(&[STATE]);
                                    found.add((partition, *epoch), member, state);
                                }
                                Value::Nil | Value::Boolean(false) => {}
                                _ => return Err(strange()),
                            }
                        }
                    }
                    let (Some(Value::Int(held)), Some(Value::BulkString(sum))) =
                        (answer.next(), answer.next())
                    else {
                        return Err(strange());
                    };
                    let sum = KeptSum::stored(sum.into());
                    found.held += held.cast_unsigned();
                    found.sums.extend(sum.map(|sum| (partition, sum)));
                }
            }
            slots.push(record.map(|record| record.slot));
        }
        let states = found.into_iter().map(LiveStatesBuilder::finish).collect();
        Ok(StatesAnswer { slots, states })
    }

    fn members_request(&self, slot: SlotId, queries: &[MembersQuery]) -> Request {
        let letter = PlaceKind::States.letter().as_bytes();
        let mut arguments = vec![Bytes::from_static(letter)];
        for MembersQuery { of, members } in queries {
            if of.partition.is_none_or(|only| only == slot.partition) {
                arguments.push(Bytes::copy_from_slice(of.view.as_bytes()));
                arguments.push(Bytes::copy_from_slice(&of.key));
                arguments.push(Bytes::from(members.len().to_string()));
                let members = members.iter();
                arguments.extend(members.map(|member| Bytes::copy_from_slice(member)));
            }
        }
        Request::script_on_keys(&self.keys(slot), &MEMBERS, arguments)
    }

    /// What waits in some slots.
    pub(super) async fn read_outboxes(
        &self,
        source: Source,
        partitions: Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        let doing = "reading what waits to be told";
        let patience = &self.nodes.patience;
        let strange = || fault::strange(patience, doing);
        let request = |partition: u32| {
            let keys = self.keys(SlotId { source, partition });
            // All, where there is no limit to speak of.
            let limit = i32::try_from(limit).unwrap_or(i32::MAX);
            Request::script_on_keys(&keys, &OUTBOX, [Bytes::from(limit.to_string())])
        };
        let requests: Vec<Request> = partitions.clone().map(request).collect();
        let answers = self.nodes.ask_again(doing, &requests).await?;
        let mut outboxes = Vec::with_capacity(requests.len());
        for (answer, partition) in answers.into_iter().zip(partitions) {
            let keys = self.keys(SlotId { source, partition });
            let Value::Array(answer) = answer else {
                return Err(strange());
            };
            let mut answer = answer.into_iter();
            let Some(record) = self.answered_record(doing, &keys, answer.next())? else {
                outboxes.push(None);
                continue;
            };
            let (Some(Value::BulkString(taken)), Some(Value::Int(waiting))) =
                (answer.next(), answer.next())
            else {
                return Err(strange());
            };
            let taken = u64::try_from(self.count(doing, &taken)?).map_err(|_| strange())?;
            let mut entries = Vec::new();
            for entry in answer {
                let Value::BulkString(entry) = entry else {
                    return Err(strange());
                };
                entries.push(Bytes::from(entry));
            }
            outboxes.push(Some(Outbox {
                slot: record.slot,
                waiting: waiting.cast_unsigned(),
                numbers: taken..taken + entries.len() as u64,
                entries,
            }));
        }
        Ok(outboxes)
    }

    /// Takes entries out that were read. A try whose outcome is not known may answer that they were not
    /// there, which is right by then.
    pub(super) async fn take_entries(&self, slot: SlotId, read: &Outbox) -> Result<bool> {
        let doing = "taking out what has been told";
        let Some(last) = read.entries.last() else {
            return Ok(false);
        };
        let arguments = [
            Bytes::from(format!("o{}", read.slot.generation)),
            Bytes::from(read.numbers.start.to_string()),
            Bytes::from(read.entries.len().to_string()),
            last.clone(),
        ];
        let request = Request::script_on_keys(&self.keys(slot), &TAKE_OUT, arguments);
        Ok(self.repeat_for_number(doing, request).await? == 1)
    }
}
