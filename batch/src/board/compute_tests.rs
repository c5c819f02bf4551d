use jobs::{Catalog, EngineOptions};
use proptest::prelude::*;
use schemas::entities::{EffortColumns, EffortRow};
use schemas::source::Source;
use tempfile::TempDir;
use tokio::runtime::Runtime;

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

    /// What a job makes of rows.
    fn made(&self, job: &Job<Board>, rows: &[RecordBatch]) -> RecordBatch {
        let schema = entities::schema(job.source()).unwrap();
        self.runtime.block_on(async {
            let stream = self.compute.sorted(job, schema, rows).await.unwrap();
            let made: Vec<RecordBatch> = stream.try_collect().await.unwrap();
            arrow::compute::concat_batches(&job.schema(), &made).unwrap()
        })
    }

    /// Whether a job's query over rows that come by key does so too, and what it gives then.
    fn by_key(&self, job: &Job<Board>, rows: &[RecordBatch]) -> Option<Vec<RecordBatch>> {
        let schema = entities::schema(job.source()).unwrap();
        assert!(key_in_order(job, rows).is_some(), "rows in order");
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
    ) {
        efforts.sort_by_key(|effort| effort.0);
        let job = segment_boards();
        let world = World::new(vec![Arc::clone(&job)]);
        let rows = batches(&efforts);
        let whole = world.made(&job, &rows);
        let by_key = world.by_key(&job, &rows).expect("it comes by key");
        let by_key = arrow::compute::concat_batches(&whole.schema(), &by_key).unwrap();
        prop_assert_eq!(&by_key, &whole);
        // The same rows in an order of no key are sorted at once.
        let backwards: Vec<RecordBatch> = rows.into_iter().rev().collect();
        prop_assert_eq!(world.made(&job, &backwards), whole);
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
            "SELECT one.segment_id, one.athlete_id, count(*) AS efforts FROM efforts AS one
             JOIN efforts AS other ON one.segment_id = other.segment_id
             GROUP BY one.segment_id, one.athlete_id",
            false,
        ),
    ] {
        let job = board_of(sql);
        let world = World::new(vec![Arc::clone(&job)]);
        assert_eq!(world.by_key(&job, &rows).is_some(), stays, "{sql}");
        let made = world.made(&job, &rows);
        let keys = made.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert!(keys.is_sorted() && !keys.is_empty(), "{sql}: {keys:?}");
    }
}

#[test]
fn rows_are_by_key_only_where_they_are() {
    let job = segment_boards();
    let of = |efforts: &[Effort]| key_in_order(&job, &batches(efforts)).is_some();
    assert!(of(&[
        (i64::MIN, 1, 1, None),
        (-1, 1, 1, None),
        (-1, 2, 1, None),
        (5, 1, 1, None)
    ]));
    assert!(!of(&[(1, 1, 1, None), (0, 1, 1, None)]));
    let many = vec![(1, 1, 1, None); KEY_ROWS_MAX + 1];
    assert!(!of(&many) && of(&many[1..]));
    assert!(of(&[]));
}
