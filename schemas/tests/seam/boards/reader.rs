//! A reader: it reads the run records, then the partition state with its entries, then the head,
//! then its nodes. It compares its answer with the scores that the members had.

use rand::Rng;
use schemas::seam::{self, Epoch, Offset};

use super::entity_rows::{ABSENT, BOARDS, KEY_MEMBERS, MemberId, Scores, partition_of};
use super::live_entries::{KeyState, LiveEntry};
use super::rules::Rules;
use super::stores::{Boards, SharedWorld, World};
use super::versions::{BoardEntry, Head, Node, Root};
use crate::simulation::{Event, Invariant, RunRecords, ViewKind, end_step};

const TRIES: u32 = 4;
const PAUSE_MAX: u64 = 120;

/// A reader, with the run records of an earlier read, which later reads may use, too.
#[derive(Default)]
pub(super) struct Reader {
    cached: Option<RunRecords>,
}

/// All that a read has read except nodes, in this order.
struct Read {
    run_records: RunRecords,
    state: Option<KeyState>,
    head: Option<Head>,
}

/// The merged reads of a key, of which some nodes may still be missing.
struct MergedKey {
    key: usize,
    offset: Offset,
    base: Epoch,
    is_during_run: bool,
    /// The sizes of the boards in the version.
    sizes: [usize; BOARDS],
    /// By member, the scores in the newest entry after the base.
    live_scores: [Option<Scores>; KEY_MEMBERS],
    /// The nodes to read, in reverse order.
    nodes_left: Vec<Node>,
    version_entries: Vec<BoardEntry>,
    /// The size of each board by an applicable live count.
    counted_sizes: Option<[i32; BOARDS]>,
}

impl Reader {
    /// Reads a key, or a random one if it is `None`. Returns the scores of the members; `None` if
    /// the read is refused.
    pub(super) async fn read(
        &mut self,
        world: &SharedWorld,
        key: Option<usize>,
    ) -> Option<[Scores; KEY_MEMBERS]> {
        let used_keys = world.borrow().stores.used_keys;
        let random_key = world.borrow_mut().rng.random_range(0..used_keys);
        let key = key.unwrap_or(random_key);
        let cached = self.cached.take();
        let mut cached = cached.filter(|_| world.borrow_mut().rng.random_ratio(3, 10));
        for _ in 0..TRIES {
            end_step().await;
            let run_records = match cached.take() {
                Some(cached) => cached,
                None => {
                    let run_records = world.borrow().run_records();
                    end_step().await;
                    run_records
                }
            };
            self.cached = Some(run_records.clone());
            let state = world.borrow().read_key(partition_of(key), key);
            end_step().await;
            world.borrow_mut().pause_randomly(PAUSE_MAX);
            let head = world.borrow().head(key);
            end_step().await;
            let read = Read {
                run_records,
                state,
                head,
            };
            let merged = read.merge(&world.borrow(), key);
            let Some(mut merged) = merged else {
                break;
            };
            world.borrow_mut().pause_randomly(PAUSE_MAX);
            if merged.read_nodes(world).await {
                return Some(merged.check(&mut world.borrow_mut()));
            }
        }
        world.borrow_mut().count_event(Event::Refused);
        None
    }
}

impl Read {
    /// Merges the reads; `None` if the result could be wrong.
    fn merge(self, world: &World, key: usize) -> Option<MergedKey> {
        let rules = &world.stores.rules;
        let latest = world.run_records();
        let run_records = if world.protocol.reads_runs_first {
            &self.run_records
        } else {
            &latest
        };
        let read = self.state.as_ref()?;
        let state = &read.partition_state;
        let newest = run_records.newest[0];
        let head_epoch = self.head.as_ref().map_or(0, |head| head.epoch);
        let base = seam::base_epoch(head_epoch, newest);
        let (partition, view) = (partition_of(key), Boards::VIEWS[0]);
        if !(world.protocol.is_readable)(state, partition, base, &run_records.runs, view) {
            return None;
        }
        let live_scores = |member| {
            let counts = |entry: &&LiveEntry| {
                entry.member.number() == member && (rules.entry_counts)(entry.epoch, base)
            };
            let entries = read.entries.iter().filter(counts);
            let newest = entries.max_by_key(|entry| entry.epoch);
            newest.map(|entry| entry.scores)
        };
        let root = self.head.map(|head| head.root);
        Some(MergedKey {
            key,
            counted_sizes: count_sizes(rules, read, root.as_ref(), base),
            offset: state.position.next_offset,
            base,
            is_during_run: base > newest,
            sizes: root.as_ref().map_or([0; BOARDS], |root| root.sizes),
            live_scores: std::array::from_fn(live_scores),
            nodes_left: root.map_or_else(Vec::new, |root| root.nodes.to_vec()),
            version_entries: Vec::new(),
        })
    }
}

