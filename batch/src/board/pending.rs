//! Pending members: members for which a run publishes the present entries instead of those in its
//! snapshot.
//!
//! A snapshot is newer than the speed layer. If a run published a change before the speed layer
//! processes the member's notification, the speed layer would find the change on the boards
//! already, and would not announce it. So for such members the run publishes the present entries:
//! batch rows overlaid with live entries. The notification causes the next run to compute the key
//! again.
//!
//! The present entries include everything below the cut if the partition state has ended the run's
//! epoch there. Otherwise, as after a loss of live state, they may not, and the snapshot's rows are
//! published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{MemberEntries, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::entities::Group;
use schemas::key::{KeyShape, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::Offset;
use schemas::source::Source;
use stores::boards::{
    KeyMembers, NodesError, RequestedMember, StoredNodes, build_member_queries, build_seam,
    merge_boards, read_member_entries, split_members,
};

use super::planning::{FETCH_LIMIT, Plan, decode_groups};
use crate::batch::Batch;
use crate::lease::check_stop;
use crate::run_steps::RunContext;
use crate::{Error, Result};

/// Maximum number of pending groups.
const GROUPS_MAX: usize = 100_000;
/// Keys whose rows are read at once.
const CONCURRENCY: usize = 16;
/// Attempts of an inconsistent read.
const ATTEMPTS_MAX: u32 = 4;
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The entries to publish, by encoded key and member.
pub(crate) type PendingMembers = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, MemberEntries>>;

/// The pending members of all views.
#[derive(Debug, Default)]
pub(super) struct PendingByView {
    pub(super) members: BTreeMap<String, Arc<PendingMembers>>,
    /// Why some pending members are unknown.
    pub(super) unknown_reason: Option<String>,
}

/// The pending members of a view, and why some are missing.
#[derive(Debug, Default)]
pub(super) struct PendingInView {
    pub(super) members: PendingMembers,
    pub(super) unknown_reason: Option<String>,
}

/// Why a read failed.
enum ReadFailure {
    Error(Error),
    /// The read was inconsistent; a retry may succeed.
    Retry(String),
}

impl From<stores::Error> for ReadFailure {
    fn from(error: stores::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<BoardError<NodesError>> for ReadFailure {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::Store(NodesError::Store(error))
                if error.kind() != stores::ErrorKind::Fatal =>
            {
                error.into()
            }
            error => Self::Retry(error.to_string()),
        }
    }
}

/// Returns the groups whose notifications are not in the log yet.
pub(crate) async fn find_unsent_groups(batch: &Batch, source: Source) -> Result<Vec<Group>> {
    let entities = &batch.ports.entities;
    let pending = entities
        .pending_notifications(source, i64::MAX, GROUPS_MAX + 1)
        .await?;
    Ok(pending.into_iter().map(|pending| pending.group).collect())
}

/// Adds the groups of notifications between the speed layer's positions and the log ends;
/// `None` if there are too many.
pub(crate) async fn add_uncounted_groups(
    batch: &Batch,
    source: Source,
    counted: &[Option<Offset>],
    ends: &[Offset],
    groups: Vec<Group>,
) -> Result<Option<BTreeSet<Group>>> {
    let mut groups: BTreeSet<Group> = groups.into_iter().collect();
    for (partition, (counted, end)) in (0_u32..).zip(counted.iter().zip(ends)) {
        let mut next = counted.unwrap_or(*end);
        while next < *end && groups.len() <= GROUPS_MAX {
            let log = &batch.ports.log;
            let fetched = match log
                .fetch(source.topic(), partition, next, FETCH_LIMIT)
                .await
            {
                Ok(fetched) if fetched.next_offset > next => fetched,
                Ok(_) => break,
                // The speed layer does not process deleted records either.
                Err(stores::Error::OffsetOutOfRange {
                    requested, start, ..
                }) if requested < start => {
                    next = start;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            next = fetched.next_offset;
            let schemas = &*batch.ports.schemas;
            groups.extend(decode_groups(schemas, source, &fetched.records.values).await?);
        }
    }
    Ok((groups.len() <= GROUPS_MAX).then_some(groups))
}

/// Reads the present entries of pending members of a view, for the keys that a run publishes.
pub(super) async fn read_pending_members(
    context: &RunContext<'_>,
    plan: &Plan,
    job: &Job<Board>,
    groups: &BTreeSet<Group>,
) -> Result<PendingInView> {
    let partitions = u32::try_from(plan.run.cuts.len()).unwrap_or(u32::MAX);
    let is_published = |group: &&Group| {
        let keys = plan.keys.as_ref();
        keys.is_none_or(|keys| keys.contains(&group.key))
    };
    let mut by_partition: BTreeMap<u32, BTreeMap<_, Vec<RequestedMember>>> = BTreeMap::new();
    for group in groups.iter().filter(is_published) {
        let encode = |shape: &KeyShape, value| {
            let encoded = shape.encode_values(&[KeyValue::Int(value)]);
            encoded.map_err(|error| Error::fault("encoding a group", error))
        };
        let key = encode(job.key(), group.key)?;
        let member = encode(job.member(), group.member)?;
        let partition = partition_of(group.key.to_string().as_bytes(), partitions);
        let partition_keys = by_partition.entry(partition).or_default();
        // A key of boards without scores has one board.
        let members = partition_keys.entry(key).or_default();
        members.push((member, vec![Vec::new()]));
    }
    let mut pending = PendingInView::default();
    for (partition, keys) in &by_partition {
        for step in split_members(keys) {
            check_stop(context.stop)?;
            match read_members_with_retry(context.batch, plan, job, *partition, &step).await? {
                Ok(entries_by_key) => {
                    for (key, entries) in entries_by_key {
                        pending.members.entry(key).or_default().extend(entries);
                    }
                }
                Err(reason) => pending.unknown_reason = Some(reason),
            }
        }
    }
    Ok(pending)
}

/// Reads the present entries of members, with retries. Returns the reason if they stay unknown.
async fn read_members_with_retry(
    batch: &Batch,
    plan: &Plan,
    job: &Job<Board>,
    partition: u32,
    keys: &[KeyMembers<'_>],
) -> Result<std::result::Result<PendingMembers, String>> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match read_members(batch, plan, job, partition, keys).await {
            Ok(members) => return Ok(Ok(members)),
            Err(ReadFailure::Error(error)) => return Err(error),
            Err(ReadFailure::Retry(reason)) if attempts >= ATTEMPTS_MAX => return Ok(Err(reason)),
            Err(ReadFailure::Retry(_)) => tokio::time::sleep(RETRY_PAUSE * attempts).await,
        }
    }
}

/// Reads in the order of the seam: run records, live entries, heads.
async fn read_members(
    batch: &Batch,
    plan: &Plan,
    job: &Job<Board>,
    partition: u32,
    keys: &[KeyMembers<'_>],
) -> std::result::Result<PendingMembers, ReadFailure> {
    let (views, view) = (&*batch.ports.views, job.view());
    let runs = views.runs(plan.source).await?;
    let newest = runs.complete_epochs.get(view).copied().unwrap_or(0);
    let partitions = runs.runs.get(newest).map(|run| run.cuts.len());
    if partitions.is_some_and(|count| newest > 0 && count != plan.run.cuts.len()) {
        let reason = "partitions were added since the previous run";
        return Err(ReadFailure::Retry(reason.to_owned()));
    }
    let queries = build_member_queries(view, Some(partition), keys);
    let partitions = partition..partition.saturating_add(1);
    let live = &batch.ports.live;
    let snapshot = live.read_members(plan.source, partitions, &queries).await?;
    let cut = plan.run.cuts.get(partition as usize);
    let state = snapshot.partition_states.first().and_then(Option::as_ref);
    let epoch_end = state.and_then(|state| state.bounds.get(&plan.run.epoch));
    // Otherwise the entries may lack changes below the cut, which no later step would add.
    if cut.is_none() || epoch_end.map(|cut| cut.next_offset) != cut.map(|cut| cut.next_offset) {
        let reason = format!(
            "the live state of partition {partition} was lost: it has not ended the run's epoch at its cut"
        );
        return Err(ReadFailure::Retry(reason));
    }
    let mut states = vec![None; partition as usize];
    states.extend(snapshot.partition_states);
    let seam = build_seam(view, &runs, &states, Some(partition));
    let names: Vec<Vec<u8>> = keys.iter().map(|(key, _)| (*key).clone()).collect();
    let heads = views.heads(view, &names).await?;
    seam.check_table(heads.is_some())
        .map_err(BoardError::<NodesError>::from)?;
    let heads = heads.unwrap_or_else(|| vec![None; names.len()]);
    let seam = &seam;
    let by_key = keys.iter().zip(heads).zip(&snapshot.entries);
    let calls = by_key.map(|(((key, members), head), live_entries)| async move {
        let key_boards = merge_boards(seam, job, head.as_ref(), Some(live_entries))?;
        let nodes = StoredNodes::new(views, view, key);
        let entries = read_member_entries(&key_boards, &nodes, members).await?;
        Ok::<_, ReadFailure>(((*key).clone(), entries))
    });
    let calls: Vec<_> = calls.collect();
    stream::iter(calls)
        .buffered(CONCURRENCY)
        .try_collect()
        .await
}
