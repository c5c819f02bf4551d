use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use schemas::seam::{Cut, Epoch, GenerationStart, PartitionState, Run, RunState, Runs};

use super::*;
use crate::board::LiveCount;
use crate::tree::{Node, NodeId, TreeBuilder, TreeOptions};

/// Nodes in memory.
#[derive(Debug, Default)]
struct InMemoryNodes(BTreeMap<NodeId, bytes::Bytes>);

impl NodeReader for InMemoryNodes {
    type Error = Infallible;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, Infallible> {
        let node = |bytes: &bytes::Bytes| Arc::new(Node::decode(bytes).unwrap());
        Ok(ids.iter().map(|id| self.0.get(id).map(node)).collect())
    }
}

/// The entries of members: (board, member) -> (score, payload, weight).
type Rows = BTreeMap<(u8, u8), (u8, u8, i64)>;

fn rows() -> impl Strategy<Value = Rows> {
    let row = ((0_u8..3, 0_u8..40), (0_u8..6, any::<u8>(), 0_i64..4));
    proptest::collection::vec(row, 0..60).prop_map(Rows::from_iter)
}

/// Few items per node, so that small boards have trees of several levels.
fn builder() -> TreeBuilder {
    TreeBuilder::new(TreeOptions {
        leaf_items_mean: 3,
        inner_children_mean: 2,
        ..TreeOptions::default()
    })
}

fn publish(rows: &Rows, has_scores: bool, stored: &mut InMemoryNodes) -> Vec<u8> {
    let mut by_rank: Vec<(Vec<u8>, i64, Vec<u8>)> = Vec::new();
    let mut by_member: Vec<(Vec<u8>, i64, Vec<u8>)> = Vec::new();
    for ((board, member), (score, payload, weight)) in rows {
        let score = if has_scores { vec![*score] } else { Vec::new() };
        by_rank.push((
            rank_key(&[*board], &score, &[*member]),
            *weight,
            vec![*payload],
        ));
        by_member.push((member_key(&[*member], &[*board]), *weight, score));
    }
    let mut build = |mut items: Vec<(Vec<u8>, i64, Vec<u8>)>| {
        items.sort();
        let mut builder = builder();
        for (key, weight, value) in items {
            builder.push(&key, weight, &value).unwrap();
        }
        let built = builder.finish();
        stored.0.extend(built.nodes);
        built.root
    };
    let by_rank = build(by_rank);
    let by_member = has_scores.then(|| build(by_member));
    VersionTrees::encode(&by_rank, by_member.as_deref())
}

fn entries_of_member(rows: &Rows, member: u8, has_scores: bool) -> MemberEntries {
    let entries = rows.iter().filter(|((_, other), _)| *other == member);
    MemberEntries {
        entries: entries
            .map(|((board, _), (score, payload, weight))| BoardEntry {
                board: vec![*board],
                score: if has_scores { vec![*score] } else { Vec::new() },
                payload: vec![*payload],
                weight: *weight,
            })
            .collect(),
    }
}

/// The entries of a board, sorted by rank.
fn sort_by_rank(rows: &Rows, board: u8, has_scores: bool) -> Vec<RankedEntry> {
    let mut sorted: Vec<RankedEntry> = rows
        .iter()
        .filter(|((other, _), _)| *other == board)
        .map(|((_, member), (score, payload, weight))| RankedEntry {
            member: vec![*member],
            score: if has_scores { vec![*score] } else { Vec::new() },
            payload: vec![*payload],
            weight: *weight,
        })
        .collect();
    sorted.sort_by(|a, b| (&a.score, &a.member).cmp(&(&b.score, &b.member)));
    sorted
}

fn partition_state(newest: Epoch) -> (PartitionState, Runs) {
    let cut = Cut {
        next_offset: 10,
        last: None,
    };
    let run = |epoch| Run {
        epoch,
        state: RunState::Complete,
        cuts: vec![cut],
        stamp_us: 1,
        token: String::new(),
    };
    let runs: Runs = (1..=newest).map(run).collect();
    let mut state = PartitionState::new_generation(
        1,
        &GenerationStart {
            newest,
            cut: if newest == 0 { Cut::start() } else { cut },
            log_end: 0,
            generation_min: 1,
        },
    );
    state.since.insert("v".to_owned(), 0);
    (state, runs)
}

