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
use super::live_groups::{GROUP_TRIES, GroupAddress};
use super::live_scan::PageRequest;
use super::nodes::Request;
use super::pairs::{Pairs, pairs, unpack_chunks, unpack_string};
use super::record::{ContainerKind, Record, STATE, has_chunks, view_number};
use super::script::READ;
use crate::board_cache::BoardCacheRead;
use crate::live::{
    DeltaQuery, DeltasSnapshot, LiveDeltas, LiveRead, LiveStatesBuilder, MembersQuery, Outbox,
    PartitionId, StateQuery, StatesSnapshot,
};
use crate::live_count::StoredLiveCount;
use crate::live_scan::{ScanKey, ScannedDeltas, ScannedStates};
use crate::{Error, Result};

/// Most rows of one partition state that one script returns. It blocks the server for about 50 ms.
const READ_ROWS: usize = 50_000;

/// Most rows of one group that are assembled from several answers.
const GROUP_ROWS: usize = 1_000_000;

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
    fn add_state(&self, builder: &mut LiveStatesBuilder) {
        let state = self.value.strip_prefix(&[STATE]);
        builder.add(self.partition, self.epoch, &self.key, state);
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
    sums: Vec<(usize, StoredLiveCount)>,
    /// Groups that were too large for the answer.
    large: Option<Vec<LargeGroup>>,
}

/// A group that was too large for one answer.
struct LargeGroup {
    query_index: usize,
    container: String,
    epoch: Epoch,
    /// Number of fields in the hash.
    field_count: usize,
}

impl RedisLive {
    async fn read_entries(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
        accepts_live_counts: bool,
    ) -> Result<StatesSnapshot> {
        let operation = "reading live entries";
        let group_queries: Vec<GroupQuery<'_>> = queries
            .iter()
            .map(|query| GroupQuery {
                view: &query.view,
                group: &query.key,
                partition: query.partition,
                kind: ContainerKind::States,
                ranges: None,
                accepts_live_counts,
            })
            .collect();
        let none = |_| LiveStatesBuilder::default();
        let mut builders: Vec<_> = queries.iter().map(none).collect();
        let (partition_states, sums) = self
            .read_partition_states(
                operation,
                source,
                partitions,
                &group_queries,
                |index, row| {
                    if let Some(builder) = builders.get_mut(index) {
                        row.add_state(builder);
                    }
                    Ok(())
                },
            )
            .await?;
        for (index, partition, sum) in sums {
            if let Some(builder) = builders.get_mut(index) {
                builder.live_counts.push((partition, sum));
            }
        }
        let states = builders
            .into_iter()
            .map(LiveStatesBuilder::finish)
            .collect();
        Ok(StatesSnapshot {
            partition_states,
            states,
        })
    }

