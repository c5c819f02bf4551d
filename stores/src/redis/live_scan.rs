//! Scans of all deltas or live entries of a view in one partition state, page by page and in the
//! byte order of groups.
//!
//! A page is the answer of one script, so its rows and its checkpoint are from one moment. A group
//! that is too large for one answer fills one or more pages of its own. Its rows arrive in several
//! answers and in no order, and each page retains the first rows. Then the record must show that
//! the rows have not changed meanwhile.

use std::collections::BTreeMap;

use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, PartitionState};

use super::errors;
use super::live::RedisLive;
use super::live_groups::{GROUP_TRIES, GroupAddress};
use super::nodes::Request;
use super::pairs::{Pairs, pairs, unpack_chunks, unpack_string};
use super::record::{ContainerKind, PartitionKeys, Record, STATE, has_chunks, view_number};
use super::script::SCAN;
use crate::Result;
use crate::live::PartitionId;
use crate::live_scan::{
    ScanKey, ScannedDeltas, ScannedStates, StateWithEpoch, deltas_page, states_page,
};

/// Most groups of one container that one script returns.
const SCAN_GROUPS: usize = 5_000;

/// Most rows in a page. A group with at most this many rows in a container is read as a whole.
const SCAN_ROWS: usize = 10_000;

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
    All(Pairs),
    /// Number of fields; they are too many for one answer.
    Many(usize),
}

/// The first groups of one container after the start of the page.
struct ContainerGroups {
    name: String,
    epoch: Epoch,
    /// True if no more groups follow.
    is_all: bool,
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
    fn known_up_to(&self) -> Option<&[u8]> {
        let unfinished = self.containers.iter().filter(|container| !container.is_all);
        let last = unfinished.filter_map(|container| container.groups.last());
        last.map(|(group, _)| group.as_slice()).min()
    }

    /// The first group that is too large for one answer.
    fn first_large(&self) -> Option<Vec<u8>> {
        let groups = self
            .containers
            .iter()
            .flat_map(|container| &container.groups);
        let large = groups.filter(|(_, rows)| matches!(rows, GroupRows::Many(_)));
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
        self.limit.clamp(1, SCAN_ROWS)
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
        found: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) {
        for (row, value) in found {
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
        Ok(deltas_page(request.view, page.state, rows, page.is_last))
    }

    /// Reads a page of live entries, the newest of each member.
    pub(super) async fn scan_state_page(
        &self,
        partition_id: PartitionId,
        request: PageRequest<'_>,
    ) -> Result<ScannedStates> {
        let page = self
            .scan_page("scanning live entries", partition_id, request)
            .await?;
        let newest = |(key, values): (ScanKey, Vec<(Epoch, Vec<u8>)>)| {
            let newest = values.into_iter().max_by_key(|(epoch, _)| *epoch);
            let decode = |(epoch, value): (Epoch, Vec<u8>)| -> StateWithEpoch {
                (epoch, value.strip_prefix(&[STATE]).map(<[u8]>::to_vec))
            };
            newest.map(|newest| (key, decode(newest)))
        };
        let rows = page.rows.into_iter().filter_map(newest);
        Ok(states_page(request.view, page.state, rows, page.is_last))
    }

    /// Reads the first rows after a key: as many whole groups as one answer holds, or rows of a
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
        let mut tries_left = GROUP_TRIES;
        loop {
            let tries = || Box::pin(self.groups_from(operation, &keys, request, &from));
            let mut snapshot = retry_policy.retry(operation, tries).await?;
            let state = snapshot.record.as_ref().map(|record| record.state.clone());
            let large = snapshot.first_large();
            let end = snapshot.known_up_to().map(<[u8]>::to_vec);
            let mut rows = EntriesByKey::new();
            let is_before = |group: &[u8]| {
                end.as_deref().is_none_or(|end| group <= end)
                    && large.as_deref().is_none_or(|large| group < large)
            };
            for container in &mut snapshot.containers {
                let before = container
                    .groups
                    .extract_if(.., |(group, _)| is_before(group));
                for (group, found) in before {
                    if let GroupRows::All(found) = found {
                        request.add(&mut rows, &group, container.epoch, found);
                    }
                }
            }
            if !rows.is_empty() {
                return Ok(into_page(
                    state,
                    rows,
                    large.is_none() && end.is_none(),
                    request,
                ));
            }
            // All rows were before the page. It continues with a large group, or with later groups.
            let large = large.filter(|large| end.as_ref().is_none_or(|end| large <= end));
            let passed = match (large, end) {
                (None, None) => return Ok(into_page(state, rows, true, request)),
                (None, Some(end)) => end,
                (Some(group), _) => {
                    let read =
                        Box::pin(self.large_group(operation, &keys, snapshot, &group, request));
                    match read.await? {
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
            from = [b"(", passed.as_slice()].concat();
        }
    }

    /// Reads the first rows of a group that is too large for one answer. Returns `None` if they may
    /// have changed during the read.
    async fn large_group(
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
            let Some((_, found)) = groups.find(|(name, _)| name == group) else {
                continue;
            };
            match found {
                GroupRows::All(found) => request.add(&mut rows, group, container.epoch, found),
                GroupRows::Many(expected) => {
                    let address = GroupAddress {
                        keys,
                        container: &container.name,
                        group,
                    };
                    let tries = || Box::pin(self.first_rows(operation, address, expected, request));
                    let first = retry_policy.retry(operation, tries).await?;
                    request.add(&mut rows, group, container.epoch, first);
                }
            }
        }
        let now = retry_policy
            .retry(operation, || self.load_record(operation, keys))
            .await?;
        let is_valid = now.bytes == snapshot.bytes
            || snapshot.record.is_some_and(|before| {
                now.record
                    .is_some_and(|now| is_still_valid(&before, &now, request))
            });
        Ok(is_valid.then_some(rows))
    }

    /// Reads the first rows of a large group in one container. All rows might not fit into memory.
    async fn first_rows(
        &self,
        operation: &str,
        address: GroupAddress<'_>,
        expected: usize,
        request: PageRequest<'_>,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut first = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if request.is_after(address.group, &row) {
                // A row that is among the first at the end has never been removed, so no increment
                // is missing.
                self.add_row_part(operation, &mut first, row, value)?;
            }
            if first.len() > request.rows_max() {
                first.pop_last();
            }
            Ok(())
        };
        self.for_each_row(operation, address, expected, keep)
            .await?;
        Ok(first)
    }