impl MergedKey {
    /// Reads the nodes. Returns whether all nodes were stored.
    async fn read_nodes(&mut self, world: &SharedWorld) -> bool {
        loop {
            end_step().await;
            let Some(node) = self.nodes_left.pop() else {
                return true;
            };
            let mut world = world.borrow_mut();
            if world.has_node(self.key, node) {
                self.version_entries.extend(node.entries());
                continue;
            }
            world.count_event(Event::NodeMissing);
            if !world.stores.rules.accepts_missing_nodes {
                return false;
            }
        }
    }

    /// Answers a read, and compares the answer with the entity rows.
    fn check(&self, world: &mut World) -> [Scores; KEY_MEMBERS] {
        world.count_event(Event::Answered);
        if self.is_during_run {
            world.count_event(Event::AnsweredDuringRun);
        }
        let (members, sizes) = self.combine();
        let location = format!("key {} at {} on {}", self.key, self.offset, self.base);
        for (board, size) in sizes.into_iter().enumerate() {
            let on_board = members.iter().filter(|scores| scores[board] > 0).count();
            let expected = format!("board {board} of {location} has {on_board} members");
            if size != on_board {
                world.report_violation(Invariant::Size, format!("{expected}, not {size}"));
            }
            if let Some(counted) = self.counted_sizes.map(|sizes| sizes[board]) {
                world.count_event(Event::CountRead);
                if usize::try_from(counted) != Ok(on_board) {
                    let description = format!("{expected}, but the live count gives {counted}");
                    world.report_violation(Invariant::LiveCount, description);
                }
            }
        }
        for (member, scores) in members.iter().enumerate() {
            let allowed = world.allowed_scores(MemberId::new(self.key, member), self.offset);
            if !allowed.contains(scores) {
                let description =
                    format!("member {member} of {location} has {scores:?}, not one of {allowed:?}");
                world.report_violation(Invariant::Exact, description);
            }
        }
        members
    }

    /// Returns the scores of each member and the size of each board. Live entries replace the
    /// scores of the version.
    fn combine(&self) -> ([Scores; KEY_MEMBERS], [usize; BOARDS]) {
        let (mut members, mut sizes) = ([ABSENT; KEY_MEMBERS], self.sizes);
        for entry in &self.version_entries {
            members[entry.member][entry.board] = entry.score;
        }
        for (scores, live_scores) in members.iter_mut().zip(&self.live_scores) {
            let Some(new) = live_scores else { continue };
            let old = std::mem::replace(scores, *new);
            for board in 0..BOARDS {
                sizes[board] += usize::from(new[board] > 0);
                sizes[board] -= usize::from(old[board] > 0);
            }
        }
        (members, sizes)
    }
}

/// Returns the size of each board by the live count of a key, if the count applies to the read.
fn count_sizes(
    rules: &Rules,
    read: &KeyState,
    root: Option<&Root>,
    base: Epoch,
) -> Option<[i32; BOARDS]> {
    let count = read.count.as_ref()?.value.as_ref()?;
    let counted_version = (count.root.as_ref(), count.base);
    let applies = (rules.matches_version)(counted_version, (root, base));
    let size = |board| {
        let size = root.map_or(0, |root| root.sizes[board]);
        i32::try_from(size).unwrap_or(i32::MAX) + count.size_changes[board]
    };
    (rules.keeps_live_counts && applies).then(|| std::array::from_fn(size))
}
