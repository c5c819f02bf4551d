//! Real records, which lie beside the project.

use std::path::Path;
use std::process::{Command, Stdio};

/// A packed file of records, such as `flights/efforts.jsonl.gz`, unpacked.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn records(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/data")
        .join(name);
    assert!(
        file.exists(),
        "{} is missing: this test needs the real records",
        file.display()
    );
    let unpacked = Command::new("gzip")
        .arg("-dc")
        .arg(&file)
        .stderr(Stdio::inherit())
        .output();
    String::from_utf8(unpacked.expect("gzip").stdout).expect("UTF-8")
}
