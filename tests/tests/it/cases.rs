//! The test cases of each view. The expected rows come from another program. The plain query, the
//! speed layer, the batch layer, and a merge at any cut must give the same rows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use batch::RunRequest;
use jobs::{Catalog, Job, Layers, Rollup};
use schemas::key::KeyValue;
use schemas::seam::Epoch;
use schemas::source::Source;
use serde_json::{Map, Value};
use stores::live::PartitionId;
use stores::views::{AggregateShape, PartitionQuery};
use tests::world::{PARTITIONS, World};

/// Counts by group and row, as JSON.
type Rows = BTreeMap<String, i64>;

struct Case {
    view: String,
    folder: PathBuf,
    lines: Vec<String>,
    expected: Rows,
}

/// The folder whose views are tested: the built-in views, or others (docs/tutorial.md).
fn views_to_test() -> (PathBuf, Catalog) {
    match std::env::var_os("BACKSTITCH_VIEWS").map(PathBuf::from) {
        Some(folder) => {
            let catalog = Catalog::with_custom_views(&folder).expect("the views");
            (folder, catalog)
        }
        None => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views");
            (root, Catalog::built_in().expect("the views"))
        }
    }
}

fn read_cases(root: &Path, catalog: &Catalog) -> Vec<Case> {
    let mut cases = Vec::new();
    let jobs = catalog.jobs().iter();
    for job in jobs.filter(|job| root.join(job.name()).exists()) {
        let folder = root.join(job.name()).join("cases");
        let case_count = cases.len();
        for case in std::fs::read_dir(&folder).expect("cases").flatten() {
            let case_folder = case.path();
            let lines = |file: &str| -> Vec<String> {
                let text = std::fs::read_to_string(case_folder.join(file)).expect("a case's file");
                text.lines().map(str::to_owned).collect()
            };
            let expected = lines("expected.jsonl").into_iter().map(|line| {
                let mut row: Map<String, Value> = serde_json::from_str(&line).expect("a row");
                let count = row
                    .remove("count")
                    .and_then(|n| n.as_i64())
                    .expect("a count");
                (Value::Object(row).to_string(), count)
            });
            cases.push(Case {
                view: job.name().to_owned(),
                expected: expected.collect(),
                lines: lines("input.jsonl"),
                folder: case_folder,
            });
        }
        assert!(cases.len() > case_count, "{} has no case", folder.display());
    }
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_gives_equal_counts_four_ways() {
    let (root, catalog) = views_to_test();
    for case in read_cases(&root, &catalog) {
        let folder = case.folder.display();
        let total = case.lines.len();
        for cut in [0, total / 3, total] {
            let plays = World::new().await;
            let world = plays.with_catalog(catalog.clone());
            let job = Arc::clone(world.catalog.job(&case.view).expect("the view"));
            let rollup = Rollup::find(&job, world.catalog.jobs());
            assert!(
                rollup.is_some() || job.layers() == Layers::Both,
                "{folder}: live rows of it exist"
            );
            world.ingest(&case.lines[..cut]).await;
            world.catch_up().await;
            let live = read_live_rows(&world, &job, rollup.as_ref(), 0).await;
            world.run(&RunRequest::default()).await.expect("a run");
            let batch = read_batch_rows(&world, &job, &case.lines).await;
            assert_eq!(live, batch, "{folder}: live and batch, cut at {cut}");
            if cut == total {
                assert_eq!(batch, case.expected, "{folder}: batch");
            }
            world.ingest(&case.lines[cut..]).await;
            world.catch_up().await;
            let mut stitched = batch;
            for (key, count) in read_live_rows(&world, &job, rollup.as_ref(), 1).await {
                *stitched.entry(key).or_default() += count;
            }
            assert_eq!(stitched, case.expected, "{folder}: stitched, cut at {cut}");
            world.run(&RunRequest::default()).await.expect("a run");
            let batch = read_batch_rows(&world, &job, &case.lines).await;
            assert_eq!(
                batch, case.expected,
                "{folder}: an incremental run, after a cut at {cut}"
            );
        }
    }
}

/// The live rows after epoch `after`, of the view itself or of the view that it rolls up.
async fn read_live_rows(world: &World, job: &Job, rollup: Option<&Rollup>, after: Epoch) -> Rows {
    let mut rows = Rows::new();
    for partition in 0..PARTITIONS {
        let partition_id = PartitionId {
            source: Source::Plays,
            partition,
        };
        let epochs = (after + 1, Epoch::from(u32::MAX));
        let live = &world.stores.live;
        let view = rollup.map_or(job.view(), |rollup| rollup.base().view());
        let deltas = live
            .collect_deltas(partition_id, view, epochs, None, 100_000)
            .await
            .expect("live rows");
        let matching_rows = match rollup {
            Some(rollup) => rollup.roll_up_keys(&deltas.rows).expect("keys"),
            None => deltas.rows,
        };
        for (key, count) in encode_row_keys(job, &deltas.groups, &matching_rows)
            .into_iter()
            .zip(deltas.counts.values())
        {
            *rows.entry(key).or_default() += count;
        }
    }
    rows
}

/// The batch rows of every group and time in the lines.
async fn read_batch_rows(world: &World, job: &Job, lines: &[String]) -> Rows {
    let mut partitions = std::collections::BTreeSet::new();
    for line in lines {
        let line: Value = serde_json::from_str(line).expect("a line");
        let time: jiff::Timestamp = line["at"]
            .as_str()
            .expect("a time")
            .parse()
            .expect("a time");
        let values = job.group().0.iter().map(|column| {
            let value = &line[&column.name];
            match value.as_str() {
                Some(text) => KeyValue::Text(text.to_owned()),
                None => KeyValue::Int(value.as_i64().expect("an id")),
            }
        });
        let group = job
            .group()
            .encode_values(&values.collect::<Vec<_>>())
            .expect("a group");
        let partition = AggregateShape::encode_partition_key(
            job.table_partition().floor(time.as_second()),
            &group,
        );
        partitions.insert((partition, group));
    }
    let (partitions, groups): (Vec<_>, Vec<_>) = partitions.into_iter().unzip();
    let queries = partitions.into_iter().map(|partition| PartitionQuery {
        partition,
        range: (Vec::new(), None),
    });
    let queries: Vec<PartitionQuery> = queries.collect();
    let stored = world
        .stores
        .views
        .rows(job.view(), &queries)
        .await
        .expect("batch rows")
        .expect("a table");
    let row_groups = stored
        .queries
        .values()
        .iter()
        .map(|query| groups[*query as usize].as_slice());
    let row_groups = BinaryArray::from_iter_values(row_groups);
    let mut rows = Rows::new();
    let counts = stored.counts.iter();
    for (key, count) in encode_row_keys(job, &row_groups, &stored.rows)
        .into_iter()
        .zip(counts)
    {
        if let Some(count) = count {
            assert!(rows.insert(key, count).is_none(), "a row twice");
        }
    }
    rows
}

fn encode_row_keys(job: &Job, groups: &BinaryArray, rows: &BinaryArray) -> Vec<String> {
    let mut columns = job.group().decode(groups.iter().flatten()).expect("groups");
    columns.extend(job.row().decode(rows.iter().flatten()).expect("rows"));
    let names = job
        .group()
        .0
        .iter()
        .chain(&job.row().0)
        .map(|column| &column.name);
    let names: Vec<&String> = names.collect();
    let row = |index: usize| {
        let fields = names.iter().zip(&columns);
        let fields = fields.map(|(name, column)| ((*name).clone(), column_value(column, index)));
        Value::Object(fields.collect()).to_string()
    };
    (0..groups.len()).map(row).collect()
}

fn column_value(column: &ArrayRef, index: usize) -> Value {
    if column.is_null(index) {
        return Value::Null;
    }
    if let Some(times) = column.as_primitive_opt::<TimestampMillisecondType>() {
        let time = jiff::Timestamp::from_millisecond(times.value(index)).expect("in range");
        return time.to_string().into();
    }
    match column.as_string_opt::<i32>() {
        Some(texts) => texts.value(index).into(),
        None => column.as_primitive::<Int64Type>().value(index).into(),
    }
}
