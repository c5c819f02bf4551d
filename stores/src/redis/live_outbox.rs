//! Outboxes of partition states, and the live entries of given members: one script for each
//! partition state.

use std::ops::Range;

use bytes::Bytes;
use redis::Value;
use schemas::source::Source;

use super::errors;
use super::live::RedisLive;
use super::nodes::Request;
use super::record::{ContainerKind, ENTRY_PREFIX};
use super::script::{MEMBERS, OUTBOX, REMOVE_ENTRIES};
use crate::Result;
use crate::live::{EntriesSnapshot, LiveEntriesBuilder, MembersQuery, Outbox, PartitionId};
use crate::live_count::StoredLiveCount;

/// The maximum number of members whose entries one script reads.
const MEMBERS_MAX: usize = 20_000;

impl RedisLive {
    /// Reads the live entries of given members. One script runs all queries of a partition state
    /// at one moment, up to [`MEMBERS_MAX`]. A caller with more members must verify that the
    /// partition states have not changed between calls.
    pub(super) async fn read_member_entries(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<EntriesSnapshot> {
        let operation = "reading live entries of members";
        let retry_policy = &self.nodes.retry_policy;
        let unexpected = || errors::unexpected_reply(retry_policy, operation);
        let member_count: usize = queries.iter().map(|query| query.members.len()).sum();
        if member_count > MEMBERS_MAX {
            return Err(crate::Error::Refused(format!(
                "{operation}: {member_count} members exceed the limit of {MEMBERS_MAX}; request fewer"
            )));
        }
        let requests: Vec<Request> = partitions
            .clone()
            .map(|partition| self.build_members_request(PartitionId { source, partition }, queries))
            .collect();
        let replies = self.nodes.send_with_retry(operation, &requests).await?;
        let mut partition_states = Vec::with_capacity(requests.len());
        let new_builder = |_| LiveEntriesBuilder::default();
        let mut builders: Vec<_> = queries.iter().map(new_builder).collect();
        for (reply, partition) in replies.into_iter().zip(partitions) {
            let partition_id = PartitionId { source, partition };
            let Value::Array(reply) = reply else {
                return Err(unexpected());
            };
            let mut reply = reply.into_iter();
            let record =
                self.record_from_reply(operation, &self.keys(partition_id), reply.next())?;
            if let Some(record) = &record {
                for (query, builder) in queries.iter().zip(&mut builders) {
                    if query.query.partition.is_some_and(|only| only != partition) {
                        continue;
                    }
                    for (_, epoch) in record.containers(&query.query.view, ContainerKind::Entries) {
                        let Some(Value::Array(values)) = reply.next() else {
                            return Err(unexpected());
                        };
                        for (member, value) in query.members.iter().zip(values) {
                            match value {
                                Value::BulkString(value) => {
                                    let entry = value.strip_prefix(&[ENTRY_PREFIX]);
                                    builder.add(partition, *epoch, member, entry);
                                }
                                Value::Nil | Value::Boolean(false) => {}
                                _ => return Err(unexpected()),
                            }
                        }
                    }
                    let (Some(Value::Int(row_count)), Some(Value::BulkString(count))) =
                        (reply.next(), reply.next())
                    else {
                        return Err(unexpected());
                    };
                    let count = StoredLiveCount::from_bytes(count.into());
                    builder.stored_count += row_count.cast_unsigned();
                    builder
                        .live_counts
                        .extend(count.map(|count| (partition, count)));
                }
            }
            partition_states.push(record.map(|record| record.state));
        }
        let entries = builders
            .into_iter()
            .map(LiveEntriesBuilder::finish)
            .collect();
        Ok(EntriesSnapshot {
            partition_states,
            entries,
        })
    }

    fn build_members_request(
        &self,
        partition_id: PartitionId,
        queries: &[MembersQuery],
    ) -> Request {
        let letter = ContainerKind::Entries.letter().as_bytes();
        let mut arguments = vec![Bytes::from_static(letter)];
        for MembersQuery { query, members } in queries {
            if query
                .partition
                .is_none_or(|only| only == partition_id.partition)
            {
                arguments.push(Bytes::copy_from_slice(query.view.as_bytes()));
                arguments.push(Bytes::copy_from_slice(&query.key));
                arguments.push(Bytes::from(members.len().to_string()));
                let members = members.iter();
                arguments.extend(members.map(|member| Bytes::copy_from_slice(member)));
            }
        }
        Request::script_on_keys(&self.keys(partition_id), &MEMBERS, arguments)
    }

    /// Reads the first entries of the outboxes of some partition states.
    pub(super) async fn fetch_outboxes(
        &self,
        source: Source,
        partitions: Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        let operation = "reading outboxes";
        let retry_policy = &self.nodes.retry_policy;
        let unexpected = || errors::unexpected_reply(retry_policy, operation);
        let request = |partition: u32| {
            let keys = self.keys(PartitionId { source, partition });
            // A limit beyond the integers of Redis reads all entries.
            let limit = i32::try_from(limit).unwrap_or(i32::MAX);
            Request::script_on_keys(&keys, &OUTBOX, [Bytes::from(limit.to_string())])
        };
        let requests: Vec<Request> = partitions.clone().map(request).collect();
        let replies = self.nodes.send_with_retry(operation, &requests).await?;
        let mut outboxes = Vec::with_capacity(requests.len());
        for (reply, partition) in replies.into_iter().zip(partitions) {
            let keys = self.keys(PartitionId { source, partition });
            let Value::Array(reply) = reply else {
                return Err(unexpected());
            };
            let mut reply = reply.into_iter();
            let Some(record) = self.record_from_reply(operation, &keys, reply.next())? else {
                outboxes.push(None);
                continue;
            };
            let (Some(Value::BulkString(removed)), Some(Value::Int(pending))) =
                (reply.next(), reply.next())
            else {
                return Err(unexpected());
            };
            let removed =
                u64::try_from(self.parse_count(operation, &removed)?).map_err(|_| unexpected())?;
            let mut entries = Vec::new();
            for entry in reply {
                let Value::BulkString(entry) = entry else {
                    return Err(unexpected());
                };
                entries.push(Bytes::from(entry));
            }
            outboxes.push(Some(Outbox {
                state: record.state,
                pending: pending.cast_unsigned(),
                sequence_numbers: removed..removed + entries.len() as u64,
                entries,
            }));
        }
        Ok(outboxes)
    }

    /// Removes entries that were read. If the outcome of an attempt is unknown, the next attempt
    /// may return that the entries were missing, which is correct by then.
    pub(super) async fn remove_outbox_entries(
        &self,
        partition_id: PartitionId,
        outbox: &Outbox,
    ) -> Result<bool> {
        let operation = "removing published entries from the outbox";
        let Some(last) = outbox.entries.last() else {
            return Ok(false);
        };
        let arguments = [
            Bytes::from(format!("o{}", outbox.state.generation)),
            Bytes::from(outbox.sequence_numbers.start.to_string()),
            Bytes::from(outbox.entries.len().to_string()),
            last.clone(),
        ];
        let request = Request::script_on_keys(&self.keys(partition_id), &REMOVE_ENTRIES, arguments);
        Ok(self.send_for_integer(operation, request).await? == 1)
    }
}
