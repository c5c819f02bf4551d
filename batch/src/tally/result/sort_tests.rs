use std::collections::BTreeMap;

use arrow::array::{StringArray, TimestampMillisecondArray, UInt32Array};
use arrow::compute::take_record_batch;
use jobs::{Catalog, EngineOptions};
use proptest::prelude::*;
use stores::archive::Archive;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::super::Written;
use super::super::read::Cursor;
use super::*;

const DAY_MS: i64 = 86_400_000;
const QUARTER_MS: i64 = 900_000;

type Dimensions = (
    i64,
    &'static str,
    Option<&'static str>,
    Option<String>,
    Option<i64>,
);

/// Owner, bucket and dimensions.
type Key = (i64, i64, Dimensions);

/// Rows of `plays_detail` by owner, bucket and dimensions, each key once.
type Given = BTreeMap<Key, i64>;

fn given() -> impl Strategy<Value = Given> {
    let text = prop::option::of(prop::sample::select(vec![
        "", "a", "a\0", "aa", "b\u{1}", "é",
    ]));
    let dimensions = (
        -2_i64..3,
        prop::sample::select(vec!["play", "download"]),
        prop::option::of(prop::sample::select(vec!["DE", "US"])),
        text.prop_map(|text| text.map(str::to_owned)),
        prop::option::of(-1_i64..2),
    );
    // Three days about the beginning of time, and few owners: many keys begin alike.
    let key = (-1_i64..2, -100_i64..190, dimensions);
    prop::collection::btree_map(key, any::<i64>(), 1..300)
}

fn batch_of(job: &Job, rows: &Given) -> RecordBatch {
    let rows: Vec<_> = rows.iter().collect();
    let ints = |of: &dyn Fn(&Key) -> Option<i64>| -> ArrayRef {
        Arc::new(rows.iter().map(|(key, _)| of(key)).collect::<Int64Array>())
    };
    let texts = |of: &dyn Fn(&Dimensions) -> Option<&str>| -> ArrayRef {
        Arc::new(
            rows.iter()
                .map(|((.., key), _)| of(key))
                .collect::<StringArray>(),
        )
    };
    let buckets = rows.iter().map(|((_, bucket, _), _)| bucket * QUARTER_MS);
    let buckets = TimestampMillisecondArray::from_iter_values(buckets).with_timezone("UTC");
    let by_name: BTreeMap<&str, ArrayRef> = BTreeMap::from([
        ("owner_id", ints(&|key| Some(key.0))),
        ("bucket", Arc::new(buckets) as ArrayRef),
        ("track_id", ints(&|key| Some(key.2.0))),
        ("kind", texts(&|key| Some(key.1))),
        ("country", texts(&|key| key.2)),
        ("referrer", texts(&|key| key.3.as_deref())),
        ("app_id", ints(&|key| key.2.4)),
        ("listener_id", ints(&|key| key.2.4.map(|id| -id))),
        (
            "count",
            Arc::new(
                rows.iter()
                    .map(|(_, count)| **count)
                    .collect::<Int64Array>(),
            ),
        ),
    ]);
    let fields = job.schema();
    let columns = fields
        .fields()
        .iter()
        .map(|field| Arc::clone(&by_name[field.name().as_str()]));
    RecordBatch::try_new(job.schema(), columns.collect()).unwrap()
}

struct World {
    runtime: Runtime,
    archive: Archive,
    engine: Engine,
    job: Arc<Job>,
    _folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spill_folder = folder.path().join("spill");
        std::fs::create_dir_all(&spill_folder).unwrap();
        let engine = Engine::new(EngineOptions {
            threads: 1,
            memory_bytes: 64 << 20,
            spill_folder,
            spill_bytes_max: 1 << 30,
        });
        let catalog = Catalog::built_in().unwrap();
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            archive: Archive::local(&folder.path().join("archive")).unwrap(),
            engine: engine.unwrap(),
            job: Arc::clone(catalog.job("plays_detail").unwrap()),
            _folder: folder,
        }
    }

    /// What is written of rows that come in some batches, and which rows those are.
    fn written(&self, batches: Vec<RecordBatch>, bytes_max: usize) -> (Written, Vec<Row>) {
        self.runtime.block_on(async {
            let files = uuid::Uuid::new_v4().to_string();
            let mut writer = PieceWriter::new(&self.archive, files, &self.job, 16 << 10);
            let mut sorter = Sorter::new(&self.job, &self.engine, bytes_max);
            let mut batches = batches.into_iter();
            let is_full = batches.by_ref().any(|batch| !sorter.take(&batch).unwrap());
            if is_full {
                let rest = futures::stream::iter(batches.map(Ok));
                let rest = RecordBatchStreamAdapter::new(self.job.schema(), rest);
                sorter
                    .spill(Box::pin(rest), &self.engine, &mut writer)
                    .await
                    .unwrap();
            } else {
                sorter.write(&mut writer).await.unwrap();
            }
            let written = writer.finish().await.unwrap();
            let mut rows = Vec::new();
            let mut cursor = Cursor::open(&self.archive, &written.pieces).await.unwrap();
            while let Some(((start, group, row), count)) = cursor.at() {
                rows.push((start, group.to_vec(), row.to_vec(), count));
                cursor.advance().await.unwrap();
            }
            (written, rows)
        })
    }
}

/// Start of the piece, group, row and count.
type Row = (UnixSeconds, Vec<u8>, Vec<u8>, i64);

