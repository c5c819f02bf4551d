//! A consistent read of boards, as the seam demands it: the newest runs first, then the slots with
//! the live states, then the heads and what they refer to.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use jobs::board::{
    Head, LiveState, LiveSum, OnBoard, Ranked, ReadError as BoardError, Section as StoredSection,
    Standings,
};
use jobs::tree::{Node, NodeId, Nodes, Sum};
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::partition::partition_of;
use schemas::seam::{self, Epoch};
use stores::ErrorKind;
use stores::board_cache::BoardWant;
use stores::live::{LiveStates, StateQuery};
use stores::views::{Head as StoredHead, NodeName, RunsSeen, ViewsRead};
use tokio::sync::Semaphore;
use tokio::time::Duration;

use super::cached::Noted;
use super::explained::BoardExplained;
use super::question::Section;
use crate::kept::Keep;
use crate::options::ServingPorts;
use crate::patience::Patience;
use crate::read::{Memory, ReadError, Seen, Standing, is_one_more};

/// Rows whose payloads are decoded at once.
const DECODE_ROWS: usize = 1024;
/// Keys whose boards are read at once.
const KEYS_AT_ONCE: usize = 8;
/// Keys whose live states are read at once where their sums do not answer: of each there may be many.
const WITHOUT_SUMS_MAX: usize = 32;

/// What is asked of the boards of some keys.
#[derive(Debug, Clone, Hash)]
pub(crate) struct BoardQuestion {
    pub(crate) keys: Vec<i64>,
    pub(crate) section: Section,
    /// Only these members, where not all.
    pub(crate) members: Option<Vec<i64>>,
    /// With encoded members; those of places are sorted.
    pub(crate) want: BoardWant,
    /// Whether the board, and the member that is wanted, is explained.
    pub(crate) explains: bool,
}

/// What was read of one key's board.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardReading {
    /// All rows that the filters let through.
    pub(crate) sum: Sum,
    /// The place of the first of the rows, from 0 on.
    pub(crate) first: u64,
    pub(crate) rows: Vec<Ranked>,
    /// The places of the rows where they do not follow each other.
    pub(crate) places: Option<Vec<u64>>,
    /// The place of the member that was asked for.
    pub(crate) found: Option<u64>,
    /// Whether the batch layer had a part in it, and whether anything newer had.
    pub(crate) layers: (bool, bool),
    /// What it is made of, if that was asked for.
    pub(crate) explained: Option<Arc<BoardExplained>>,
    /// Whether some of it may be older than it says.
    pub(crate) is_split: bool,
    /// How far it reaches itself, where keys were not all read at once.
    pub(crate) own: Option<Arc<Standing>>,
}

/// What a read found: key by key, and how far it reaches.
#[derive(Debug, Clone)]
pub(crate) struct BoardsReading {
    pub(crate) boards: Vec<BoardReading>,
    /// Where keys were not all read at once: what all hold at least.
    pub(crate) standing: Standing,
}

impl BoardsReading {
    /// The boards, each with how far it reaches.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&BoardReading, Standing)> {
        self.boards.iter().map(move |board| {
            let mut standing = board.own.as_deref().unwrap_or(&self.standing).clone();
            standing.complete &= self.standing.complete;
            (board, standing)
        })
    }
}

impl Keep for BoardsReading {
    fn standing(&mut self) -> &mut Standing {
        &mut self.standing
    }

    fn bytes(&self) -> usize {
        let rows = self.boards.iter().flat_map(|board| &board.rows);
        let of_row = |row: &Ranked| {
            size_of::<Ranked>() + row.member.len() + row.score.len() + row.payload.len()
        };
        self.boards.len() * size_of::<BoardReading>() + rows.map(of_row).sum::<usize>()
    }
}

