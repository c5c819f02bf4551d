//! The input of jobs: generated once by `backstitch generate`, imported into an installation on
//! embedded stores, and read by every engine from the same files. For plays these are the archive's
//! files, for entities those of a snapshot.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use futures::{StreamExt, TryStreamExt};
use jobs::Catalog;
use schemas::entities::{
    AuthorizationBatchBuilder, AuthorizationRow, EffortBatchBuilder, EffortRow,
};
use schemas::source::Source;
use stores::Stores;
use tests::process::run_ok;
use tokio_util::sync::CancellationToken;

use super::decoded::files;
use super::entity_dump::{Dump, Rows};
use super::ours::{build_batch, engine, runtime};
use super::recreate_folder;

/// The first argument of this program in the process that takes a snapshot of generated rows.
pub(crate) const COMMAND: &str = "input";
/// The time zone of efforts without one.
const ZONE: &str = "UTC";
const EFFORTS: &str = "\
SELECT e.id, segment_id, athlete_id, activity_id, elapsed_time, started_at, tz, visibility, e.deleted,
    gender, birth_year, weight_kg, a.deleted AS athlete_deleted, disqualified
FROM entities AS e LEFT JOIN athletes AS a ON a.id = athlete_id
ORDER BY segment_id, athlete_id, e.id";
const AUTHORIZATIONS: &str = "\
SELECT e.id, application_id, athlete_id, created_at, revoked_at, a.deleted AS athlete_deleted
FROM entities AS e LEFT JOIN athletes AS a ON a.id = athlete_id
ORDER BY application_id, athlete_id, e.id";

/// The input of jobs.
#[derive(Debug)]
pub(crate) struct Input {
    source: Source,
    rows: u64,
    folder: PathBuf,
}

impl Input {
    /// Returns the input with this many rows of a source, generating it if it does not exist.
    pub(crate) fn prepare(source: Source, rows: u64, folder: &Path) -> Self {
        let rows = if source == Source::Authorizations {
            (rows / 2).max(1)
        } else {
            rows
        };
        let input = Self {
            source,
            rows,
            folder: folder.join(format!("{source}-{rows}")),
        };
        if !input.folder.exists() {
            let unfinished = folder.join("begun");
            recreate_folder(&unfinished);
            input.generate(&unfinished);
            std::fs::rename(&unfinished, &input.folder).expect("a name");
        }
        input
    }

    /// Describes the input for the printed report.
    pub(crate) fn description(&self) -> String {
        format!("{} of {}", self.rows, self.source)
    }

    /// Returns a glob pattern of its files.
    pub(crate) fn files(&self) -> String {
        let files = self.folder_of_files().join("*.parquet");
        files.to_string_lossy().into_owned()
    }

    fn folder_of_files(&self) -> PathBuf {
        let data = self.folder.join("data");
        match self.source {
            Source::Plays => data.join("archive/archive/plays/files"),
            _ => Self::snapshot(&data),
        }
    }

    /// Reads its files once, so that no engine waits for the disk.
    pub(crate) fn warm(&self) {
        for path in files(&self.folder_of_files()) {
            let mut file = File::open(path).expect("a file of the input");
            std::io::copy(&mut file, &mut std::io::sink()).expect("reading the input");
        }
    }

    /// Returns the folder of snapshot files in an installation's folder.
    pub(crate) fn snapshot(data: &Path) -> PathBuf {
        data.join("input")
    }

    /// Copies its installation. Parquet files are immutable, so they are linked instead of copied.
    pub(crate) fn copy_to(&self, data: &Path) {
        recreate_folder(data);
        copy(&self.folder.join("data"), data);
    }

