//! The drift of boards: whether the members whose rows a run changes had been given the same rows live.
//!
//! A run replaces the rows of a key by others. Whoever differs in them has been notified below the run's cut, so live
//! state has what the speed layer made of that member, in an epoch that the run takes in: it must be what the run
//! publishes. A member with a newer state has changed again since, and is passed over; of one whose change the
//! speed layer has not come to, the run publishes what stands ([`super::held_back`]).

use std::collections::BTreeMap;

use arrow::array::Array;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{ChangedMembers, GroupState, ReadError as BoardError, Sheet, Standings};
use jobs::{Board, Job};
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::seam::{Cut, Epoch, Runs, Slot, whole};
use schemas::source::Source;
use stored::boards::{NodesError, StoredNodes};
use stores::live::{LiveStates, MembersQuery, StateQuery};

use crate::drift::{Cause, DriftedKey, KEYS_NAMED, ViewDrift, show};
use crate::{BatchPorts, Result};

/// Members of a view that one run compares, at most.
const MEMBERS_MAX: usize = 100_000;
/// Members that are read at once.
const MEMBERS_AT_ONCE: usize = 5_000;
/// Keys whose rows are read at once.
const AT_ONCE: usize = 16;
/// Nodes of one level of a key's tree that are read, at most.
const NODES_MAX: usize = 2_000;
/// A member's column is an id.
const MEMBER_BYTES: usize = 8;

type Failed = BoardError<NodesError>;

/// A member with the boards on which its rows differ, encoded.
type Member = (Vec<u8>, Vec<Vec<u8>>);

/// The run that compares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch<'a> {
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) cuts: &'a [Cut],
}

/// A key whose rows were replaced: the roots.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub(crate) key: Vec<u8>,
    pub(crate) old: Option<Bytes>,
    pub(crate) new: Bytes,
}

/// The comparison of a view, key by key as it is published.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    ports: &'a BatchPorts,
    job: &'a Job<Board>,
    run: Stretch<'a>,
    runs: Runs,
    /// The newest complete run before.
    since: Epoch,
    members_left: usize,
    drift: ViewDrift,
    worst: Vec<DriftedKey>,
}

/// A key with the members that differ.
struct Changed<'a> {
    of: &'a Replaced,
    partition: u32,
    members: Vec<Member>,
}

/// A member as it was counted live.
enum Counted {
    /// There is a state after the run's cut.
    Again,
    Once(GroupState),
    Never,
}

/// A member of whom something else is published than was counted.
struct Differing {
    member: Vec<u8>,
    /// On how many boards it is, by the run and as it was counted.
    published: usize,
    counted: usize,
    cause: Cause,
}

impl<'a> Comparison<'a> {
    /// Begins; `unknown` says why nothing can be compared, if that is known already.
    pub(crate) async fn begin(
        ports: &'a BatchPorts,
        job: &'a Job<Board>,
        run: Stretch<'a>,
        unknown: Option<&str>,
    ) -> Result<Self> {
        let seen = ports.views.runs(run.source).await?;
        let since = seen.newest.get(job.view()).copied().unwrap_or(0);
        let before = seen.runs.get(since).map(|run| run.cuts.len());
        let mut unknown = unknown.map(str::to_owned);
        if since > 0 && before.is_some_and(|before| before != run.cuts.len()) {
            unknown = unknown.or_else(|| Some("partitions were added since the run before".into()));
        }
        Ok(Self {
            ports,
            job,
            run,
            runs: seen.runs,
            since,
            members_left: MEMBERS_MAX,
            drift: ViewDrift {
                job: job.name().to_owned(),
                total: unknown.is_none().then_some(0),
                unknown,
                ..ViewDrift::default()
            },
            worst: Vec::new(),
        })
    }

    /// What was found.
    pub(crate) fn end(self) -> (ViewDrift, Vec<DriftedKey>) {
        (self.drift, self.worst)
    }

    /// Compares some keys, whose old rows can still be read. If that fails, the drift is not known: the rows are right all
    /// the same.
    pub(crate) async fn compare(&mut self, keys: Vec<Replaced>) {
        if self.drift.unknown.is_some() || keys.is_empty() {
            return;
        }
        let compared = match self.changed(&keys).await {
            Ok(changed) => self.compare_changed(&changed).await,
            Err(error) => Err(error),
        };
        let why = match compared {
            Ok(None) => return,
            Ok(Some(why)) => why,
            Err(error) => {
                let (job, error) = (self.job.name(), error.to_string());
                tracing::warn!(job, error, "the drift of a view is not known");
                error
            }
        };
        self.drift.total = None;
        self.drift.unknown = Some(why);
    }

