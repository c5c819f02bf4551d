//! Reads of partition states together with their deltas or live entries: one script for each
//! partition state, all concurrently.

use std::collections::BTreeMap;

use arrow::array::BinaryArray;
use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, PartitionState};
use schemas::source::Source;

use super::errors;
use super::live::RedisLive;
use super::live_groups::{GROUP_TRIES_MAX, GroupAddress};
use super::live_scan::PageRequest;
use super::nodes::Request;
use super::pairs::{Pairs, decode_pairs, unpack_chunks, unpack_string};
use super::record::{ContainerKind, ENTRY_PREFIX, Record, has_chunks, parse_view_number};
use super::script::READ;
use crate::board_cache::BoardCacheRead;
use crate::live::{
    DeltaQuery, DeltasSnapshot, EntriesSnapshot, EntryQuery, LiveDeltas, LiveEntriesBuilder,
    LiveRead, MembersQuery, Outbox, PartitionId,
};
use crate::live_count::StoredLiveCount;
use crate::live_scan::{ScanKey, ScannedDeltas, ScannedEntries};
use crate::{Error, Result};

/// The maximum number of rows of one partition state that one script returns. It blocks the
/// server for about 50 ms.
const READ_ROWS_MAX: usize = 50_000;

/// The maximum number of rows of one group that are assembled from several replies.
const GROUP_ROWS_MAX: usize = 1_000_000;

/// A query for one group of a view.
struct GroupQuery<'a> {
    view: &'a str,
    group: &'a [u8],
    partition: Option<u32>,
    kind: ContainerKind,
    /// Ranges of row keys to return; all rows if `None`.
    ranges: Option<&'a [RowRange]>,
    /// True if a finished live count replaces the entries. It is the same for all queries of a
    /// call.
    accepts_live_counts: bool,
}

/// First row key, and the row key before which the range ends.
type RowRange = (Vec<u8>, Option<Vec<u8>>);

fn is_within(ranges: &[RowRange], row: &[u8]) -> bool {
    ranges
        .iter()
        .any(|(begin, end)| row >= begin.as_slice() && end.as_deref().is_none_or(|end| row < end))
}

/// A row of a group in its stored form.
struct LiveRow {
    partition: u32,
    epoch: Epoch,
    key: Vec<u8>,
    value: Vec<u8>,
    /// True if the row was packed. Then other containers may have increments of the same row.
    is_packed: bool,
}

impl LiveRow {
    /// Adds the live entry of this row.
    fn add_to(&self, builder: &mut LiveEntriesBuilder) {
        let entry = self.value.strip_prefix(&[ENTRY_PREFIX]);
        builder.add(self.partition, self.epoch, &self.key, entry);
    }

    fn decoder(
        partition: u32,
        epoch: Epoch,
        is_packed: bool,
    ) -> impl Fn((Vec<u8>, Vec<u8>)) -> Self {
        move |(key, value)| Self {
            partition,
            epoch,
            key,
            value,
            is_packed,
        }
    }
}

/// Rows and record of one partition state, read at one moment.
struct PartitionRows {
    /// The record's bytes.
    bytes: Bytes,
    record: Option<Record>,
    /// Rows with the index of their query.
    rows: Vec<(usize, LiveRow)>,
    /// Live counts with the index of their query.
    live_counts: Vec<(usize, StoredLiveCount)>,
    /// Groups that were too large for the reply.
    large_groups: Option<Vec<LargeGroup>>,
}

/// A group that was too large for one reply.
struct LargeGroup {
    query_index: usize,
    container: String,
    epoch: Epoch,
    /// The number of fields in the hash.
    field_count: usize,
}

