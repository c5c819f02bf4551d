//! Scans of all deltas or live entries of a view in one partition state, page by page and in the
//! byte order of groups.
//!
//! A page is the reply of one script, so its rows and its checkpoint are from one moment. A group
//! that is too large for one reply fills one or more pages of its own. Its rows arrive in several
//! replies and in no order, and each page retains the first rows. Then the record must show that
//! the rows have not changed meanwhile.

use std::collections::BTreeMap;

use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, PartitionState};

use super::errors;
use super::live::RedisLive;
use super::live_groups::{GROUP_TRIES_MAX, GroupAddress};
use super::nodes::Request;
use super::pairs::{Pairs, decode_pairs, unpack_chunks, unpack_string};
use super::record::{
    ContainerKind, ENTRY_PREFIX, PartitionKeys, Record, has_chunks, parse_view_number,
};
use super::script::SCAN;
use crate::Result;
use crate::live::PartitionId;
use crate::live_scan::{
    EntryWithEpoch, ScanKey, ScannedDeltas, ScannedEntries, build_deltas_page, build_entries_page,
};

/// The maximum number of groups of one container that one script returns.
const SCAN_GROUPS_MAX: usize = 5_000;

/// The maximum number of rows in a page. A group with at most this many rows in a container is read
/// as a whole.
const SCAN_ROWS_MAX: usize = 10_000;

/// Stored values with their epochs, by group and row.
type EntriesByKey = BTreeMap<ScanKey, Vec<(Epoch, Vec<u8>)>>;

/// A page before it is decoded.
#[derive(Debug)]
struct ScanPage {
    /// `None` if the partition state does not exist.
    state: Option<PartitionState>,
    rows: EntriesByKey,
    is_last: bool,
}

/// The rows of a group in one container.
enum GroupRows {
    Rows(Pairs),
    /// The number of fields; they are too many for one reply.
    FieldCount(usize),
}

/// The first groups of one container after the start of the page.
struct ContainerGroups {
    name: String,
    epoch: Epoch,
    /// True if no more groups follow.
    is_complete: bool,
    groups: Vec<(Vec<u8>, GroupRows)>,
}

/// Groups of all containers after the start of the page, read at one moment.
struct GroupsSnapshot {
    bytes: Bytes,
    record: Option<Record>,
    containers: Vec<ContainerGroups>,
}

impl GroupsSnapshot {
    /// The last group up to which all containers have been read; `None` if no more groups follow.
    fn last_known_group(&self) -> Option<&[u8]> {
        let unfinished = self
            .containers
            .iter()
            .filter(|container| !container.is_complete);
        let last = unfinished.filter_map(|container| container.groups.last());
        last.map(|(group, _)| group.as_slice()).min()
    }

    /// The first group that is too large for one reply.
    fn first_large_group(&self) -> Option<Vec<u8>> {
        let groups = self
            .containers
            .iter()
            .flat_map(|container| &container.groups);
        let large = groups.filter(|(_, rows)| matches!(rows, GroupRows::FieldCount(_)));
        large.map(|(group, _)| group.clone()).min()
    }
}

/// The page to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRequest<'a> {
    pub(super) kind: ContainerKind,
    pub(super) view: &'a str,
    pub(super) epochs: (Epoch, Epoch),
    pub(super) after: Option<&'a ScanKey>,
    pub(super) limit: usize,
}

impl PageRequest<'_> {
    fn rows_max(&self) -> usize {
        self.limit.clamp(1, SCAN_ROWS_MAX)
    }

    fn is_after(&self, group: &[u8], row: &[u8]) -> bool {
        self.after.is_none_or(|(last_group, last_row)| {
            (group, row) > (last_group.as_slice(), last_row.as_slice())
        })
    }

    /// The requested containers with their epochs.
    fn containers(&self, record: &Record) -> Vec<(String, Epoch)> {
        let (first, last) = self.epochs;
        let containers = record.containers(self.view, self.kind);
        let within = containers.filter(|(_, epoch)| (first..=last).contains(epoch));
        within.cloned().collect()
    }

    /// Adds the rows of a group in one epoch.
    fn add(
        &self,
        rows: &mut EntriesByKey,
        group: &[u8],
        epoch: Epoch,
        group_rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) {
        for (row, value) in group_rows {
            if self.is_after(group, &row) {
                let values = rows.entry((group.to_vec(), row)).or_default();
                values.push((epoch, value));
            }
        }
    }
}

impl RedisLive {
    /// Reads a page of deltas, summed over epochs.
    pub(super) async fn scan_delta_page(
        &self,
        partition_id: PartitionId,
        request: PageRequest<'_>,
    ) -> Result<ScannedDeltas> {
        let operation = "scanning live deltas";
        let page = self.scan_page(operation, partition_id, request).await?;
        let mut rows = Vec::with_capacity(page.rows.len());
        for (key, values) in page.rows {
            let mut sum = 0_i64;
            for (_, value) in values {
                let count = self.parse_count(operation, &value)?;
                sum = sum
                    .checked_add(count)
                    .ok_or_else(|| self.overflow_error(operation))?;
            }
            rows.push((key, sum));
        }
        Ok(build_deltas_page(
            request.view,
            page.state,
            rows,
            page.is_last,
        ))
    }