    fn generate(&self, folder: &Path) {
        let data = folder.join("data");
        match self.source {
            Source::Plays => {
                let plays = generate_rows(folder, self.source, self.rows, &self.shape());
                run_ok(&data, &["backfill", "plays", &plays]);
            }
            job => {
                // A few rows create the log and live state that a run needs.
                let file = generate_rows(folder, job, 4, &[]);
                run_ok(&data, &["ingest", job.name(), &file]);
            }
        }
        run_ok(&data, &["speed", "--until-caught-up"]);
        if self.source != Source::Plays {
            generate_rows(folder, self.source, self.rows, &self.shape());
            generate_rows(folder, Source::Athletes, self.athletes(), &[]);
            let program = std::env::current_exe().expect("this program");
            let mut command = Command::new(program);
            let status = command
                .arg(COMMAND)
                .arg(self.source.name())
                .arg(folder)
                .status();
            assert!(status.expect("this program").success(), "a snapshot");
        }
        for file in files(folder).iter().filter(|path| path.is_file()) {
            std::fs::remove_file(file).expect("deleting the imported file");
        }
    }

    /// Returns the distribution of the rows, as arguments of `generate`.
    fn shape(&self) -> Vec<(&'static str, String)> {
        let divided_by = |divisor: u64| (self.rows / divisor).max(1).to_string();
        match self.source {
            Source::Plays => vec![
                ("--duplicates", "0.01".to_owned()),
                ("--owners", divided_by(500)),
                ("--tracks", divided_by(50)),
            ],
            Source::Efforts => vec![
                ("--segments", divided_by(200)),
                ("--athletes", self.athletes().to_string()),
            ],
            _ => vec![
                ("--applications", divided_by(1_000)),
                ("--athletes", self.athletes().to_string()),
            ],
        }
    }

    fn athletes(&self) -> u64 {
        let divisor = if self.source == Source::Efforts {
            10
        } else {
            5
        };
        (self.rows / divisor).max(1)
    }
}