/// The input of a read: a version of epoch 1, and live entries of later epochs.
#[derive(Debug, Clone)]
struct Case {
    version: Rows,
    has_version: bool,
    has_scores: bool,
    /// By member, the epoch of its live entry.
    changes: Vec<(u8, Epoch)>,
    /// The entries of the changed members.
    current: Rows,
}

fn cases() -> impl Strategy<Value = Case> {
    let changes = proptest::collection::vec((0_u8..45, 1_u64..4), 0..30);
    (rows(), any::<bool>(), any::<bool>(), changes, rows()).prop_map(
        |(version, has_version, has_scores, changes, current)| Case {
            version,
            has_version,
            has_scores,
            changes,
            current,
        },
    )
}

impl Case {
    /// The expected entries: the version with the newest live entries after epoch 1.
    fn expected(&self) -> Rows {
        let mut rows = if self.has_version {
            self.version.clone()
        } else {
            Rows::new()
        };
        let base = u64::from(self.has_version);
        for (member, epoch) in &self.changes {
            if *epoch > base {
                rows.retain(|(_, other), _| other != member);
            }
        }
        for (member, epoch) in &self.changes {
            if *epoch > base {
                let current = self
                    .current
                    .iter()
                    .filter(|((_, other), _)| other == member);
                rows.extend(current.map(|(key, row)| (*key, *row)));
            }
        }
        rows
    }
}

fn check(case: &Case) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(check_all(case));
}

#[expect(clippy::too_many_lines, reason = "one snapshot, read in every way")]
async fn check_all(case: &Case) {
    let mut stored = InMemoryNodes::default();
    let root = publish(&case.version, case.has_scores, &mut stored);
    let newest = u64::from(case.has_version);
    let (state, runs) = partition_state(newest);
    let states = [Some(state)];
    let seam = SeamSnapshot {
        view: "v",
        live_view: "v",
        newest_epoch: newest,
        runs: &runs,
        partition_states: &states,
        only_partition: Some(0),
    };
    // Only the newest live entry of a member counts; the older ones differ.
    let mut live_entries: Vec<(u8, Epoch, Option<Vec<u8>>)> = Vec::new();
    for (member, epoch) in &case.changes {
        let newest_of = case.changes.iter().filter(|(other, _)| other == member);
        let is_newest = newest_of.map(|(_, epoch)| epoch).max() == Some(epoch);
        let entries = entries_of_member(&case.current, *member, case.has_scores);
        let bytes = (!entries.entries.is_empty()).then(|| entries.encode());
        live_entries.push((*member, *epoch, if is_newest { bytes } else { None }));
    }
    let members: Vec<[u8; 1]> = live_entries.iter().map(|(member, ..)| [*member]).collect();
    let live = live_entries
        .iter()
        .zip(&members)
        .map(|((_, epoch, entries), member)| LiveEntry {
            partition: 0,
            epoch: *epoch,
            member,
            entries: entries.as_deref(),
        });
    let head = case.has_version.then_some(Head {
        epoch: 1,
        root: &root,
    });
    let score_bytes = usize::from(case.has_scores);
    let key_boards = KeyBoards::merge::<Infallible>(&seam, head, live, score_bytes).unwrap();
    let expected = case.expected();
    let boards: Vec<Vec<u8>> = (0..3).map(|board| vec![board]).collect();
    let members: Vec<_> = (0..45).map(|other| (vec![other], boards.clone())).collect();
    let entries = key_boards.member_entries(&stored, &members).await.unwrap();
    let expected_entries = |member| entries_of_member(&expected, member, case.has_scores);
    assert_eq!(entries, (0..45).map(expected_entries).collect::<Vec<_>>());
    for board in 0..3_u8 {
        let sorted = sort_by_rank(&expected, board, case.has_scores);
        let snapshot = key_boards.open_board(&stored, &[board]).await.unwrap();
        let sum = snapshot.sum();
        assert_eq!(sum.count, sorted.len() as u64, "board {board}");
        assert_eq!(sum.weight, sorted.iter().map(|row| row.weight).sum::<i64>());
        for offset in (0..=sorted.len()).step_by(3) {
            for limit in [1, 8] {
                let page = snapshot.page(offset as u64, limit).await.unwrap();
                let until = sorted.len().min(offset + limit);
                assert_eq!(page, sorted[offset..until], "{board} {offset} {limit}");
            }
        }
        check_counts_up_to(case, &snapshot, &sorted).await;
        for member in (0..45_u8).step_by(4) {
            let index = sorted.iter().position(|row| row.member == [member]);
            let entry = snapshot.find(&[member]).await.unwrap();
            let expected = index.map(|index| (index as u64, sorted[index].clone()));
            assert_eq!(entry, expected, "{board} {member}");
        }
        let requested: Vec<[u8; 1]> = (0..45).step_by(2).map(|member| [member]).collect();
        let requested: Vec<&[u8]> = requested.iter().map(|member| &member[..]).collect();
        let expected_entries: Vec<RankedEntry> = sorted
            .iter()
            .filter(|row| row.member[0] % 2 == 0)
            .cloned()
            .collect();
        assert_eq!(
            snapshot.find_members(&requested).await.unwrap(),
            expected_entries
        );
        check_layers(case, &snapshot, board, &sorted).await;
        let root = case.has_version.then_some(&*root);
        check_live_count(&key_boards, &stored, root, board, case).await;
        let mut scanned = Vec::new();
        snapshot
            .scan(|row| {
                scanned.push(row);
                true
            })
            .await
            .unwrap();
        assert_eq!(scanned, sorted);
    }
}