    /// Reads a page of live entries, the newest of each member.
    pub(super) async fn scan_entry_page(
        &self,
        partition_id: PartitionId,
        request: PageRequest<'_>,
    ) -> Result<ScannedEntries> {
        let page = self
            .scan_page("scanning live entries", partition_id, request)
            .await?;
        let find_newest = |(key, values): (ScanKey, Vec<(Epoch, Vec<u8>)>)| {
            let newest = values.into_iter().max_by_key(|(epoch, _)| *epoch);
            let decode = |(epoch, value): (Epoch, Vec<u8>)| -> EntryWithEpoch {
                (
                    epoch,
                    value.strip_prefix(&[ENTRY_PREFIX]).map(<[u8]>::to_vec),
                )
            };
            newest.map(|newest| (key, decode(newest)))
        };
        let rows = page.rows.into_iter().filter_map(find_newest);
        Ok(build_entries_page(
            request.view,
            page.state,
            rows,
            page.is_last,
        ))
    }

    /// Reads the first rows after a key: as many whole groups as one reply holds, or rows of a
    /// large group.
    async fn scan_page(
        &self,
        operation: &str,
        partition_id: PartitionId,
        request: PageRequest<'_>,
    ) -> Result<ScanPage> {
        let (keys, retry_policy) = (self.keys(partition_id), &self.nodes.retry_policy);
        let mut from = match request.after {
            None => b"-".to_vec(),
            Some((group, _)) => [b"[", group.as_slice()].concat(),
        };
        let mut tries_left = GROUP_TRIES_MAX;
        loop {
            let read_groups = || Box::pin(self.read_groups_from(operation, &keys, request, &from));
            let mut snapshot = retry_policy.retry(operation, read_groups).await?;
            let state = snapshot.record.as_ref().map(|record| record.state.clone());
            let large_group = snapshot.first_large_group();
            let end = snapshot.last_known_group().map(<[u8]>::to_vec);
            let mut rows = EntriesByKey::new();
            let is_before = |group: &[u8]| {
                end.as_deref().is_none_or(|end| group <= end)
                    && large_group
                        .as_deref()
                        .is_none_or(|large_group| group < large_group)
            };
            for container in &mut snapshot.containers {
                let ready_groups = container
                    .groups
                    .extract_if(.., |(group, _)| is_before(group));
                for (group, group_rows) in ready_groups {
                    if let GroupRows::Rows(group_rows) = group_rows {
                        request.add(&mut rows, &group, container.epoch, group_rows);
                    }
                }
            }
            if !rows.is_empty() {
                return Ok(into_page(
                    state,
                    rows,
                    large_group.is_none() && end.is_none(),
                    request,
                ));
            }
            // All rows were before the page. It continues with a large group, or with later groups.
            let large_group =
                large_group.filter(|large_group| end.as_ref().is_none_or(|end| large_group <= end));
            let last_group = match (large_group, end) {
                (None, None) => return Ok(into_page(state, rows, true, request)),
                (None, Some(end)) => end,
                (Some(group), _) => {
                    let reading = Box::pin(
                        self.read_large_group_page(operation, &keys, snapshot, &group, request),
                    );
                    match reading.await? {
                        Some(rows) if rows.is_empty() => group,
                        Some(rows) => return Ok(into_page(state, rows, false, request)),
                        None if tries_left > 1 => {
                            tries_left -= 1;
                            continue;
                        }
                        None => {
                            return Err(retry_policy.unavailable(operation, CHANGED_DURING_SCAN));
                        }
                    }
                }
            };
            from = [b"(", last_group.as_slice()].concat();
        }
    }

    /// Reads the first rows of a group that is too large for one reply. Returns `None` if they may
    /// have changed during the read.
    async fn read_large_group_page(
        &self,
        operation: &str,
        keys: &PartitionKeys,
        snapshot: GroupsSnapshot,
        group: &[u8],
        request: PageRequest<'_>,
    ) -> Result<Option<EntriesByKey>> {
        let retry_policy = &self.nodes.retry_policy;
        let mut rows = EntriesByKey::new();
        for container in snapshot.containers {
            let mut groups = container.groups.into_iter();
            let Some((_, group_rows)) = groups.find(|(name, _)| name == group) else {
                continue;
            };
            match group_rows {
                GroupRows::Rows(group_rows) => {
                    request.add(&mut rows, group, container.epoch, group_rows)
                }
                GroupRows::FieldCount(expected_fields) => {
                    let address = GroupAddress {
                        keys,
                        container: &container.name,
                        group,
                    };
                    let read_rows = || {
                        Box::pin(self.read_first_rows(operation, address, expected_fields, request))
                    };
                    let first_rows = retry_policy.retry(operation, read_rows).await?;
                    request.add(&mut rows, group, container.epoch, first_rows);
                }
            }
        }
        let current = retry_policy
            .retry(operation, || self.load_record(operation, keys))
            .await?;
        let is_valid = current.bytes == snapshot.bytes
            || snapshot.record.is_some_and(|old| {
                current
                    .record
                    .is_some_and(|current| is_still_valid(&old, &current, request))
            });
        Ok(is_valid.then_some(rows))
    }

