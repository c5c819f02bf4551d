//! Changes of live state on Redis: sorts and packs them into the arguments of scripts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::Array;
use async_trait::async_trait;
use bytes::Bytes;
use foldhash::fast::RandomState;
use redis::Value;
use schemas::seam::{Checkpoint, CheckpointMismatch, Cut, PartitionState};

use super::board_rows::build_board_arguments;
use super::errors;
use super::live::{RecordSnapshot, RedisLive};
use super::live_chunks::{Chunks, RepackInput, rows_error};
use super::nodes::Request;
use super::packed::{self, FULL_BYTES, Family, Groups};
use super::record::{ContainerKind, ENTRY_PREFIX, PartitionKeys, REMOVED_ENTRY, Record};
use super::record_change::Decision;
use super::script::{APPLY, CHANGE, COLLECT, Script};
use crate::board_cache::{BoardCache, CachedBoardChanges};
use crate::live::{Changes, Deltas, Entries, LiveWrite, Outbox, PartitionId, StateTransition};
use crate::live_count::{LiveCountChange, StoredLiveCount};
use crate::{Error, Result};

/// The maximum number of live entries in one call. A script with more would block the server for
/// tens of milliseconds.
const ENTRIES_MAX: usize = 10_000;
/// The maximum number of deltas in one call. Deltas are packed, so they cost less than live
/// entries.
const DELTAS_MAX: usize = 40_000;

/// The maximum number of rows of garbage that one script deletes.
const GARBAGE_ROWS_MAX: usize = 2_000;

/// Redis allows about a million arguments in one command.
const ARGUMENTS_MAX: usize = 1_000_000;

/// Larger changes are sorted on a blocking thread.
const HEAVY_ROWS: usize = 2_000;

/// Changes to one view, as script arguments.
#[derive(Debug)]
struct ViewArguments {
    view: String,
    kind: ContainerKind,
    groups: usize,
    /// For each group its key, its number of rows, and the rows.
    arguments: Vec<Bytes>,
}

/// Everything that a micro-batch changes besides the record.
#[derive(Debug, Default)]
struct PreparedChanges {
    families: Vec<Family>,
    /// Live entries.
    entries: Vec<ViewArguments>,
    /// Entries to append to the outbox.
    outbox: Vec<Bytes>,
    boards: CachedBoardChanges,
    live_counts: Vec<LiveCountChange>,
    /// View and key of each group whose entries change without a new live count.
    uncounted: Vec<(String, Bytes)>,
}

#[async_trait]
impl LiveWrite for RedisLive {
    fn deltas_max(&self, partition_id: PartitionId) -> usize {
        let snapshot = self.last_snapshot(partition_id);
        let record = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.record.as_ref());
        match record.is_some_and(Record::has_unpackable) {
            true => ENTRIES_MAX,
            false => DELTAS_MAX,
        }
    }

    fn entries_max(&self) -> usize {
        ENTRIES_MAX
    }

    fn board_cache(&self) -> Option<&dyn BoardCache> {
        Some(self)
    }

    async fn apply(
        &self,
        partition_id: PartitionId,
        expected: Checkpoint,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), CheckpointMismatch>> {
        let prepared = prepare_changes(changes).await?;
        let decide = |record: Option<&Record>| {
            let Some(record) = record else {
                return Decision::Keep(Err(CheckpointMismatch { actual: None }));
            };
            let mut record = record.clone();
            if !changes.entries.is_empty() && record.boards_revision != changes.boards.revision {
                let actual = Some(record.state.checkpoint());
                return Decision::Keep(Err(CheckpointMismatch { actual }));
            }
            if let Err(mismatch) = record.state.apply(&expected, next, views) {
                return Decision::Keep(Err(mismatch));
            }
            if changes.has_misrouted {
                record.state.record_misrouted();
            }
            Decision::Replace(Box::new(record), Ok(()))
        };
        let keys = self.keys(partition_id);
        let operation = "applying a micro-batch";
        let repack = self
            .read_repack_input(operation, partition_id, &prepared.families)
            .await?;
        let (no_repack, was_used) = (RepackInput::default(), AtomicBool::new(false));
        let script =
            |snapshot: &RecordSnapshot,
             record: &mut Record,
             applied: &std::result::Result<(), CheckpointMismatch>| match applied {
                Ok(()) => {
                    let is_current = repack.record_bytes == snapshot.bytes;
                    was_used.store(is_current, Ordering::Relaxed);
                    let repack = if is_current { &repack } else { &no_repack };
                    build_apply_call(&keys, record, &prepared, repack)
                }
                Err(_) => Ok((&CHANGE, Vec::new())),
            };
        let applied = self.change(operation, partition_id, script, decide).await;
        if !matches!(applied, Ok(Ok(()))) || !was_used.into_inner() {
            self.requeue_repacks(partition_id, repack);
        }
        applied
    }

    async fn remove_published(&self, partition_id: PartitionId, outbox: &Outbox) -> Result<bool> {
        self.remove_outbox_entries(partition_id, outbox).await
    }

    async fn update_state(
        &self,
        operation: &'static str,
        partition_id: PartitionId,
        rule: &StateTransition<'_>,
    ) -> Result<Option<PartitionState>> {
        let decide = |record: Option<&Record>| {
            let current = record.map(|record| record.state.clone());
            let Some(next) = rule(current.as_ref()) else {
                return Decision::Keep(current);
            };
            let retained = |state: &PartitionState| (state.generation, state.oldest);
            let next = match record {
                None => Record::new(next),
                // The same containers are retained, so none becomes garbage.
                Some(record) if retained(&record.state) == retained(&next) => {
                    let mut record = record.clone();
                    record.state = next;
                    record
                }
                Some(record) => record.with_state(next),
            };
            Decision::Replace(Box::new(next), current)
        };
        self.change_record(operation, partition_id, decide).await
    }

    async fn collect_garbage(&self, partition_id: PartitionId, limit: usize) -> Result<usize> {
        self.delete_garbage(partition_id, limit).await
    }
}

