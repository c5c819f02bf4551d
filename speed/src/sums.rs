//! Sums of the live states of one partition: how many rows boards have, kept beside the states so that
//! readers need not read these ([`schemas::seam::sum`]).
//!
//! A key gets one once it has many live states, or a reader asks for it. Nothing rests on what is
//! remembered here: a sum is read when its key is touched, together with what the touched members had, and
//! the step that applies the change keeps it only if it is the same still. So it is right or missing. What
//! can't be told of a key at once ends its sum, and counting goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use futures::{StreamExt, stream};
use jobs::board::{GroupState, LiveSum, ReadError as BoardError, Standings};
use jobs::{Board, Job};
use moka::sync::Cache;
use schemas::entities::Miss;
use schemas::key::KeyValue;
use schemas::partition::partition_of;
use schemas::seam::{self, Epoch, Fence, Slot};
use stored::boards::{
    NodeCache, NodesError, StoredNodes, laid, node_cache, seam as seam_of, standings,
};
use stores::ErrorKind;
use stores::kept_sum::{KeptSum, SumChange};
use stores::live::{HELD_MAX, LiveRead, LiveStates, MembersQuery, SlotId, StateQuery, States};
use stores::views::RunsSeen;

use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// After a read that did not join, or to which a store did not answer, so many more states must come before
/// the key is looked at again.
const SOON: u64 = 100;
/// After one that found damage, or of all states that took too long.
const LATE: u64 = 10_000;
/// How long the worker waits for what members have on an edition, and for all states of a key.
const WAIT: Duration = Duration::from_secs(2);
const MAKING_WAIT: Duration = Duration::from_secs(10);
/// Members whose states are read at once.
const MEMBERS_MAX: usize = 5_000;
/// Keys that are looked at by one call.
const KEYS_MAX: usize = 1_000;
/// Keys whose sums are moved on at once.
const AT_ONCE: usize = 16;
/// Sums that are made at once: all states of each key are in memory then.
const MAKES_AT_ONCE: usize = 2;
/// Sums that are made for one micro-batch, which waits for them.
const MAKES_MAX: usize = 4;
/// Keys that are remembered as those that need none yet.
const REMEMBERED_MAX: u64 = 100_000;
/// Memory of the nodes that are remembered for one partition.
const NODES_BYTES_MAX: u64 = 16 << 20;

/// View and key.
type Name = (String, Vec<u8>);

/// A key that has a sum, with how many states it has.
type Kept<'a> = (&'a Touched, KeptSum, u64);

/// A key that is touched: the members whose states change with what they become, and whether a reader has
/// missed its sum.
struct Touched {
    key: Vec<u8>,
    members: Vec<(Vec<u8>, GroupState)>,
    is_missed: bool,
}

/// When a key is looked at again.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// Once so many more of its states change.
    states: u64,
    /// Or once a reader asks.
    until_asked: bool,
}

/// Why there is no sum.
enum Failed {
    /// The slot is not where the worker believes, or another sum is kept.
    Moved,
    /// It is against another edition or base than the present one.
    Stale,
    /// It can't be told now.
    Unknown(String),
    /// Nor soon.
    Lost(String),
}

impl From<BoardError<NodesError>> for Failed {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::NotWhole(_) | BoardError::Replaced => Self::Unknown(error.to_string()),
            BoardError::Store(NodesError::Store(error)) => error.into(),
            BoardError::Damaged(_) | BoardError::Store(_) => Self::Lost(error.to_string()),
        }
    }
}

impl From<stores::Error> for Failed {
    fn from(error: stores::Error) -> Self {
        match error.kind() {
            ErrorKind::Retry => Self::Unknown(error.to_string()),
            ErrorKind::Reject | ErrorKind::Fatal => Self::Lost(error.to_string()),
        }
    }
}

/// The sums of one partition.
#[derive(Debug)]
pub(crate) struct Sums {
    slot: SlotId,
    ports: SpeedPorts,
    /// A key with so many live states gets a sum.
    many: u64,
    /// The run records as they were read since the last look.
    runs: Option<Arc<RunsSeen>>,
    newest: BTreeMap<String, Epoch>,
    resting: Cache<Name, Rest>,
    /// How many sums may be made yet for the present micro-batch.
    makes_left: usize,
    nodes: NodeCache,
}

