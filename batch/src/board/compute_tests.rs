use jobs::{Catalog, EngineOptions};
use proptest::prelude::*;
use schemas::entities::{EffortColumns, EffortRow};
use schemas::source::Source;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use super::*;

/// Segment, athlete, seconds, and how the athlete is.
type Effort = (i64, i64, i64, Option<i64>);

struct World {
    runtime: Runtime,
    compute: Compute,
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
            compute: Compute {
                engine: engine.unwrap(),
                archive: Archive::local(folder.path()).unwrap(),
                files: "results".to_owned(),
                result_bytes_max: 1 << 20,
                jobs,
            },
            _folder: folder,
        }
    }

    /// What a job makes of rows where keys of more than so many are computed by themselves.
    fn made(&self, job: &Job<Board>, rows: &[RecordBatch], rows_max: usize) -> RecordBatch {
        let schema = entities::schema(job.source()).unwrap();
        self.runtime.block_on(async {
            let mut made = Vec::new();
            let stretches = self.compute.stretches(job, &schema, rows, rows_max);
            for stretch in stretches.await.unwrap() {
                let stream = self.compute.sorted(job, &schema, &stretch).await.unwrap();
                made.extend(stream.try_collect::<Vec<RecordBatch>>().await.unwrap());
            }
            arrow::compute::concat_batches(&job.schema(), &made).unwrap()
        })
    }

    /// Whether a job's query over rows that come by key does so too, and what it gives then.
    fn by_key(&self, job: &Job<Board>, rows: &[RecordBatch]) -> Option<Vec<RecordBatch>> {
        let schema = entities::schema(job.source()).unwrap();
        let stretches = cut(job, rows, KEY_ROWS_MAX);
        assert!(stretches[0].is_by_key, "rows in order");
        self.runtime.block_on(async {
            let stream = self.compute.sorted_within_keys(job, &schema, rows).await;
            Some(stream.unwrap()?.try_collect().await.unwrap())
        })
    }
}

/// Rows in batches of a few.
fn batches(efforts: &[Effort]) -> Vec<RecordBatch> {
    let mut columns = EffortColumns::default();
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

/// A board whose query is another one.
fn board_of(sql: &str) -> Arc<Job<Board>> {
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
    fn keys_by_themselves_are_as_all_at_once(
        mut efforts in prop::collection::vec((-2_i64..4, 0_i64..6, 1_i64..4, prop::option::of(1950_i64..2010)), 2..60),
        rows_max in 1_usize..20,
    ) {
        efforts.sort_by_key(|effort| effort.0);
        let job = segment_boards();
        let world = World::new(vec![Arc::clone(&job)]);
        let rows = batches(&efforts);
        let whole = world.made(&job, &rows, KEY_ROWS_MAX);
        // Some keys, or all of them, are too large to be with others.
        prop_assert_eq!(&world.made(&job, &rows, rows_max), &whole);
        let by_key = world.by_key(&job, &rows).expect("it comes by key");
        let by_key = arrow::compute::concat_batches(&whole.schema(), &by_key).unwrap();
        prop_assert_eq!(&by_key, &whole);
        // The same rows in an order of no key are sorted at once.
        let backwards: Vec<RecordBatch> = rows.into_iter().rev().collect();
        prop_assert_eq!(world.made(&job, &backwards, rows_max), whole);
    }
}

#[test]
fn a_query_that_leaves_the_order_of_keys_is_sorted_at_once() {
    let efforts: Vec<Effort> = (0..40).map(|at| (at / 9, at % 7, 1, None)).collect();
    let rows = batches(&efforts);
    for (sql, stays) in [
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
        let job = board_of(sql);
        let world = World::new(vec![Arc::clone(&job)]);
        assert_eq!(world.by_key(&job, &rows).is_some(), stays, "{sql}");
        let made = world.made(&job, &rows, 5);
        let keys = made.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert!(keys.is_sorted() && !keys.is_empty(), "{sql}: {keys:?}");
    }
}

/// How many rows each stretch has, and whether they come by key.
fn stretches(efforts: &[Effort], rows_max: usize) -> Vec<(usize, bool)> {
    let stretches = cut(&segment_boards(), &batches(efforts), rows_max);
    let told = stretches.iter().map(|stretch| {
        let rows = stretch.rows.iter().map(RecordBatch::num_rows).sum();
        (rows, stretch.is_by_key)
    });
    told.collect()
}

#[test]
fn rows_are_by_key_only_where_they_are() {
    let of = |keys: &[i64], rows_max| {
        let efforts: Vec<Effort> = keys.iter().map(|key| (*key, 1, 1, None)).collect();
        stretches(&efforts, rows_max)
    };
    assert_eq!(of(&[i64::MIN, -1, -1, 5], 2), [(4, true)]);
    assert_eq!(of(&[1, 0], 2), [(2, false)]);
    assert_eq!(of(&[1, 1, 0], 1), [(3, false)]);
    assert_eq!(of(&[1, 1, 1], 3), [(3, true)]);
    assert_eq!(of(&[1, 1, 1], 2), [(3, false)]);
    assert_eq!(
        of(&[1, 2, 2, 2, 3, 4, 5, 5, 5, 6, 6, 6], 2),
        [(1, true), (3, false), (2, true), (3, false), (3, false)]
    );
    assert_eq!(of(&[i64::MIN, i64::MIN, 7], 1), [(2, false), (1, true)]);
    assert_eq!(of(&[], 2), []);
}