    /// Reads partition states and calls `row` for each row, with the index of its query. Returns
    /// the partition states, and the live counts with query index and partition.
    async fn read_partition_states(
        &self,
        operation: &str,
        source: Source,
        partitions: u32,
        group_queries: &[GroupQuery<'_>],
        mut row: impl FnMut(usize, LiveRow) -> Result<()> + Send,
    ) -> Result<(
        Vec<Option<PartitionState>>,
        Vec<(usize, u32, StoredLiveCount)>,
    )> {
        let requests: Vec<Request> = (0..partitions)
            .map(|partition| self.read_request(PartitionId { source, partition }, group_queries))
            .collect();
        let answers = self.nodes.send_with_retry(operation, &requests).await?;
        let (mut partition_states, mut sums) = (Vec::with_capacity(requests.len()), Vec::new());
        for (answer, partition) in answers.into_iter().zip(0_u32..) {
            let partition_id = PartitionId { source, partition };
            let mut read =
                self.parse_partition_rows(operation, partition_id, group_queries, answer)?;
            if read.large.is_some() {
                read =
                    Box::pin(self.read_large_groups(operation, partition_id, group_queries, read))
                        .await?;
            }
            for (index, found) in read.rows {
                row(index, found)?;
            }
            let counts = read.sums.into_iter();
            sums.extend(counts.map(|(index, sum)| (index, partition, sum)));
            partition_states.push(read.record.map(|record| record.state));
        }
        Ok((partition_states, sums))
    }

    /// Decodes the answer of the script for one partition state.
    fn parse_partition_rows(
        &self,
        operation: &str,
        partition_id: PartitionId,
        group_queries: &[GroupQuery<'_>],
        answer: Value,
    ) -> Result<PartitionRows> {
        let unexpected = || errors::unexpected_answer(&self.nodes.retry_policy, operation);
        let Value::Array(answer) = answer else {
            return Err(unexpected());
        };
        let mut answer = answer.into_iter();
        let Some(Value::BulkString(bytes)) = answer.next() else {
            return Err(unexpected());
        };
        let bytes = Bytes::from(bytes);
        let snapshot = self.parse_snapshot(operation, &self.keys(partition_id), bytes.clone())?;
        let mut rows = Vec::new();
        let (mut large, mut sums) = (Vec::new(), Vec::new());
        if let Some(record) = &snapshot.record {
            for (index, group_query) in group_queries.iter().enumerate() {
                if group_query
                    .partition
                    .is_some_and(|only| only != partition_id.partition)
                {
                    continue;
                }
                let Some(Value::BulkString(sum)) = answer.next() else {
                    return Err(unexpected());
                };
                let sum = StoredLiveCount::from_bytes(sum.into());
                let is_finished = sum.as_ref().is_some_and(|sum| sum.content().is_some());
                sums.extend(sum.map(|sum| (index, sum)));
                if is_finished && group_query.accepts_live_counts {
                    continue;
                }
                for (container, epoch) in record.containers(group_query.view, group_query.kind) {
                    let number = view_number(container);
                    let is_chunked = has_chunks(container);
                    let is_packed = number.is_some() || is_chunked;
                    let to_row = LiveRow::decoder(partition_id.partition, *epoch, is_packed);
                    match answer.next() {
                        Some(Value::Int(fields)) => large.push(LargeGroup {
                            query_index: index,
                            container: container.clone(),
                            epoch: *epoch,
                            field_count: usize::try_from(fields).unwrap_or(usize::MAX),
                        }),
                        Some(Value::BulkString(string)) => {
                            let view = number.ok_or_else(unexpected)?;
                            let found = unpack_string(&string, view).ok_or_else(unexpected)?;
                            rows.extend(found.into_iter().map(|pair| (index, to_row(pair))));
                        }
                        Some(Value::Array(values)) => {
                            let mut found = pairs(values).ok_or_else(unexpected)?;
                            if is_chunked {
                                found = unpack_chunks(&found).ok_or_else(unexpected)?;
                            }
                            rows.extend(found.into_iter().map(|pair| (index, to_row(pair))));
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
            sums,
            large: (!large.is_empty()).then_some(large),
        })
    }

    /// Reads groups that are too large for one answer in several. The rows are from one moment if
    /// the record has not changed from before the first to after the last answer. Otherwise
    /// everything is read again.
    async fn read_large_groups(
        &self,
        operation: &str,
        partition_id: PartitionId,
        group_queries: &[GroupQuery<'_>],
        mut read: PartitionRows,
    ) -> Result<PartitionRows> {
        let (keys, retry_policy) = (self.keys(partition_id), &self.nodes.retry_policy);
        let request = [self.read_request(partition_id, group_queries)];
        for _ in 0..GROUP_TRIES {
            for group in read.large.take().unwrap_or_default() {
                let Some(group_query) = group_queries.get(group.query_index) else {
                    continue;
                };
                let address = GroupAddress {
                    keys: &keys,
                    container: &group.container,
                    group: group_query.group,
                };
                let expected = group.field_count;
                let pages =
                    || self.read_large_group(operation, address, group_query.ranges, expected);
                let found = retry_policy.retry(operation, pages).await?;
                let is_packed = has_chunks(&group.container);
                let to_row = LiveRow::decoder(partition_id.partition, group.epoch, is_packed);
                let rows = found
                    .into_iter()
                    .map(|pair| (group.query_index, to_row(pair)));
                read.rows.extend(rows);
            }
            let now = retry_policy
                .retry(operation, || self.load_record(operation, &keys))
                .await?;
            if now.bytes == read.bytes {
                return Ok(read);
            }
            let answers = self.nodes.send_with_retry(operation, &request).await?;
            let answer = answers.into_iter().next().unwrap_or_default();
            read = self.parse_partition_rows(operation, partition_id, group_queries, answer)?;
            if read.large.is_none() {
                return Ok(read);
            }
        }
        let why = format!(
            "a group has more live rows than the limit of {READ_ROWS} for one read, and changed during each attempt; complete a batch run to prune old epochs"
        );
        Err(retry_policy.unavailable(operation, why))
    }

    /// Reads the rows of a group within some ranges in several answers.
    async fn read_large_group(
        &self,
        operation: &str,
        address: GroupAddress<'_>,
        ranges: Option<&[RowRange]>,
        expected: usize,
    ) -> Result<Pairs> {
        let mut rows = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if ranges.is_none_or(|ranges| is_within(ranges, &row)) {
                self.add_row_part(operation, &mut rows, row, value)?;
            }
            if rows.len() <= GROUP_ROWS {
                return Ok(());
            }
            let why = format!(
                "a group has more than {GROUP_ROWS} live rows; complete a batch run to prune old epochs"
            );
            Err(Error::broken(
                self.nodes.retry_policy.describe(operation),
                why,
            ))
        };
        self.for_each_row(operation, address, expected, keep)
            .await?;
        Ok(rows.into_iter().collect())
    }

    fn read_request(&self, partition_id: PartitionId, group_queries: &[GroupQuery<'_>]) -> Request {
        let kind = group_queries
            .first()
            .map_or(ContainerKind::Deltas, |first| first.kind);
        let accepts_live_counts = group_queries
            .first()
            .is_some_and(|first| first.accepts_live_counts);
        let mut arguments = vec![
            Bytes::from_static(kind.letter().as_bytes()),
            Bytes::from(READ_ROWS.to_string()),
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
        let mut found: Vec<QueryMatches> =
            queries.iter().map(|_| QueryMatches::default()).collect();
        let (partition_states, _) = self
            .read_partition_states(
                operation,
                source,
                partitions,
                &group_queries,
                |index, row| {
                    let (Some(query), Some(found)) = (queries.get(index), found.get_mut(index))
                    else {
                        return Ok(());
                    };
                    if is_within(&query.ranges, &row.key) {
                        let count = self.parse_count(operation, &row.value)?;
                        found.add(row, count);
                    }
                    Ok(())
                },
            )
            .await?;
        let finished = found.into_iter().map(|found| {
            found.finish().ok_or_else(|| {
                let why = "a count exceeds 64 bits; look for events with wrong amounts";
                Error::broken(self.nodes.retry_policy.describe(operation), why)
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
        let answers = self.nodes.send_with_retry(operation, &requests).await?;
        let mut found = Vec::with_capacity(requests.len());
        for (answer, partition_id) in answers.into_iter().zip(partition_ids) {
            let cached = self.reader_snapshots().get(&partition_id).cloned();
            let snapshot =
                self.snapshot_from_answer(operation, partition_id, cached.as_ref(), Some(answer))?;
            found.push(snapshot.record.as_ref().map(|record| record.state.clone()));
        }
        Ok(found)
    }

    async fn read_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesSnapshot> {
        self.read_entries(source, partitions, queries, false).await
    }

    async fn read_live_counts(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesSnapshot> {
        self.read_entries(source, partitions, queries, true).await
    }

    fn cached_boards(&self) -> Option<&dyn BoardCacheRead> {
        Some(self)
    }

    async fn read_members(
        &self,
        source: Source,
        partitions: std::ops::Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<StatesSnapshot> {
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

    async fn scan_states(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedStates> {
        let request = PageRequest {
            kind: ContainerKind::States,
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        self.scan_state_page(partition_id, request).await
    }
}

/// Deltas that match one query: partition, epoch, row, and count.
#[derive(Debug, Default)]
struct QueryMatches {
    parts: Vec<(u32, Epoch, Vec<u8>, i64)>,
    /// True if some rows were packed.
    is_packed: bool,
}

impl QueryMatches {
    fn add(&mut self, row: LiveRow, count: i64) {
        self.is_packed |= row.is_packed;
        self.parts.push((row.partition, row.epoch, row.key, count));
    }

    /// Sums the increments of each row. Returns `None` if a sum overflows.
    fn finish(mut self) -> Option<LiveDeltas> {
        // Only packed rows can occur several times.
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
        is_summed.then(|| LiveDeltas {
            partitions: parts.iter().map(|part| part.0).collect(),
            epochs: parts.iter().map(|part| part.1).collect(),
            rows: BinaryArray::from_iter_values(parts.iter().map(|part| &part.2)),
            counts: parts.iter().map(|part| part.3).collect(),
        })
    }
}