impl Sums {
    pub(crate) fn new(slot: SlotId, ports: &SpeedPorts, options: &SpeedOptions) -> Self {
        Self {
            many: options.sum_states.clamp(1, HELD_MAX),
            slot,
            ports: ports.clone(),
            runs: None,
            newest: BTreeMap::new(),
            resting: Cache::new(REMEMBERED_MAX),
            makes_left: 0,
            nodes: node_cache(NODES_BYTES_MAX),
        }
    }

    /// Learns the newest complete epoch of each view, now and then.
    pub(crate) fn covers(&mut self, newest: &BTreeMap<String, Epoch>) {
        self.runs = None;
        if self.newest != *newest {
            self.newest = newest.clone();
            self.resting.invalidate_all();
        }
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&mut self) {
        self.runs = None;
        self.resting.invalidate_all();
    }

    /// What new states of groups, and what readers have missed, make of sums.
    pub(crate) async fn changes(
        &mut self,
        (fence, partitions): (Fence, u32),
        jobs: &[Arc<Job<Board>>],
        states: &[States],
        missed: &[Miss],
    ) -> Result<Vec<SumChange>> {
        self.makes_left = MAKES_MAX;
        let mut changes = Vec::new();
        for job in jobs.iter().filter(|job| job.keeps_sums()) {
            let mut touched = touched(job, states)?;
            self.add_missed(job, partitions, missed, &mut touched);
            let mut touched: Vec<Touched> = touched.into_values().collect();
            touched.retain(|touched| !self.rests(job, touched));
            for touched in touched.chunks(KEYS_MAX) {
                self.look(fence, job, touched, &mut changes).await?;
            }
        }
        Ok(changes)
    }

    /// Adds the keys whose sums readers have missed.
    fn add_missed(
        &self,
        job: &Job<Board>,
        partitions: u32,
        missed: &[Miss],
        touched: &mut BTreeMap<Vec<u8>, Touched>,
    ) {
        for miss in missed.iter().filter(|miss| miss.view == job.view()) {
            let partition = partition_of(miss.key.to_string().as_bytes(), partitions);
            let key = job.key().encode_values(&[KeyValue::Int(miss.key)]);
            let Some(key) = key.ok().filter(|_| partition == self.slot.partition) else {
                continue;
            };
            let touched = touched.entry(key.clone()).or_insert_with(|| Touched {
                key,
                members: Vec::new(),
                is_missed: true,
            });
            touched.is_missed = true;
        }
    }

    /// Whether a key need not be looked at yet. If states of it change and it has a sum all the same, that
    /// ends.
    fn rests(&mut self, job: &Job<Board>, touched: &Touched) -> bool {
        let name = (job.view().to_owned(), touched.key.clone());
        let Some(rest) = self.resting.get(&name) else {
            return false;
        };
        let states = touched.members.len() as u64;
        if rest.states <= states || (touched.is_missed && rest.until_asked) {
            self.resting.invalidate(&name);
            return false;
        }
        let states = rest.states - states;
        self.resting.insert(name, Rest { states, ..rest });
        true
    }

    fn rest(&mut self, job: &Job<Board>, key: &[u8], states: u64, until_asked: bool) {
        let name = (job.view().to_owned(), key.to_vec());
        let rest = Rest {
            states,
            until_asked,
        };
        self.resting.insert(name, rest);
    }

    /// Looks which sums keys have, and says what becomes of them.
    async fn look(
        &mut self,
        fence: Fence,
        job: &Job<Board>,
        touched: &[Touched],
        changes: &mut Vec<SumChange>,
    ) -> Result<()> {
        let queries: Vec<MembersQuery> = touched
            .iter()
            .map(|touched| self.query(job, &touched.key, &[]))
            .collect();
        let own = self.slot.partition;
        let live = Arc::clone(&self.ports.live);
        let read = live.read_members(self.slot.source, own..own.saturating_add(1), &queries);
        let answer = read.await?;
        if !stands(answer.slots.first(), fence) {
            return Err(Error::Moved);
        }
        let mut kept = Vec::new();
        for (touched, found) in touched.iter().zip(answer.states) {
            let held = found.held;
            match found.sums.into_iter().next() {
                Some((_, sum)) => kept.push((touched, sum, held)),
                None if held >= self.many || touched.is_missed => {
                    changes.push(change(job, &touched.key, None, Some(KeptSum::begun())));
                }
                None => self.rest(job, &touched.key, self.many - held, true),
            }
        }
        self.go_on(fence, job, kept, changes).await
    }