    /// Reads the first rows of a large group in one container. All rows might not fit into memory.
    async fn read_first_rows(
        &self,
        operation: &str,
        address: GroupAddress<'_>,
        expected_fields: usize,
        request: PageRequest<'_>,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut first_rows = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if request.is_after(address.group, &row) {
                // A row that is among the first at the end has never been removed, so no increment
                // is missing.
                self.add_increment(operation, &mut first_rows, row, value)?;
            }
            if first_rows.len() > request.rows_max() {
                first_rows.pop_last();
            }
            Ok(())
        };
        self.for_each_row(operation, address, expected_fields, keep)
            .await?;
        Ok(first_rows)
    }

    /// Runs the script once.
    async fn read_groups_from(
        &self,
        operation: &str,
        keys: &PartitionKeys,
        request: PageRequest<'_>,
        from: &[u8],
    ) -> Result<GroupsSnapshot> {
        let arguments = [
            Bytes::from_static(request.kind.letter().as_bytes()),
            Bytes::copy_from_slice(request.view.as_bytes()),
            Bytes::from(request.epochs.0.to_string()),
            Bytes::from(request.epochs.1.to_string()),
            Bytes::copy_from_slice(from),
            Bytes::from(request.rows_max().min(SCAN_GROUPS_MAX).to_string()),
            Bytes::from(SCAN_ROWS_MAX.to_string()),
        ];
        let call = Request::script_on_keys(keys, &SCAN, arguments);
        let reply = self.send_one(operation, call).await?;
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let Value::Array(reply) = reply else {
            return Err(unexpected());
        };
        let mut reply = reply.into_iter();
        let Some(Value::BulkString(bytes)) = reply.next() else {
            return Err(unexpected());
        };
        let bytes = Bytes::from(bytes);
        let record = self.parse_snapshot(operation, keys, bytes.clone())?.record;
        let mut containers = Vec::new();
        for (name, epoch) in record.iter().flat_map(|record| request.containers(record)) {
            let container = parse_container_groups(name, epoch, reply.next());
            containers.push(container.ok_or_else(unexpected)?);
        }
        Ok(GroupsSnapshot {
            bytes,
            record,
            containers,
        })
    }
}

const CHANGED_DURING_SCAN: &str = "a group has too many live rows for one scan, and changed during each attempt; scan only epochs that have ended";

/// Truncates the rows to a page.
fn into_page(
    state: Option<PartitionState>,
    mut rows: EntriesByKey,
    is_last: bool,
    request: PageRequest<'_>,
) -> ScanPage {
    let has_more = rows.len() > request.rows_max();
    while rows.len() > request.rows_max() {
        rows.pop_last();
    }
    ScanPage {
        state,
        rows,
        is_last: is_last && !has_more,
    }
}

/// Decodes the reply of the script for one container.
fn parse_container_groups(
    name: String,
    epoch: Epoch,
    reply: Option<Value>,
) -> Option<ContainerGroups> {
    let Some(Value::Array(reply)) = reply else {
        return None;
    };
    let mut reply = reply.into_iter();
    let Some(Value::Int(is_complete)) = reply.next() else {
        return None;
    };
    let mut groups = Vec::new();
    while let Some(group) = reply.next() {
        let Value::BulkString(group) = group else {
            return None;
        };
        let rows = match reply.next() {
            Some(Value::Int(rows)) => {
                GroupRows::FieldCount(usize::try_from(rows).unwrap_or(usize::MAX))
            }
            Some(Value::Array(values)) if has_chunks(&name) => {
                GroupRows::Rows(unpack_chunks(&decode_pairs(values)?)?)
            }
            Some(Value::Array(values)) => GroupRows::Rows(decode_pairs(values)?),
            Some(Value::BulkString(string)) => {
                GroupRows::Rows(unpack_string(&string, parse_view_number(&name)?)?)
            }
            _ => return None,
        };
        groups.push((group, rows));
    }
    Some(ContainerGroups {
        name,
        epoch,
        is_complete: is_complete == 1,
        groups,
    })
}

/// True if rows are valid although the record has changed: only the current epoch changes, and
/// pruned containers may be partly deleted.
fn is_still_valid(old: &Record, new: &Record, request: PageRequest<'_>) -> bool {
    let current_epoch = old.state.epoch.min(new.state.epoch);
    let containers = request.containers(old);
    let have_ended = containers.iter().all(|(_, epoch)| *epoch < current_epoch);
    have_ended
        && old.state.generation == new.state.generation
        && containers == request.containers(new)
}
