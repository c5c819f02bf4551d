use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use schemas::seam::{Cut, Epoch, NewLife, Run, RunState, Runs, Slot};

use super::*;
use crate::board::LiveSum;
use crate::tree::{Builder, Node, NodeId, Options};

/// Nodes in memory.
#[derive(Debug, Default)]
struct Stored(BTreeMap<NodeId, bytes::Bytes>);

impl Nodes for Stored {
    type Error = Infallible;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, Infallible> {
        let node = |bytes: &bytes::Bytes| Arc::new(Node::decode(bytes).unwrap());
        Ok(ids.iter().map(|id| self.0.get(id).map(node)).collect())
    }
}

/// What each member has on each board: (board, member) -> (score, payload, weight).
type Rows = BTreeMap<(u8, u8), (u8, u8, i64)>;

fn rows() -> impl Strategy<Value = Rows> {
    let row = ((0_u8..3, 0_u8..40), (0_u8..6, any::<u8>(), 0_i64..4));
    proptest::collection::vec(row, 0..60).prop_map(Rows::from_iter)
}

/// Few items a node, so that small boards have trees of several levels.
fn builder() -> Builder {
    Builder::new(Options {
        leaf_items_mean: 3,
        inner_children_mean: 2,
        ..Options::default()
    })
}

fn publish(rows: &Rows, has_scores: bool, stored: &mut Stored) -> Vec<u8> {
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
    Sheet::encode(&by_rank, by_member.as_deref())
}

fn state(rows: &Rows, member: u8, has_scores: bool) -> GroupState {
    let places = rows.iter().filter(|((_, of), _)| *of == member);
    GroupState {
        places: places
            .map(|((board, _), (score, payload, weight))| Place {
                board: vec![*board],
                score: if has_scores { vec![*score] } else { Vec::new() },
                payload: vec![*payload],
                weight: *weight,
            })
            .collect(),
    }
}

/// The rows of a board in the order of ranks, as a plain sort gives them.
fn sorted(rows: &Rows, board: u8, has_scores: bool) -> Vec<Ranked> {
    let mut sorted: Vec<Ranked> = rows
        .iter()
        .filter(|((of, _), _)| *of == board)
        .map(|((_, member), (score, payload, weight))| Ranked {
            member: vec![*member],
            score: if has_scores { vec![*score] } else { Vec::new() },
            payload: vec![*payload],
            weight: *weight,
        })
        .collect();
    sorted.sort_by(|a, b| (&a.score, &a.member).cmp(&(&b.score, &b.member)));
    sorted
}

fn slot(newest: Epoch) -> (Slot, Runs) {
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
    let mut slot = Slot::new_generation(
        1,
        &NewLife {
            newest,
            cut: if newest == 0 { Cut::start() } else { cut },
            log_end: 0,
            hint: 1,
        },
    );
    slot.since.insert("v".to_owned(), 0);
    (slot, runs)
}

/// What a read finds: a sheet of epoch 1, and states of the epochs after it.
#[derive(Debug, Clone)]
struct Case {
    sheet: Rows,
    has_sheet: bool,
    has_scores: bool,
    /// By member, what it has now; put in the epoch.
    changes: Vec<(u8, Epoch)>,
    now: Rows,
}

fn cases() -> impl Strategy<Value = Case> {
    let changes = proptest::collection::vec((0_u8..45, 1_u64..4), 0..30);
    (rows(), any::<bool>(), any::<bool>(), changes, rows()).prop_map(
        |(sheet, has_sheet, has_scores, changes, now)| Case {
            sheet,
            has_sheet,
            has_scores,
            changes,
            now,
        },
    )
}

