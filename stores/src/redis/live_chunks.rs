//! Repacking of groups with many rows: a full string becomes chunks, which are fields of one hash
//! per view. docs/internals/live-state.md describes records, containers, strings and chunks.
//!
//! A chunk holds packed rows, about 4 KiB. So a full string costs a few commands for the appends of
//! many micro-batches, and single rows cost none. A row may be in several chunks; its increments
//! are summed. A hash with many chunks is merged if the merged rows need less than half of the
//! space.
//!
//! Strings and chunks change only together with the record, and no two records have the same bytes.
//! So data that was read under a record is still current if a script finds the same record. If the
//! script would find another record, nothing is repacked.

use std::collections::{BTreeMap, HashMap};
use std::sync::{MutexGuard, PoisonError};

use bytes::Bytes;
use redis::Value;
use uuid::Uuid;

use super::errors;
use super::live::{RedisLive, RepackQueue};
use super::nodes::Request;
use super::packed::{self, Family};
use super::pairs::{Pairs, decode_pairs};
use super::record::{ContainerKind, PartitionKeys, Record, has_chunks};
use crate::live::PartitionId;
use crate::{Error, Result};

/// The maximum number of full strings that are read before one apply. Others keep growing.
const READ_STRINGS_MAX: usize = 1_000;
/// A hash is inspected at this number of chunks, at twice as many, and so on up to the maximum.
/// Larger hashes would be too much to read at once.
const INSPECTED_CHUNKS_MIN: usize = 32;
const INSPECTED_CHUNKS_MAX: usize = 16_384;
/// The maximum number of chunks that are read before one apply.
const READ_CHUNKS_MAX: usize = 16_384;

/// Container, group, and number of chunks.
type RepackGroup = (String, Vec<u8>, usize);

/// Values by container and group.
type ByGroup<T> = HashMap<String, HashMap<Vec<u8>, T>>;

/// Contents of the groups that are being repacked, by container and group.
#[derive(Debug, Default)]
pub(super) struct RepackInput {
    /// The record that was current when the contents were read.
    pub(super) record_bytes: Bytes,
    /// Contents of strings.
    strings: ByGroup<Vec<u8>>,
    /// Packed rows of the hashes to merge, with the number of chunks that they replace.
    hashes: ByGroup<(usize, Vec<u8>)>,
}

impl RepackInput {
    pub(super) fn find_string(&self, container: &str, group: &[u8]) -> Option<&[u8]> {
        self.strings.get(container)?.get(group).map(Vec::as_slice)
    }
}

/// Changes to the chunks of one group.
#[derive(Debug, Default)]
struct GroupChunks {
    /// Packed rows; a row may occur several times.
    rows: Vec<u8>,
    /// True if the rows replace all present chunks.
    replaces_chunks: bool,
}

/// Rows that an apply writes as chunks, by view and group.
#[derive(Debug, Default)]
pub(super) struct Chunks(BTreeMap<String, BTreeMap<Vec<u8>, GroupChunks>>);

impl Chunks {
    /// Adds packed rows of a group.
    pub(super) fn add(&mut self, view: &str, group: &[u8], rows: &[u8]) {
        let view_groups = match self.0.get_mut(view) {
            Some(view_groups) => view_groups,
            None => self.0.entry(view.to_owned()).or_default(),
        };
        let group_chunks = match view_groups.get_mut(group) {
            Some(group_chunks) => group_chunks,
            None => view_groups.entry(group.to_vec()).or_default(),
        };
        group_chunks.rows.extend_from_slice(rows);
    }

    /// Returns the arguments that pass the chunks to the apply script.
    ///
    /// The first two are the smallest and the largest number of chunks at which the script reports
    /// a hash. Then comes the number of containers. Each container has its name and its number of
    /// groups. Each group has its key, `1` if its present chunks are deleted, its number of chunks,
    /// and for each chunk a name and the rows.
    ///
    /// # Errors
    /// [`Error::Broken`] if an added value does not decode as rows.
    pub(super) fn into_arguments(
        mut self,
        record: &mut Record,
        repack: &RepackInput,
    ) -> Result<Vec<Bytes>> {
        for (container, groups) in &repack.hashes {
            // Containers of ended epochs are not changed.
            let Some(view) = record.current_view(container) else {
                continue;
            };
            for (group, (_, rows)) in groups {
                let view_groups = self.0.entry(view.to_owned()).or_default();
                let group_chunks = view_groups.entry(group.clone()).or_default();
                group_chunks.replaces_chunks = true;
                group_chunks.rows.extend_from_slice(rows);
            }
        }
        let format_number = |n: usize| Bytes::from(n.to_string());
        let mut arguments = vec![
            format_number(INSPECTED_CHUNKS_MIN),
            format_number(INSPECTED_CHUNKS_MAX),
            format_number(self.0.len()),
        ];
        // Makes the names of chunks unique to this apply.
        let (apply_id, ..) = Uuid::new_v4().as_fields();
        let prefix = format!("{}.{apply_id:08x}", record.state.position.next_offset);
        for (view, groups) in self.0 {
            let container = record.ensure_container(&view, ContainerKind::Chunks);
            arguments.push(container.clone().into());
            arguments.push(format_number(groups.len()));
            for (group, group_chunks) in groups {
                let rows = packed::summed([group_chunks.rows.as_slice()]);
                let chunks = packed::chunks(rows.ok_or_else(|| rows_error(&container, &group))?);
                arguments.push(group.into());
                arguments.push(Bytes::from_static(if group_chunks.replaces_chunks {
                    b"1"
                } else {
                    b""
                }));
                arguments.push(format_number(chunks.len()));
                for (index, chunk) in chunks.into_iter().enumerate() {
                    arguments.push(format!("{prefix}.{index}").into());
                    arguments.push(chunk.into());
                }
            }
        }
        Ok(arguments)
    }
}