impl RedisLive {
    /// Deletes rows of the containers that the record lists as garbage.
    async fn delete_garbage(&self, partition_id: PartitionId, limit: usize) -> Result<usize> {
        let operation = "deleting pruned live state";
        let keys = self.keys(partition_id);
        let retry_policy = &self.nodes.retry_policy;
        let mut deleted = 0;
        while deleted < limit {
            let snapshot = retry_policy
                .retry(operation, || self.load_record(operation, &keys))
                .await?;
            let garbage = snapshot
                .record
                .and_then(|record| record.garbage.into_iter().next());
            let Some(container) = garbage else {
                break;
            };
            let step = GARBAGE_ROWS_MAX.min(limit - deleted);
            let arguments = [container.clone().into(), step.to_string().into()];
            let request = Request::script_on_keys(&keys, &COLLECT, arguments);
            let (rows, is_empty) = match self.send_with_retry(operation, request).await? {
                Value::Array(reply) => match reply.as_slice() {
                    [Value::Int(rows), Value::Int(is_empty)] => (*rows, *is_empty == 1),
                    _ => return Err(errors::unexpected_reply(retry_policy, operation)),
                },
                _ => return Err(errors::unexpected_reply(retry_policy, operation)),
            };
            // If the record has changed since, the next iteration reads the present garbage.
            deleted += usize::try_from(rows).unwrap_or(0);
            if is_empty {
                let decide = |record: Option<&Record>| match record {
                    Some(record) if record.garbage.contains(&container) => {
                        let mut record = record.clone();
                        record.garbage.retain(|name| *name != container);
                        Decision::Replace(Box::new(record), ())
                    }
                    _ => Decision::Keep(()),
                };
                self.change_record(operation, partition_id, decide).await?;
            }
        }
        Ok(deleted)
    }
}