/// Reads boards, trying again for up to `patience` after the first failure while live state is not
/// whole. Each try holds a permit of `tries`, which bounds what is in memory at once.
///
/// # Errors
/// [`ReadError`]; a 503 to the asker where it is [`ReadError::NotWhole`].
pub(crate) async fn read(
    ports: &ServingPorts,
    (tries, memory, noted): (&Semaphore, &Memory, &Noted),
    job: &Arc<Job<Board>>,
    question: &BoardQuestion,
    patience: Duration,
) -> Result<BoardsReading, ReadError> {
    let mut patience = Patience::of(patience);
    let mut reader = Reader::new(ports, (memory, noted), (job, question));
    loop {
        let permit = tries.acquire().await;
        let error = match reader.attempt().await {
            Err(error @ (ReadError::NotWhole(_) | ReadError::Replaced)) => error,
            done => return done,
        };
        drop(permit);
        reader.anew = true;
        if !patience.wait(&error).await {
            return Err(error);
        }
    }
}

pub(super) struct Reader<'a> {
    pub(super) ports: &'a ServingPorts,
    pub(super) job: &'a Arc<Job<Board>>,
    pub(super) question: &'a BoardQuestion,
    pub(super) memory: &'a Memory,
    pub(super) noted: &'a Noted,
    /// Whether run records of a moment ago are too old.
    anew: bool,
    /// The key and the head whose nodes the last try did not find.
    lost: Option<(i64, StoredHead)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        ports: &'a ServingPorts,
        (memory, noted): (&'a Memory, &'a Noted),
        (job, question): (&'a Arc<Job<Board>>, &'a BoardQuestion),
    ) -> Self {
        Self {
            ports,
            job,
            question,
            memory,
            noted,
            anew: false,
            lost: None,
        }
    }
}

