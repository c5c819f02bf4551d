use std::collections::BTreeMap;

use arrow::array::{BinaryArray, Int64Array};
use jobs::Catalog;
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::super::Written;
use super::*;

const DAY_SECONDS: UnixSeconds = 86_400;

/// By day: owner, track and kind, each with its count.
type Days = BTreeMap<i64, BTreeMap<(i64, i64, &'static str), i64>>;

fn days() -> impl Strategy<Value = Days> {
    let kind = prop::sample::select(vec!["play", "download", ""]);
    let rows = prop::collection::btree_map((-2_i64..3, -2_i64..3, kind), -5_i64..6, 1..20);
    // Two months about the beginning of time.
    prop::collection::btree_map(-31_i64..31, rows, 0..20)
}

struct World {
    runtime: Runtime,
    archive: Archive,
    catalog: Catalog,
    _folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            archive: Archive::local(folder.path()).unwrap(),
            catalog: Catalog::built_in().unwrap(),
            _folder: folder,
        }
    }

    fn job(&self, name: &str) -> &Job {
        self.catalog.job(name).unwrap()
    }

    fn writer<'a>(&'a self, job: &'a Job) -> PieceWriter<'a> {
        let files = uuid::Uuid::new_v4().to_string();
        PieceWriter::new(&self.archive, files, job, 1 << 20)
    }

    /// Day pieces with these rows.
    fn written(&self, days: &Days) -> Written {
        let job = self.job("plays_owner_day_track");
        let mut writer = self.writer(job);
        self.runtime.block_on(async {
            for (day, rows) in days {
                let start = day * DAY_SECONDS;
                let keyed = keyed(job, start, rows.iter().map(|(key, count)| (*key, *count)));
                writer.write_keyed(start, &keyed).await.unwrap();
            }
            writer.finish().await.unwrap()
        })
    }

    fn merged(&self, days: &Written) -> Result<Written> {
        let (job, under) = (
            self.job("plays_owner_month_track"),
            self.job("plays_owner_day_track"),
        );
        assert!(job.sums_time_partitions_of(under));
        let mut months: BTreeMap<UnixSeconds, Vec<(&UnixSeconds, &Piece)>> = BTreeMap::new();
        for (start, piece) in &days.pieces {
            let month = job.time_partition().floor(*start);
            months.entry(month).or_default().push((start, piece));
        }
        let mut writer = self.writer(job);
        self.runtime.block_on(async {
            for (start, pieces) in months {
                merge(&self.archive, (job, start), (under, &pieces), &mut writer).await?;
            }
            writer.finish().await
        })
    }

    fn rows(&self, of: &Written) -> Vec<(UnixSeconds, Vec<u8>, Vec<u8>, i64)> {
        self.runtime.block_on(async {
            let mut rows = Vec::new();
            let mut cursor = Cursor::open(&self.archive, &of.pieces).await.unwrap();
            while let Some(((start, group, row), count)) = cursor.at() {
                rows.push((start, group.to_vec(), row.to_vec(), count));
                cursor.advance().await.unwrap();
            }
            rows
        })
    }
}

/// Rows of one bucket of owner, track and kind, in the order of their keys.
fn keyed(
    job: &Job,
    bucket: UnixSeconds,
    rows: impl Iterator<Item = ((i64, i64, &'static str), i64)>,
) -> Keyed {
    let encoded = rows.map(|((owner, track, kind), count)| {
        let group = job.group().encode_values(&[KeyValue::Int(owner)]).unwrap();
        let row = [
            KeyValue::Time(bucket),
            KeyValue::Int(track),
            KeyValue::Text(kind.to_owned()),
        ];
        (group, job.row().encode_values(&row).unwrap(), count)
    });
    let mut encoded: Vec<_> = encoded.collect();
    encoded.sort();
    let groups = encoded.iter().map(|(group, ..)| Some(group.as_slice()));
    let keys = encoded.iter().map(|(_, row, _)| Some(row.as_slice()));
    (
        groups.collect::<BinaryArray>(),
        keys.collect::<BinaryArray>(),
        encoded
            .iter()
            .map(|(.., count)| *count)
            .collect::<Int64Array>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn months_are_the_sums_of_their_days(days in days()) {
        let world = World::new();
        let month = world.job("plays_owner_month_track");
        let mut expected: Days = BTreeMap::new();
        for (day, rows) in &days {
            let of = expected.entry(month.time_partition().floor(day * DAY_SECONDS)).or_default();
            for (key, count) in rows {
                *of.entry(*key).or_default() += count;
            }
        }
        let expected: Vec<_> = expected
            .iter()
            .flat_map(|(start, rows)| {
                let rows = rows.iter().map(|(key, count)| (*key, *count));
                let (groups, keys, counts) = keyed(month, *start, rows);
                let key = |of: &BinaryArray, row: usize| of.value(row).to_vec();
                let rows = 0..counts.len();
                rows.map(|row| (*start, key(&groups, row), key(&keys, row), counts.value(row)))
                    .collect::<Vec<_>>()
            })
            .collect();
        let merged = world.merged(&world.written(&days)).unwrap();
        prop_assert_eq!(world.rows(&merged), expected);
    }
}

#[test]
fn sums_that_are_too_large_are_an_error() {
    let world = World::new();
    let of = |count| BTreeMap::from([((1, 1, "play"), count)]);
    let written = world.written(&BTreeMap::from([(0, of(i64::MAX)), (1, of(1))]));
    let error = world.merged(&written).expect_err("too large").to_string();
    assert!(error.contains("64-bit"), "{error}");
}

#[test]
fn rows_of_another_bucket_than_their_piece_are_an_error() {
    let world = World::new();
    let rows = BTreeMap::from([((1, 1, "play"), 1)]);
    let mut written = world.written(&BTreeMap::from([(0, rows)]));
    let piece = written.pieces.remove(&0).unwrap();
    written.pieces.insert(DAY_SECONDS, piece);
    let error = world.merged(&written).expect_err("another day").to_string();
    assert!(error.contains("another bucket"), "{error}");
}

#[test]
fn which_views_are_added_up_so() {
    let catalog = Catalog::built_in().unwrap();
    let found = catalog.jobs().iter().filter(|job| {
        let under = job.input_job().and_then(|name| catalog.job(name));
        under.is_some_and(|under| job.sums_time_partitions_of(under))
    });
    let found: Vec<&str> = found.map(|job| job.name()).collect();
    let coarse = catalog
        .jobs()
        .iter()
        .filter(|job| job.time_partition() > BucketWidth::Day);
    let coarse: Vec<&str> = coarse.map(|job| job.name()).collect();
    assert_eq!(found, coarse);
    assert!(coarse.len() >= 9, "{coarse:?}");
}
