//! The speed layer's counts by a Kafka Streams job, for comparison.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::servers;

/// State stores of the job.
pub(crate) const STORES: [&str; 2] = ["rocksdb", "memory"];

/// Returns the job's report on a topic of this many plays, or `None` without the variable of its
/// jars, which `deploy/bench` sets.
pub(crate) fn count(topic: &str, rows: u64, folder: &Path, store: &str) -> Option<Value> {
    let jars = std::env::var("BACKSTITCH_BENCH_STREAMS").ok()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/servers/streams/Plays.java");
    let state = folder.join(format!("streams-{store}"));
    let output = Command::new("java")
        .args([
            "-Xmx4g",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
        ])
        .arg(format!("{jars}/*"))
        .arg(source)
        .args([&servers::kafka(), topic, &rows.to_string()])
        .arg(&state)
        .arg(store)
        .stderr(Stdio::inherit())
        .output()
        .expect("starting Java");
    assert!(output.status.success(), "Kafka Streams: {}", output.status);
    // The in-memory store writes no files.
    if state.exists() {
        std::fs::remove_dir_all(&state).expect("a folder of its own");
    }
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}