    /// Says what becomes of the sums that keys have: those that are made are moved on first, and some of those
    /// that are begun are made then.
    async fn go_on(
        &mut self,
        fence: Fence,
        job: &Job<Board>,
        kept: Vec<Kept<'_>>,
        changes: &mut Vec<SumChange>,
    ) -> Result<()> {
        let is_made = |(_, sum, _): &Kept<'_>| sum.content().is_some();
        let (made, mut begun): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_made);
        let waiting = begun.split_off(begun.len().min(self.makes_left));
        self.makes_left -= begun.len();
        // The mark of a key of which no state changes stays right as it is.
        for (touched, mark, _) in waiting {
            if !touched.members.is_empty() {
                let next = Some(KeptSum::begun());
                changes.push(change(job, &touched.key, Some(mark), next));
            }
        }
        for (kept, at_once) in [(made, AT_ONCE), (begun, MAKES_AT_ONCE)] {
            self.all_next(fence, job, (kept, at_once), changes).await?;
        }
        Ok(())
    }

    /// Looks up what takes the place of sums, of so many at once.
    async fn all_next(
        &mut self,
        fence: Fence,
        job: &Job<Board>,
        (kept, at_once): (Vec<Kept<'_>>, usize),
        changes: &mut Vec<SumChange>,
    ) -> Result<()> {
        if kept.is_empty() {
            return Ok(());
        }
        let runs = match &self.runs {
            Some(runs) => Arc::clone(runs),
            None => Arc::new(self.ports.views.runs(self.slot.source).await?),
        };
        self.runs = Some(Arc::clone(&runs));
        let (this, runs) = (&*self, &*runs);
        let calls = kept.iter().map(|(touched, sum, _)| async move {
            this.next((fence, runs), job, touched, sum).await
        });
        let calls: Vec<_> = calls.collect();
        let next: Vec<_> = stream::iter(calls).buffered(at_once).collect().await;
        for ((touched, sum, held), next) in kept.into_iter().zip(next) {
            let next = match next {
                Ok(next) => Some(KeptSum::made(&next.encode())),
                Err(Failed::Moved) => return Err(Error::Moved),
                Err(Failed::Stale) if held >= self.many || touched.is_missed => {
                    Some(KeptSum::begun())
                }
                Err(Failed::Stale) => None,
                Err(Failed::Unknown(why)) => {
                    tracing::debug!(view = job.view(), why, "a sum of live states ends");
                    self.rest(job, &touched.key, SOON, true);
                    None
                }
                Err(Failed::Lost(why)) => {
                    tracing::info!(view = job.view(), why, "a sum of live states is not kept");
                    self.rest(job, &touched.key, LATE, false);
                    None
                }
            };
            changes.push(change(job, &touched.key, Some(sum), next));
        }
        Ok(())
    }

    /// What takes the place of a sum once the members have their new states.
    async fn next(
        &self,
        at: (Fence, &RunsSeen),
        job: &Job<Board>,
        touched: &Touched,
        kept: &KeptSum,
    ) -> Result<LiveSum, Failed> {
        let late = || "what it is made of did not come in time".to_owned();
        match kept.content() {
            None => {
                let made = self.make(at.0, job, touched, kept);
                tokio::time::timeout(MAKING_WAIT, made)
                    .await
                    .map_err(|_| Failed::Lost(late()))?
            }
            Some(content) => {
                let sum = LiveSum::decode(content).ok_or(Failed::Stale)?;
                let moved = self.advance(at, job, touched, (kept, sum));
                tokio::time::timeout(WAIT, moved)
                    .await
                    .map_err(|_| Failed::Unknown(late()))?
            }
        }
    }

    /// Makes a sum that was begun, of all states of its key.
    async fn make(
        &self,
        fence: Fence,
        job: &Job<Board>,
        touched: &Touched,
        kept: &KeptSum,
    ) -> Result<LiveSum, Failed> {
        let with = (&*self.ports.live as &dyn LiveRead, &*self.ports.views);
        let mut laid = laid(with, job, self.slot, &touched.key).await?;
        let own = laid.slots.get(self.slot.partition as usize);
        if !stands(own, fence) || !keeps(laid.states.as_ref(), kept) {
            return Err(Failed::Moved);
        }
        put(&mut laid.standings, &touched.members);
        let against = (laid.root(), laid.base);
        self.sum(job, &touched.key, against, &laid.standings).await
    }

    /// Moves a sum on: only what the touched members had and have is looked up.
    async fn advance(
        &self,
        (fence, runs): (Fence, &RunsSeen),
        job: &Job<Board>,
        touched: &Touched,
        (kept, mut sum): (&KeptSum, LiveSum),
    ) -> Result<LiveSum, Failed> {
        let (view, own) = (job.view(), self.slot.partition);
        let mut read = Vec::new();
        for members in touched.members.chunks(MEMBERS_MAX) {
            let queries = [self.query(job, &touched.key, members)];
            let partitions = own..own.saturating_add(1);
            let answer = self
                .ports
                .live
                .read_members(self.slot.source, partitions, &queries)
                .await?;
            let states = answer.states.into_iter().next();
            if !stands(answer.slots.first(), fence) || !keeps(states.as_ref(), kept) {
                return Err(Failed::Moved);
            }
            let mut slots = vec![None; own as usize];
            slots.extend(answer.slots);
            read.push((members, slots, states));
        }
        // After the slot, as every read.
        let heads = self
            .ports
            .views
            .heads(view, std::slice::from_ref(&touched.key))
            .await?;
        let head = heads.unwrap_or_default().into_iter().next().flatten();
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let base = seam::base(head.as_ref().map_or(0, |head| head.epoch), newest);
        let root = head.as_ref().map(|head| &*head.root);
        if !sum.joins(root, base) {
            return Err(Failed::Stale);
        }
        for (members, slots, states) in read {
            let seam = seam_of(view, runs, &slots, Some(own));
            let mut standings = standings(&seam, job, head.as_ref(), states.as_ref())?;
            let against = (root, base);
            let before = self.sum(job, &touched.key, against, &standings).await?;
            put(&mut standings, members);
            let after = self.sum(job, &touched.key, against, &standings).await?;
            // Members that do not change have the same part in both.
            let moved = sum.moved(&before, &after);
            sum = moved.ok_or_else(|| Failed::Lost("it is damaged".to_owned()))?;
        }
        Ok(sum)
    }

    /// The sum over states that are laid over an edition, against it.
    async fn sum(
        &self,
        job: &Job<Board>,
        key: &[u8],
        (root, base): (Option<&[u8]>, Epoch),
        standings: &Standings,
    ) -> Result<LiveSum, Failed> {
        let nodes = StoredNodes {
            views: &*self.ports.views,
            known: Some(&self.nodes),
            view: job.view(),
            key,
        };
        let on_board = standings.board(&nodes, Job::<Board>::ONLY_BOARD).await?;
        Ok(LiveSum::of(root, base, &on_board))
    }

    fn query(
        &self,
        job: &Job<Board>,
        key: &[u8],
        members: &[(Vec<u8>, GroupState)],
    ) -> MembersQuery {
        MembersQuery {
            of: StateQuery {
                view: job.view().to_owned(),
                key: key.to_vec(),
                partition: Some(self.slot.partition),
            },
            members: members.iter().map(|(member, _)| member.clone()).collect(),
        }
    }
}

