//! What stood on boards before a micro-batch, as serving would answer it: the newest runs first, then
//! slots with their states, then heads and what they refer to.
//!
//! What was read of runs and heads is used again while it joins live state: a run that came since
//! changes nothing of what stood there. It is read anew as soon as it does not.
//!
//! Rows of a key that are gone or damaged come back with a later run, if at all. Nobody is to wait for
//! that: until then nothing is known of the key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{GroupState, Podium, ReadError as BoardError, Standings};
use jobs::merge::{Gap, NotWhole, Seam};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::seam::{Fence, Slot};
use stores::ErrorKind;
use stores::live::{LiveRead, SlotId, StateQuery, StatesAnswer};
use stores::views::{Head as StoredHead, RunsSeen, ViewsRead};

use crate::tell::messages;
use crate::{Error, Result};
use stored::boards::{
    Member, NodeCache, NodesError, StoredNodes, member_queries, member_states, member_steps,
    node_cache, seam, standings,
};

/// Memory of the heads of keys that are remembered for one partition.
const HEADS_BYTES_MAX: u64 = 8 << 20;
/// What one takes besides its roots, about.
const HEAD_BYTES: usize = 256;
/// Memory of the nodes that are remembered for one partition.
const NODES_BYTES_MAX: u64 = 32 << 20;
/// Keys or members that are looked up at once.
const AT_ONCE: usize = 16;
/// Keys of which all states are read at once.
const KEYS_MAX: usize = 64;
/// How often a read is made that does not join.
const TRIES: u32 = 6;
/// How often rows are read that are gone or damaged: a run may have replaced them meanwhile.
const UNREAD_TRIES: u32 = 3;
/// How often a read is made of rows that hold what comes.
const BEHIND_TRIES: u32 = 3;
/// After so long rows are tried again that could not be read, if they are of the same head still.
const LOST_AGAIN: Duration = Duration::from_secs(60);
/// Keys whose rows can't be read and that are remembered as such.
const LOST_MAX: usize = 10_000;
const PAUSE_MS: u64 = 10;

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

/// By key and member, what stood there; those of which nothing can be known are missing.
pub(super) type StatesOf = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, GroupState>>;

/// View and key.
type Name = (String, Vec<u8>);

/// What was read of a key, or why its rows can't be.
type OfKey<T> = std::result::Result<T, String>;

/// Reads what stood before.
#[derive(Debug)]
pub(super) struct Before {
    slot: SlotId,
    live: Arc<dyn LiveRead>,
    views: Arc<dyn ViewsRead>,
    runs: Option<Arc<RunsSeen>>,
    heads: Cache<Name, Option<StoredHead>>,
    nodes: NodeCache,
    /// Keys whose rows can't be read.
    lost: BTreeMap<Name, Lost>,
}

/// A key that is read.
struct Opened<'k, A> {
    key: &'k Vec<u8>,
    /// What is read of it.
    asked: A,
    head: Option<StoredHead>,
    standings: Result<Standings, BoardError<NodesError>>,
}

/// Rows that can't be read.
#[derive(Debug)]
struct Lost {
    /// What leads to them.
    head: Option<StoredHead>,
    /// When they were tried last.
    tried: Instant,
}

/// How often was tried.
#[derive(Debug, Default)]
struct Tries {
    all: u32,
    /// Of them, those that found rows gone or damaged.
    unread: u32,
}

impl Tries {
    /// Whether rows that still can't be read are lost.
    const fn are_over(&self) -> bool {
        self.unread >= UNREAD_TRIES
    }
}

