//! Results with decoded columns, for engines that do not know the key encoding.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit, TimestampMicrosecondType};
use jobs::Job as View;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::time::BucketWidth;

use super::job::Job;

const BATCH_ROWS: usize = 65_536;
/// The type of timestamps.
const MICROSECONDS: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
/// Length of the file name after the view's name: `-`, a UUID, `.parquet`.
const SUFFIX_BYTES: usize = 1 + 36 + ".parquet".len();
/// Length of the file name before the view's name: the epoch and `-`.
const PREFIX_BYTES: usize = 11;

/// By view, the total of each bucket by its start in microseconds; 0 for rows of all time.
pub(crate) type Totals = BTreeMap<String, BTreeMap<i64, i64>>;

/// Writes the computed rows into one folder for each view of a job: boards unchanged, aggregates
/// decoded.
pub(crate) fn write(job: &Job, data: &Path, out: &Path) {
    let catalog = job.catalog();
    for (number, (view, file)) in results(job, data).into_iter().enumerate() {
        let folder = out.join(format!("{view}.parquet"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let to = folder.join(format!("{number:06}.parquet"));
        match catalog.job(&view) {
            Some(view_job) => decode(view_job, &file, &to),
            None => std::fs::hard_link(&file, &to).expect("a link"),
        }
    }
}

/// Returns the totals and the number of rows of the computed aggregates.
pub(crate) fn totals(job: &Job, data: &Path) -> (Totals, u64) {
    let catalog = job.catalog();
    let (mut totals, mut rows) = (Totals::new(), 0);
    for (view, file) in results(job, data) {
        let view_job = catalog.job(&view).expect("an aggregate view");
        let buckets = totals.entry(view).or_default();
        for batch in batches(&file) {
            let counts = batch["count"].as_primitive::<Int64Type>().values();
            let keys = batch["row"].as_binary::<i32>().iter().flatten();
            let begins = match view_job.bucket() {
                BucketWidth::All => None,
                _ => view_job
                    .row()
                    .decode_columns(keys, &[0])
                    .expect("keys")
                    .remove(0),
            };
            let begins = begins.map(|column| cast(&column, &MICROSECONDS).expect("times"));
            let begins = begins.as_ref().map(|column| column.as_primitive());
            let begins = begins.map(PrimitiveArray::<TimestampMicrosecondType>::values);
            for (row, count) in counts.iter().enumerate() {
                let begin = begins.and_then(|begins| begins.get(row));
                *buckets.entry(begin.copied().unwrap_or(0)).or_default() += count;
            }
            rows += batch.num_rows() as u64;
        }
    }
    (totals, rows)
}

/// Returns the computed result files with the names of their views.
fn results(job: &Job, data: &Path) -> Vec<(String, PathBuf)> {
    let source = job.source.name();
    let folder = data.join("archive/results").join(source).join("data");
    let named = files(&folder).into_iter().map(|file| {
        let name = file.file_name().expect("a name").to_string_lossy();
        let view = name
            .get(PREFIX_BYTES..name.len() - SUFFIX_BYTES)
            .expect("a view's name");
        (view.to_owned(), file)
    });
    named.collect()
}

/// Returns the files of a folder in order.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

fn decode(view: &View, from: &Path, to: &Path) {
    let out = File::create(to).expect("a file");
    let mut writer = ArrowWriter::try_new(out, view.schema(), None).expect("a writer");
    for batch in batches(from) {
        let keys = |name: &str| {
            let column = batch.column_by_name(name).expect("a column of keys");
            column.as_binary::<i32>().clone()
        };
        let (groups, rows) = (keys("group"), keys("row"));
        let mut columns: Vec<ArrayRef> =
            view.group().decode(groups.iter().flatten()).expect("keys");
        columns.extend(view.row().decode(rows.iter().flatten()).expect("keys"));
        columns.push(Arc::clone(batch.column_by_name("count").expect("counts")));
        let decoded = RecordBatch::try_new(view.schema(), columns).expect("the view's columns");
        writer.write(&decoded).expect("writing");
    }
    writer.close().expect("writing");
}

fn batches(file: &Path) -> impl Iterator<Item = RecordBatch> {
    let file = File::open(file).expect("a result");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let batches = reader.with_batch_size(BATCH_ROWS).build();
    let batches = batches.expect("a reader");
    batches.map(|batch| batch.expect("rows"))
}
