//! Results with the columns of their views, for whoever knows nothing of our keys.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use jobs::Job as View;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::job::Job;

const BATCH_ROWS: usize = 65_536;
/// What follows a view's name in the name of a file: `-`, a UUID, `.parquet`.
const TAIL: usize = 1 + 36 + ".parquet".len();
/// What comes before it: the epoch, `-`.
const HEAD: usize = 11;

/// For each view of a job a folder with the rows that a run computed: boards as they are, tallies decoded.
pub(crate) fn write(job: &Job, data: &Path, out: &Path) {
    let catalog = job.catalog();
    let source = job.source.name();
    let results = data.join("archive/results").join(source).join("data");
    for (number, file) in files(&results).into_iter().enumerate() {
        let name = file
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let view = name.get(HEAD..name.len() - TAIL).expect("a view's name");
        let folder = out.join(format!("{view}.parquet"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let to = folder.join(format!("{number:06}.parquet"));
        match catalog.job(view) {
            Some(tally) => decode(tally, &file, &to),
            None => std::fs::hard_link(&file, &to).expect("a link"),
        }
    }
}

/// The files of a folder, in their order.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

fn decode(view: &View, from: &Path, to: &Path) {
    let file = File::open(from).expect("a result");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let batches = reader
        .with_batch_size(BATCH_ROWS)
        .build()
        .expect("a reader");
    let out = File::create(to).expect("a file");
    let mut writer = ArrowWriter::try_new(out, view.schema(), None).expect("a writer");
    for batch in batches {
        let batch = batch.expect("rows");
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