    /// The members that differ, of the keys of which they are not too many.
    async fn changed<'k>(
        &mut self,
        keys: &'k [Replaced],
    ) -> std::result::Result<Vec<Changed<'k>>, Failed> {
        if self.members_left == 0 {
            self.drift.is_lower_bound = true;
            return Ok(Vec::new());
        }
        let partitions = u32::try_from(self.run.cuts.len()).unwrap_or(u32::MAX);
        let this = &*self;
        let calls = keys.iter().map(|of| async move {
            let members = this.members(of).await?;
            let damaged = |error: schemas::key::KeyError| Failed::Damaged(error.to_string());
            let key = this.job.key().decode_values(&of.key).map_err(damaged)?;
            let key = match key.first() {
                Some(KeyValue::Int(key)) => key.to_string(),
                _ => String::new(),
            };
            let partition = partition_of(key.as_bytes(), partitions);
            Ok::<_, Failed>((of, partition, members))
        });
        let calls: Vec<_> = calls.collect();
        let found: Vec<_> = stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
        let mut changed = Vec::new();
        for (of, partition, members) in found {
            let fitting = members.filter(|members| members.len() <= self.members_left);
            let Some(members) = fitting else {
                self.drift.is_lower_bound = true;
                continue;
            };
            self.members_left -= members.len();
            let members = members.into_iter().collect();
            changed.push(Changed {
                of,
                partition,
                members,
            });
        }
        Ok(changed)
    }

    /// The members whose rows of a key differ; nothing, if these are too many to be read.
    async fn members(&self, of: &Replaced) -> std::result::Result<Option<ChangedMembers>, Failed> {
        let has_scores = !self.job.score().0.is_empty();
        let new = Sheet::open(&of.new, has_scores)?;
        let old = of.old.as_ref().map(|old| Sheet::open(old, has_scores));
        let old = old.transpose()?;
        let rows = |sheet: &Sheet| sheet.trees().next().map_or(0, |tree| tree.sum().count);
        let least = rows(&new).abs_diff(old.as_ref().map_or(0, rows));
        // So many rows come or go at least, and nearly as many would be read. (Of boards that are several a member has several
        // rows, and some keys are passed over that would just fit.)
        if least > self.members_left as u64 {
            return Ok(None);
        }
        let shape = (self.score_bytes(), MEMBER_BYTES);
        let nodes = self.nodes(&of.key);
        new.changed_members(old.as_ref(), &nodes, shape, NODES_MAX)
            .await
    }

    /// Compares what is published with what was counted; answers why that can't be told.
    async fn compare_changed(
        &mut self,
        changed: &[Changed<'_>],
    ) -> std::result::Result<Option<String>, Failed> {
        let mut by_partition: BTreeMap<u32, Vec<(&Changed<'_>, &[_])>> = BTreeMap::new();
        for one in changed {
            for members in one.members.chunks(MEMBERS_AT_ONCE) {
                let of_partition = by_partition.entry(one.partition).or_default();
                of_partition.push((one, members));
            }
        }
        for (partition, parts) in by_partition {
            let (mut step, mut held) = (Vec::new(), 0);
            for part in parts {
                if held + part.1.len() > MEMBERS_AT_ONCE {
                    if let Some(why) = self.step(partition, &step).await? {
                        return Ok(Some(why));
                    }
                    (step, held) = (Vec::new(), 0);
                }
                held += part.1.len();
                step.push(part);
            }
            if let Some(why) = self.step(partition, &step).await? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Compares members of one partition, few enough to be read at once.
    async fn step(
        &mut self,
        partition: u32,
        parts: &[(&Changed<'_>, &[Member])],
    ) -> std::result::Result<Option<String>, Failed> {
        let queries = parts.iter().map(|(changed, members)| MembersQuery {
            of: StateQuery {
                view: self.job.view().to_owned(),
                key: changed.of.key.clone(),
                partition: Some(partition),
            },
            members: members.iter().map(|(member, _)| member.clone()).collect(),
        });
        let queries: Vec<MembersQuery> = queries.collect();
        let own = partition..partition.saturating_add(1);
        let live = &self.ports.live;
        let answer = live.read_members(self.run.source, own, &queries).await;
        let answer = answer.map_err(NodesError::from).map_err(Failed::Store)?;
        let slot = answer.slots.first().and_then(Option::as_ref);
        if !slot.is_some_and(|slot| self.is_whole(slot, partition as usize)) {
            let since = self.since;
            return Ok(Some(format!(
                "live state of partition {partition} does not hold everything since run {since}"
            )));
        }
        let this = &*self;
        let of_keys = parts.iter().zip(&answer.states);
        let calls =
            of_keys.map(|((changed, members), states)| this.differing(changed.of, members, states));
        let calls: Vec<_> = calls.collect();
        let found: Vec<Vec<Differing>> =
            stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
        for ((changed, _), differing) in parts.iter().zip(found) {
            for one in differing {
                self.note(&changed.of.key, &one)?;
            }
        }
        Ok(None)
    }

    /// Whether a slot has everything between the run before and this one.
    fn is_whole(&self, slot: &Slot, partition: usize) -> bool {
        let cut = self.run.cuts.get(partition).map(|cut| cut.next_offset);
        let bound = slot.bounds.get(&self.run.epoch).map(|cut| cut.next_offset);
        bound.is_some()
            && bound == cut
            && whole(slot, partition, self.since, &self.runs, self.job.view())
    }

    /// The members of a key of whom something else is published than was counted.
    async fn differing(
        &self,
        of: &Replaced,
        members: &[Member],
        states: &LiveStates,
    ) -> std::result::Result<Vec<Differing>, Failed> {
        let nodes = self.nodes(&of.key);
        let published = Standings::of_sheet(&of.new, self.score_bytes())?;
        let published = published.states(&nodes, members).await?;
        let mut differing = Vec::new();
        for ((member, boards), published) in members.iter().zip(published) {
            let (cause, counted) = match self.counted(member, states)? {
                Counted::Again => continue,
                Counted::Once(counted) if sorted(&counted) == sorted(&published) => continue,
                Counted::Once(counted) => (Cause::Unexplained, counted),
                Counted::Never => (Cause::LostLive, self.stood(of, member, boards).await?),
            };
            differing.push(Differing {
                member: member.clone(),
                published: published.places.len(),
                counted: counted.places.len(),
                cause,
            });
        }
        Ok(differing)
    }

    fn note(&mut self, key: &[u8], one: &Differing) -> std::result::Result<(), Failed> {
        let drift = &mut self.drift;
        drift.total = drift.total.map(|total| total.saturating_add(1));
        drift.keys += 1;
        *drift.causes.entry(one.cause).or_default() += 1;
        if self.worst.len() < KEYS_NAMED {
            let shown =
                |shape, bytes| show(shape, bytes).map_err(|e| Failed::Damaged(e.to_string()));
            let key = shown(self.job.key(), key)?;
            let member = shown(self.job.member(), &one.member)?;
            let rows = |rows: usize| i64::try_from(rows).unwrap_or(i64::MAX);
            self.worst.push(DriftedKey {
                job: self.job.name().to_owned(),
                key: [key, member].join(" "),
                batch: rows(one.published),
                live: rows(one.counted),
                cause: one.cause,
            });
        }
        Ok(())
    }

    /// What a member had before the run: that was served of one of whom there is no live state.
    async fn stood(
        &self,
        of: &Replaced,
        member: &[u8],
        boards: &[Vec<u8>],
    ) -> std::result::Result<GroupState, Failed> {
        let Some(old) = &of.old else {
            return Ok(GroupState::default());
        };
        let old = Standings::of_sheet(old, self.score_bytes())?;
        let members = [(member.to_vec(), boards.to_vec())];
        let mut states = old.states(&self.nodes(&of.key), &members).await?;
        Ok(states.pop().unwrap_or_default())
    }

    /// What was counted of a member since the run before.
    fn counted(&self, member: &[u8], states: &LiveStates) -> std::result::Result<Counted, Failed> {
        let rows = (0..states.members.len()).filter(|row| states.members.value(*row) == member);
        let newest = rows
            .filter(|row| states.epochs.value(*row) > self.since)
            .max_by_key(|row| states.epochs.value(*row));
        Ok(match newest {
            None => Counted::Never,
            Some(row) if states.epochs.value(row) > self.run.epoch => Counted::Again,
            Some(row) if states.states.is_null(row) => Counted::Once(GroupState::default()),
            Some(row) => Counted::Once(GroupState::decode(states.states.value(row))?),
        })
    }

    fn score_bytes(&self) -> usize {
        8 * self.job.score().0.len()
    }

    fn nodes<'n>(&'n self, key: &'n [u8]) -> StoredNodes<'n> {
        StoredNodes {
            views: &*self.ports.views,
            known: None,
            view: self.job.view(),
            key,
        }
    }
}

/// The rows of a state, in the order of boards.
fn sorted(state: &GroupState) -> Vec<&jobs::board::Place> {
    let mut places: Vec<_> = state.places.iter().collect();
    places.sort_unstable_by(|one, other| one.board.cmp(&other.board));
    places
}