/// Why a try found nothing.
enum Failed {
    /// It may find something at once.
    Again(String),
    /// So it may; else the slot's life began at an earlier run than the newest, and has not come to its cut:
    /// the rows hold already what comes.
    Behind(usize, String),
    /// So it may, but rows are gone or damaged.
    Unread(String),
    /// The view is new, or of earlier definitions.
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
            BoardError::NotWhole(not_whole) if not_whole.gap == Gap::Boundary => {
                Self::Behind(not_whole.partition, not_whole.to_string())
            }
            BoardError::NotWhole(not_whole) => Self::Again(not_whole.to_string()),
            error @ BoardError::Replaced => Self::Unread(error.to_string()),
            BoardError::Damaged(what) => Self::Unread(what),
            BoardError::Store(NodesError::Damaged(error)) => Self::Unread(error.to_string()),
            BoardError::Store(NodesError::Store(error)) if error.kind() == ErrorKind::Fatal => {
                Self::Unread(error.to_string())
            }
            BoardError::Store(NodesError::Store(error)) => error.into(),
        }
    }
}

/// About as much memory as a remembered head takes with its name.
fn head_bytes(head: Option<&StoredHead>) -> u32 {
    let earlier = head.and_then(|head| head.earlier.as_ref());
    let roots = head.map_or(0, |head| head.root.len());
    let roots = roots + earlier.map_or(0, |earlier| earlier.root.len());
    u32::try_from(HEAD_BYTES + roots).unwrap_or(u32::MAX)
}

impl Before {
    pub(super) fn new(slot: SlotId, live: Arc<dyn LiveRead>, views: Arc<dyn ViewsRead>) -> Self {
        Self {
            slot,
            live,
            views,
            runs: None,
            heads: Cache::builder()
                .max_capacity(HEADS_BYTES_MAX)
                .weigher(|_: &Name, head: &Option<StoredHead>| head_bytes(head.as_ref()))
                .build(),
            nodes: node_cache(NODES_BYTES_MAX),
            lost: BTreeMap::new(),
        }
    }

    /// The states of members before the micro-batch, of the keys where they are known. Returns none for a view that is new.
    pub(super) async fn states(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Members>,
    ) -> Result<Option<StatesOf>> {
        let mut tries = Tries::default();
        loop {
            let failed = match self.try_states(at, asked, tries.are_over()).await {
                Ok(found) => return Ok(Some(found)),
                Err(failed) => failed,
            };
            if !self.may_retry(at, failed, &mut tries).await? {
                return Ok(None);
            }
        }
    }

