//! The drift of boards: whether the members whose rows a run changes had been given the same rows live.
//!
//! A run replaces the rows of a key by others. Whoever differs in them has been notified below the run's cut, so live
//! state has what the speed layer made of that member, in an epoch that the run takes in: it must be what the run
//! publishes. A member with a newer state has changed again since, and is passed over; of one whose change the
//! speed layer has not come to, the run publishes what stands ([`super::pending`]). Whoever seems to differ is looked at
//! once more when all is published: an app may tell of a change some time after its commit.
//!
//! Before a first run the speed layer has nothing of rows that were there before it: of those nothing is said.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::Array;
use bytes::Bytes;
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{
    ChangedMembers, KeyBoards, MemberEntries, ReadError as BoardError, VersionTrees,
};
use jobs::{Board, Job};
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::seam::{Cut, Epoch, PartitionState, Runs};
use schemas::source::Source;
use stores::boards::{NodesError, StoredNodes};
use stores::live::{EntryQuery, LiveEntries, MembersQuery};

use crate::drift::{Between, Cause, DriftedKey, KEYS_NAMED, ViewDrift, show};
use crate::{BatchPorts, Result};

/// Members of a view that one run compares, at most.
const MEMBERS_MAX: usize = 100_000;
/// Members that are read at once.
const MEMBERS_AT_ONCE: usize = 5_000;
/// Keys whose rows are read at once.
const AT_ONCE: usize = 16;
/// Nodes of one level of a key's tree that are read, at most.
const NODES_MAX: usize = 2_000;
/// Keys of up to so many rows, old and new, are read side by side; larger ones one after the other.
const SMALL_ROWS: u64 = 2_000;
/// Once a key does not fit any more and fewer members than this are left, no more keys are read.
const REST_MEMBERS: usize = 10_000;
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
    /// Whether an earlier try may have published some keys, which are the same now and are not compared.
    pub(crate) is_again: bool,
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
    found: Vec<Differing>,
}

/// A key whose roots were read.
struct Opened<'a> {
    of: &'a Replaced,
    partition: u32,
    old: Option<VersionTrees>,
    new: VersionTrees,
    /// Rows that come or go, at least, and those that may be read.
    least: u64,
    most: u64,
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
    Once(MemberEntries),
    Never,
}

