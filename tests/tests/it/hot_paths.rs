//! Hot paths, each between two marks. `deploy/instructions` counts the instructions between them,
//! which a noisy machine does not disturb, and compares the counts with `tests/instructions.txt`.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;

use jobs::merge::{BatchRow, LiveDelta, SeamSnapshot, merge};
use jobs::tree::{Node, NodeId, NodeReader, Tree, TreeBuilder, TreeOptions};
use jobs::{AggregateFold, Catalog, Engine, EngineOptions, Job, Layers};
use schemas::avro::WriterSchemas;
use schemas::plays::{DecodedPlays, Decoder, Line};
use schemas::seam::{Checkpoint, Cut, PartitionState, Run, RunState, Runs};
use schemas::source::Source;
use serde_json::json;
use stores::Stores;
use stores::live::{Changes, Deltas};
use tests::conformance::{new_generation, state_id};

/// Events of a micro-batch.
const EVENTS: i64 = 1_000;
/// Rows to merge; every other one has a delta.
const ROWS: u64 = 2_000;
/// Members of a board, and how many of them have an entry.
const MEMBERS: u64 = 20_000;
const ENTRIES: u64 = 100;

/// The counter writes its count since the previous mark.
#[inline(never)]
fn hot_path_mark(path: &str) {
    black_box(path);
}

/// Runs work between two marks; its asynchronous parts complete before the second mark.
#[expect(clippy::print_stdout, reason = "the script reads which path is which")]
async fn between_marks<T>(path: &str, work: impl Future<Output = T>) -> T {
    println!("hot path {path}");
    hot_path_mark(path);
    let result = black_box(work.await);
    hot_path_mark(path);
    result
}

fn play_lines() -> Vec<Vec<u8>> {
    let line = |n: i64| {
        let country = ["DE", "SE", "US"].get(usize::try_from(n % 3).unwrap_or(0));
        let line = json!({
            "event_id": format!("event-{n}"), "track_id": n % 97, "owner_id": n % 13, "listener_id": n % 301,
            "kind": "play", "country": country,
            "app": "ios", "referrer": format!("https://example.org/{}", n % 29),
            "at": format!("2026-03-{:02}T{:02}:{:02}:00Z", 1 + n % 3, n % 24, n % 60),
        });
        line.to_string().into_bytes()
    };
    (0..EVENTS).map(line).collect()
}

fn decode_plays(lines: &[Vec<u8>]) -> DecodedPlays {
    let lines = (0..).zip(lines).map(|(offset, bytes)| Line {
        offset,
        logged_at_ms: 1_772_000_000_000,
        bytes,
    });
    let decoded = Decoder::new(0).decode_records(lines, &WriterSchemas::default());
    decoded.expect("decoding")
}

async fn fold_plays(fold: &AggregateFold, decoded: &DecodedPlays) -> Vec<Deltas> {
    let folded = fold.run(&decoded.events).await.expect("folding");
    let deltas = folded.into_iter().map(|output| Deltas {
        view: output.job.view().to_owned(),
        grouped_by: output.job.group().join_names(),
        groups: output.groups,
        rows: output.rows,
        counts: output.counts,
    });
    deltas.collect()
}

fn checkpoint(next_offset: i64) -> Checkpoint {
    Checkpoint {
        generation: 1,
        next_offset,
        epoch: 1,
    }
}

const fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

/// Rows of a completed run, and deltas of the epoch after it.
fn merge_rows(keys: &[[u8; 8]]) -> usize {
    let run = Run {
        epoch: 1,
        state: RunState::Complete,
        cuts: vec![cut(5)],
        stamp_us: 1,
        token: String::new(),
    };
    let states = [Some(PartitionState {
        generation: 1,
        position: cut(9),
        epoch: 2,
        oldest: 1,
        bounds: [(0, cut(0)), (1, cut(5))].into(),
        since: [("v@1".to_owned(), 0)].into(),
        replay_until: 0,
        misrouted_epoch: None,
    })];
    let seam = SeamSnapshot {
        view: "v@1",
        live_view: "v@1",
        newest_epoch: 1,
        runs: &Runs::from_iter([run]),
        partition_states: &states,
        only_partition: None,
    };
    let rows = keys.iter().map(|key| BatchRow {
        key,
        count: Some(3),
        epoch: 1,
    });
    let deltas = keys.iter().step_by(2).map(|key| LiveDelta {
        key,
        epoch: 2,
        count: 1,
    });
    merge(&seam, rows, deltas).expect("merging").len()
}