/// The same rows sorted by what they are, in the plainest way.
fn expected(job: &Job, batch: &RecordBatch) -> Vec<Row> {
    let groups = job.group().encode(&batch.columns()[..1]).unwrap();
    let keys = job.row().encode(&batch.columns()[1..8]).unwrap();
    let buckets = batch.column(1).as_primitive::<TimestampMillisecondType>();
    let counts = batch.column(8).as_primitive::<Int64Type>();
    let mut rows: Vec<Row> = (0..batch.num_rows())
        .map(|row| {
            let start = buckets.value(row).div_euclid(DAY_MS) * (DAY_MS / 1000);
            (
                start,
                groups.value(row).to_vec(),
                keys.value(row).to_vec(),
                counts.value(row),
            )
        })
        .collect();
    rows.sort();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rows_come_out_in_order_with_and_without_room(
        rows in given(),
        seed in any::<prop::sample::Index>(),
        step in 1_usize..100,
    ) {
        let world = World::new();
        let batch = batch_of(&world.job, &rows);
        // Another order, and batches.
        let count = u32::try_from(batch.num_rows()).unwrap();
        let from = u32::try_from(seed.index(batch.num_rows())).unwrap();
        let turned: UInt32Array = (0..count).rev().map(|row| (row + from) % count).collect();
        let turned = take_record_batch(&batch, &turned).unwrap();
        let batches = || -> Vec<RecordBatch> {
            let starts = (0..turned.num_rows()).step_by(step);
            starts
                .map(|start| turned.slice(start, step.min(turned.num_rows() - start)))
                .collect()
        };
        let expected = expected(&world.job, &batch);
        let nulls = |column: &str| batch.column_by_name(column).unwrap().null_count() as u64;
        for bytes_max in [usize::MAX >> 1, 20_000, 0] {
            let (written, found) = world.written(batches(), bytes_max);
            prop_assert_eq!(&found, &expected, "{} bytes", bytes_max);
            for column in ["country", "referrer", "app_id", "listener_id"] {
                let of = written.pieces.values().map(|piece| piece.nulls[column]);
                prop_assert_eq!(of.sum::<u64>(), nulls(column), "{}", column);
            }
            let totals = written.pieces.values().map(|piece| piece.total);
            let total = rows.values().map(|count| i128::from(*count)).sum::<i128>();
            prop_assert_eq!(totals.sum::<i128>(), total);
        }
    }
}

#[test]
fn a_key_that_comes_twice_is_an_error() {
    let world = World::new();
    let key = (1, 5, (1, "play", None, None, None));
    let batch = batch_of(&world.job, &BTreeMap::from([(key, 1)]));
    for bytes_max in [usize::MAX >> 1, 0] {
        let outcome = world.runtime.block_on(async {
            let mut writer =
                PieceWriter::new(&world.archive, "twice".to_owned(), &world.job, 1 << 20);
            let mut sorter = Sorter::new(&world.job, &world.engine, bytes_max);
            let has_room = sorter.take(&batch).unwrap();
            assert_eq!(has_room, bytes_max > 0);
            if has_room {
                assert!(sorter.take(&batch).unwrap());
                return sorter.write(&mut writer).await;
            }
            let rest = futures::stream::iter([Ok(batch.clone())]);
            let rest = RecordBatchStreamAdapter::new(world.job.schema(), rest);
            sorter
                .spill(Box::pin(rest), &world.engine, &mut writer)
                .await
        });
        let error = outcome.expect_err("two rows have one key").to_string();
        assert!(error.contains("two rows with one key"), "{error}");
    }
}

#[test]
fn keys_are_compared_by_their_beginning_as_by_all_of_it() {
    let keys: [(&[u8], &[u8]); 5] = [
        (&[1; 8], &[2, 3]),
        (&[1; 8], &[2, 3, 4]),
        (&[1; 8], &[2, 4]),
        (&[1, 2], &[0; 20]),
        (&[255; 20], &[1]),
    ];
    for pair in keys.windows(2) {
        let [one, other] = [pair[0], pair[1]].map(|(group, row)| prefix(group, row));
        assert!(one <= other, "{pair:?}");
    }
}

#[test]
fn rows_are_sorted_where_other_queries_have_nearly_all_memory() {
    let world = World::new();
    let key = |owner: i64, bucket: i64| (owner, bucket, (1, "play", None, None, None));
    let rows: Given = (0..2_000)
        .map(|row| (key(row % 7, row - 900), row))
        .collect();
    let batch = batch_of(&world.job, &rows);
    let other = world.engine.reserve_memory("another query");
    // What a sort by the engine needs for itself is left, and little more.
    other.try_grow((64 << 20) - (11 << 20)).unwrap();
    let batches = (0..20).map(|part| batch.slice(part * 100, 100)).collect();
    let (_, found) = world.written(batches, 40_000);
    assert_eq!(found, expected(&world.job, &batch));
}

#[test]
fn a_bucket_that_does_not_begin_where_buckets_do_is_an_error() {
    let world = World::new();
    let batch = batch_of(
        &world.job,
        &BTreeMap::from([((1, 5, (1, "play", None, None, None)), 1)]),
    );
    let bucket = batch.column(1).as_primitive::<TimestampMillisecondType>();
    let late = bucket.unary::<_, TimestampMillisecondType>(|millis| millis + 60_000);
    let late = late.with_timezone("UTC");
    let mut columns = batch.columns().to_vec();
    columns[1] = Arc::new(late);
    let batch = RecordBatch::try_new(world.job.schema(), columns).unwrap();
    let mut sorter = Sorter::new(&world.job, &world.engine, usize::MAX >> 1);
    let error = sorter.take(&batch).expect_err("a minute late").to_string();
    assert!(error.contains("bucket"), "{error}");
}