/// Returns the script that applies changes, and its arguments.
fn build_apply_call(
    keys: &PartitionKeys,
    record: &mut Record,
    changes: &PreparedChanges,
    repack: &RepackInput,
) -> Result<(&'static Script, Vec<Bytes>)> {
    let PreparedChanges {
        families,
        entries,
        outbox,
        boards,
        ..
    } = changes;
    let count_arguments = build_live_count_arguments(record, changes);
    let is_record_only =
        families.is_empty() && entries.is_empty() && outbox.is_empty() && boards.boards.is_empty();
    if is_record_only && count_arguments.len() == 1 {
        return Ok((&CHANGE, Vec::new()));
    }
    let board_arguments = build_board_arguments(record.state.epoch, boards)?;
    let (strings, hashes) = build_delta_arguments(record, families, repack)?;
    let argument_counts = entries.iter().chain(&hashes);
    let argument_counts = argument_counts.map(|view_arguments| view_arguments.arguments.len() + 2);
    let argument_count = argument_counts.sum::<usize>()
        + strings.len()
        + outbox.len()
        + board_arguments.len()
        + count_arguments.len();
    if argument_count > ARGUMENTS_MAX {
        return Err(Error::Refused(format!(
            "a micro-batch with {argument_count} script arguments exceeds the limit of {ARGUMENTS_MAX}; use smaller micro-batches"
        )));
    }
    let mut arguments = Vec::with_capacity(argument_count + 3);
    arguments.push(Bytes::from(keys.prefix.clone()));
    arguments.push(match outbox.is_empty() {
        true => Bytes::new(),
        false => record.ensure_outbox().into(),
    });
    arguments.push(outbox.len().to_string().into());
    arguments.extend(outbox.iter().cloned());
    arguments.extend(board_arguments);
    arguments.extend(count_arguments);
    arguments.extend(strings);
    for view_arguments in entries.iter().chain(&hashes) {
        let container = record.ensure_container(&view_arguments.view, view_arguments.kind);
        arguments.push(container.into());
        arguments.push(view_arguments.groups.to_string().into());
        arguments.extend(view_arguments.arguments.iter().cloned());
    }
    Ok((&APPLY, arguments))
}

/// Returns the arguments that concern deltas, and the rows that go into hashes.
///
/// The arguments are the strings to append to by container, the strings to delete, and the chunks,
/// each list preceded by its length.
fn build_delta_arguments(
    record: &mut Record,
    families: &[Family],
    repack: &RepackInput,
) -> Result<(Vec<Bytes>, Vec<ViewArguments>)> {
    let (mut strings, mut containers) = (Vec::new(), 0_usize);
    let mut emptied: Vec<Bytes> = Vec::new();
    let mut chunks = Chunks::default();
    let mut hashes: BTreeMap<&str, ViewArguments> = BTreeMap::new();
    for family in families {
        let shared = record.ensure_shared_container(&family.name, &family.views, family.is_long);
        let Some(shared) = shared else {
            for (group, segments) in family.groups.each() {
                for (view, rows) in segments {
                    let Some(view) = family.views.get(view) else {
                        continue;
                    };
                    let view_arguments = hashes
                        .entry(view)
                        .or_insert_with(|| ViewArguments::for_deltas(view));
                    view_arguments.add_packed(group, rows)?;
                }
            }
            continue;
        };
        let views = record.views_in_container(&shared.container);
        let (start, mut count) = (strings.len(), 0_usize);
        for (group, segments) in family.groups.each() {
            let bytes: usize = segments.iter().map(|(_, rows)| rows.len()).sum();
            let string = repack.find_string(&shared.container, group);
            if string.is_none() && bytes < FULL_BYTES {
                let mut string = Vec::with_capacity(bytes + 4 * segments.len());
                for (view, rows) in segments {
                    let number = shared.numbers.get(view).copied().unwrap_or_default();
                    packed::put_segment(&mut string, number, rows);
                }
                strings.extend([Bytes::copy_from_slice(group), string.into()]);
                count += 1;
                continue;
            }
            if let Some(string) = string {
                add_string(&mut chunks, &views, &shared.container, group, string)?;
                emptied.extend([
                    shared.container.clone().into(),
                    Bytes::copy_from_slice(group),
                ]);
            }
            for (view, rows) in segments {
                if let Some(view) = family.views.get(view) {
                    chunks.add(view, group, rows);
                }
            }
        }
        if count > 0 {
            let container_arguments = [shared.container.into(), count.to_string().into()];
            strings.splice(start..start, container_arguments);
            containers += 1;
        }
    }
    let head = [FULL_BYTES.to_string().into(), containers.to_string().into()];
    strings.splice(0..0, head);
    strings.push((emptied.len() / 2).to_string().into());
    strings.extend(emptied);
    strings.extend(chunks.into_arguments(record, repack)?);
    Ok((strings, hashes.into_values().collect()))
}

/// Adds the rows of a full string to the chunks of its views.
fn add_string(
    chunks: &mut Chunks,
    views: &BTreeMap<usize, &str>,
    container: &str,
    group: &[u8],
    string: &[u8],
) -> Result<()> {
    for segment in packed::segments(string) {
        let view_rows = segment.and_then(|(number, rows)| Some((views.get(&number)?, rows)));
        let (view, rows) = view_rows.ok_or_else(|| rows_error(container, group))?;
        chunks.add(view, group, rows);
    }
    Ok(())
}

