//! What stood on boards before a micro-batch, as serving would answer it: the newest runs first, then
//! slots with their states, then heads and what they refer to.
//!
//! What was read of runs and heads is used again while it joins live state: a run that came since
//! changes nothing of what stood there. It is read anew as soon as it does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{GroupState, Podium, ReadError as BoardError};
use jobs::merge::{Gap, NotWhole, Seam};
use jobs::tree::{Node, NodeId};
use jobs::{Board, Job};
use schemas::seam::{Fence, Slot};
use stores::live::{LiveRead, MembersQuery, SlotId, StateQuery};
use stores::views::{Head as StoredHead, RunsSeen, ViewsRead};

use crate::cache::Cache;
use crate::stored::{NodesError, StoredNodes, seam, standings};
use crate::{Error, Result};

/// Heads of keys that are remembered.
const HEADS_MAX: usize = 50_000;
/// Nodes that are remembered.
const NODES_MAX: usize = 20_000;
/// Keys or members that are looked up at once.
const AT_ONCE: usize = 16;
/// Members whose states are read at once.
const MEMBERS_MAX: usize = 5_000;
/// Keys of which all states are read at once.
const KEYS_MAX: usize = 64;
/// How often a read is made that does not join.
const TRIES: u32 = 6;
const PAUSE_MS: u64 = 10;

/// What a read found.
#[derive(Debug)]
pub(super) enum Found<T> {
    /// It is as of the fence.
    Here(T),
    /// The slot is not where the worker believes.
    Moved,
    /// The view is new, or of earlier definitions: nobody can tell what stood there.
    Unknown,
}

/// Which read of a view.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) job: &'a Job<Board>,
    /// Where the worker believes the slot to be.
    pub(super) fence: Fence,
    /// How many partitions the topic has.
    pub(super) partitions: u32,
    /// Whether live states count; else only what the newest run found is asked for.
    pub(super) is_live: bool,
}

/// The members of a key that are asked for, encoded, each with boards on which it may be.
pub(super) type Members = Vec<Member>;

/// A member, and the boards on which it may be.
type Member = (Vec<u8>, Vec<Vec<u8>>);

/// Reads what stood before.
#[derive(Debug)]
pub(super) struct Before {
    slot: SlotId,
    live: Arc<dyn LiveRead>,
    views: Arc<dyn ViewsRead>,
    runs: Option<Arc<RunsSeen>>,
    /// By view and key.
    heads: Cache<(String, Vec<u8>), Option<StoredHead>>,
    nodes: Mutex<Cache<NodeId, Arc<Node>>>,
}

/// Why a try found nothing.
enum Failed {
    /// It may find something at once.
    Again(String),
    Moved,
    Unknown,
    Error(Error),
}

impl From<stores::Error> for Failed {
    fn from(error: stores::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<BoardError<NodesError>> for Failed {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::NotWhole(NotWhole {
                gap: Gap::Uncounted | Gap::Deleted,
                ..
            }) => Self::Unknown,
            BoardError::NotWhole(not_whole) => Self::Again(not_whole.to_string()),
            error @ BoardError::Replaced => Self::Again(error.to_string()),
            BoardError::Damaged(what) => Self::Error(Error::Damaged(what)),
            BoardError::Store(NodesError::Damaged(error)) => {
                Self::Error(Error::Damaged(error.to_string()))
            }
            BoardError::Store(NodesError::Store(error)) => error.into(),
        }
    }
}

impl Before {
    pub(super) fn new(slot: SlotId, live: Arc<dyn LiveRead>, views: Arc<dyn ViewsRead>) -> Self {
        Self {
            slot,
            live,
            views,
            runs: None,
            heads: Cache::new(HEADS_MAX),
            nodes: Mutex::new(Cache::new(NODES_MAX)),
        }
    }

    /// What members have under their keys.
    pub(super) async fn states(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Members>,
    ) -> Result<Found<BTreeMap<(Vec<u8>, Vec<u8>), GroupState>>> {
        let mut tries = 0;
        loop {
            let failed = match self.try_states(at, asked).await {
                Ok(found) => return Ok(Found::Here(found)),
                Err(failed) => failed,
            };
            if let Some(found) = self.failed(at, failed, &mut tries).await? {
                return Ok(found);
            }
        }
    }