/// A list can continue after any entry, even one that the board does not have.
async fn check_counts_up_to(
    case: &Case,
    snapshot: &BoardSnapshot<'_, InMemoryNodes>,
    sorted: &[RankedEntry],
) {
    let scores = if case.has_scores { 0..7_u8 } else { 0..1 };
    for score in scores {
        let score = if case.has_scores {
            vec![score]
        } else {
            Vec::new()
        };
        for member in (0..46_u8).step_by(5) {
            let key: (&[u8], &[u8]) = (&score, &[member]);
            let expected = sorted.iter().filter(|row| row.sort_key() <= key).count();
            let count = snapshot.count_up_to(key.0, key.1).await.unwrap();
            assert_eq!(count, expected as u64, "{key:?}");
        }
    }
}

/// The contributing layers, computed entry by entry.
async fn check_layers(
    case: &Case,
    snapshot: &BoardSnapshot<'_, InMemoryNodes>,
    board: u8,
    sorted: &[RankedEntry],
) {
    let newest = u64::from(case.has_version);
    let is_live = |member: &[u8]| {
        let mut changes = case.changes.iter();
        changes.any(|(other, epoch)| [*other] == *member && *epoch > newest)
    };
    let old = case
        .has_version
        .then_some(&case.version)
        .into_iter()
        .flatten();
    let of_board = old.filter(|((other, _), _)| *other == board);
    let mut removed: Vec<u8> = of_board.map(|((_, member), _)| *member).collect();
    removed.retain(|member| is_live(&[*member]));
    let has_batch = sorted.iter().any(|row| !is_live(&row.member));
    let has_live = !removed.is_empty() || sorted.iter().any(|row| is_live(&row.member));
    assert_eq!(
        snapshot.contributing_layers(),
        (has_batch, has_live),
        "board {board}"
    );
    for row in sorted {
        assert_eq!(snapshot.has_live_entry(&row.member), is_live(&row.member));
    }
    removed.retain(|member| member % 2 == 0);
    let removed_entries = snapshot.removed_entries(|member| member[0] % 2 == 0).await;
    let mut found: Vec<u8> = removed_entries
        .unwrap()
        .iter()
        .map(|row| row.member[0])
        .collect();
    found.sort_unstable();
    assert_eq!(found, removed, "board {board}");
}