/// Error for a group whose value does not decode as rows.
pub(super) fn rows_error(container: &str, group: &[u8]) -> Error {
    let reason = format!(
        "{container}:{} does not decode as packed rows, or a sum exceeds 64 bits; another program may have written this key; delete all keys of this partition (they are rebuilt from the log)",
        group.escape_ascii()
    );
    Error::broken("packing live deltas", reason)
}

impl RedisLive {
    /// Reads the strings of groups that get more rows, and the chunks to merge. If a read fails,
    /// the groups stay queued.
    pub(super) async fn read_repack_input(
        &self,
        operation: &str,
        partition_id: PartitionId,
        families: &[Family],
    ) -> Result<RepackInput> {
        let Some((strings, hashes)) = self.dequeue_repacks(partition_id, families) else {
            return Ok(RepackInput::default());
        };
        let keys = self.keys(partition_id);
        let requests: Vec<Request> = build_requests(&keys, &strings, &hashes);
        let replies = match self.nodes.send(operation, &requests).await {
            Ok(replies) => replies,
            Err(error) => {
                tracing::debug!(%error, "cannot read groups to repack; retrying with a later micro-batch");
                self.queue_repacks(partition_id, strings);
                return Ok(RepackInput::default());
            }
        };
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let mut replies = replies.into_iter();
        let (first, last) = (replies.next(), replies.next_back());
        let (Some(Value::Array(values_read)), Some(record)) = (first, last) else {
            return Err(unexpected());
        };
        let mut values_read = values_read.into_iter();
        let record_bytes = values_read.next();
        if record_bytes.as_ref() != Some(&record) {
            // Another process writes to this partition state.
            return Ok(RepackInput::default());
        }
        let mut repack = RepackInput::default();
        if let Some(Value::BulkString(bytes)) = record_bytes {
            repack.record_bytes = bytes.into();
        }
        for ((container, group, _), string) in strings.into_iter().zip(values_read) {
            let string = match string {
                Value::BulkString(string) => string,
                Value::Nil => Vec::new(),
                _ => return Err(unexpected()),
            };
            let groups_read = repack.strings.entry(container).or_default();
            groups_read.insert(group, string);
        }
        let mut chunks_read = Vec::new();
        for (hash, values_read) in hashes.into_iter().zip(replies) {
            let Value::Array(values) = values_read else {
                return Err(unexpected());
            };
            chunks_read.push((hash, decode_pairs(values).ok_or_else(unexpected)?));
        }
        if !chunks_read.is_empty() {
            let merging = tokio::task::spawn_blocking(move || {
                let merge = |(hash, chunks): (RepackGroup, Pairs)| (hash, merge_chunks(&chunks));
                chunks_read.into_iter().map(merge).collect::<Vec<_>>()
            });
            let merged = merging
                .await
                .map_err(|error| Error::broken(operation, error))?;
            for ((container, group, chunks), rows) in merged {
                let rows = rows.ok_or_else(|| rows_error(&container, &group))?;
                if let Some(rows) = rows {
                    let groups_read = repack.hashes.entry(container).or_default();
                    groups_read.insert(group, (chunks, rows));
                }
            }
        }
        Ok(repack)
    }

