//! Members of whom a run publishes what stands, and not what its snapshot has.
//!
//! A snapshot is newer than the speed layer. Of what it holds of a member before the speed layer comes to
//! the member's notification nobody would be told: the speed layer would find it on the boards already.
//! So of such members a run publishes what stands on the boards: batch rows with the live states on top.
//! That holds all below the cut, where the slot has ended the run's epoch there; else, as after live state
//! was lost, it may not, and the snapshot's rows are published. The notification that follows has the key
//! computed again by the next run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{GroupState, ReadError as BoardError};
use jobs::{Board, Job};
use schemas::entities::Group;
use schemas::key::{KeyShape, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::Offset;
use schemas::source::Source;
use stored::boards::{
    KeyMembers, Member, NodesError, StoredNodes, member_queries, member_states, member_steps, seam,
    standings,
};
use tokio_util::sync::CancellationToken;

use super::planning::{FETCH, Plan, groups_of};
use crate::run::{Batch, go_on};
use crate::{Error, Result};

/// More groups than this are not held back.
const GROUPS_MAX: usize = 100_000;
/// Keys whose rows are looked up at once.
const AT_ONCE: usize = 16;
/// How often a read is made that does not join.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// By key and member, encoded: what is published of them.
pub(crate) type HeldBack = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, GroupState>>;

/// What is held back of a view, and why some of it is not.
#[derive(Debug, Default)]
pub(super) struct OfView {
    pub(super) held: HeldBack,
    pub(super) why: Option<String>,
}

/// Why nothing was read.
enum Failed {
    Error(Error),
    /// It may be read at once.
    Again(String),
}

impl From<stores::Error> for Failed {
    fn from(error: stores::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<BoardError<NodesError>> for Failed {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::Store(NodesError::Store(error))
                if error.kind() != stores::ErrorKind::Fatal =>
            {
                error.into()
            }
            error => Self::Again(error.to_string()),
        }
    }
}

impl Batch {
    /// The groups that wait for the log.
    pub(crate) async fn unsent(&self, source: Source) -> Result<Vec<Group>> {
        let canon = &self.ports.canon;
        let unsent = canon.pending(source, i64::MAX, GROUPS_MAX + 1).await?;
        Ok(unsent.into_iter().map(|waiting| waiting.group).collect())
    }

    /// Adds the groups that the log tells of between what was counted and where it ended; nothing if they
    /// are too many.
    pub(crate) async fn uncounted(
        &self,
        source: Source,
        (counted, ends): (&[Option<Offset>], &[Offset]),
        groups: Vec<Group>,
    ) -> Result<Option<BTreeSet<Group>>> {
        let mut groups: BTreeSet<Group> = groups.into_iter().collect();
        for (partition, (counted, end)) in (0_u32..).zip(counted.iter().zip(ends)) {
            let mut next = counted.unwrap_or(*end);
            while next < *end && groups.len() <= GROUPS_MAX {
                let log = &self.ports.log;
                let fetched = match log.fetch(source.topic(), partition, next, FETCH).await {
                    Ok(fetched) if fetched.next_offset > next => fetched,
                    Ok(_) => break,
                    // What the log does not hold any more, the speed layer does not come to either.
                    Err(stores::Error::OffsetOutOfRange { asked, start, .. }) if asked < start => {
                        next = start;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                next = fetched.next_offset;
                let schemas = &*self.ports.schemas;
                groups.extend(groups_of(schemas, source, &fetched.records.values).await?);
            }
        }
        Ok((groups.len() <= GROUPS_MAX).then_some(groups))
    }

    /// What stands of members on the boards of a view, of keys that a run publishes.
    pub(super) async fn held_back(
        &self,
        job: &Job<Board>,
        plan: &Plan,
        groups: &BTreeSet<Group>,
        stop: &CancellationToken,
    ) -> Result<OfView> {
        let partitions = u32::try_from(plan.run.cuts.len()).unwrap_or(u32::MAX);
        let is_published = |group: &&Group| {
            let keys = plan.keys.as_ref();
            keys.is_none_or(|keys| keys.contains(&group.key))
        };
        let mut by_partition: BTreeMap<u32, BTreeMap<Vec<u8>, Vec<Member>>> = BTreeMap::new();
        for group in groups.iter().filter(is_published) {
            let encoded = |shape: &KeyShape, value| {
                let encoded = shape.encode_values(&[KeyValue::Int(value)]);
                encoded.map_err(|error| Error::fault("encoding a group", error))
            };
            let key = encoded(job.key(), group.key)?;
            let member = encoded(job.member(), group.member)?;
            let partition = partition_of(group.key.to_string().as_bytes(), partitions);
            let of_partition = by_partition.entry(partition).or_default();
            // Boards without scores have one of each key.
            let of_key = of_partition.entry(key).or_default();
            of_key.push((member, vec![Vec::new()]));
        }
        let mut found = OfView::default();
        for (partition, keys) in &by_partition {
            for some in member_steps(keys) {
                go_on(stop)?;
                match self.stands(job, plan, *partition, &some).await? {
                    Ok(of_keys) => {
                        for (key, states) in of_keys {
                            found.held.entry(key).or_default().extend(states);
                        }
                    }
                    Err(why) => found.why = Some(why),
                }
            }
        }
        Ok(found)
    }

    /// What stands of members; or why that can't be told.
    async fn stands(
        &self,
        job: &Job<Board>,
        plan: &Plan,
        partition: u32,
        keys: &[KeyMembers<'_>],
    ) -> Result<std::result::Result<HeldBack, String>> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_stands(job, plan, partition, keys).await {
                Ok(states) => return Ok(Ok(states)),
                Err(Failed::Error(error)) => return Err(error),
                Err(Failed::Again(why)) if tries >= TRIES => return Ok(Err(why)),
                Err(Failed::Again(_)) => tokio::time::sleep(PAUSE * tries).await,
            }
        }
    }

    /// Reads in the order that the seam demands: runs, live states, heads.
    async fn try_stands(
        &self,
        job: &Job<Board>,
        plan: &Plan,
        partition: u32,
        keys: &[KeyMembers<'_>],
    ) -> std::result::Result<HeldBack, Failed> {
        let (views, view) = (&*self.ports.views, job.view());
        let runs = views.runs(plan.source).await?;
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map(|run| run.cuts.len());
        if cuts.is_some_and(|cuts| newest > 0 && cuts != plan.run.cuts.len()) {
            let why = "partitions were added since the run before";
            return Err(Failed::Again(why.to_owned()));
        }
        let queries = member_queries(view, Some(partition), keys);
        let own = partition..partition.saturating_add(1);
        let live = &self.ports.live;
        let answer = live.read_members(plan.source, own, &queries).await?;
        let ended = plan.run.cuts.get(partition as usize);
        let slot = answer.slots.first().and_then(Option::as_ref);
        let bound = slot.and_then(|slot| slot.bounds.get(&plan.run.epoch));
        // Else what stands there may lack some of what lies below the cut, and nobody would add it.
        if ended.is_none() || bound.map(|cut| cut.next_offset) != ended.map(|cut| cut.next_offset) {
            let why = format!(
                "live state of partition {partition} does not end the run's epoch at its cut: it was lost"
            );
            return Err(Failed::Again(why));
        }
        let mut slots = vec![None; partition as usize];
        slots.extend(answer.slots);
        let seam = seam(view, &runs, &slots, Some(partition));
        let names: Vec<Vec<u8>> = keys.iter().map(|(key, _)| (*key).clone()).collect();
        let heads = views.heads(view, &names).await?;
        seam.check_table(heads.is_some())
            .map_err(BoardError::<NodesError>::from)?;
        let heads = heads.unwrap_or_else(|| vec![None; names.len()]);
        let seam = &seam;
        let of_keys = keys.iter().zip(heads).zip(&answer.states);
        let calls = of_keys.map(|(((key, members), head), states)| async move {
            let standings = standings(seam, job, head.as_ref(), Some(states))?;
            let nodes = StoredNodes::new(views, view, key);
            let states = member_states(&standings, &nodes, members).await?;
            Ok::<_, Failed>(((*key).clone(), states))
        });
        let calls: Vec<_> = calls.collect();
        stream::iter(calls).buffered(AT_ONCE).try_collect().await
    }
}