/// The keys whose states change.
fn touched(job: &Job<Board>, states: &[States]) -> Result<BTreeMap<Vec<u8>, Touched>> {
    let mut touched: BTreeMap<Vec<u8>, Touched> = BTreeMap::new();
    for states in states.iter().filter(|states| states.view == job.view()) {
        for row in 0..states.keys.len() {
            let state = states.state(row).map(GroupState::decode).transpose();
            let state = state.map_err(|error| Error::Fault(error.to_string()))?;
            let key = states.keys.value(row);
            let of_key = touched.entry(key.to_vec()).or_insert_with(|| Touched {
                key: key.to_vec(),
                members: Vec::new(),
                is_missed: false,
            });
            let member = states.members.value(row).to_vec();
            of_key.members.push((member, state.unwrap_or_default()));
        }
    }
    Ok(touched)
}

fn put(standings: &mut Standings, members: &[(Vec<u8>, GroupState)]) {
    for (member, state) in members {
        standings.put(member, state.clone());
    }
}

/// Whether a slot is where the worker believes.
fn stands(slot: Option<&Option<Slot>>, fence: Fence) -> bool {
    slot.and_then(Option::as_ref).map(Slot::fence) == Some(fence)
}

/// Whether a sum is kept of states that were read.
fn keeps(states: Option<&LiveStates>, kept: &KeptSum) -> bool {
    let mut sums = states.into_iter().flat_map(|states| &states.sums);
    sums.any(|(_, sum)| sum == kept)
}

fn change(
    job: &Job<Board>,
    key: &[u8],
    believed: Option<KeptSum>,
    next: Option<KeptSum>,
) -> SumChange {
    SumChange {
        view: job.view().to_owned(),
        key: key.to_vec(),
        believed,
        next,
    }
}
