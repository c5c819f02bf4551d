use jobs::{Catalog, EngineOptions};
use proptest::prelude::*;
use schemas::entities::{EffortBatchBuilder, EffortRow};
use schemas::source::Source;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use super::*;

/// Segment, athlete, seconds, and the athlete's birth year.
type Effort = (i64, i64, i64, Option<i64>);

struct World {
    runtime: Runtime,
    compute: BoardComputation,
    _folder: TempDir,
}

impl World {
    fn new(jobs: Vec<Arc<Job<Board>>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::new(EngineOptions {
            threads: 1,
            memory_bytes: 64 << 20,
            spill_folder: folder.path().to_owned(),
            spill_bytes_max: 1 << 30,
        });
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            compute: BoardComputation {
                engine: engine.unwrap(),
                archive: Archive::local(folder.path()).unwrap(),
                files: "results".to_owned(),
                result_bytes_max: 1 << 20,
                jobs,
            },
            _folder: folder,
        }
    }

    /// Runs a job where keys with more than `rows_max` rows are ranges of their own.
    fn results(&self, job: &Job<Board>, rows: &[RecordBatch], rows_max: usize) -> RecordBatch {
        let schema = entities::schema(job.source()).unwrap();
        self.runtime.block_on(async {
            let mut results = Vec::new();
            let key_ranges = self.compute.divide_by_key(job, &schema, rows, rows_max);
            for key_range in key_ranges.await.unwrap() {
                let stream = self
                    .compute
                    .compute_sorted_rows(job, &schema, &key_range)
                    .await
                    .unwrap();
                results.extend(stream.try_collect::<Vec<RecordBatch>>().await.unwrap());
            }
            arrow::compute::concat_batches(&job.schema(), &results).unwrap()
        })
    }

    /// Returns the rows of a query that preserves the order of keys.
    fn by_key(&self, job: &Job<Board>, rows: &[RecordBatch]) -> Option<Vec<RecordBatch>> {
        let schema = entities::schema(job.source()).unwrap();
        let key_ranges = split_by_key(job, rows, KEY_ROWS_MAX);
        assert!(key_ranges[0].is_by_key, "rows in key order");
        self.runtime.block_on(async {
            let stream = self.compute.compute_rows_by_key(job, &schema, rows).await;
            Some(stream.unwrap()?.try_collect().await.unwrap())
        })
    }
}

/// Returns rows in small batches.
fn batches(efforts: &[Effort]) -> Vec<RecordBatch> {
    let mut columns = EffortBatchBuilder::default();
    let mut batches = Vec::new();
    for (id, (segment_id, athlete_id, elapsed_time_s, birth_year)) in (0..).zip(efforts) {
        let row = EffortRow {
            id,
            segment_id: *segment_id,
            athlete_id: *athlete_id,
            activity_id: id,
            elapsed_time_s: *elapsed_time_s,
            started_at_us: id * 40_000_000_000,
            tz: "UTC",
            is_hidden: id % 11 == 3,
            is_deleted: false,
            gender: ["F", "M"]
                .get(usize::try_from(athlete_id % 3).unwrap_or(2))
                .copied(),
            birth_year: *birth_year,
            weight_kg: birth_year.map(|_| 70.0),
            athlete_is_deleted: false,
            athlete_is_disqualified: *athlete_id == 4,
        };
        columns.push(&row).unwrap();
        if columns.len() == 5 {
            batches.push(columns.finish().unwrap());
        }
    }
    batches.push(columns.finish().unwrap());
    batches
}

fn segment_boards() -> Arc<Job<Board>> {
    let catalog = Catalog::built_in().unwrap();
    let mut boards = catalog.boards().iter();
    Arc::clone(boards.find(|job| job.source() == Source::Efforts).unwrap())
}