    /// Removes the strings and hashes to read now from the queue.
    fn dequeue_repacks(
        &self,
        partition_id: PartitionId,
        families: &[Family],
    ) -> Option<(Vec<RepackGroup>, Vec<RepackGroup>)> {
        let snapshot = self.last_snapshot(partition_id)?;
        let record = snapshot.record.as_ref().filter(|_| !families.is_empty())?;
        let mut queues = self.repack_queues();
        let queue = queues.get_mut(&partition_id)?;
        let (mut strings, mut hashes, mut chunks) = (Vec::new(), Vec::new(), 0);
        for (container, groups) in queue.iter_mut() {
            if has_chunks(container) {
                if record.current_view(container).is_none() {
                    groups.clear();
                }
                let fitting = groups.extract_if(|_, group_chunks| {
                    let is_fitting = chunks == 0 || chunks + *group_chunks <= READ_CHUNKS_MAX;
                    chunks += if is_fitting { *group_chunks } else { 0 };
                    is_fitting
                });
                hashes.extend(
                    fitting.map(|(group, group_chunks)| (container.clone(), group, group_chunks)),
                );
                continue;
            }
            let family = record.current_family(container);
            let family = families
                .iter()
                .find(|candidate| Some(candidate.name.as_str()) == family);
            for group in family.into_iter().flat_map(|family| family.groups.keys()) {
                if strings.len() < READ_STRINGS_MAX
                    && let Some((group, chunks)) = groups.remove_entry(group)
                {
                    strings.push((container.clone(), group, chunks));
                }
            }
        }
        queue.retain(|_, groups| !groups.is_empty());
        (!strings.is_empty() || !hashes.is_empty()).then_some((strings, hashes))
    }

    /// Queues groups again after an apply that did not repack them.
    pub(super) fn requeue_repacks(&self, partition_id: PartitionId, repack: RepackInput) {
        let strings =
            flatten_groups(repack.strings).map(|(container, group, _)| (container, group, 0));
        let hashes = flatten_groups(repack.hashes)
            .map(|(container, group, (chunks, _))| (container, group, chunks));
        self.queue_repacks(partition_id, strings.chain(hashes));
    }

    /// Queues groups that a script reports as container, group and number of chunks: full strings,
    /// and hashes with many chunks. A string is reported by every apply while it is full, a hash
    /// only when its number of chunks has doubled.
    pub(super) fn queue_reported_groups(
        &self,
        partition_id: PartitionId,
        record: &Record,
        mut reported: impl Iterator<Item = Value>,
    ) {
        let mut groups: Vec<RepackGroup> = Vec::new();
        while let (
            Some(Value::BulkString(container)),
            Some(Value::BulkString(group)),
            Some(Value::Int(chunks)),
        ) = (reported.next(), reported.next(), reported.next())
        {
            let container = String::from_utf8_lossy(&container).into_owned();
            groups.push((
                container,
                group,
                usize::try_from(chunks).unwrap_or(usize::MAX),
            ));
        }
        if !groups.is_empty() {
            if let Some(queue) = self.repack_queues().get_mut(&partition_id) {
                queue.retain(|container, _| record.has_container(container));
            }
            self.queue_repacks(partition_id, groups);
        }
    }

    fn queue_repacks(
        &self,
        partition_id: PartitionId,
        groups: impl IntoIterator<Item = RepackGroup>,
    ) {
        let mut groups = groups.into_iter().peekable();
        if groups.peek().is_none() {
            return;
        }
        let mut queues = self.repack_queues();
        let queue = queues.entry(partition_id).or_default();
        for (container, group, chunks) in groups {
            queue.entry(container).or_default().insert(group, chunks);
        }
    }

    fn repack_queues(&self) -> MutexGuard<'_, HashMap<PartitionId, RepackQueue>> {
        self.repack_queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns each group with its container.
fn flatten_groups<T>(by_group: ByGroup<T>) -> impl Iterator<Item = (String, Vec<u8>, T)> {
    let containers = by_group.into_iter();
    containers.flat_map(|(container, groups)| {
        let groups = groups.into_iter();
        groups.map(move |(group, value)| (container.clone(), group, value))
    })
}

/// Builds one request for the record and the strings, one for each hash, and a last one for the
/// record.
fn build_requests(
    keys: &PartitionKeys,
    strings: &[RepackGroup],
    hashes: &[RepackGroup],
) -> Vec<Request> {
    let key = |(container, group, _): &RepackGroup| keys.group_key(container, group);
    let mut first = redis::cmd("MGET");
    first.arg(&keys.record);
    for string in strings {
        first.arg(key(string));
    }
    let hashes = hashes.iter().map(|hash| {
        let mut command = redis::cmd("HGETALL");
        command.arg(key(hash));
        command
    });
    let last = redis::cmd("GET").arg(&keys.record).take();
    let all = [first].into_iter().chain(hashes).chain([last]);
    all.map(|command| Request::command(keys, command)).collect()
}

/// Merges chunks if the merged rows need less than half of the space. Returns `None` if a chunk
/// does not decode.
#[expect(
    clippy::option_option,
    reason = "distinguishes damaged chunks from chunks that stay unmerged"
)]
fn merge_chunks(chunks: &[(Vec<u8>, Vec<u8>)]) -> Option<Option<Vec<u8>>> {
    let chunks = chunks.iter().map(|(_, chunk)| chunk.as_slice());
    let bytes_before: usize = chunks.clone().map(<[u8]>::len).sum();
    let mut rows = Vec::new();
    for (row, count) in packed::summed(chunks)? {
        packed::put_row(&mut rows, row, count);
    }
    Some((rows.len() < bytes_before / 2).then_some(rows))
}