    /// The podiums of keys, on all boards of the view that are told, where they can be known. Some
    /// members have another state by now than the slot tells.
    pub(super) async fn podiums(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, GroupState)>>,
    ) -> Result<Option<BTreeMap<Vec<u8>, Vec<Podium>>>> {
        let mut tries = Tries::default();
        loop {
            let failed = match self.try_podiums(at, asked, tries.are_over()).await {
                Ok(found) => return Ok(Some(found)),
                Err(failed) => failed,
            };
            if !self.may_retry(at, failed, &mut tries).await? {
                return Ok(None);
            }
        }
    }

    /// Whether to try again after a failure, once a pause is over. Returns false if the view is unknown.
    async fn may_retry(&mut self, at: At<'_>, failed: Failed, tries: &mut Tries) -> Result<bool> {
        let why = match failed {
            Failed::Error(error) => return Err(error),
            // What is remembered of runs may be what is old.
            Failed::Unknown if tries.all > 0 => return Ok(false),
            Failed::Unknown => "its definition is new".to_owned(),
            // Another partition's slot comes to its cut by itself.
            Failed::Behind(partition, why)
                if tries.all >= BEHIND_TRIES && partition == self.slot.partition as usize =>
            {
                let view = at.job.view();
                tracing::warn!(
                    view,
                    why,
                    "a run holds already what is counted again after live state was lost: no change of it is told"
                );
                return Ok(false);
            }
            Failed::Again(why) | Failed::Behind(_, why) => why,
            Failed::Unread(why) => {
                tries.unread += 1;
                why
            }
        };
        self.runs = None;
        self.heads.invalidate_all();
        tries.all += 1;
        if tries.all > TRIES {
            return Err(Error::NotWhole(format!(
                "what stood on the boards of {} can't be told: {why}",
                at.job.view()
            )));
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS << tries.all)).await;
        Ok(true)
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
        if stands {
            Ok(all)
        } else {
            Err(Failed::Error(Error::Moved))
        }
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
                self.heads.insert(name(&key), head.clone());
                heads.insert(key, head);
            }
        }
        Ok(keys
            .iter()
            .map(|key| heads.remove(*key).flatten())
            .collect())
    }

    /// Whether the rows of a key could not be read a short while ago, and are still the same.
    fn is_lost(&mut self, view: &str, key: &[u8], head: Option<&StoredHead>) -> bool {
        if self.lost.is_empty() {
            return false;
        }
        let name = (view.to_owned(), key.to_vec());
        let is_lost = self
            .lost
            .get(&name)
            .is_some_and(|lost| lost.head.as_ref() == head && lost.tried.elapsed() < LOST_AGAIN);
        if is_lost {
            // A run that comes is to be noticed at once.
            self.heads.invalidate(&name);
        }
        is_lost
    }

    /// What was read of keys, of those whose rows can be. The others are lost if it `is_last`.
    fn sift<'k, T>(
        &mut self,
        at: At<'_>,
        is_last: bool,
        read: Vec<(&'k Vec<u8>, Option<StoredHead>, OfKey<T>)>,
    ) -> Result<Vec<(&'k Vec<u8>, T)>, Failed> {
        let mut found = Vec::with_capacity(read.len());
        for (key, head, read) in read {
            let of_key = match read {
                Ok(of_key) if self.lost.is_empty() => Ok(of_key),
                read => self.note(at, (key, head, is_last), read),
            };
            match of_key {
                Ok(of_key) => found.push((key, of_key)),
                Err(Some(why)) => return Err(Failed::Unread(why)),
                Err(None) => {}
            }
        }
        Ok(found)
    }

    /// Notes whether the rows of a key can be read; if not, answers why if they are to be tried again.
    fn note<T>(
        &mut self,
        at: At<'_>,
        (key, head, is_last): (&[u8], Option<StoredHead>, bool),
        read: OfKey<T>,
    ) -> Result<T, Option<String>> {
        let view = at.job.view();
        let name = (view.to_owned(), key.to_vec());
        let before = self.lost.remove(&name);
        let shown = messages::int(at.job.key(), key).unwrap_or_default();
        let why = match read {
            Ok(read) => {
                if before.is_some() {
                    tracing::info!(
                        view,
                        key = shown,
                        "the rows of boards can be read again: changes are told"
                    );
                }
                return Ok(read);
            }
            Err(why) => why,
        };
        if !is_last && before.is_none_or(|before| before.head != head) {
            return Err(Some(why));
        }
        tracing::warn!(
            view, key = shown, %why,
            "the batch rows of boards are gone or damaged: counting goes on, and no change of these boards is told until they can be read"
        );
        self.heads.invalidate(&name);
        if self.lost.len() >= LOST_MAX {
            self.lost.clear();
        }
        let tried = Instant::now();
        self.lost.insert(name, Lost { head, tried });
        Err(None)
    }

    async fn try_states(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Members>,
        is_last: bool,
    ) -> Result<StatesOf, Failed> {
        let mut found = StatesOf::new();
        for asked in member_steps(asked) {
            let runs = self.runs().await?;
            let (only, partitions) = self.only(at, &runs);
            let queries = member_queries(at.job.view(), only, &asked);
            let first = partitions.start;
            let source = self.slot.source;
            let answer = self.live.read_members(source, partitions, &queries).await?;
            let opened = self.open(at, (only, first), &asked, answer).await?;
            let this = &*self;
            let calls = opened.into_iter().map(|opened| async move {
                let read = async {
                    let nodes = this.nodes_of(at.job.view(), opened.key);
                    member_states(&opened.standings?, &nodes, opened.asked).await
                };
                let read = of_key(read.await)?;
                Ok::<_, Failed>((opened.key, opened.head, read))
            });
            let calls: Vec<_> = calls.collect();
            let all: Vec<_> = stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
            for (key, of_key) in self.sift(at, is_last, all)? {
                found.entry(key.clone()).or_default().extend(of_key);
            }
        }
        Ok(found)
    }

    async fn try_podiums(
        &mut self,
        at: At<'_>,
        asked: &BTreeMap<Vec<u8>, Vec<(Vec<u8>, GroupState)>>,
        is_last: bool,
    ) -> Result<BTreeMap<Vec<u8>, Vec<Podium>>, Failed> {
        let mut found = BTreeMap::new();
        let all: Vec<_> = asked.iter().collect();
        for asked in all.chunks(KEYS_MAX) {
            let runs = self.runs().await?;
            let (only, partitions) = self.only(at, &runs);
            let queries = asked.iter().map(|(key, _)| StateQuery {
                view: at.job.view().to_owned(),
                key: (*key).clone(),
                partition: only,
            });
            let queries: Vec<StateQuery> = queries.collect();
            let source = self.slot.source;
            let read = self.live.read_states(source, partitions.end, &queries);
            let answer = read.await?;
            let opened = self.open(at, (only, 0), asked, answer).await?;
            let this = &*self;
            let calls = opened.into_iter().map(|opened| async move {
                let read = async {
                    let mut standings = opened.standings?;
                    for (member, state) in opened.asked {
                        standings.put(member, state.clone());
                    }
                    let nodes = this.nodes_of(at.job.view(), opened.key);
                    let mut podiums = Vec::new();
                    for told in at.job.achievements() {
                        let on_board = standings.board(&nodes, &told.board).await?;
                        podiums.push(Podium::of(on_board.page(0, Podium::ROWS).await?));
                    }
                    Ok(podiums)
                };
                let read = of_key(read.await)?;
                Ok::<_, Failed>((opened.key, opened.head, read))
            });
            let calls: Vec<_> = calls.collect();
            let all: Vec<_> = stream::iter(calls).buffered(AT_ONCE).try_collect().await?;
            let of_keys = self.sift(at, is_last, all)?.into_iter();
            found.extend(of_keys.map(|(key, podiums)| (key.clone(), podiums)));
        }
        Ok(found)
    }

    /// The standings of keys at the checkpoint, except for keys whose rows could not be read a short while ago.
    async fn open<'k, A: Copy>(
        &mut self,
        at: At<'_>,
        (only, first): (Option<u32>, u32),
        asked: &[(&'k Vec<u8>, A)],
        answer: StatesAnswer,
    ) -> Result<Vec<Opened<'k, A>>, Failed> {
        let (runs, view) = (self.runs().await?, at.job.view());
        let slots = self.here(at, first, answer.slots)?;
        let seam = seam(view, &runs, &slots, only);
        let keys: Vec<&Vec<u8>> = asked.iter().map(|(key, _)| *key).collect();
        let heads = self.heads(&seam, &keys).await?;
        let mut opened = Vec::with_capacity(keys.len());
        for (((key, asked), head), states) in asked.iter().zip(heads).zip(&answer.states) {
            if self.is_lost(view, key, head.as_ref()) {
                continue;
            }
            let live = at.is_live.then_some(states);
            opened.push(Opened {
                key,
                asked: *asked,
                standings: standings(&seam, at.job, head.as_ref(), live),
                head,
            });
        }
        Ok(opened)
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

/// What was read of a key; that its rows can't be read is no matter of the others.
fn of_key<T>(read: Result<T, BoardError<NodesError>>) -> Result<OfKey<T>, Failed> {
    match read.map_err(Failed::from) {
        Ok(read) => Ok(Ok(read)),
        Err(Failed::Unread(why)) => Ok(Err(why)),
        Err(failed) => Err(failed),
    }
}