/// A live count equals the snapshot. After a change it equals the count over all live entries.
async fn check_live_count(
    key_boards: &KeyBoards,
    stored: &InMemoryNodes,
    root: Option<&[u8]>,
    board: u8,
    case: &Case,
) {
    let version = match root {
        Some(root) => {
            let version = KeyBoards::from_version(root, key_boards.score_bytes).unwrap();
            version.open_board(stored, &[board]).await.unwrap().sum()
        }
        None => Sum::default(),
    };
    let snapshot = key_boards.open_board(stored, &[board]).await.unwrap();
    let count = LiveCount::compute(root, 1, &snapshot);
    assert_eq!(count.total(version), Some(snapshot.sum()));
    assert_eq!(
        count.contributing_layers(version),
        snapshot.contributing_layers()
    );
    assert_eq!(LiveCount::decode(&count.encode()), Some(count));
    assert_eq!(LiveCount::decode(&count.encode()[1..]), None);
    assert!(
        count.applies_to(root, 1)
            && !count.applies_to(root, 2)
            && !count.applies_to(Some(b"other"), 1)
    );
    let is_changed = |member: &[u8]| member[0].is_multiple_of(3);
    let mut changed_only = key_boards.clone();
    changed_only.live.retain(|member, _| is_changed(member));
    let before = LiveCount::compute(
        root,
        1,
        &changed_only.open_board(stored, &[board]).await.unwrap(),
    );
    let mut all = key_boards.clone();
    for member in (0..45_u8).filter(|member| is_changed(&[*member])) {
        let new_entries = entries_of_member(&case.current, (member + 4) % 45, case.has_scores);
        changed_only.set_live(&[member], new_entries.clone());
        all.set_live(&[member], new_entries);
    }
    let after = LiveCount::compute(
        root,
        1,
        &changed_only.open_board(stored, &[board]).await.unwrap(),
    );
    let expected = LiveCount::compute(root, 1, &all.open_board(stored, &[board]).await.unwrap());
    assert_eq!(count.apply_change(&before, &after), Some(expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn boards_equal_a_plain_sort(case in cases()) {
        check(&case);
    }
}

/// A reader that counts calls with nodes that were not read before.
#[derive(Default)]
struct RecordingReader {
    stored: InMemoryNodes,
    read: Mutex<BTreeSet<NodeId>>,
    reads: AtomicUsize,
}

impl NodeReader for RecordingReader {
    type Error = Infallible;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, Infallible> {
        let before = self.read.lock().unwrap().len();
        self.read.lock().unwrap().extend(ids);
        let is_read = self.read.lock().unwrap().len() > before;
        self.reads
            .fetch_add(usize::from(is_read), Ordering::Relaxed);
        self.stored.read_nodes(ids).await
    }
}

/// Members share one descent of each tree.
#[tokio::test]
async fn many_members_need_no_more_reads_than_one() {
    let row = |other: u8| ((other % 3, other), (other % 7, other, 1));
    let version: Rows = (0..200).map(row).collect();
    let mut nodes = RecordingReader::default();
    let root = publish(&version, true, &mut nodes.stored);
    let key_boards = KeyBoards::from_version(&root, 1).unwrap();
    let members: Vec<_> = (0..200)
        .step_by(5)
        .map(|other| (vec![other], Vec::new()))
        .collect();
    let entries = key_boards.member_entries(&nodes, &members).await.unwrap();
    assert_eq!(entries.len(), 40);
    let levels: usize = key_boards
        .version
        .iter()
        .flat_map(VersionTrees::trees)
        .map(Tree::height)
        .sum();
    let reads = nodes.reads.load(Ordering::Relaxed);
    assert!(reads <= levels, "{reads} reads, {levels} levels");
}

/// No entry of the version remains, on one board or on all.
#[test]
fn boards_can_consist_of_live_entries_only() {
    let version = Rows::from([
        ((0, 1), (5, 0, 1)),
        ((0, 2), (6, 0, 1)),
        ((1, 2), (6, 0, 1)),
    ]);
    for current in [version.clone(), Rows::new()] {
        for changes in [vec![(1, 2), (2, 2)], vec![(2, 3)]] {
            for has_scores in [true, false] {
                check(&Case {
                    version: version.clone(),
                    has_version: true,
                    has_scores,
                    changes: changes.clone(),
                    current: current.clone(),
                });
            }
        }
    }
}

/// The head belongs to a later run than the newest complete one, as in the middle of publishing.
#[test]
fn a_newer_head_replaces_live_entries_of_its_epoch() {
    let mut stored = InMemoryNodes::default();
    let version = Rows::from([((0, 1), (5, 0, 1))]);
    let root = publish(&version, true, &mut stored);
    let (mut state, _) = partition_state(0);
    state.position.next_offset = 10;
    state.end_epoch(1).unwrap();
    let sealed = Run {
        epoch: 1,
        state: RunState::Sealed,
        cuts: vec![state.position],
        stamp_us: 1,
        token: String::new(),
    };
    let runs: Runs = [sealed].into_iter().collect();
    let states = [Some(state)];
    let seam = SeamSnapshot {
        view: "v",
        live_view: "v",
        newest_epoch: 0,
        runs: &runs,
        partition_states: &states,
        only_partition: None,
    };
    let old = entries_of_member(
        &Rows::from([((0, 1), (9, 0, 1)), ((0, 2), (1, 0, 1))]),
        1,
        true,
    )
    .encode();
    let live = [LiveEntry {
        partition: 0,
        epoch: 1,
        member: &[1],
        entries: Some(&old),
    }];
    let head = Some(Head {
        epoch: 1,
        root: &root,
    });
    let key_boards = KeyBoards::merge::<Infallible>(&seam, head, live, 1).unwrap();
    assert!(key_boards.live.is_empty(), "epoch 1 is in the head");
    let before = KeyBoards::merge::<Infallible>(&seam, None, live, 1).unwrap();
    assert_eq!(before.live.len(), 1, "without the head it counts");
    // A boundary that is not the run's cut does not join.
    let mut changed = states[0].clone().unwrap();
    changed.bounds.insert(1, Cut::start());
    let states = [Some(changed)];
    let seam = SeamSnapshot {
        partition_states: &states,
        ..seam
    };
    let error = KeyBoards::merge::<Infallible>(&seam, head, live, 1).unwrap_err();
    assert!(matches!(error, ReadError::SeamMismatch(_)), "{error}");
}

/// A member with live entries in two partitions is detected in any read order. Entries before the
/// base do not count.
#[test]
fn a_member_with_live_entries_in_two_partitions_is_detected() {
    let (state, runs) = partition_state(1);
    // The other partition was added after the run.
    let mut added = PartitionState::new_generation(
        1,
        &GenerationStart {
            newest: 1,
            cut: Cut::start(),
            log_end: 0,
            generation_min: 1,
        },
    );
    added.since.insert("v".to_owned(), 0);
    let states = [Some(state), Some(added)];
    let seam = SeamSnapshot {
        view: "v",
        live_view: "v",
        newest_epoch: 1,
        runs: &runs,
        partition_states: &states,
        only_partition: None,
    };
    let live = |partition, epoch, member| LiveEntry {
        partition,
        epoch,
        member,
        entries: None,
    };
    let (a, b): (&[u8], &[u8]) = (&[1], &[2]);
    for (expected, entries) in [
        (false, vec![]),
        (false, vec![live(0, 2, a), live(1, 2, b)]),
        (false, vec![live(1, 2, a), live(1, 3, a)]),
        (false, vec![live(0, 1, a), live(1, 2, a)]),
        (true, vec![live(0, 2, a), live(1, 2, a)]),
        (true, vec![live(1, 3, a), live(0, 2, a)]),
        (true, vec![live(0, 2, a), live(0, 3, a), live(1, 2, a)]),
    ] {
        for entries in [entries.clone(), entries.into_iter().rev().collect()] {
            let key_boards = KeyBoards::merge::<Infallible>(&seam, None, entries.clone(), 1);
            assert_eq!(key_boards.unwrap().is_split(), expected, "{entries:?}");
        }
    }
}