    /// Runs the script once.
    async fn groups_from(
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
            Bytes::from(request.rows_max().min(SCAN_GROUPS).to_string()),
            Bytes::from(SCAN_ROWS.to_string()),
        ];
        let call = Request::script_on_keys(keys, &SCAN, arguments);
        let answer = self.send_one(operation, call).await?;
        let unexpected = || errors::unexpected_answer(&self.nodes.retry_policy, operation);
        let Value::Array(answer) = answer else {
            return Err(unexpected());
        };
        let mut answer = answer.into_iter();
        let Some(Value::BulkString(bytes)) = answer.next() else {
            return Err(unexpected());
        };
        let bytes = Bytes::from(bytes);
        let record = self.parse_snapshot(operation, keys, bytes.clone())?.record;
        let mut containers = Vec::new();
        for (name, epoch) in record.iter().flat_map(|record| request.containers(record)) {
            let container = parse_container_groups(name, epoch, answer.next());
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

/// Decodes the answer of the script for one container.
fn parse_container_groups(
    name: String,
    epoch: Epoch,
    answer: Option<Value>,
) -> Option<ContainerGroups> {
    let Some(Value::Array(answer)) = answer else {
        return None;
    };
    let mut answer = answer.into_iter();
    let Some(Value::Int(is_all)) = answer.next() else {
        return None;
    };
    let mut groups = Vec::new();
    while let Some(group) = answer.next() {
        let Value::BulkString(group) = group else {
            return None;
        };
        let rows = match answer.next() {
            Some(Value::Int(rows)) => GroupRows::Many(usize::try_from(rows).unwrap_or(usize::MAX)),
            Some(Value::Array(values)) if has_chunks(&name) => {
                GroupRows::All(unpack_chunks(&pairs(values)?)?)
            }
            Some(Value::Array(values)) => GroupRows::All(pairs(values)?),
            Some(Value::BulkString(string)) => {
                GroupRows::All(unpack_string(&string, view_number(&name)?)?)
            }
            _ => return None,
        };
        groups.push((group, rows));
    }
    Some(ContainerGroups {
        name,
        epoch,
        is_all: is_all == 1,
        groups,
    })
}

/// True if rows are valid although the record has changed: only the current epoch changes, and
/// pruned containers may be partly deleted.
fn is_still_valid(before: &Record, now: &Record, request: PageRequest<'_>) -> bool {
    let current = before.state.epoch.min(now.state.epoch);
    let containers = request.containers(before);
    let have_ended = containers.iter().all(|(_, epoch)| *epoch < current);
    have_ended
        && before.state.generation == now.state.generation
        && containers == request.containers(now)
}