impl Reader<'_> {
    async fn attempt(&mut self) -> Result<BoardsReading, ReadError> {
        let source = self.job.source();
        let (partitions, runs) = tokio::try_join!(
            self.ports.log.partitions(source.topic()),
            self.memory.runs.seen(&*self.ports.views, source, self.anew)
        )?;
        // A log that was lost still has its slots: they say whether all is there.
        let partitions = (partitions as usize).max(runs.runs.partitions());
        if !self.anew {
            match self.cached(&runs, partitions).await {
                Ok(Some(reading)) => return Ok(reading),
                Ok(None) => {}
                // What is damaged there is not needed.
                Err(ReadError::Store(error)) if error.kind() == ErrorKind::Fatal => {
                    tracing::error!(%error, "a cached board can't be read; the batch rows answer");
                }
                Err(error) => return Err(error),
            }
        }
        // Boxed, since it takes much more room than what was done so far.
        let (boards, standing) = if self.is_summed() {
            Box::pin(self.summed(&runs, partitions)).await?
        } else {
            let keys = (self.question.keys.as_slice(), false);
            Box::pin(self.stored(runs, partitions, keys)).await?
        };
        let boards: Option<Vec<_>> = boards.into_iter().collect();
        let boards = boards.ok_or(ReadError::Replaced)?;
        Ok(BoardsReading { boards, standing })
    }

    /// What sums of live states say where these are kept and join; the other keys are read again, some at
    /// once, with their states. Each key's answer is exact for how far it reaches itself.
    async fn summed(
        &mut self,
        runs: &Arc<RunsSeen>,
        partitions: usize,
    ) -> Result<(Vec<Option<BoardReading>>, Standing), ReadError> {
        let question = self.question;
        let keys = (question.keys.as_slice(), true);
        let read = Box::pin(self.stored(Arc::clone(runs), partitions, keys)).await?;
        let (mut boards, mut standing) = read;
        let of_keys = question.keys.iter().zip(&boards);
        let left = of_keys.filter(|(_, board)| board.is_none());
        let left: Vec<i64> = left.map(|(key, _)| *key).collect();
        if left.is_empty() {
            return Ok((boards, standing));
        }
        let own = Arc::new(standing.clone());
        for board in boards.iter_mut().flatten() {
            board.own = Some(Arc::clone(&own));
        }
        for some in left.chunks(WITHOUT_SUMS_MAX) {
            let read = Box::pin(self.stored(Arc::clone(runs), partitions, (some, false)));
            let (read, reach) = read.await?;
            standing = match boards.iter().any(Option::is_some) {
                true => standing.least(&reach),
                false => reach.clone(),
            };
            let own = Arc::new(reach);
            let without = boards.iter_mut().filter(|board| board.is_none());
            for (board, read) in without.zip(read) {
                let mut read = read.ok_or(ReadError::Replaced)?;
                read.own = Some(Arc::clone(&own));
                *board = Some(read);
            }
        }
        Ok((boards, standing))
    }

    /// What the batch rows with the live states on top say of some keys, or with sums of these where they are
    /// kept: nothing of a key whose sum does not join.
    async fn stored(
        &mut self,
        runs: Arc<RunsSeen>,
        mut partitions: usize,
        (keys, takes_sums): (&[i64], bool),
    ) -> Result<(Vec<Option<BoardReading>>, Standing), ReadError> {
        let (source, view) = (self.job.source(), self.job.view());
        let newest = runs.newest.get(view).copied().unwrap_or(0);
        let cuts = runs.runs.get(newest).map_or(0, |run| run.cuts.len());
        let mut queries = Vec::with_capacity(keys.len());
        let live = loop {
            let count = u32::try_from(partitions).unwrap_or(u32::MAX);
            // Where partitions were added since the run, a key's states may be in two of them.
            let only = |key: i64| {
                (cuts == partitions).then(|| partition_of(key.to_string().as_bytes(), count))
            };
            queries.clear();
            for key in keys {
                queries.push(StateQuery {
                    view: view.to_owned(),
                    key: self.key_bytes(*key)?,
                    partition: only(*key),
                });
            }
            let count = count.saturating_add(1);
            let mut live = match takes_sums {
                true => self.ports.live.read_sums(source, count, &queries).await?,
                false => self.ports.live.read_states(source, count, &queries).await?,
            };
            if !is_one_more(&mut live.slots) {
                break live;
            }
            partitions += 1;
        };
        if partitions == 0 {
            let nothing = vec![Some(BoardReading::default()); keys.len()];
            return Ok((nothing, Standing::nothing(source, 0)));
        }
        for (slot, partition) in live.slots.iter().zip(0..) {
            self.memory.slots.met(source, partition, slot.as_ref());
        }
        if newest == 0 || cuts == partitions {
            self.sums_missed(keys, &live.states, (newest, partitions))?;
        }
        let encoded: Vec<Vec<u8>> = queries.iter().map(|query| query.key.clone()).collect();
        let heads = self.ports.views.heads(view, &encoded).await?;
        let has_table = heads.is_some();
        let mut heads = heads.unwrap_or_default().into_iter();
        let seen = Seen {
            runs,
            slots: live.slots,
        };
        let found = queries.iter().zip(&live.states).zip(keys);
        let (reader, seen_now) = (&*self, (&seen, newest, has_table, takes_sums));
        let readings = found.map(|((query, states), key)| {
            let head = heads.next().flatten();
            async move {
                let read = reader.key(seen_now, query, states, head.as_ref()).await;
                read.map_err(|error| (*key, head, error))
            }
        });
        let readings: Vec<_> = readings.collect();
        let readings = stream::iter(readings).buffered(KEYS_AT_ONCE);
        let read: Result<Vec<Option<BoardReading>>, _> = readings.try_collect().await;
        let boards = read.map_err(|(key, head, error)| self.told(key, head, error))?;
        let mut standing = seen.standing(source, newest);
        standing.complete &= !boards.iter().flatten().any(|board| board.is_split);
        Ok((boards, standing))
    }

    /// Whether sums of live states may answer: where no more is wanted than how many rows there are of the
    /// only board of each key.
    pub(super) fn is_summed(&self) -> bool {
        self.question.want == BoardWant::Sums
            && !self.question.explains
            && self.question.members.is_none()
            && self.question.section.tests.is_empty()
            && self.job.keeps_sums()
    }

    /// Lays the states of a key over what its head refers to, and reads what is wanted of it; nothing if a
    /// sum that took the place of states does not join.
    async fn key(
        &self,
        (seen, newest, has_table, takes_sums): (&Seen, Epoch, bool, bool),
        query: &StateQuery,
        states: &LiveStates,
        stored: Option<&StoredHead>,
    ) -> Result<Option<BoardReading>, ReadError> {
        let view = self.job.view();
        let only = query.partition.map(|partition| partition as usize);
        let seam = seen.seam((view, view), newest, only);
        seam.check_table(has_table)?;
        let head = stored.map(|head| Head {
            epoch: head.epoch,
            root: &head.root,
        });
        let score_bytes = 8 * self.job.score().0.len();
        let standings = Standings::merge(&seam, head, live_states(states), score_bytes)?;
        let nodes = StoredNodes {
            views: &*self.ports.views,
            view,
            key: &query.key,
        };
        if takes_sums {
            let base = seam::base(stored.map_or(0, |head| head.epoch), newest);
            let root = stored.map(|head| &*head.root);
            if let Some(summed) = summed(&standings, states, (root, base)) {
                return Ok(summed);
            }
        }
        let mut reading = self.board(&standings, &nodes, &self.question.want).await?;
        if self.question.explains {
            let (read, found) = ((&standings, &nodes), (newest, states, stored));
            let explained = Box::pin(self.explained(read, found)).await?;
            reading.explained = Some(Arc::new(explained));
        }
        Ok(Some(BoardReading {
            is_split: standings.is_split(),
            ..reading
        }))
    }

    /// The error of a key with its name. Nodes that are gone mean that their head was replaced: if it
    /// is the same at the next try, they are lost.
    pub(super) fn told(
        &mut self,
        key: i64,
        head: Option<StoredHead>,
        error: ReadError,
    ) -> ReadError {
        let damaged =
            |what| ReadError::DamagedBoard(format!("view {}, key {key}: {what}", self.job.view()));
        match (error, head) {
            (ReadError::DamagedBoard(what), _) => damaged(what),
            (ReadError::Replaced, Some(head)) => {
                let epoch = head.epoch;
                let lost = Some((key, head));
                if self.lost == lost {
                    return damaged(format!(
                        "nodes of the boards of epoch {epoch} are gone, though nothing has replaced them"
                    ));
                }
                self.lost = lost;
                ReadError::Replaced
            }
            (error, _) => error,
        }
    }

    pub(super) async fn board(
        &self,
        standings: &Standings,
        nodes: &StoredNodes<'_>,
        want: &BoardWant,
    ) -> Result<BoardReading, ReadError> {
        let section = self.section()?;
        let on_board = standings.board(nodes, &section.board).await?;
        if self.question.members.is_some() || !section.tests.is_empty() {
            return self.filtered(&section, &on_board, want).await;
        }
        let mut reading = BoardReading {
            sum: on_board.sum(),
            layers: on_board.layers(),
            ..BoardReading::default()
        };
        match want {
            BoardWant::Sums | BoardWant::Members(_) => {}
            BoardWant::Page { offset, limit } => {
                reading.first = *offset;
                reading.rows = on_board.page(*offset, *limit).await?;
            }
            BoardWant::After {
                score,
                member,
                limit,
            } => {
                reading.first = on_board.count_up_to(score, member).await?;
                reading.rows = on_board.page(reading.first, *limit).await?;
            }
            BoardWant::Places(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                let found = on_board.find_all(&members).await?;
                let (places, rows) = found.into_iter().unzip();
                (reading.places, reading.rows) = (Some(places), rows);
            }
            BoardWant::Around { member, around } => {
                if let Some((place, _)) = on_board.find(member).await? {
                    let (first, length) = stretch(place, *around);
                    reading.found = Some(place);
                    reading.first = first;
                    reading.rows = on_board.page(first, length).await?;
                }
            }
        }
        Ok(reading)
    }

    /// Goes through the rows that the filters may let through, and keeps those that are wanted.
    async fn filtered(
        &self,
        section: &StoredSection,
        on_board: &OnBoard<'_, StoredNodes<'_>>,
        want: &BoardWant,
    ) -> Result<BoardReading, ReadError> {
        let mut kept = Kept::new(want.clone());
        let members = self.members()?;
        let mut take = |rows: Vec<Ranked>| -> Result<(), KeyError> {
            for row in self.passing(section, rows)? {
                let is_live = on_board.is_live(&row.member);
                kept.take(row, is_live);
            }
            Ok(())
        };
        match &members {
            Some(members) => {
                let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
                take(on_board.members(&members).await?)?;
            }
            None => {
                let mut rows = Vec::with_capacity(DECODE_ROWS);
                let mut taken = Ok(());
                on_board
                    .scan(|row| {
                        rows.push(row);
                        if rows.len() >= DECODE_ROWS {
                            taken = take(std::mem::take(&mut rows));
                        }
                        taken.is_ok()
                    })
                    .await?;
                taken?;
                take(rows)?;
            }
        }
        if !kept.reading.layers.1 {
            // What a newer state took away had a part too, if it would have passed.
            let is_asked = |member: &[u8]| has_member(members.as_deref(), member);
            let gone = on_board.taken_away(is_asked).await?;
            kept.reading.layers.1 = !self.passing(section, gone)?.is_empty();
        }
        Ok(kept.finish())
    }

    pub(super) fn key_bytes(&self, key: i64) -> Result<Vec<u8>, KeyError> {
        self.job.key().encode_values(&[KeyValue::Int(key)])
    }

    /// The encoded members that the question is restricted to, if it is.
    pub(super) fn members(&self) -> Result<Option<Vec<Vec<u8>>>, KeyError> {
        let members = self.question.members.as_deref();
        let members = members.map(|members| encoded_members(self.job, members));
        members.transpose()
    }

    /// The rows that pass all tests.
    pub(super) fn passing(
        &self,
        section: &StoredSection,
        rows: Vec<Ranked>,
    ) -> Result<Vec<Ranked>, KeyError> {
        let payloads = rows.iter().map(|row| row.payload.as_slice());
        let passing = section.passing(self.job.payload(), payloads)?;
        let mut passing = passing.into_iter();
        let kept = rows.into_iter().filter(|_| passing.next() == Some(true));
        Ok(kept.collect())
    }
}