/// The nodes of a tree in memory.
struct InMemory(std::collections::HashMap<NodeId, Arc<Node>>);

impl NodeReader for InMemory {
    type Error = Infallible;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, Infallible> {
        Ok(ids.iter().map(|id| self.0.get(id).cloned()).collect())
    }
}

fn build_board() -> (Tree, InMemory) {
    let mut builder = TreeBuilder::new(TreeOptions::default());
    for member in 0..MEMBERS {
        let key = member.to_be_bytes();
        builder.push(&key, 1, &key).expect("an item");
    }
    let built = builder.finish();
    let nodes = built.nodes.iter();
    let nodes = nodes.map(|(id, bytes)| (*id, Arc::new(Node::decode(bytes).expect("a node"))));
    let tree = Tree::open(&built.root).expect("a tree");
    (tree, InMemory(nodes.collect()))
}

/// Other tests check the results; this one only runs the paths.
#[tokio::test]
#[ignore = "deploy/instructions counts it"]
async fn hot_paths() {
    let folder = tempfile::tempdir().expect("a folder");
    let stores = Stores::embedded(folder.path()).await.expect("stores");
    let engine = Engine::new(EngineOptions {
        threads: 1,
        memory_bytes: 256 << 20,
        spill_folder: folder.path().to_owned(),
        spill_bytes_max: 1 << 30,
    });
    let catalog = Catalog::built_in().expect("the catalog");
    let jobs = catalog.jobs_in_layer(Source::Plays, Layers::Speed);
    let jobs: Vec<Arc<Job>> = jobs.cloned().collect();
    let plans = AggregateFold::new(&engine.expect("an engine"), &jobs).await;
    let plans = plans.expect("plans");
    let lines = play_lines();
    // Work that happens only once, such as growing buffers and reading time zones, is not counted.
    let deltas = fold_plays(&plans, &decode_plays(&lines)).await;
    let (live, views) = (&*stores.live, plans.views());
    let rebuilt = live
        .rebuild(state_id(0), None, &new_generation(0, 0, 1))
        .await;
    rebuilt.expect("rebuilding").expect("a partition state");
    let step = async |from: i64, deltas: Vec<Deltas>| {
        let changes = Changes {
            deltas,
            ..Changes::default()
        };
        let applied = live.apply(
            state_id(0),
            checkpoint(from),
            cut(from + EVENTS),
            &views,
            &changes,
        );
        applied
            .await
            .expect("applying")
            .expect("the current checkpoint");
    };
    step(0, deltas).await;

    let decoded = between_marks("decode", async { decode_plays(&lines) }).await;
    let deltas = between_marks("fold", fold_plays(&plans, &decoded)).await;
    let counted: i64 = deltas[0].counts.values().iter().sum();
    assert_eq!(counted, EVENTS, "{} counts every play", deltas[0].view);
    between_marks("apply", step(EVENTS, deltas)).await;
    let keys: Vec<[u8; 8]> = (0..ROWS).map(u64::to_be_bytes).collect();
    let values = between_marks("merge", async { merge_rows(&keys) }).await;
    assert_eq!(values, keys.len());
    let (tree, nodes) = build_board();
    let members: Vec<[u8; 8]> = (0..ENTRIES)
        .map(|n| (n * (MEMBERS / ENTRIES)).to_be_bytes())
        .collect();
    let members: Vec<&[u8]> = members.iter().map(<[u8; 8]>::as_slice).collect();
    let ranks = between_marks("rank", tree.ranks(&nodes, &members)).await;
    let ranks = ranks.expect("places").into_iter();
    let expected = (0..ENTRIES).map(|n| n * (MEMBERS / ENTRIES));
    assert!(ranks.map(|preceding| preceding.count).eq(expected));
}