impl Case {
    /// What must be there: the sheet, with the newest states after epoch 1 in its place.
    fn expected(&self) -> Rows {
        let mut rows = if self.has_sheet {
            self.sheet.clone()
        } else {
            Rows::new()
        };
        let base = u64::from(self.has_sheet);
        for (member, epoch) in &self.changes {
            if *epoch > base {
                rows.retain(|(_, of), _| of != member);
            }
        }
        for (member, epoch) in &self.changes {
            if *epoch > base {
                let states = self.now.iter().filter(|((_, of), _)| of == member);
                rows.extend(states.map(|(key, row)| (*key, *row)));
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

#[expect(clippy::too_many_lines, reason = "one reading, asked in every way")]
async fn check_all(case: &Case) {
    let mut stored = Stored::default();
    let root = publish(&case.sheet, case.has_scores, &mut stored);
    let newest = u64::from(case.has_sheet);
    let (slot, runs) = slot(newest);
    let slots = [Some(slot)];
    let seam = Seam {
        view: "v",
        live: "v",
        newest,
        runs: &runs,
        slots: &slots,
        only: Some(0),
    };
    // Of several states of a member only the newest counts; older ones say something else.
    let mut states: Vec<(u8, Epoch, Option<Vec<u8>>)> = Vec::new();
    for (member, epoch) in &case.changes {
        let newest_of = case.changes.iter().filter(|(of, _)| of == member);
        let is_newest = newest_of.map(|(_, epoch)| epoch).max() == Some(epoch);
        let state = state(&case.now, *member, case.has_scores);
        let bytes = (!state.places.is_empty()).then(|| state.encode());
        states.push((*member, *epoch, if is_newest { bytes } else { None }));
    }
    let members: Vec<[u8; 1]> = states.iter().map(|(member, ..)| [*member]).collect();
    let live = states
        .iter()
        .zip(&members)
        .map(|((_, epoch, state), member)| LiveState {
            partition: 0,
            epoch: *epoch,
            member,
            state: state.as_deref(),
        });
    let head = case.has_sheet.then_some(Head {
        epoch: 1,
        root: &root,
    });
    let score_bytes = usize::from(case.has_scores);
    let standings = Standings::merge::<Infallible>(&seam, head, live, score_bytes).unwrap();
    let expected = case.expected();
    let boards: Vec<Vec<u8>> = (0..3).map(|board| vec![board]).collect();
    let members: Vec<_> = (0..45).map(|of| (vec![of], boards.clone())).collect();
    let states = standings.states(&stored, &members).await.unwrap();
    let of_member = |member| state(&expected, member, case.has_scores);
    assert_eq!(states, (0..45).map(of_member).collect::<Vec<_>>());
    for board in 0..3_u8 {
        let sorted = sorted(&expected, board, case.has_scores);
        let on_board = standings.board(&stored, &[board]).await.unwrap();
        let sum = on_board.sum();
        assert_eq!(sum.count, sorted.len() as u64, "board {board}");
        assert_eq!(sum.weight, sorted.iter().map(|row| row.weight).sum::<i64>());
        for offset in (0..=sorted.len()).step_by(3) {
            for limit in [1, 8] {
                let page = on_board.page(offset as u64, limit).await.unwrap();
                let until = sorted.len().min(offset + limit);
                assert_eq!(page, sorted[offset..until], "{board} {offset} {limit}");
            }
        }
        check_counts_up_to(case, &on_board, &sorted).await;
        for member in (0..45_u8).step_by(4) {
            let place = sorted.iter().position(|row| row.member == [member]);
            let found = on_board.find(&[member]).await.unwrap();
            let expected = place.map(|place| (place as u64, sorted[place].clone()));
            assert_eq!(found, expected, "{board} {member}");
        }
        let asked: Vec<[u8; 1]> = (0..45).step_by(2).map(|member| [member]).collect();
        let asked: Vec<&[u8]> = asked.iter().map(|member| &member[..]).collect();
        let some: Vec<Ranked> = sorted
            .iter()
            .filter(|row| row.member[0] % 2 == 0)
            .cloned()
            .collect();
        assert_eq!(on_board.members(&asked).await.unwrap(), some);
        check_layers(case, &on_board, board, &sorted).await;
        let root = case.has_sheet.then_some(&*root);
        check_sums((&standings, &stored), root, board, case).await;
        let mut scanned = Vec::new();
        on_board
            .scan(|row| {
                scanned.push(row);
                true
            })
            .await
            .unwrap();
        assert_eq!(scanned, sorted);
    }
}

/// A list goes on after any row, also after one that the board does not have.
async fn check_counts_up_to(case: &Case, on_board: &OnBoard<'_, Stored>, sorted: &[Ranked]) {
    let scores = if case.has_scores { 0..7_u8 } else { 0..1 };
    for score in scores {
        let score = if case.has_scores {
            vec![score]
        } else {
            Vec::new()
        };
        for member in (0..46_u8).step_by(5) {
            let key: (&[u8], &[u8]) = (&score, &[member]);
            let expected = sorted.iter().filter(|row| row.order() <= key).count();
            let count = on_board.count_up_to(key.0, key.1).await.unwrap();
            assert_eq!(count, expected as u64, "{key:?}");
        }
    }
}

/// Which layers had a part in a board, told row by row.
async fn check_layers(case: &Case, on_board: &OnBoard<'_, Stored>, board: u8, sorted: &[Ranked]) {
    let newest = u64::from(case.has_sheet);
    let is_live = |member: &[u8]| {
        let mut changes = case.changes.iter();
        changes.any(|(of, epoch)| [*of] == *member && *epoch > newest)
    };
    let old = case.has_sheet.then_some(&case.sheet).into_iter().flatten();
    let of_board = old.filter(|((of, _), _)| *of == board);
    let mut gone: Vec<u8> = of_board.map(|((_, member), _)| *member).collect();
    gone.retain(|member| is_live(&[*member]));
    let has_batch = sorted.iter().any(|row| !is_live(&row.member));
    let has_live = !gone.is_empty() || sorted.iter().any(|row| is_live(&row.member));
    assert_eq!(on_board.layers(), (has_batch, has_live), "board {board}");
    for row in sorted {
        assert_eq!(on_board.is_live(&row.member), is_live(&row.member));
    }
    gone.retain(|member| member % 2 == 0);
    let taken = on_board.taken_away(|member| member[0] % 2 == 0).await;
    let mut taken: Vec<u8> = taken.unwrap().iter().map(|row| row.member[0]).collect();
    taken.sort_unstable();
    assert_eq!(taken, gone, "board {board}");
}

/// A sum of live states says of a board what the states do, and moved on by what some members had and
/// have it is the sum of all.
async fn check_sums(
    (standings, stored): (&Standings, &Stored),
    root: Option<&[u8]>,
    board: u8,
    case: &Case,
) {
    let edition = match root {
        Some(root) => {
            let edition = Standings::of_sheet(root, standings.score_bytes).unwrap();
            edition.board(stored, &[board]).await.unwrap().sum()
        }
        None => Sum::default(),
    };
    let on_board = standings.board(stored, &[board]).await.unwrap();
    let sum = LiveSum::of(root, 1, &on_board);
    assert_eq!(sum.total(edition), Some(on_board.sum()));
    assert_eq!(sum.layers(edition), on_board.layers());
    assert_eq!(LiveSum::decode(&sum.encode()), Some(sum));
    assert_eq!(LiveSum::decode(&sum.encode()[1..]), None);
    assert!(sum.joins(root, 1) && !sum.joins(root, 2) && !sum.joins(Some(b"other"), 1));
    let touched = |member: &[u8]| member[0].is_multiple_of(3);
    let mut some = standings.clone();
    some.live.retain(|member, _| touched(member));
    let before = LiveSum::of(root, 1, &some.board(stored, &[board]).await.unwrap());
    let mut all = standings.clone();
    for member in (0..45_u8).filter(|member| touched(&[*member])) {
        let new = state(&case.now, (member + 4) % 45, case.has_scores);
        some.put(&[member], new.clone());
        all.put(&[member], new);
    }
    let after = LiveSum::of(root, 1, &some.board(stored, &[board]).await.unwrap());
    let expected = LiveSum::of(root, 1, &all.board(stored, &[board]).await.unwrap());
    assert_eq!(sum.moved(&before, &after), Some(expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn boards_are_what_a_plain_sort_gives(case in cases()) {
        check(&case);
    }
}

/// Nodes of which those are known that were read before.
#[derive(Default)]
struct Known {
    stored: Stored,
    known: Mutex<BTreeSet<NodeId>>,
    reads: AtomicUsize,
}

impl Nodes for Known {
    type Error = Infallible;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, Infallible> {
        let before = self.known.lock().unwrap().len();
        self.known.lock().unwrap().extend(ids);
        let is_read = self.known.lock().unwrap().len() > before;
        self.reads
            .fetch_add(usize::from(is_read), Ordering::Relaxed);
        self.stored.nodes(ids).await
    }
}

/// Members are looked up on one way down each tree.
#[tokio::test]
async fn many_members_cost_no_more_reads_than_one() {
    let row = |of: u8| ((of % 3, of), (of % 7, of, 1));
    let sheet: Rows = (0..200).map(row).collect();
    let mut nodes = Known::default();
    let root = publish(&sheet, true, &mut nodes.stored);
    let standings = Standings::of_sheet(&root, 1).unwrap();
    let members: Vec<_> = (0..200)
        .step_by(5)
        .map(|of| (vec![of], Vec::new()))
        .collect();
    let states = standings.states(&nodes, &members).await.unwrap();
    assert_eq!(states.len(), 40);
    let levels: usize = standings
        .sheet
        .iter()
        .flat_map(Sheet::trees)
        .map(Tree::height)
        .sum();
    let reads = nodes.reads.load(Ordering::Relaxed);
    assert!(reads <= levels, "{reads} reads, {levels} levels");
}

/// Of the batch layer's rows none is left, of all boards or of one.
#[test]
fn boards_may_be_wholly_of_newer_states() {
    let sheet = Rows::from([
        ((0, 1), (5, 0, 1)),
        ((0, 2), (6, 0, 1)),
        ((1, 2), (6, 0, 1)),
    ]);
    for now in [sheet.clone(), Rows::new()] {
        for changes in [vec![(1, 2), (2, 2)], vec![(2, 3)]] {
            for has_scores in [true, false] {
                check(&Case {
                    sheet: sheet.clone(),
                    has_sheet: true,
                    has_scores,
                    changes: changes.clone(),
                    now: now.clone(),
                });
            }
        }
    }
}

/// A head of a later run than the newest complete one: the middle of a load.
#[test]
fn a_newer_head_takes_the_place_of_states_up_to_its_epoch() {
    let mut stored = Stored::default();
    let sheet = Rows::from([((0, 1), (5, 0, 1))]);
    let root = publish(&sheet, true, &mut stored);
    let (mut slot, _) = slot(0);
    slot.position.next_offset = 10;
    slot.roll(1).unwrap();
    let sealed = Run {
        epoch: 1,
        state: RunState::Sealed,
        cuts: vec![slot.position],
        stamp_us: 1,
        token: String::new(),
    };
    let runs: Runs = [sealed].into_iter().collect();
    let slots = [Some(slot)];
    let seam = Seam {
        view: "v",
        live: "v",
        newest: 0,
        runs: &runs,
        slots: &slots,
        only: None,
    };
    let old = state(
        &Rows::from([((0, 1), (9, 0, 1)), ((0, 2), (1, 0, 1))]),
        1,
        true,
    )
    .encode();
    let live = [LiveState {
        partition: 0,
        epoch: 1,
        member: &[1],
        state: Some(&old),
    }];
    let head = Some(Head {
        epoch: 1,
        root: &root,
    });
    let standings = Standings::merge::<Infallible>(&seam, head, live, 1).unwrap();
    assert!(standings.live.is_empty(), "epoch 1 is in the head");
    let before = Standings::merge::<Infallible>(&seam, None, live, 1).unwrap();
    assert_eq!(before.live.len(), 1, "without the head it counts");
    // A boundary that is not the run's cut joins nothing.
    let mut moved = slots[0].clone().unwrap();
    moved.bounds.insert(1, Cut::start());
    let slots = [Some(moved)];
    let seam = Seam {
        slots: &slots,
        ..seam
    };
    let error = Standings::merge::<Infallible>(&seam, head, live, 1).unwrap_err();
    assert!(matches!(error, ReadError::NotWhole(_)), "{error}");
}

/// A member with states in two partitions is told, however they are read; one whose states before the
/// base are in another is not.
#[test]
fn a_member_with_states_in_two_partitions_is_told() {
    let (slot, runs) = slot(1);
    // The other partition was added after the run.
    let mut added = Slot::new_generation(
        1,
        &NewLife {
            newest: 1,
            cut: Cut::start(),
            log_end: 0,
            hint: 1,
        },
    );
    added.since.insert("v".to_owned(), 0);
    let slots = [Some(slot), Some(added)];
    let seam = Seam {
        view: "v",
        live: "v",
        newest: 1,
        runs: &runs,
        slots: &slots,
        only: None,
    };
    let state = |partition, epoch, member| LiveState {
        partition,
        epoch,
        member,
        state: None,
    };
    let (one, other): (&[u8], &[u8]) = (&[1], &[2]);
    for (expected, states) in [
        (false, vec![]),
        (false, vec![state(0, 2, one), state(1, 2, other)]),
        (false, vec![state(1, 2, one), state(1, 3, one)]),
        (false, vec![state(0, 1, one), state(1, 2, one)]),
        (true, vec![state(0, 2, one), state(1, 2, one)]),
        (true, vec![state(1, 3, one), state(0, 2, one)]),
        (
            true,
            vec![state(0, 2, one), state(0, 3, one), state(1, 2, one)],
        ),
    ] {
        for states in [states.clone(), states.into_iter().rev().collect()] {
            let standings = Standings::merge::<Infallible>(&seam, None, states.clone(), 1);
            assert_eq!(standings.unwrap().is_split(), expected, "{states:?}");
        }
    }
}