/// Members as they are stored.
pub(crate) fn encoded_members(job: &Job<Board>, members: &[i64]) -> Result<Vec<Vec<u8>>, KeyError> {
    let encoded = |member: &i64| job.member().encode_values(&[KeyValue::Int(*member)]);
    members.iter().map(encoded).collect()
}

/// The size of a key's only board by a sum of its live states, against the edition and the base that were
/// read: of what other slots hold no state may count. Nothing where states are there and tell it; no reading where a sum that
/// does not join is in the place of states.
fn summed(
    edition: &Standings,
    states: &LiveStates,
    (root, base): (Option<&[u8]>, Epoch),
) -> Option<Option<BoardReading>> {
    let sums = states.sums.iter();
    let made: Vec<&[u8]> = sums.filter_map(|(_, sum)| sum.content()).collect();
    let of_edition = edition.edition();
    let reading = |sum, layers| BoardReading {
        sum,
        layers,
        ..BoardReading::default()
    };
    match made.as_slice() {
        [] if edition.has_live() => None,
        [] => Some(Some(reading(of_edition, (of_edition.count > 0, false)))),
        // Another slot may have states of the key too, since partitions were added.
        [only] if !edition.has_live() => {
            let sum = LiveSum::decode(only).filter(|sum| sum.joins(root, base));
            let total = sum.and_then(|sum| Some((sum.total(of_edition)?, sum)));
            Some(total.map(|(total, sum)| reading(total, sum.layers(of_edition))))
        }
        _ => Some(None),
    }
}