impl RedisLive {
    async fn read_entry_snapshot(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
        accepts_live_counts: bool,
    ) -> Result<EntriesSnapshot> {
        let operation = "reading live entries";
        let group_queries: Vec<GroupQuery<'_>> = queries
            .iter()
            .map(|query| GroupQuery {
                view: &query.view,
                group: &query.key,
                partition: query.partition,
                kind: ContainerKind::Entries,
                ranges: None,
                accepts_live_counts,
            })
            .collect();
        let new_builder = |_| LiveEntriesBuilder::default();
        let mut builders: Vec<_> = queries.iter().map(new_builder).collect();
        let (partition_states, live_counts) = self
            .read_partition_states(
                operation,
                source,
                partitions,
                &group_queries,
                |index, row| {
                    if let Some(builder) = builders.get_mut(index) {
                        row.add_to(builder);
                    }
                    Ok(())
                },
            )
            .await?;
        for (index, partition, live_count) in live_counts {
            if let Some(builder) = builders.get_mut(index) {
                builder.live_counts.push((partition, live_count));
            }
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

    /// Reads partition states and calls `add_row` for each row, with the index of its query.
    /// Returns the partition states, and the live counts with query index and partition.
    async fn read_partition_states(
        &self,
        operation: &str,
        source: Source,
        partitions: u32,
        group_queries: &[GroupQuery<'_>],
        mut add_row: impl FnMut(usize, LiveRow) -> Result<()> + Send,
    ) -> Result<(
        Vec<Option<PartitionState>>,
        Vec<(usize, u32, StoredLiveCount)>,
    )> {
        let requests: Vec<Request> = (0..partitions)
            .map(|partition| {
                self.build_read_request(PartitionId { source, partition }, group_queries)
            })
            .collect();
        let replies = self.nodes.send_with_retry(operation, &requests).await?;
        let (mut partition_states, mut live_counts) =
            (Vec::with_capacity(requests.len()), Vec::new());
        for (reply, partition) in replies.into_iter().zip(0_u32..) {
            let partition_id = PartitionId { source, partition };
            let mut partition_rows =
                self.parse_partition_rows(operation, partition_id, group_queries, reply)?;
            if partition_rows.large_groups.is_some() {
                partition_rows = Box::pin(self.read_large_groups(
                    operation,
                    partition_id,
                    group_queries,
                    partition_rows,
                ))
                .await?;
            }
            for (index, row) in partition_rows.rows {
                add_row(index, row)?;
            }
            let partition_counts = partition_rows.live_counts.into_iter();
            live_counts
                .extend(partition_counts.map(|(index, live_count)| (index, partition, live_count)));
            partition_states.push(partition_rows.record.map(|record| record.state));
        }
        Ok((partition_states, live_counts))
    }

    /// Decodes the reply of the script for one partition state.
    fn parse_partition_rows(
        &self,
        operation: &str,
        partition_id: PartitionId,
        group_queries: &[GroupQuery<'_>],
        reply: Value,
    ) -> Result<PartitionRows> {
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let Value::Array(reply) = reply else {
            return Err(unexpected());
        };
        let mut reply = reply.into_iter();
        let Some(Value::BulkString(bytes)) = reply.next() else {
            return Err(unexpected());
        };
        let bytes = Bytes::from(bytes);
        let snapshot = self.parse_snapshot(operation, &self.keys(partition_id), bytes.clone())?;
        let mut rows = Vec::new();
        let (mut large_groups, mut live_counts) = (Vec::new(), Vec::new());
        if let Some(record) = &snapshot.record {
            for (index, group_query) in group_queries.iter().enumerate() {
                if group_query
                    .partition
                    .is_some_and(|only| only != partition_id.partition)
                {
                    continue;
                }
                let Some(Value::BulkString(live_count)) = reply.next() else {
                    return Err(unexpected());
                };
                let live_count = StoredLiveCount::from_bytes(live_count.into());
                let is_finished = live_count
                    .as_ref()
                    .is_some_and(|live_count| live_count.content().is_some());
                live_counts.extend(live_count.map(|live_count| (index, live_count)));
                if is_finished && group_query.accepts_live_counts {
                    continue;
                }
                for (container, epoch) in record.containers(group_query.view, group_query.kind) {
                    let view_number = parse_view_number(container);
                    let is_chunked = has_chunks(container);
                    let is_packed = view_number.is_some() || is_chunked;
                    let to_row = LiveRow::decoder(partition_id.partition, *epoch, is_packed);
                    match reply.next() {
                        Some(Value::Int(fields)) => large_groups.push(LargeGroup {
                            query_index: index,
                            container: container.clone(),
                            epoch: *epoch,
                            field_count: usize::try_from(fields).unwrap_or(usize::MAX),
                        }),
                        Some(Value::BulkString(string)) => {
                            let view = view_number.ok_or_else(unexpected)?;
                            let view_rows = unpack_string(&string, view).ok_or_else(unexpected)?;
                            rows.extend(view_rows.into_iter().map(|pair| (index, to_row(pair))));
                        }
                        Some(Value::Array(values)) => {
                            let mut view_rows = decode_pairs(values).ok_or_else(unexpected)?;
                            if is_chunked {
                                view_rows = unpack_chunks(&view_rows).ok_or_else(unexpected)?;
                            }
                            rows.extend(view_rows.into_iter().map(|pair| (index, to_row(pair))));
                        }
                        _ => return Err(unexpected()),
                    }
                }
            }
        }
        Ok(PartitionRows {
            bytes,
            record: snapshot.record,
            rows,
            live_counts,
            large_groups: (!large_groups.is_empty()).then_some(large_groups),
        })
    }

    /// Reads groups that are too large for one reply in several. The rows are from one moment if
    /// the record has not changed from before the first to after the last reply. Otherwise
    /// everything is read again.
    async fn read_large_groups(
        &self,
        operation: &str,
        partition_id: PartitionId,
        group_queries: &[GroupQuery<'_>],
        mut partition_rows: PartitionRows,
    ) -> Result<PartitionRows> {
        let (keys, retry_policy) = (self.keys(partition_id), &self.nodes.retry_policy);
        let request = [self.build_read_request(partition_id, group_queries)];
        for _ in 0..GROUP_TRIES_MAX {
            for group in partition_rows.large_groups.take().unwrap_or_default() {
                let Some(group_query) = group_queries.get(group.query_index) else {
                    continue;
                };
                let address = GroupAddress {
                    keys: &keys,
                    container: &group.container,
                    group: group_query.group,
                };
                let expected_fields = group.field_count;
                let read_group = || {
                    self.read_large_group(operation, address, group_query.ranges, expected_fields)
                };
                let group_rows = retry_policy.retry(operation, read_group).await?;
                let is_packed = has_chunks(&group.container);
                let to_row = LiveRow::decoder(partition_id.partition, group.epoch, is_packed);
                let rows = group_rows
                    .into_iter()
                    .map(|pair| (group.query_index, to_row(pair)));
                partition_rows.rows.extend(rows);
            }
            let current = retry_policy
                .retry(operation, || self.load_record(operation, &keys))
                .await?;
            if current.bytes == partition_rows.bytes {
                return Ok(partition_rows);
            }
            let replies = self.nodes.send_with_retry(operation, &request).await?;
            let reply = replies.into_iter().next().unwrap_or_default();
            partition_rows =
                self.parse_partition_rows(operation, partition_id, group_queries, reply)?;
            if partition_rows.large_groups.is_none() {
                return Ok(partition_rows);
            }
        }
        let reason = format!(
            "a group has more live rows than the limit of {READ_ROWS_MAX} for one read, and changed during each attempt; complete a batch run to prune old epochs"
        );
        Err(retry_policy.unavailable(operation, reason))
    }

    /// Reads the rows of a group within some ranges in several replies.
    async fn read_large_group(
        &self,
        operation: &str,
        address: GroupAddress<'_>,
        ranges: Option<&[RowRange]>,
        expected_fields: usize,
    ) -> Result<Pairs> {
        let mut rows = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if ranges.is_none_or(|ranges| is_within(ranges, &row)) {
                self.add_increment(operation, &mut rows, row, value)?;
            }
            if rows.len() <= GROUP_ROWS_MAX {
                return Ok(());
            }
            let reason = format!(
                "a group has more than {GROUP_ROWS_MAX} live rows; complete a batch run to prune old epochs"
            );
            Err(Error::broken(
                self.nodes.retry_policy.describe(operation),
                reason,
            ))
        };
        self.for_each_row(operation, address, expected_fields, keep)
            .await?;
        Ok(rows.into_iter().collect())
    }

    fn build_read_request(
        &self,
        partition_id: PartitionId,
        group_queries: &[GroupQuery<'_>],
    ) -> Request {
        let kind = group_queries
            .first()
            .map_or(ContainerKind::Deltas, |first| first.kind);
        let accepts_live_counts = group_queries
            .first()
            .is_some_and(|first| first.accepts_live_counts);
        let mut arguments = vec![
            Bytes::from_static(kind.letter().as_bytes()),
            Bytes::from(READ_ROWS_MAX.to_string()),
            Bytes::from_static(if accepts_live_counts { "1" } else { "" }.as_bytes()),
        ];
        for group_query in group_queries {
            if group_query
                .partition
                .is_none_or(|only| only == partition_id.partition)
            {
                arguments.push(Bytes::copy_from_slice(group_query.view.as_bytes()));
                arguments.push(Bytes::copy_from_slice(group_query.group));
            }
        }
        Request::script_on_keys(&self.keys(partition_id), &READ, arguments)
    }
}

#[async_trait]
impl LiveRead for RedisLive {
    async fn read_deltas(
        &self,
        source: Source,
        partitions: u32,
        queries: &[DeltaQuery],
    ) -> Result<DeltasSnapshot> {
        let operation = "reading live deltas";
        let group_queries: Vec<GroupQuery<'_>> = queries
            .iter()
            .map(|query| GroupQuery {
                view: &query.view,
                group: &query.group,
                partition: query.partition,
                kind: ContainerKind::Deltas,
                ranges: Some(&query.ranges),
                accepts_live_counts: false,
            })
            .collect();
        let mut matches: Vec<QueryMatches> =
            queries.iter().map(|_| QueryMatches::default()).collect();
        let (partition_states, _) = self
            .read_partition_states(
                operation,
                source,
                partitions,
                &group_queries,
                |index, row| {
                    let (Some(query), Some(matches)) = (queries.get(index), matches.get_mut(index))
                    else {
                        return Ok(());
                    };
                    if is_within(&query.ranges, &row.key) {
                        let count = self.parse_count(operation, &row.value)?;
                        matches.add(row, count);
                    }
                    Ok(())
                },
            )
            .await?;
        let finished = matches.into_iter().map(|matches| {
            matches.finish().ok_or_else(|| {
                let reason = "a count exceeds 64 bits; look for events with wrong amounts";
                Error::broken(self.nodes.retry_policy.describe(operation), reason)
            })
        });
        let deltas = finished.collect::<Result<_>>()?;
        Ok(DeltasSnapshot {
            partition_states,
            deltas,
        })
    }

    /// Reads only the records, without a script.
    async fn partition_states(
        &self,
        source: Source,
        partitions: std::ops::Range<u32>,
    ) -> Result<Vec<Option<PartitionState>>> {
        let operation = "reading partition states";
        let partition_ids = partitions.map(|partition| PartitionId { source, partition });
        let requests: Vec<Request> = partition_ids
            .clone()
            .map(|partition_id| {
                let keys = self.keys(partition_id);
                Request::command(&keys, redis::cmd("GET").arg(&keys.record).take())
            })
            .collect();
        let replies = self.nodes.send_with_retry(operation, &requests).await?;
        let mut states = Vec::with_capacity(requests.len());
        for (reply, partition_id) in replies.into_iter().zip(partition_ids) {
            let cached = self.reader_snapshots().get(&partition_id).cloned();
            let snapshot =
                self.snapshot_from_reply(operation, partition_id, cached.as_ref(), Some(reply))?;
            states.push(snapshot.record.as_ref().map(|record| record.state.clone()));
        }
        Ok(states)
    }

    async fn read_entries(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        self.read_entry_snapshot(source, partitions, queries, false)
            .await
    }

    async fn read_live_counts(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        self.read_entry_snapshot(source, partitions, queries, true)
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
    ) -> Result<EntriesSnapshot> {
        self.read_member_entries(source, partitions, queries).await
    }

    async fn outboxes(
        &self,
        source: Source,
        partitions: std::ops::Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        self.fetch_outboxes(source, partitions, limit).await
    }

    async fn scan_deltas(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedDeltas> {
        let request = PageRequest {
            kind: ContainerKind::Deltas,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        self.scan_delta_page(partition_id, request).await
    }

    async fn scan_entries(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedEntries> {
        let request = PageRequest {
            kind: ContainerKind::Entries,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        self.scan_entry_page(partition_id, request).await
    }
}

/// Deltas that match one query: partition, epoch, row, and count.
#[derive(Debug, Default)]
struct QueryMatches {
    deltas: Vec<(u32, Epoch, Vec<u8>, i64)>,
    /// True if some rows were packed.
    is_packed: bool,
}

impl QueryMatches {
    fn add(&mut self, row: LiveRow, count: i64) {
        self.is_packed |= row.is_packed;
        self.deltas.push((row.partition, row.epoch, row.key, count));
    }

    /// Sums the increments of each row. Returns `None` if a sum overflows.
    fn finish(mut self) -> Option<LiveDeltas> {
        // Only packed rows can occur several times.
        if self.is_packed && !self.deltas.is_sorted() {
            self.deltas.sort_unstable();
        }
        let mut is_summed = true;
        self.deltas.dedup_by(|duplicate, sum| {
            let is_same = (duplicate.0, duplicate.1, &duplicate.2) == (sum.0, sum.1, &sum.2);
            if is_same {
                let total = sum.3.checked_add(duplicate.3);
                is_summed &= total.is_some();
                sum.3 = total.unwrap_or(sum.3);
            }
            is_same
        });
        let deltas = &self.deltas;
        is_summed.then(|| LiveDeltas {
            partitions: deltas.iter().map(|delta| delta.0).collect(),
            epochs: deltas.iter().map(|delta| delta.1).collect(),
            rows: BinaryArray::from_iter_values(deltas.iter().map(|delta| &delta.2)),
            counts: deltas.iter().map(|delta| delta.3).collect(),
        })
    }
}
