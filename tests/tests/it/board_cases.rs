//! The test cases of each board view. The expected rows come from another program. The plain query,
//! the speed layer, the batch layer, and a merge at any cut must give the same rows. Also tests a
//! view that consists of a folder only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use batch::RunRequest;
use datafusion::prelude::SessionContext;
use jobs::board::{Head, KeyBoards, LiveEntry, MemberEntries, VersionTrees};
use jobs::merge::SeamSnapshot;
use jobs::{Board, Catalog, Job, check_rows, plan_job};
use schemas::key::KeyShape;
use schemas::source::Source;
use serde_json::{Map, Value, json};
use stores::live::EntryQuery;
use tests::boards::StoredNodes;
use tests::catalog::catalog_with;
use tests::world::{PARTITIONS, World};

/// Rows as JSON.
type Rows = BTreeSet<String>;

struct Case {
    view: String,
    folder: PathBuf,
    lines: Vec<(Source, String)>,
    expected: Rows,
}

fn views_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views")
}

fn read_cases() -> Vec<Case> {
    let catalog = Catalog::built_in().expect("the views");
    let mut cases = Vec::new();
    for job in catalog.boards() {
        let folder = views_folder().join(job.name()).join("cases");
        let case_count = cases.len();
        for case in std::fs::read_dir(&folder).expect("cases").flatten() {
            let case_folder = case.path();
            let read =
                |file: &str| std::fs::read_to_string(case_folder.join(file)).expect("a file");
            let lines = read("input.jsonl");
            let lines = lines.lines().map(|line| {
                let row_by_source: BTreeMap<String, Value> =
                    serde_json::from_str(line).expect("a line");
                let (source, row) = row_by_source.into_iter().next().expect("a source");
                (source.parse().expect("a source"), row.to_string())
            });
            let expected = read("expected.jsonl");
            let rows = expected.lines().map(|line| {
                let row: Value = serde_json::from_str(line).expect("a row");
                row.to_string()
            });
            cases.push(Case {
                view: job.name().to_owned(),
                lines: lines.collect(),
                expected: rows.collect(),
                folder: case_folder.clone(),
            });
        }
        assert!(cases.len() > case_count, "{} has no case", folder.display());
    }
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_board_case_gives_equal_rows_four_ways() {
    for case in read_cases() {
        let folder = case.folder.display();
        let total = case.lines.len();
        for cut in [0, total / 2, total] {
            let world = World::new().await;
            let boards = world.catalog.boards();
            let job = boards.iter().find(|job| job.name() == case.view);
            let job = Arc::clone(job.expect("the view"));
            let source = job.source();
            world.intake(source).await;
            ingest(&world, &case.lines[..cut]).await;
            if cut == total {
                let plain = plain_rows(&world, &job).await;
                assert_eq!(plain, case.expected, "{folder}: plain query");
            }
            world.catch_up_on(source).await;
            let live = read_rows(&world, &job).await;
            if cut == total {
                assert_eq!(live, case.expected, "{folder}: live");
            }
            run(&world, source, false).await;
            assert_eq!(
                read_rows(&world, &job).await,
                live,
                "{folder}: batch, cut at {cut}"
            );
            ingest(&world, &case.lines[cut..]).await;
            world.catch_up_on(source).await;
            let stitched = read_rows(&world, &job).await;
            assert_eq!(stitched, case.expected, "{folder}: stitched at {cut}");
            run(&world, source, false).await;
            let batch = read_rows(&world, &job).await;
            assert_eq!(batch, case.expected, "{folder}: incremental after {cut}");
            run(&world, source, true).await;
            let batch = read_rows(&world, &job).await;
            assert_eq!(batch, case.expected, "{folder}: full after {cut}");
        }
    }
}

async fn ingest(world: &World, lines: &[(Source, String)]) {
    for (source, line) in lines {
        let ingested = world.ingest_into(*source, std::slice::from_ref(line)).await;
        assert_eq!(ingested.accepted, 1, "{line}: {ingested:?}");
    }
}

async fn run(world: &World, source: Source, full: bool) {
    let request = RunRequest {
        full,
        ..RunRequest::default()
    };
    let report = world.run_on(source, &request).await.expect("a run");
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}

/// The result of the query over all rows of the entity store.
async fn plain_rows(world: &World, job: &Arc<Job<Board>>) -> Rows {
    use futures::TryStreamExt;
    let entity_store = &world.stores.entities;
    let dump = entity_store
        .dump(job.source(), None, 10)
        .await
        .expect("a dump");
    let batches: Vec<_> = dump.try_collect().await.expect("rows");
    let schema = schemas::entities::schema(job.source()).expect("columns");
    let table = datafusion::catalog::MemTable::try_new(schema, vec![batches]).expect("a table");
    let context = SessionContext::new();
    let frame = plan_job(&context, job, Arc::new(table))
        .await
        .expect("a plan");
    let mut rows = Rows::new();
    for batch in frame.collect().await.expect("rows") {
        let batch = check_rows(job, &batch).expect("rows of the job's shape");
        for row in 0..batch.num_rows() {
            let columns = batch.columns().iter().zip(batch.schema_ref().fields());
            let fields = columns.map(|(column, f)| (f.name().clone(), column_value(column, row)));
            assert!(rows.insert(Value::Object(fields.collect()).to_string()));
        }
    }
    rows
}

/// All rows of all boards of all keys, as a reader merges them.
#[expect(clippy::too_many_lines, reason = "reads all layers of a key")]
async fn read_rows(world: &World, job: &Job<Board>) -> Rows {
    let mut rows = Rows::new();
    for key in list_keys(world, job).await {
        let query = EntryQuery {
            view: job.view().to_owned(),
            key: key.clone(),
            partition: None,
        };
        let runs = world.stores.views.runs(job.source()).await.expect("runs");
        let live = &world.stores.live;
        let live = live
            .read_entries(job.source(), PARTITIONS, &[query])
            .await
            .expect("states");
        let heads = world
            .stores
            .views
            .heads(job.view(), std::slice::from_ref(&key))
            .await
            .expect("heads");
        let head = heads.and_then(|mut heads| heads.pop().flatten());
        let seam = SeamSnapshot {
            view: job.view(),
            live_view: job.view(),
            newest_epoch: runs.complete_epochs.get(job.view()).copied().unwrap_or(0),
            runs: &runs.runs,
            partition_states: &live.partition_states,
            only_partition: None,
        };
        let entries = &live.entries[0];
        let live_entries = (0..entries.members.len()).map(|row| LiveEntry {
            partition: entries.partitions.value(row) as usize,
            epoch: entries.epochs.value(row),
            member: entries.members.value(row),
            entries: (!entries.entries.is_null(row)).then(|| entries.entries.value(row)),
        });
        let score_bytes = 8 * job.score().0.len();
        let head_ref = head.as_ref().map(|head| Head {
            epoch: head.epoch,
            root: &head.root,
        });
        let key_boards = KeyBoards::merge::<String>(&seam, head_ref, live_entries, score_bytes);
        let key_boards = key_boards.expect("a complete file");
        let nodes = StoredNodes {
            world,
            job,
            key: &key,
        };
        let mut boards: BTreeSet<Vec<u8>> = BTreeSet::new();
        for bytes in entries.entries.iter().flatten() {
            let decoded = MemberEntries::decode(bytes).expect("a state");
            boards.extend(decoded.entries.into_iter().map(|entry| entry.board));
        }
        if let Some(head) = &head {
            let version = VersionTrees::open(&head.root, score_bytes > 0).expect("a version");
            let by_rank = version.trees().next().expect("a tree");
            let items = by_rank.slice(&nodes, 0, 100_000).await.expect("items");
            let length = 8 * job.board_columns().0.len();
            boards.extend(items.iter().map(|item| item.key()[..length].to_vec()));
        }
        for board in boards {
            let board_reader = key_boards
                .open_board(&nodes, &board)
                .await
                .expect("a board");
            let mut board_rows = Vec::new();
            board_reader
                .scan(|row| {
                    board_rows.push(row);
                    true
                })
                .await
                .expect("rows");
            assert_eq!(board_reader.sum().count, board_rows.len() as u64);
            for row in board_rows {
                let mut fields = Map::new();
                for (shape, bytes) in [
                    (job.key(), &key),
                    (job.board_columns(), &board),
                    (job.member(), &row.member),
                    (job.score(), &row.score),
                    (job.payload(), &row.payload),
                ] {
                    fields.extend(decode_fields(shape, bytes));
                }
                let weight = job.weight().expect("a weight");
                fields.insert(weight.to_owned(), row.weight.into());
                assert!(
                    rows.insert(Value::Object(fields).to_string()),
                    "a row twice"
                );
            }
        }
    }
    rows
}

/// All keys that have rows.
async fn list_keys(world: &World, job: &Job<Board>) -> BTreeSet<Vec<u8>> {
    use futures::TryStreamExt;
    let entity_store = &world.stores.entities;
    let dump = entity_store
        .dump(job.source(), None, 10)
        .await
        .expect("a dump");
    let batches: Vec<_> = dump.try_collect().await.expect("rows");
    let column = schemas::entities::key_column(job.source());
    let mut keys = BTreeSet::new();
    for batch in batches {
        let column = batch.column_by_name(column).expect("the key");
        let encoded = job
            .key()
            .encode(std::slice::from_ref(column))
            .expect("keys");
        keys.extend(encoded.iter().flatten().map(<[u8]>::to_vec));
    }
    keys
}

fn decode_fields(shape: &KeyShape, bytes: &[u8]) -> Vec<(String, Value)> {
    let columns = shape.decode(std::iter::once(bytes)).expect("a key");
    let names = shape.0.iter().map(|column| column.name.clone());
    names
        .zip(columns.iter().map(|column| column_value(column, 0)))
        .collect()
}

fn column_value(column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    if let Some(times) = column.as_primitive_opt::<TimestampMicrosecondType>() {
        let time = jiff::Timestamp::from_microsecond(times.value(row)).expect("in range");
        return time.to_string().into();
    }
    match column.as_string_opt::<i32>() {
        Some(texts) => texts.value(row).into(),
        None => column.as_primitive::<Int64Type>().value(row).into(),
    }
}

/// A view is a folder: no other code mentions it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_board_needs_only_a_folder() {
    let old = World::new().await;
    let effort = |id: i64, athlete: i64, time: i64| {
        let row = json!({
            "id": id, "segment_id": 5, "athlete_id": athlete, "activity_id": 1,
            "elapsed_time": time, "started_at": "2026-01-01T00:00:00Z",
        });
        row.to_string()
    };
    let efforts = [effort(1, 1, 10), effort(2, 2, 30), effort(3, 1, 15)];
    old.ingest_into(Source::Efforts, &efforts).await;
    old.catch_up_on(Source::Efforts).await;
    run(&old, Source::Efforts, false).await;

    let totals = (
        "segment_totals",
        "kind = \"board\"\nboard = \"totals\"\nsource = \"efforts\"\nlayers = \"both\"\n\
         key = \"segment_id\"\nmember = \"athlete_id\"\nscore = [\"total_time\"]\n\
         shown = [\"longest\"]\n",
        "SELECT segment_id, athlete_id, sum(elapsed_time) AS total_time, max(elapsed_time) AS longest
         FROM efforts WHERE NOT is_deleted GROUP BY segment_id, athlete_id",
    );
    let world = old.with_catalog(catalog_with(&[totals]));
    let served = world.serve().await;
    let path = "/api/v1/boards/totals/5";
    let get = |path: &'static str| {
        let client = served.client.clone();
        async move {
            tokio::task::spawn_blocking(move || client.get(path))
                .await
                .expect("a response")
        }
    };
    // The view has no rows yet, and the API says so.
    let (status, body) = get(path).await;
    assert_eq!(status, 503, "{body}");
    world
        .ingest_into(Source::Efforts, &[effort(4, 2, 1), effort(5, 3, 26)])
        .await;
    world.catch_up_on(Source::Efforts).await;
    run(&world, Source::Efforts, false).await;
    let entry = |rank: u64, athlete: i64, total: i64, longest: i64| {
        json!({
            "rank": rank, "athlete_id": athlete, "total_time": total, "longest": longest,
        })
    };
    let answer = served.client.fetch_json(path).await;
    let expected = [
        entry(1, 1, 25, 15),
        entry(2, 3, 26, 26),
        entry(3, 2, 31, 30),
    ];
    assert_eq!(answer["entries"], json!(expected));
    world.ingest_into(Source::Efforts, &[effort(2, 2, 2)]).await;
    world.catch_up_on(Source::Efforts).await;
    let answer = served.client.fetch_json(path).await;
    let expected = [entry(1, 2, 3, 2), entry(2, 1, 25, 15), entry(3, 3, 26, 26)];
    assert_eq!(answer["entries"], json!(expected));
    // The view has one board per key, so other board names are refused.
    let (status, body) = get("/api/v1/boards/totals/5?board=overall").await;
    assert_eq!(status, 400, "{body}");
    served.end().await;
}