/// Whether a member is among those that a question is restricted to, which are sorted; without a restriction, each is.
pub(super) fn has_member(members: Option<&[Vec<u8>]>, member: &[u8]) -> bool {
    members.is_none_or(|members| {
        let found = members.binary_search_by(|other| other.as_slice().cmp(member));
        found.is_ok()
    })
}

/// The first place and the number of places around one.
fn stretch(place: u64, around: u64) -> (u64, usize) {
    let first = place.saturating_sub(around);
    let length = place.saturating_add(around).saturating_add(1) - first;
    (first, usize::try_from(length).unwrap_or(usize::MAX))
}

pub(super) fn live_states(states: &LiveStates) -> impl Iterator<Item = LiveState<'_>> {
    let keys = states
        .partitions
        .values()
        .iter()
        .zip(states.epochs.values());
    let values = states.members.iter().zip(states.states.iter());
    keys.zip(values)
        .map(|((partition, epoch), (member, state))| LiveState {
            partition: *partition as usize,
            epoch: *epoch,
            member: member.unwrap_or_default(),
            state,
        })
}

/// What is kept of the rows that the filters let through, which come in the order of ranks: how many
/// there are, and those that are wanted.
pub(super) struct Kept {
    wanted: BoardWant,
    rows: VecDeque<Ranked>,
    reading: BoardReading,
}