/// A member of whom something else is published than was counted.
#[derive(Debug)]
struct Differing {
    key: Vec<u8>,
    partition: u32,
    member: Vec<u8>,
    /// On how many boards it is, by the run and as it was counted.
    published: usize,
    counted: usize,
    /// The first board on which it differs.
    board: Vec<u8>,
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
        let since = seen.complete_epochs.get(job.view()).copied().unwrap_or(0);
        let before = seen.runs.get(since).map(|run| run.cuts.len());
        let mut unknown = unknown.map(str::to_owned);
        if before.is_some_and(|before| before != run.cuts.len()) {
            unknown =
                unknown.or_else(|| Some("partitions were added since the previous run".into()));
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
                is_lower_bound: run.is_again && since > 0,
                unknown,
                ..ViewDrift::default()
            },
            found: Vec::new(),
        })
    }

    /// What was found, after those who seem to differ were looked at once more.
    pub(crate) async fn end(mut self) -> (ViewDrift, Vec<DriftedKey>) {
        let mut worst = Vec::new();
        let found = std::mem::take(&mut self.found);
        let noted = match self.still(found).await {
            Ok(Ok(found)) => self.note(&found, &mut worst).map(|()| None),
            Ok(Err(why)) => Ok(Some(why)),
            Err(error) => Err(error),
        };
        self.settle(noted);
        (self.drift, worst)
    }

    /// The drift is not known where something failed, or there is a reason.
    fn settle(&mut self, outcome: std::result::Result<Option<String>, Failed>) {
        let why = match outcome {
            Ok(None) => return,
            Ok(Some(why)) => why,
            Err(error) => {
                let (job, error) = (self.job.name(), error.to_string());
                tracing::warn!(job, error, "cannot determine the drift of a view");
                error
            }
        };
        self.drift.total = None;
        self.drift.unknown.get_or_insert(why);
    }

    /// Compares some keys, whose old rows can still be read. If that fails, the drift is not known: the rows are right all
    /// the same.
    pub(crate) async fn compare(&mut self, keys: Vec<Replaced>) {
        if self.drift.unknown.is_some() || keys.is_empty() {
            return;
        }
        let compared = self.compare_keys(&keys).await;
        self.settle(compared);
    }

    async fn compare_keys(
        &mut self,
        keys: &[Replaced],
    ) -> std::result::Result<Option<String>, Failed> {
        let opened = keys.iter().map(|of| self.open(of));
        let opened = opened.collect::<std::result::Result<Vec<_>, Failed>>()?;
        let (small, large): (Vec<_>, Vec<_>) =
            opened.into_iter().partition(|one| one.most <= SMALL_ROWS);
        let (mut changed, mut held) = (Vec::new(), 0);
        for some in small.chunks(AT_ONCE).chain(large.chunks(1)) {
            let more = self.changed(some).await?;
            held += more.iter().map(|one| one.members.len()).sum::<usize>();
            changed.extend(more);
            if held >= MEMBERS_AT_ONCE {
                if let Some(why) = self.compare_changed(&changed).await? {
                    return Ok(Some(why));
                }
                (changed, held) = (Vec::new(), 0);
            }
        }
        self.compare_changed(&changed).await
    }

    /// The members that differ, of keys that are read side by side, and of which they are not too many.
    async fn changed<'k>(
        &mut self,
        some: &[Opened<'k>],
    ) -> std::result::Result<Vec<Changed<'k>>, Failed> {
        let members = some.iter().map(|one| self.members(one));
        let members = try_join_all(members).await?;
        let mut changed = Vec::new();
        for (one, members) in some.iter().zip(members) {
            let Some(members) = members.filter(|members| members.len() <= self.members_left) else {
                self.drift.is_lower_bound = true;
                if self.members_left < REST_MEMBERS {
                    self.members_left = 0;
                }
                continue;
            };
            self.members_left -= members.len();
            changed.push(Changed {
                of: one.of,
                partition: one.partition,
                members: members.into_iter().collect(),
            });
        }
        Ok(changed)
    }

    /// Reads the roots of a key.
    fn open<'k>(&self, of: &'k Replaced) -> std::result::Result<Opened<'k>, Failed> {
        let has_scores = !self.job.score().0.is_empty();
        let new = VersionTrees::open(&of.new, has_scores)?;
        let old = of
            .old
            .as_ref()
            .map(|old| VersionTrees::open(old, has_scores));
        let old = old.transpose()?;
        let (had, has) = (
            old.as_ref().map_or(0, VersionTrees::entry_count),
            new.entry_count(),
        );
        let damaged = |error: schemas::key::KeyError| Failed::Damaged(error.to_string());
        let key = self.job.key().decode_values(&of.key).map_err(damaged)?;
        let key = match key.first() {
            Some(KeyValue::Int(key)) => key.to_string(),
            _ => String::new(),
        };
        let partitions = u32::try_from(self.run.cuts.len()).unwrap_or(u32::MAX);
        Ok(Opened {
            of,
            partition: partition_of(key.as_bytes(), partitions),
            old,
            new,
            least: has.abs_diff(had),
            most: has.saturating_add(had),
        })
    }

    /// The members whose rows of a key differ; nothing, if these are too many to be read.
    async fn members(
        &self,
        one: &Opened<'_>,
    ) -> std::result::Result<Option<ChangedMembers>, Failed> {
        // So many rows come or go at least, and nearly as many would be read. (Of boards that are several a member has several
        // rows, and some keys are passed over that would just fit.)
        if self.members_left == 0 || one.least > self.members_left as u64 {
            return Ok(None);
        }
        let nodes = self.nodes(&one.of.key);
        let nodes_max = NODES_MAX.min(self.members_left / 64 + 16);
        one.new
            .find_changed_members(
                one.old.as_ref(),
                &nodes,
                self.score_bytes(),
                MEMBER_BYTES,
                nodes_max,
            )
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
        let queries = parts.iter().map(|(changed, members)| {
            let members = members.iter().map(|(member, _)| member.clone());
            self.query(partition, &changed.of.key, members.collect())
        });
        let queries: Vec<MembersQuery> = queries.collect();
        let (slot, states) = self.states(partition, &queries).await?;
        if let Some(why) = self.unknown(partition, slot.as_ref()) {
            return Ok(Some(why));
        }
        let this = &*self;
        let of_keys = parts.iter().zip(&states);
        let calls =
            of_keys.map(|((changed, members), states)| this.differing(changed, members, states));
        let calls: Vec<_> = calls.collect();
        let found: Vec<Vec<Differing>> =
            stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
        self.found.extend(found.into_iter().flatten());
        Ok(None)
    }

    /// Why a slot does not tell what was counted between both runs.
    fn unknown(&self, partition: u32, slot: Option<&PartitionState>) -> Option<String> {
        let between = Between {
            runs: &self.runs,
            since: self.since,
            until: self.run.epoch,
            cuts: self.run.cuts,
        };
        let why = between.unknown(self.job.view(), partition as usize, slot);
        // What it counts again it counts of rows as they are now.
        let is_replaying = slot.is_some_and(PartitionState::is_replaying);
        why.or_else(|| {
            is_replaying.then(|| {
                format!("live state of partition {partition} was rebuilt and is replaying the log")
            })
        })
    }

    /// Those of some members who differ that have no newer state by now; or why that can't be told.
    async fn still(
        &self,
        found: Vec<Differing>,
    ) -> std::result::Result<std::result::Result<Vec<Differing>, String>, Failed> {
        let mut by_partition: BTreeMap<u32, Vec<Differing>> = BTreeMap::new();
        for one in found {
            by_partition.entry(one.partition).or_default().push(one);
        }
        let mut still = Vec::new();
        for (partition, mut rest) in by_partition {
            while !rest.is_empty() {
                let some = rest.split_off(rest.len().saturating_sub(MEMBERS_AT_ONCE));
                let queries: Vec<MembersQuery> = some
                    .iter()
                    .map(|one| self.query(partition, &one.key, vec![one.member.clone()]))
                    .collect();
                let (slot, states) = self.states(partition, &queries).await?;
                if let Some(why) = self.unknown(partition, slot.as_ref()) {
                    return Ok(Err(why));
                }
                for (one, states) in some.into_iter().zip(&states) {
                    if !matches!(self.counted(&one.member, states)?, Counted::Again) {
                        still.push(one);
                    }
                }
            }
        }
        Ok(Ok(still))
    }

    fn query(&self, partition: u32, key: &[u8], members: Vec<Vec<u8>>) -> MembersQuery {
        MembersQuery {
            query: EntryQuery {
                view: self.job.view().to_owned(),
                key: key.to_vec(),
                partition: Some(partition),
            },
            members,
        }
    }

    /// The states of members of one partition, with the slot as of the same moment.
    async fn states(
        &self,
        partition: u32,
        queries: &[MembersQuery],
    ) -> std::result::Result<(Option<PartitionState>, Vec<LiveEntries>), Failed> {
        let own = partition..partition.saturating_add(1);
        let live = &self.ports.live;
        let answer = live.read_members(self.run.source, own, queries).await;
        let answer = answer.map_err(NodesError::from).map_err(Failed::Store)?;
        Ok((
            answer.partition_states.into_iter().next().flatten(),
            answer.entries,
        ))
    }

    /// The members of a key of whom something else is published than was counted.
    async fn differing(
        &self,
        Changed { of, partition, .. }: &Changed<'_>,
        members: &[Member],
        states: &LiveEntries,
    ) -> std::result::Result<Vec<Differing>, Failed> {
        let nodes = self.nodes(&of.key);
        let published = KeyBoards::from_version(&of.new, self.score_bytes())?;
        let published = published.member_entries(&nodes, members).await?;
        let mut differing = Vec::new();
        for ((member, boards), published) in members.iter().zip(published) {
            let (cause, counted) = match self.counted(member, states)? {
                Counted::Again => continue,
                // Of rows that were there before the first run nobody was told.
                Counted::Never if self.since == 0 => continue,
                Counted::Never => (Cause::LostLive, self.stood(of, member, boards).await?),
                Counted::Once(counted) => (Cause::Unexplained, counted),
            };
            let board = differs_on(&published, &counted);
            if board.is_none() && cause == Cause::Unexplained {
                continue;
            }
            differing.push(Differing {
                key: of.key.clone(),
                partition: *partition,
                member: member.clone(),
                published: published.entries.len(),
                counted: counted.entries.len(),
                board: board.unwrap_or_default(),
                cause,
            });
        }
        Ok(differing)
    }

    fn note(
        &mut self,
        found: &[Differing],
        worst: &mut Vec<DriftedKey>,
    ) -> std::result::Result<(), Failed> {
        let drift = &mut self.drift;
        let members = found.len() as u64;
        drift.total = drift.total.map(|total| total.saturating_add(members));
        drift.keys += members;
        for one in found {
            *drift.causes.entry(one.cause).or_default() += 1;
        }
        for one in found.iter().take(KEYS_NAMED) {
            let shown =
                |shape, bytes| show(shape, bytes).map_err(|e| Failed::Damaged(e.to_string()));
            let mut key = vec![shown(self.job.key(), &one.key)?];
            key.push(shown(self.job.member(), &one.member)?);
            if !self.job.board_columns().0.is_empty() {
                key.push(shown(self.job.board_columns(), &one.board)?);
            }
            let rows = |rows: usize| i64::try_from(rows).unwrap_or(i64::MAX);
            worst.push(DriftedKey {
                job: self.job.name().to_owned(),
                key: key.join(" "),
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
    ) -> std::result::Result<MemberEntries, Failed> {
        let Some(old) = &of.old else {
            return Ok(MemberEntries::default());
        };
        let old = KeyBoards::from_version(old, self.score_bytes())?;
        let members = [(member.to_vec(), boards.to_vec())];
        let mut states = old.member_entries(&self.nodes(&of.key), &members).await?;
        Ok(states.pop().unwrap_or_default())
    }

    /// What was counted of a member since the run before.
    fn counted(&self, member: &[u8], states: &LiveEntries) -> std::result::Result<Counted, Failed> {
        let rows = (0..states.members.len()).filter(|row| states.members.value(*row) == member);
        let newest = rows
            .filter(|row| states.epochs.value(*row) > self.since)
            .max_by_key(|row| states.epochs.value(*row));
        Ok(match newest {
            None => Counted::Never,
            Some(row) if states.epochs.value(row) > self.run.epoch => Counted::Again,
            Some(row) if states.entries.is_null(row) => Counted::Once(MemberEntries::default()),
            Some(row) => Counted::Once(MemberEntries::decode(states.entries.value(row))?),
        })
    }

    fn score_bytes(&self) -> usize {
        8 * self.job.score().0.len()
    }

    fn nodes<'n>(&'n self, key: &'n [u8]) -> StoredNodes<'n> {
        StoredNodes {
            views: &*self.ports.views,
            cache: None,
            view: self.job.view(),
            key,
        }
    }
}

/// The first board on which two states differ.
fn differs_on(one: &MemberEntries, other: &MemberEntries) -> Option<Vec<u8>> {
    let places = one.entries.iter().chain(&other.entries);
    let boards: BTreeSet<&Vec<u8>> = places.map(|place| &place.board).collect();
    let mut boards = boards.into_iter();
    let board = boards.find(|board| one.entry(board) != other.entry(board));
    board.cloned()
}