/// Returns a board with another query.
fn board_with_query(sql: &str) -> Arc<Job<Board>> {
    let folder = tempfile::tempdir().unwrap();
    let view = folder.path().join("other");
    std::fs::create_dir(&view).unwrap();
    let definition = "kind = \"board\"\nboard = \"others\"\nsource = \"efforts\"\nlayers = \"both\"\n\
                      key = \"segment_id\"\nmember = \"athlete_id\"\nweight = \"efforts\"\n";
    std::fs::write(view.join("job.toml"), definition).unwrap();
    std::fs::write(view.join("query.sql"), sql).unwrap();
    let catalog = Catalog::read(folder.path()).unwrap();
    Arc::clone(&catalog.boards()[0])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn computing_keys_separately_equals_computing_all_at_once(
        mut efforts in prop::collection::vec((-2_i64..4, 0_i64..6, 1_i64..4, prop::option::of(1950_i64..2010)), 2..60),
        rows_max in 1_usize..20,
    ) {
        efforts.sort_by_key(|effort| effort.0);
        let job = segment_boards();
        let world = World::new(vec![Arc::clone(&job)]);
        let rows = batches(&efforts);
        let expected = world.results(&job, &rows, KEY_ROWS_MAX);
        // Some or all keys are too large to share a range.
        prop_assert_eq!(&world.results(&job, &rows, rows_max), &expected);
        let by_key = world.by_key(&job, &rows).expect("key order is preserved");
        let by_key = arrow::compute::concat_batches(&expected.schema(), &by_key).unwrap();
        prop_assert_eq!(&by_key, &expected);
        // Rows that are not in key order are one range.
        let backwards: Vec<RecordBatch> = rows.into_iter().rev().collect();
        prop_assert_eq!(world.results(&job, &backwards, rows_max), expected);
    }
}

#[test]
fn sorts_all_rows_if_the_query_does_not_preserve_key_order() {
    let efforts: Vec<Effort> = (0..40).map(|at| (at / 9, at % 7, 1, None)).collect();
    let rows = batches(&efforts);
    for (sql, preserves_order) in [
        (
            "SELECT segment_id, athlete_id, count(*) AS efforts FROM efforts GROUP BY segment_id, athlete_id",
            true,
        ),
        (
            "SELECT segment_id, athlete_id, count(*) AS efforts FROM efforts GROUP BY athlete_id, segment_id",
            false,
        ),
        (
            "SELECT segment_id, athlete_id, count(*) AS efforts FROM efforts
             GROUP BY GROUPING SETS ((segment_id, athlete_id), (segment_id, athlete_id, day))",
            false,
        ),
        (
            "SELECT -segment_id AS segment_id, athlete_id, count(*) AS efforts FROM efforts GROUP BY 1, 2",
            false,
        ),
        (
            "SELECT one.segment_id, one.athlete_id, count(*) AS efforts FROM efforts AS one
             JOIN efforts AS other ON one.segment_id = other.segment_id
             GROUP BY one.segment_id, one.athlete_id",
            false,
        ),
    ] {
        let job = board_with_query(sql);
        let world = World::new(vec![Arc::clone(&job)]);
        assert_eq!(
            world.by_key(&job, &rows).is_some(),
            preserves_order,
            "{sql}"
        );
        let results = world.results(&job, &rows, 5);
        let keys = results
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .to_vec();
        assert!(keys.is_sorted() && !keys.is_empty(), "{sql}: {keys:?}");
    }
}

/// Returns the number of rows of each range, and whether it is in key order.
fn key_ranges(efforts: &[Effort], rows_max: usize) -> Vec<(usize, bool)> {
    let key_ranges = split_by_key(&segment_boards(), &batches(efforts), rows_max);
    let ranges = key_ranges.iter().map(|key_range| {
        let rows = key_range.rows.iter().map(RecordBatch::num_rows).sum();
        (rows, key_range.is_by_key)
    });
    ranges.collect()
}

#[test]
fn splits_large_keys_and_detects_unordered_rows() {
    let split = |keys: &[i64], rows_max| {
        let efforts: Vec<Effort> = keys.iter().map(|key| (*key, 1, 1, None)).collect();
        key_ranges(&efforts, rows_max)
    };
    assert_eq!(split(&[i64::MIN, -1, -1, 5], 2), [(4, true)]);
    assert_eq!(split(&[1, 0], 2), [(2, false)]);
    assert_eq!(split(&[1, 1, 0], 1), [(3, false)]);
    assert_eq!(split(&[1, 1, 1], 3), [(3, true)]);
    assert_eq!(split(&[1, 1, 1], 2), [(3, false)]);
    assert_eq!(
        split(&[1, 2, 2, 2, 3, 4, 5, 5, 5, 6, 6, 6], 2),
        [(1, true), (3, false), (2, true), (3, false), (3, false)]
    );
    assert_eq!(split(&[i64::MIN, i64::MIN, 7], 1), [(2, false), (1, true)]);
    assert_eq!(split(&[], 2), []);
}