impl Kept {
    pub(super) fn new(wanted: BoardWant) -> Self {
        Self {
            wanted,
            rows: VecDeque::new(),
            reading: BoardReading::default(),
        }
    }

    pub(super) fn take(&mut self, row: Ranked, is_live: bool) {
        let reading = &mut self.reading;
        let place = reading.sum.count;
        reading.sum.count += 1;
        reading.sum.weight = reading.sum.weight.saturating_add(row.weight);
        reading.layers.0 |= !is_live;
        reading.layers.1 |= is_live;
        match &self.wanted {
            BoardWant::Sums | BoardWant::Members(_) => {}
            BoardWant::Page { offset, limit } => {
                if place >= *offset && self.rows.len() < *limit {
                    self.rows.push_back(row);
                }
            }
            BoardWant::After {
                score,
                member,
                limit,
            } => {
                if row.order() <= (score.as_slice(), member.as_slice()) {
                    reading.first = place + 1;
                } else if self.rows.len() < *limit {
                    self.rows.push_back(row);
                }
            }
            BoardWant::Places(members) => {
                if has_member(Some(members), &row.member) {
                    reading.places.get_or_insert_default().push(place);
                    self.rows.push_back(row);
                }
            }
            BoardWant::Around { member, around } => {
                if row.member == *member {
                    reading.found = Some(place);
                }
                match reading.found {
                    Some(found) if place - found > *around => {}
                    Some(_) => self.rows.push_back(row),
                    // Until the member comes, only those that may be neighbours are kept.
                    None => {
                        self.rows.push_back(row);
                        if self.rows.len() as u64 > *around {
                            self.rows.pop_front();
                        }
                    }
                }
            }
        }
    }

    pub(super) fn finish(self) -> BoardReading {
        let mut reading = self.reading;
        reading.first = match (&self.wanted, reading.found) {
            (BoardWant::Sums | BoardWant::Members(_) | BoardWant::Places(_), _) => 0,
            (BoardWant::Page { offset, .. }, _) => *offset,
            (BoardWant::After { .. }, _) => reading.first,
            (BoardWant::Around { around, .. }, Some(place)) => stretch(place, *around).0,
            (BoardWant::Around { .. }, None) => return reading,
        };
        reading.rows = self.rows.into();
        reading
    }
}

/// The nodes of one key.
#[derive(Debug)]
pub(super) struct StoredNodes<'a> {
    pub(super) views: &'a dyn ViewsRead,
    pub(super) view: &'a str,
    pub(super) key: &'a [u8],
}

/// Why nodes could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodesError {
    #[error(transparent)]
    Store(#[from] stores::Error),
    #[error(transparent)]
    Damaged(#[from] jobs::tree::Damaged),
}

impl Nodes for StoredNodes<'_> {
    type Error = NodesError;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, NodesError> {
        let names: Vec<NodeName> = ids.iter().map(|id| *id.as_bytes()).collect();
        let stored = self.views.nodes(self.view, self.key, &names).await?;
        stored
            .into_iter()
            .map(|bytes| {
                Ok(bytes
                    .map(|bytes| Node::decode(&bytes))
                    .transpose()?
                    .map(Arc::new))
            })
            .collect()
    }
}

impl From<BoardError<NodesError>> for ReadError {
    fn from(error: BoardError<NodesError>) -> Self {
        match error {
            BoardError::NotWhole(not_whole) => Self::NotWhole(not_whole),
            BoardError::Replaced => Self::Replaced,
            BoardError::Damaged(what) => Self::DamagedBoard(what),
            BoardError::Store(NodesError::Store(error)) => error.into(),
            BoardError::Store(NodesError::Damaged(error)) => Self::DamagedBoard(error.to_string()),
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