    /// The podiums of keys, on all boards of the view that are told. Some members have another state
    /// by now than the slot tells.
    pub(super) async fn podiums(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, GroupState)>>,
    ) -> Result<Found<BTreeMap<Vec<u8>, Vec<Podium>>>> {
        let mut tries = 0;
        loop {
            let failed = match self.try_podiums(at, asked).await {
                Ok(found) => return Ok(Found::Here(found)),
                Err(failed) => failed,
            };
            if let Some(found) = self.failed(at, failed, &mut tries).await? {
                return Ok(found);
            }
        }
    }

    /// What becomes of a try that failed; nothing if there is to be another one.
    async fn failed<T>(
        &mut self,
        at: At<'_>,
        failed: Failed,
        tries: &mut u32,
    ) -> Result<Option<Found<T>>> {
        let why = match failed {
            Failed::Moved => return Ok(Some(Found::Moved)),
            Failed::Error(error) => return Err(error),
            // What is remembered of runs may be what is old.
            Failed::Unknown if *tries > 0 => return Ok(Some(Found::Unknown)),
            Failed::Unknown => "its definition is new".to_owned(),
            Failed::Again(why) => why,
        };
        self.runs = None;
        self.heads.clear();
        *tries += 1;
        if *tries > TRIES {
            return Err(Error::NotWhole(format!(
                "what stood on the boards of {} can't be told: {why}",
                at.job.view()
            )));
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS << *tries)).await;
        Ok(None)
    }

    async fn runs(&mut self) -> Result<Arc<RunsSeen>, Failed> {
        if let Some(runs) = &self.runs {
            return Ok(Arc::clone(runs));
        }
        let runs = Arc::new(self.views.runs(self.slot.source).await?);
        self.runs = Some(Arc::clone(&runs));
        Ok(runs)
    }

    /// The slots that a key's states may be in: this one alone, unless partitions were added since the
    /// newest run.
    fn only(&self, at: At<'_>, runs: &RunsSeen) -> (Option<u32>, std::ops::Range<u32>) {
        let newest = runs.newest.get(at.job.view()).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        let recorded = u32::try_from(runs.runs.partitions()).unwrap_or(u32::MAX);
        let partitions = at.partitions.max(recorded);
        let own = self.slot.partition;
        // Before the first run nobody can tell whether any were.
        if newest > 0 && cuts != partitions as usize {
            (None, 0..partitions)
        } else {
            (Some(own), own..own.saturating_add(1))
        }
    }

    /// The slots from partition 0 on, if the worker's own is where it is believed to be.
    fn here(
        &self,
        at: At<'_>,
        first: u32,
        slots: Vec<Option<Slot>>,
    ) -> Result<Vec<Option<Slot>>, Failed> {
        let mut all: Vec<Option<Slot>> = vec![None; first as usize];
        all.extend(slots);
        let own = all
            .get(self.slot.partition as usize)
            .and_then(Option::as_ref);
        let stands = own.map(Slot::fence).is_some_and(|fence| {
            (fence.generation, fence.next_offset) == (at.fence.generation, at.fence.next_offset)
        });
        if stands { Ok(all) } else { Err(Failed::Moved) }
    }

    /// The heads of keys; each where there is one.
    async fn heads(
        &mut self,
        seam: &Seam<'_>,
        keys: &[&Vec<u8>],
    ) -> Result<Vec<Option<StoredHead>>, Failed> {
        let name = |key: &[u8]| (seam.view.to_owned(), key.to_vec());
        let mut heads = BTreeMap::new();
        let mut missing = Vec::new();
        for key in keys {
            match self.heads.get(&name(key)) {
                Some(head) => drop(heads.insert((*key).clone(), head)),
                None => missing.push((*key).clone()),
            }
        }
        if !missing.is_empty() {
            let found = self.views.heads(seam.view, &missing).await?;
            let has_table = seam.check_table(found.is_some());
            has_table.map_err(BoardError::<NodesError>::from)?;
            let found = found.unwrap_or_else(|| vec![None; missing.len()]);
            for (key, head) in missing.into_iter().zip(found) {
                self.heads.put(name(&key), head.clone());
                heads.insert(key, head);
            }
        }
        Ok(keys
            .iter()
            .map(|key| heads.remove(*key).flatten())
            .collect())
    }

    async fn try_states(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Members>,
    ) -> Result<BTreeMap<(Vec<u8>, Vec<u8>), GroupState>, Failed> {
        let mut found = BTreeMap::new();
        let (mut step, mut room) = (Vec::new(), MEMBERS_MAX);
        for (key, members) in asked {
            // A key may have more members than are read at once.
            let mut members = members.as_slice();
            while !members.is_empty() {
                let (now, rest) = members.split_at(members.len().min(room));
                step.push((key, now));
                (members, room) = (rest, room - now.len());
                if room == 0 {
                    self.try_step(at, &step, &mut found).await?;
                    step.clear();
                    room = MEMBERS_MAX;
                }
            }
        }
        if !step.is_empty() {
            self.try_step(at, &step, &mut found).await?;
        }
        Ok(found)
    }

    async fn try_step(
        &mut self,
        at: At<'_>,
        asked: &[(&Vec<u8>, &[Member])],
        found: &mut BTreeMap<(Vec<u8>, Vec<u8>), GroupState>,
    ) -> Result<(), Failed> {
        let runs = self.runs().await?;
        let view = at.job.view();
        let (only, partitions) = self.only(at, &runs);
        let queries: Vec<MembersQuery> = asked
            .iter()
            .map(|(key, members)| MembersQuery {
                of: StateQuery {
                    view: view.to_owned(),
                    key: (*key).clone(),
                    partition: only,
                },
                members: members.iter().map(|(member, _)| member.clone()).collect(),
            })
            .collect();
        let first = partitions.start;
        let source = self.slot.source;
        let answer = self.live.read_members(source, partitions, &queries).await?;
        let slots = self.here(at, first, answer.slots)?;
        let seam = seam(view, &runs, &slots, only);
        let keys: Vec<&Vec<u8>> = asked.iter().map(|(key, _)| *key).collect();
        let heads = self.heads(&seam, &keys).await?;
        let (this, seam) = (&*self, &seam);
        let calls = asked.iter().zip(heads).zip(&answer.states);
        let calls = calls.map(|(((key, members), head), states)| async move {
            let standings = standings(seam, at.job, head.as_ref(), at.is_live.then_some(states))?;
            let nodes = this.nodes_of(view, key);
            let mut of_key = Vec::with_capacity(members.len());
            for (member, boards) in *members {
                let state = standings.state(&nodes, member, boards).await?;
                of_key.push((((*key).clone(), member.clone()), state));
            }
            Ok::<_, Failed>(of_key)
        });
        let calls: Vec<_> = calls.collect();
        let all: Vec<Vec<_>> = stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
        found.extend(all.into_iter().flatten());
        Ok(())
    }

    async fn try_podiums(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, GroupState)>>,
    ) -> Result<BTreeMap<Vec<u8>, Vec<Podium>>, Failed> {
        let mut found = BTreeMap::new();
        let all: Vec<_> = asked.iter().collect();
        for asked in all.chunks(KEYS_MAX) {
            let runs = self.runs().await?;
            let view = at.job.view();
            let (only, partitions) = self.only(at, &runs);
            let queries: Vec<StateQuery> = asked
                .iter()
                .map(|(key, _)| StateQuery {
                    view: view.to_owned(),
                    key: (*key).clone(),
                    partition: only,
                })
                .collect();
            let source = self.slot.source;
            let read = self.live.read_states(source, partitions.end, &queries);
            let answer = read.await?;
            let slots = self.here(at, 0, answer.slots)?;
            let seam = seam(view, &runs, &slots, only);
            let keys: Vec<&Vec<u8>> = asked.iter().map(|(key, _)| *key).collect();
            let heads = self.heads(&seam, &keys).await?;
            let (this, seam) = (&*self, &seam);
            let calls = asked.iter().zip(heads).zip(&answer.states);
            let calls = calls.map(|(((key, newer), head), states)| async move {
                let mut standings =
                    standings(seam, at.job, head.as_ref(), at.is_live.then_some(states))?;
                for (member, state) in newer.iter() {
                    standings.put(member, state.clone());
                }
                let nodes = this.nodes_of(view, key);
                let mut podiums = Vec::new();
                for told in at.job.achievements() {
                    let on_board = standings.board(&nodes, &told.board).await?;
                    podiums.push(Podium::of(on_board.page(0, Podium::ROWS).await?));
                }
                Ok::<_, Failed>(((*key).clone(), podiums))
            });
            let calls: Vec<_> = calls.collect();
            let of_keys: Vec<_> = stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
            found.extend(of_keys);
        }
        Ok(found)
    }

    fn nodes_of<'a>(&'a self, view: &'a str, key: &'a [u8]) -> StoredNodes<'a> {
        StoredNodes {
            views: &*self.views,
            known: Some(&self.nodes),
            view,
            key,
        }
    }
}
