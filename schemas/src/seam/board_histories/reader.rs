//! A reader: the newest complete run, then the slot with its states, then the head, then its nodes;
//! and what it answers compared with the states that the members had.

use rand::Rng;

use super::canon::{BOARDS, GONE, Group, MEMBERS, State, partition_of};
use super::editions::{Head, Node, Row};
use super::live::{Entry, SlotRead, VIEW};
use super::sums::Kept;
use super::tally::{Event, Law};
use super::world::{RunsSeen, World};
use crate::seam::{self, Epoch, Offset};

const TRIES: u32 = 4;
const REST_MAX: u64 = 120;

pub(super) struct Reader {
    /// Where not given, a read is for any key.
    only: Option<usize>,
    key: usize,
    tries: u32,
    /// What was read before may be used for some time.
    seen: Option<RunsSeen>,
    /// When it goes on.
    later: u64,
    slot: SlotRead,
    at: At,
    /// What the last read came to.
    pub(super) answered: Option<bool>,
    /// The last answer.
    pub(super) answer: [State; MEMBERS],
}

/// What comes next.
enum At {
    Ask,
    ReadRuns,
    ReadSlot,
    ReadHead,
    Join(Option<Head>),
    ReadNode(Joined),
}

/// What was read fits together.
struct Joined {
    at: Offset,
    base: Epoch,
    half_loaded: bool,
    sizes: [usize; BOARDS],
    /// By member: the newest state after the base.
    live: [Option<State>; MEMBERS],
    /// Nodes that are still to be read, the last one first.
    nodes: Vec<Node>,
    rows: Vec<Row>,
    /// How many members each board has by a sum that counts.
    summed: Option<[i32; BOARDS]>,
}

impl Reader {
    pub(super) fn new(only: Option<usize>) -> Self {
        Self {
            only,
            key: 0,
            tries: 0,
            seen: None,
            later: 0,
            slot: None,
            at: At::Ask,
            answered: None,
            answer: [GONE; MEMBERS],
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        if world.now < self.later {
            return;
        }
        let at = std::mem::replace(&mut self.at, At::Ask);
        self.at = match at {
            At::Ask => {
                let keys = world.keys;
                let any = world.rng.random_range(0..keys);
                self.key = self.only.unwrap_or(any);
                self.tries = TRIES;
                let cached = self.seen.is_some() && world.rng.random_ratio(3, 10);
                if cached { At::ReadSlot } else { At::ReadRuns }
            }
            At::ReadRuns => {
                self.seen = Some(world.runs());
                At::ReadSlot
            }
            At::ReadSlot => {
                self.slot = world.read(partition_of(self.key), self.key);
                At::ReadHead
            }
            At::ReadHead => {
                self.rest(world);
                At::Join(world.head(self.key))
            }
            At::Join(head) => match self.join(world, head) {
                Some(joined) => {
                    self.rest(world);
                    At::ReadNode(joined)
                }
                None => self.refuse(world),
            },
            At::ReadNode(joined) => self.read_node(world, joined),
        }
    }

    /// Now and then what it has read grows old.
    fn rest(&mut self, world: &mut World) {
        if world.rng.random_ratio(1, 4) {
            self.later = world.now + world.rng.random_range(0..REST_MAX);
        }
    }

    fn refuse(&mut self, world: &mut World) -> At {
        world.note(Event::Refused);
        self.answered = Some(false);
        At::Ask
    }

    /// Puts together what was read, or nothing if it could be wrong.
    fn join(&self, world: &World, head: Option<Head>) -> Option<Joined> {
        let latest = world.runs();
        let seen = match world.rules.newest_first {
            true => self.seen.as_ref()?,
            false => &latest,
        };
        let (slot, entries, kept) = self.slot.as_ref()?;
        let base = seam::base(head.as_ref().map_or(0, |head| head.epoch), seen.newest);
        if !(world.rules.whole)(slot, partition_of(self.key), base, &seen.runs, VIEW) {
            return None;
        }
        let newest = |member| {
            let counts = |entry: &&Entry| {
                entry.group.member() == member && (world.rules.counts)(entry.epoch, base)
            };
            let newest = entries
                .iter()
                .filter(counts)
                .max_by_key(|entry| entry.epoch);
            newest.map(|entry| entry.state)
        };
        let root = head.map(|head| head.root);
        let sizes = root.as_ref().map_or([0; BOARDS], |root| root.sizes);
        let made = kept.as_ref().and_then(|Kept { made, .. }| made.as_ref());
        let summed = made.filter(|sum| {
            let against = (sum.root.as_ref(), sum.base);
            world.rules.keeps_sums && (world.rules.joins)(against, (root.as_ref(), base))
        });
        let size = |board: usize| i32::try_from(sizes[board]).unwrap_or(i32::MAX);
        Some(Joined {
            summed: summed.map(|sum| std::array::from_fn(|board| size(board) + sum.change[board])),
            at: slot.position.next_offset,
            base,
            half_loaded: base > seen.newest,
            sizes,
            live: std::array::from_fn(newest),
            nodes: root.map_or_else(Vec::new, |root| root.nodes.to_vec()),
            rows: Vec::new(),
        })
    }

    fn read_node(&mut self, world: &mut World, mut joined: Joined) -> At {
        let Some(node) = joined.nodes.pop() else {
            self.compare(world, &joined);
            return At::Ask;
        };
        if world.has_node(self.key, node) {
            joined.rows.extend(node.rows());
            return At::ReadNode(joined);
        }
        world.note(Event::NodeMissing);
        if world.rules.missing_is_empty {
            return At::ReadNode(joined);
        }
        self.tries -= 1;
        if self.tries == 0 {
            return self.refuse(world);
        }
        At::ReadRuns
    }

    fn compare(&mut self, world: &mut World, joined: &Joined) {
        world.note(Event::Answered);
        if joined.half_loaded {
            world.note(Event::HalfLoaded);
        }
        self.answered = Some(true);
        let mut sizes = joined.sizes;
        let mut members = [GONE; MEMBERS];
        for row in &joined.rows {
            members[row.member][row.board] = row.score;
        }
        for (member, live) in joined.live.iter().enumerate() {
            let Some(live) = live else { continue };
            let old = std::mem::replace(&mut members[member], *live);
            for board in 0..BOARDS {
                sizes[board] += usize::from(live[board] > 0);
                sizes[board] -= usize::from(old[board] > 0);
            }
        }
        self.answer = members;
        let Joined { at, base, .. } = *joined;
        let place = || format!("key {} at {at} on {base}", self.key);
        for (board, size) in sizes.into_iter().enumerate() {
            let on = |state: &&State| state[board] > 0;
            let there = members.iter().filter(on).count();
            if size != there {
                let place = place();
                let what = format!("board {board} of {place} has {there} members, not {size}");
                world.contradict(Law::Size, what);
            }
            let Some(summed) = joined.summed else {
                continue;
            };
            world.note(Event::SumRead);
            if usize::try_from(summed[board]) != Ok(there) {
                let (place, summed) = (place(), summed[board]);
                let what =
                    format!("board {board} of {place} has {there} members, and the sum {summed}");
                world.contradict(Law::Summed, what);
            }
        }
        for (member, state) in members.iter().enumerate() {
            let group = Group::of(self.key, member);
            let low = world.low(partition_of(self.key), group, at);
            let can = world.states_since(group, low);
            if !can.contains(state) {
                let place = place();
                let what = format!("member {member} of {place} is {state:?}, not one of {can:?}");
                world.contradict(Law::Exact, what);
            }
        }
    }
}
