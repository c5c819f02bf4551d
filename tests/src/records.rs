//! Real records for tests. `tests/data/README.md` describes the files.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable with the absolute path of a data folder to use instead of `tests/data`.
const DATA_FOLDER_VARIABLE: &str = "BACKSTITCH_TEST_DATA";

/// Sampling interval: the sample has the efforts whose activity ID is a multiple of it.
///
/// Must equal the value in `tests/data/subset.py`.
pub const EFFORT_SAMPLE_INTERVAL: i64 = 11;

/// Invoice lines of a shop, as plays.
pub const PLAYS: RecordFile = RecordFile {
    path: "retail/plays.jsonl.gz",
    subset_count: 166_997,
    full_count: 531_285,
};

/// Flights, as efforts.
pub const EFFORTS: RecordFile = RecordFile {
    path: "flights/efforts.jsonl.gz",
    subset_count: 49_470,
    full_count: 327_346,
};

/// Aircraft, as athletes.
pub const ATHLETES: RecordFile = RecordFile::complete("flights/athletes.jsonl.gz", 4_043);

/// Airlines of the aircraft, as club memberships.
pub const CLUBS: RecordFile = RecordFile::complete("flights/clubs.jsonl.gz", 4_060);

/// Aircraft of the same model, as follows.
pub const FOLLOWS: RecordFile = RecordFile::complete("flights/follows.jsonl.gz", 12_718);

/// A gzip file of JSON lines in the data folder.
#[derive(Debug, Clone, Copy)]
pub struct RecordFile {
    /// Path relative to the data folder.
    path: &'static str,
    /// Number of records in the subset.
    pub subset_count: usize,
    /// Number of records in the full data set.
    pub full_count: usize,
}

/// The contents of a record file.
#[derive(Debug)]
pub struct Records {
    /// One JSON object per line, in file order.
    pub lines: Vec<String>,
    /// True if the file contains the full data set.
    pub is_full: bool,
}

impl RecordFile {
    /// A file with the same records in the subset and in the full data set.
    const fn complete(path: &'static str, count: usize) -> Self {
        Self {
            path,
            subset_count: count,
            full_count: count,
        }
    }

    /// Reads the file from `BACKSTITCH_TEST_DATA`, or from `tests/data` if the variable is not set.
    ///
    /// # Panics
    /// If the file is missing, `gzip` fails, or the number of records is unexpected.
    #[must_use]
    pub fn read(&self) -> Records {
        let path = data_folder().join(self.path);
        let file = path.display();
        assert!(
            path.is_file(),
            "cannot read {file}: file not found; unset {DATA_FOLDER_VARIABLE}, or set it to a \
             folder with `flights` and `retail` (see tests/data/README.md)"
        );
        let output = Command::new("gzip")
            .arg("-dc")
            .arg(&path)
            .stderr(Stdio::inherit())
            .output()
            .expect("cannot run gzip");
        let status = output.status;
        assert!(status.success(), "cannot decompress {file}: gzip: {status}");
        let text = String::from_utf8(output.stdout).expect("records are UTF-8");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let is_full = lines.len() == self.full_count;
        assert!(
            is_full || lines.len() == self.subset_count,
            "{file} has {} records; expected {} (subset) or {} (full data set)",
            lines.len(),
            self.subset_count,
            self.full_count
        );
        Records { lines, is_full }
    }
}

fn data_folder() -> PathBuf {
    match env::var_os(DATA_FOLDER_VARIABLE) {
        Some(folder) if !folder.is_empty() => folder.into(),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("data"),
    }
}