/// Returns the number of live counts that may change, and for each its hash, key, expected and new
/// value. Groups without a new live count are included if the view has live counts.
fn build_live_count_arguments(record: &mut Record, changes: &PreparedChanges) -> Vec<Bytes> {
    let bytes = |count: Option<&StoredLiveCount>| {
        count.map_or_else(Bytes::new, |count| count.bytes().clone())
    };
    let mut arguments = Vec::new();
    for change in &changes.live_counts {
        if change.next.is_some() {
            record.ensure_live_counts(&change.view);
        }
        if let Some(name) = record.live_count_hash(&change.view) {
            arguments.push(name.to_owned().into());
            arguments.push(Bytes::copy_from_slice(&change.key));
            arguments.push(bytes(change.expected.as_ref()));
            arguments.push(bytes(change.next.as_ref()));
        }
    }
    for (view, key) in &changes.uncounted {
        if let Some(name) = record.live_count_hash(view) {
            let empty = Bytes::new;
            arguments.extend([name.to_owned().into(), key.clone(), empty(), empty()]);
        }
    }
    let count = Bytes::from((arguments.len() / 4).to_string());
    arguments.insert(0, count);
    arguments
}

/// Returns the groups whose entries change without a new live count.
fn find_uncounted(changes: &Changes) -> Vec<(String, Bytes)> {
    let counted: HashSet<(&str, &[u8])> = changes
        .live_counts
        .iter()
        .map(|change| (change.view.as_str(), change.key.as_slice()))
        .collect();
    let mut uncounted = Vec::new();
    for entries in &changes.entries {
        let keys: HashSet<&[u8]> = entries.keys.iter().flatten().collect();
        let keys = keys
            .into_iter()
            .filter(|key| !counted.contains(&(entries.view.as_str(), *key)));
        uncounted.extend(keys.map(|key| (entries.view.clone(), Bytes::copy_from_slice(key))));
    }
    uncounted
}

/// Sorts changes by group and encodes them as script arguments.
async fn prepare_changes(changes: &Changes) -> Result<PreparedChanges> {
    let (families, entries) = if changes.rows() < HEAVY_ROWS {
        split_changes(changes)?
    } else {
        let changes = changes.clone();
        let splitting = tokio::task::spawn_blocking(move || split_changes(&changes));
        splitting
            .await
            .map_err(|error| Error::broken("sorting live changes", error))??
    };
    Ok(PreparedChanges {
        families,
        entries,
        outbox: changes.outbox.clone(),
        boards: changes.boards.clone(),
        live_counts: changes.live_counts.clone(),
        uncounted: find_uncounted(changes),
    })
}

fn split_changes(changes: &Changes) -> Result<(Vec<Family>, Vec<ViewArguments>)> {
    let mut views = HashSet::new();
    let all = changes.deltas.iter().map(|deltas| (&deltas.view, false));
    let all = all.chain(changes.entries.iter().map(|entries| (&entries.view, true)));
    for (view, is_entries) in all {
        if !views.insert((view, is_entries)) {
            return Err(Error::Refused(format!(
                "view {view} occurs twice in a micro-batch"
            )));
        }
    }
    let mut deltas_by_family: BTreeMap<&str, Vec<&Deltas>> = BTreeMap::new();
    for deltas in &changes.deltas {
        let (groups, rows) = (deltas.groups.len(), deltas.rows.len());
        check_lengths(&deltas.view, groups, rows, deltas.counts.len())?;
        if !deltas.counts.is_empty() {
            let family = deltas_by_family.entry(&deltas.grouped_by);
            family.or_default().push(deltas);
        }
    }
    let families = deltas_by_family
        .into_iter()
        .map(|(name, deltas)| build_family(name, &deltas));
    let entries = changes.entries.iter().map(build_entry_arguments);
    let entries: Vec<Option<ViewArguments>> = entries.collect::<Result<_>>()?;
    Ok((families.collect(), entries.into_iter().flatten().collect()))
}

fn build_family(name: &str, deltas_by_view: &[&Deltas]) -> Family {
    let rows = order_by_group(deltas_by_view)
        .into_iter()
        .filter_map(|(view, row)| {
            let deltas = deltas_by_view.get(view)?;
            Some((
                deltas.groups.value(row),
                view,
                deltas.rows.value(row),
                deltas.counts.value(row),
            ))
        });
    let mut counts = deltas_by_view
        .iter()
        .flat_map(|deltas| deltas.counts.values());
    Family {
        name: name.to_owned(),
        views: deltas_by_view
            .iter()
            .map(|deltas| deltas.view.clone())
            .collect(),
        groups: Groups::from_sorted(rows),
        is_long: counts.any(|count| !packed::is_short(*count)),
    }
}