/// Generates a file of rows.
fn generate_rows(folder: &Path, source: Source, rows: u64, shape: &[(&str, String)]) -> String {
    let file = folder.join(format!("{source}.parquet"));
    let (file, rows) = (file.to_string_lossy().into_owned(), rows.to_string());
    let mut args = vec!["generate", source.name(), "--rows", &rows, "--seed", "1"];
    for (option, value) in shape {
        args.extend([*option, value.as_str()]);
    }
    args.extend(["-o", &file]);
    run_ok(&folder.join("data"), &args);
    file
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for path in files(from) {
        let target = to.join(path.file_name().expect("a name"));
        if path.is_symlink() {
            let link_target = std::fs::read_link(&path).expect("a link");
            symlink(link_target, &target).expect("a link");
        } else if path.is_dir() {
            copy(&path, &target);
        } else if path.extension().is_some_and(|end| end == "parquet") {
            std::fs::hard_link(&path, &target).expect("a link");
        } else {
            std::fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// Takes a snapshot of the rows generated in a folder, as a run does. The snapshot becomes the
/// input.
pub(crate) fn take_snapshot(job: Source, folder: &Path) {
    let data = folder.join("data");
    runtime().block_on(async {
        let stores = Stores::embedded(&data).await.expect("the embedded stores");
        // Spill files are deleted with their engine.
        let engine = engine(&data);
        let rows = dump(job, folder, &engine.create_session()).await;
        let entities = Arc::new(Rows::new(rows));
        let batch = build_batch(&stores, &data, Some(entities), Catalog::default());
        let outcome = batch.snapshot(job, &(), &CancellationToken::new()).await;
        outcome.expect("a snapshot");
    });
    let snapshots = data.join("archive/snapshots");
    let outcome = snapshots.join(job.name()).join("data");
    std::fs::rename(outcome, Input::snapshot(&data)).expect("the snapshot's files");
    std::fs::remove_dir_all(snapshots).expect("deleting its manifest");
}

/// Dumps rows as the entity store does.
async fn dump(job: Source, folder: &Path, session: &SessionContext) -> Dump {
    for (table, source) in [("entities", job), ("athletes", Source::Athletes)] {
        let file = folder.join(format!("{source}.parquet"));
        let file = file.to_string_lossy();
        let read = session.register_parquet(table, &*file, ParquetReadOptions::default());
        read.await.expect("the generated rows");
    }
    let query = if job == Source::Efforts {
        EFFORTS
    } else {
        AUTHORIZATIONS
    };
    let rows = session.sql(query).await.expect("a query");
    let rows = rows.execute_stream().await.expect("rows");
    let broken = |reason: datafusion::error::DataFusionError| stores::Error::Broken {
        operation: "the generated rows".to_owned(),
        reason: reason.to_string(),
    };
    let columns = move |batch: RecordBatch| {
        if job == Source::Efforts {
            efforts(&batch)
        } else {
            authorizations(&batch)
        }
    };
    rows.map_err(broken).map_ok(columns).boxed()
}

fn efforts(batch: &RecordBatch) -> RecordBatch {
    let int = |name| ints(batch, name);
    let (id, segment, athlete) = (int("id"), int("segment_id"), int("athlete_id"));
    let (activity, elapsed, born) = (int("activity_id"), int("elapsed_time"), int("birth_year"));
    let started = batch["started_at"].as_primitive::<TimestampMicrosecondType>();
    let (tz, visibility) = (
        batch["tz"].as_string::<i32>(),
        batch["visibility"].as_string::<i32>(),
    );
    let (gender, weight) = (batch["gender"].as_string::<i32>(), &batch["weight_kg"]);
    let weight = weight.as_primitive::<Float64Type>();
    let flag = |name| batch[name].as_boolean();
    let (deleted, athlete_deleted, disqualified) = (
        flag("deleted"),
        flag("athlete_deleted"),
        flag("disqualified"),
    );
    let mut columns = EffortBatchBuilder::default();
    for row in 0..batch.num_rows() {
        let pushed = columns.push(&EffortRow {
            id: id.value(row),
            segment_id: segment.value(row),
            athlete_id: athlete.value(row),
            activity_id: activity.value(row),
            elapsed_time_s: elapsed.value(row),
            started_at_us: started.value(row),
            tz: if tz.is_null(row) { ZONE } else { tz.value(row) },
            is_hidden: visibility.is_valid(row) && visibility.value(row) == "only_me",
            is_deleted: is_true(deleted, row),
            gender: gender.is_valid(row).then(|| gender.value(row)),
            birth_year: born.is_valid(row).then(|| born.value(row)),
            weight_kg: weight.is_valid(row).then(|| weight.value(row)),
            athlete_is_deleted: is_true(athlete_deleted, row),
            athlete_is_disqualified: is_true(disqualified, row),
        });
        pushed.expect("an effort");
    }
    columns.finish().expect("rows")
}

fn authorizations(batch: &RecordBatch) -> RecordBatch {
    let time = |name: &str| batch[name].as_primitive::<TimestampMicrosecondType>();
    let (created, revoked) = (time("created_at"), time("revoked_at"));
    let int = |name| ints(batch, name);
    let (id, application, athlete) = (int("id"), int("application_id"), int("athlete_id"));
    let athlete_deleted = batch["athlete_deleted"].as_boolean();
    let mut columns = AuthorizationBatchBuilder::default();
    for row in 0..batch.num_rows() {
        columns.push(&AuthorizationRow {
            id: id.value(row),
            application_id: application.value(row),
            athlete_id: athlete.value(row),
            created_at_us: created.value(row),
            revoked_at_us: revoked.is_valid(row).then(|| revoked.value(row)),
            athlete_is_deleted: is_true(athlete_deleted, row),
        });
    }
    columns.finish().expect("rows")
}

fn ints<'a>(batch: &'a RecordBatch, name: &str) -> &'a Int64Array {
    batch[name].as_primitive::<Int64Type>()
}

fn is_true(column: &BooleanArray, row: usize) -> bool {
    column.is_valid(row) && column.value(row)
}
