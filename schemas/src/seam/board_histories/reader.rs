//! A reader: reads the newest complete run, then the partition state with its entries, then the
//! head, then its nodes. It compares its answer with the states that the members had.

use rand::Rng;

use super::entity_rows::{BOARDS, GONE, Group, MEMBERS, State, partition_of};
use super::events::{Event, Law};
use super::live::{StateRead, VIEW};
use super::live_counts::StoredCount;
use super::live_entry::LiveEntry;
use super::versions::{Head, Node, Row};
use super::world::{RunRecords, World};
use crate::seam::{self, Epoch, Offset};

const TRIES: u32 = 4;
const REST_MAX: u64 = 120;

pub(super) struct Reader {
    /// The key to read; a random one if `None`.
    only: Option<usize>,
    key: usize,
    tries: u32,
    /// Cached run records, which may be used for some time.
    run_records: Option<RunRecords>,
    /// The time at which the reader continues.
    later: u64,
    partition_state: StateRead,
    at: At,
    /// The result of the last read: answered or refused.
    pub(super) answered: Option<bool>,
    /// The last answer.
    pub(super) answer: [State; MEMBERS],
}

/// The next operation.
enum At {
    Ask,
    ReadRuns,
    ReadState,
    ReadHead,
    Merge(Option<Head>),
    ReadNode(Merged),
}

/// The merged reads of a key.
struct Merged {
    at: Offset,
    base: Epoch,
    half_loaded: bool,
    sizes: [usize; BOARDS],
    /// By member, the newest entry after the base.
    live: [Option<State>; MEMBERS],
    /// The remaining nodes to read, in reverse order.
    nodes: Vec<Node>,
    rows: Vec<Row>,
    /// The size of each board by an applicable live count.
    counted: Option<[i32; BOARDS]>,
}

impl Reader {
    pub(super) fn new(only: Option<usize>) -> Self {
        Self {
            only,
            key: 0,
            tries: 0,
            run_records: None,
            later: 0,
            partition_state: None,
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
                let cached = self.run_records.is_some() && world.rng.random_ratio(3, 10);
                if cached { At::ReadState } else { At::ReadRuns }
            }
            At::ReadRuns => {
                self.run_records = Some(world.runs());
                At::ReadState
            }
            At::ReadState => {
                self.partition_state = world.read(partition_of(self.key), self.key);
                At::ReadHead
            }
            At::ReadHead => {
                self.rest(world);
                At::Merge(world.head(self.key))
            }
            At::Merge(head) => match self.merge(world, head) {
                Some(merged) => {
                    self.rest(world);
                    At::ReadNode(merged)
                }
                None => self.refuse(world),
            },
            At::ReadNode(merged) => self.read_node(world, merged),
        }
    }

    /// Sometimes pauses, so that its reads become stale.
    fn rest(&mut self, world: &mut World) {
        if world.rng.random_ratio(1, 4) {
            self.later = world.now + world.rng.random_range(0..REST_MAX);
        }
    }

    fn refuse(&mut self, world: &mut World) -> At {
        world.count_event(Event::Refused);
        self.answered = Some(false);
        At::Ask
    }

    /// Merges the reads; `None` if the result could be wrong.
    fn merge(&self, world: &World, head: Option<Head>) -> Option<Merged> {
        let latest = world.runs();
        let run_records = match world.rules.newest_first {
            true => self.run_records.as_ref()?,
            false => &latest,
        };
        let (partition_state, entries, stored) = self.partition_state.as_ref()?;
        let base = seam::base(
            head.as_ref().map_or(0, |head| head.epoch),
            run_records.newest,
        );
        if !(world.rules.is_readable)(
            partition_state,
            partition_of(self.key),
            base,
            &run_records.runs,
            VIEW,
        ) {
            return None;
        }
        let newest = |member| {
            let counts = |entry: &&LiveEntry| {
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
        let value = stored
            .as_ref()
            .and_then(|StoredCount { value, .. }| value.as_ref());
        let counted = value.filter(|sum| {
            let against = (sum.root.as_ref(), sum.base);
            world.rules.keeps_live_counts
                && (world.rules.matches_version)(against, (root.as_ref(), base))
        });
        let size = |board: usize| i32::try_from(sizes[board]).unwrap_or(i32::MAX);
        Some(Merged {
            counted: counted
                .map(|sum| std::array::from_fn(|board| size(board) + sum.change[board])),
            at: partition_state.position.next_offset,
            base,
            half_loaded: base > run_records.newest,
            sizes,
            live: std::array::from_fn(newest),
            nodes: root.map_or_else(Vec::new, |root| root.nodes.to_vec()),
            rows: Vec::new(),
        })
    }

    fn read_node(&mut self, world: &mut World, mut merged: Merged) -> At {
        let Some(node) = merged.nodes.pop() else {
            self.compare(world, &merged);
            return At::Ask;
        };
        if world.has_node(self.key, node) {
            merged.rows.extend(node.rows());
            return At::ReadNode(merged);
        }
        world.count_event(Event::NodeMissing);
        if world.rules.missing_is_empty {
            return At::ReadNode(merged);
        }
        self.tries -= 1;
        if self.tries == 0 {
            return self.refuse(world);
        }
        At::ReadRuns
    }

    fn compare(&mut self, world: &mut World, merged: &Merged) {
        world.count_event(Event::Answered);
        if merged.half_loaded {
            world.count_event(Event::HalfLoaded);
        }
        self.answered = Some(true);
        let mut sizes = merged.sizes;
        let mut members = [GONE; MEMBERS];
        for row in &merged.rows {
            members[row.member][row.board] = row.score;
        }
        for (member, live) in merged.live.iter().enumerate() {
            let Some(live) = live else { continue };
            let old = std::mem::replace(&mut members[member], *live);
            for board in 0..BOARDS {
                sizes[board] += usize::from(live[board] > 0);
                sizes[board] -= usize::from(old[board] > 0);
            }
        }
        self.answer = members;
        let Merged { at, base, .. } = *merged;
        let location = || format!("key {} at {at} on {base}", self.key);
        for (board, size) in sizes.into_iter().enumerate() {
            let on = |state: &&State| state[board] > 0;
            let member_count = members.iter().filter(on).count();
            if size != member_count {
                let location = location();
                let what =
                    format!("board {board} of {location} has {member_count} members, not {size}");
                world.report_violation(Law::Size, what);
            }
            let Some(counted) = merged.counted else {
                continue;
            };
            world.count_event(Event::CountRead);
            if usize::try_from(counted[board]) != Ok(member_count) {
                let (location, counted) = (location(), counted[board]);
                let what = format!(
                    "board {board} of {location} has {member_count} members, and the sum {counted}"
                );
                world.report_violation(Law::LiveCount, what);
            }
        }
        for (member, state) in members.iter().enumerate() {
            let group = Group::new(self.key, member);
            let oldest = world.oldest_allowed(partition_of(self.key), group, at);
            let allowed = world.states_since(group, oldest);
            if !allowed.contains(state) {
                let location = location();
                let what =
                    format!("member {member} of {location} is {state:?}, not one of {allowed:?}");
                world.report_violation(Law::Exact, what);
            }
        }
    }
}