/// Returns pairs of view index and row index, ordered so that the rows of a group are adjacent,
/// view by view.
fn order_by_group(views: &[&Deltas]) -> Vec<(usize, usize)> {
    let length = views.iter().map(|deltas| deltas.groups.len()).sum();
    let mut number_by_group: HashMap<&[u8], usize, RandomState> = HashMap::default();
    // First the number of rows of each group, then the position of its next row.
    let mut next_positions: Vec<usize> = Vec::new();
    let mut group_numbers: Vec<usize> = Vec::with_capacity(length);
    for group in views.iter().flat_map(|deltas| &deltas.groups) {
        let new_number = next_positions.len();
        let number = *number_by_group
            .entry(group.unwrap_or_default())
            .or_insert(new_number);
        if number == new_number {
            next_positions.push(0);
        }
        if let Some(rows) = next_positions.get_mut(number) {
            *rows += 1;
        }
        group_numbers.push(number);
    }
    let mut first_position = 0;
    for rows in &mut next_positions {
        first_position += std::mem::replace(rows, first_position);
    }
    let rows = views.iter().enumerate();
    let rows = rows.flat_map(|(view, deltas)| (0..deltas.groups.len()).map(move |row| (view, row)));
    let mut order = vec![(0, 0); length];
    for (number, row) in group_numbers.into_iter().zip(rows) {
        if let Some(position) = next_positions.get_mut(number) {
            if let Some(target) = order.get_mut(*position) {
                *target = row;
            }
            *position += 1;
        }
    }
    order
}

fn check_lengths(view: &str, groups: usize, rows: usize, values: usize) -> Result<()> {
    if groups == values && rows == values {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "view {view} has {groups} group keys and {rows} row keys for {values} values; the numbers must be equal"
    )))
}

impl ViewArguments {
    fn for_deltas(view: &str) -> Self {
        Self {
            view: view.to_owned(),
            kind: ContainerKind::Deltas,
            groups: 0,
            arguments: Vec::new(),
        }
    }

    /// Adds a group from packed rows.
    fn add_packed(&mut self, group: &[u8], rows: &[u8]) -> Result<()> {
        self.groups += 1;
        self.arguments.push(Bytes::copy_from_slice(group));
        let count_index = self.arguments.len();
        let mut count = 0_usize;
        for row in packed::rows(rows) {
            let (row, increment) =
                row.ok_or_else(|| Error::broken("packing live deltas", "a row does not decode"))?;
            self.arguments.push(Bytes::copy_from_slice(row));
            self.arguments.push(increment.to_string().into());
            count += 1;
        }
        self.arguments.insert(count_index, count.to_string().into());
        Ok(())
    }
}

/// Encodes the live entries of one view. Returns `None` if there are none.
fn build_entry_arguments(entries: &Entries) -> Result<Option<ViewArguments>> {
    let length = entries.entries.len();
    check_lengths(
        &entries.view,
        entries.keys.len(),
        entries.members.len(),
        length,
    )?;
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by(|a, b| entries.keys.value(*a).cmp(entries.keys.value(*b)));
    let members_by_key: Vec<&[usize]> = order
        .chunk_by(|a, b| entries.keys.value(*a) == entries.keys.value(*b))
        .collect();
    let mut arguments = Vec::with_capacity(2 * (length + members_by_key.len()));
    for members in &members_by_key {
        let Some(first) = members.first() else {
            continue;
        };
        arguments.push(Bytes::copy_from_slice(entries.keys.value(*first)));
        arguments.push(Bytes::from(members.len().to_string()));
        for row in *members {
            arguments.push(Bytes::copy_from_slice(entries.members.value(*row)));
            arguments.push(match entries.entry(*row) {
                None => Bytes::from_static(REMOVED_ENTRY),
                Some(entry) => [&[ENTRY_PREFIX], entry].concat().into(),
            });
        }
    }
    Ok((length > 0).then(|| ViewArguments {
        view: entries.view.clone(),
        kind: ContainerKind::Entries,
        groups: members_by_key.len(),
        arguments,
    }))
}
