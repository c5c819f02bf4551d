//! Answers of the API, as far as pages show them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Where an answer comes from.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Provenance {
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) as_of: Option<String>,
    #[serde(default)]
    pub(crate) epoch: u64,
    pub(crate) complete: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Total {
    pub(crate) count: i64,
    #[serde(default)]
    pub(crate) previous: Option<i64>,
    #[serde(default)]
    pub(crate) change: Option<f64>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Uniques {
    pub(crate) count: i64,
    pub(crate) relative_error: f64,
    #[serde(default)]
    pub(crate) change: Option<f64>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Point {
    pub(crate) at: String,
    pub(crate) count: i64,
    pub(crate) source: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Series {
    pub(crate) points: Vec<Point>,
    #[serde(default)]
    pub(crate) previous: Option<Vec<Point>>,
    #[serde(default)]
    pub(crate) to: Option<String>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct BreakdownRow {
    pub(crate) key: Value,
    pub(crate) count: i64,
    #[serde(default)]
    pub(crate) share: Option<f64>,
    #[serde(default)]
    pub(crate) change: Option<f64>,
    pub(crate) source: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Breakdown {
    pub(crate) rows: Vec<BreakdownRow>,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Entry {
    pub(crate) rank: u64,
    pub(crate) athlete_id: i64,
    pub(crate) elapsed_time: i64,
    pub(crate) activity_id: i64,
    pub(crate) started_at: String,
    /// Only where the places of an earlier day are asked for.
    #[serde(default)]
    pub(crate) change: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct BoardPage {
    pub(crate) total: u64,
    pub(crate) entries: Vec<Entry>,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
    /// The day that changes are since.
    #[serde(default)]
    pub(crate) previous: Option<PreviousBoard>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PreviousBoard {
    pub(crate) date: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Gap {
    pub(crate) athlete_id: i64,
    pub(crate) elapsed_time: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Previous {
    pub(crate) rank: u64,
    pub(crate) date: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct BoardPlace {
    pub(crate) total: u64,
    pub(crate) entry: Entry,
    pub(crate) neighbours: Vec<Entry>,
    #[serde(default)]
    pub(crate) percentile: Option<f64>,
    #[serde(default)]
    pub(crate) gap: Option<Gap>,
    #[serde(default)]
    pub(crate) previous: Option<Previous>,
    #[serde(default)]
    pub(crate) change: Option<i64>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SegmentCounts {
    pub(crate) efforts: u64,
    pub(crate) athletes: u64,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Achievement {
    pub(crate) kind: String,
    pub(crate) board: String,
    #[serde(default)]
    pub(crate) rank: Option<u64>,
    pub(crate) segment_id: i64,
    pub(crate) elapsed_time: i64,
    pub(crate) at: String,
    #[serde(default)]
    pub(crate) taken_by: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Achievements {
    pub(crate) achievements: Vec<Achievement>,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Counting {
    pub(crate) strategy: String,
    #[serde(default)]
    pub(crate) counted_at: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Application {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) owner: Value,
    pub(crate) connected_athletes: u64,
    pub(crate) counting: Counting,
    pub(crate) athlete_capacity: i64,
    pub(crate) enforced: bool,
    #[serde(default)]
    pub(crate) usage: Option<f64>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Applications {
    pub(crate) applications: Vec<Application>,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Day {
    pub(crate) date: String,
    pub(crate) connected_athletes: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct History {
    pub(crate) days: Vec<Day>,
    pub(crate) provenance: Provenance,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AuditEntry {
    pub(crate) at: String,
    pub(crate) by: String,
    pub(crate) changed: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Audit {
    pub(crate) entries: Vec<AuditEntry>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Partition {
    pub(crate) partition: usize,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    #[serde(default)]
    pub(crate) next_offset: Option<i64>,
    #[serde(default)]
    pub(crate) lag: Option<i64>,
    #[serde(default)]
    pub(crate) as_of: Option<String>,
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
    #[serde(default)]
    pub(crate) replaying: Option<bool>,
    #[serde(default)]
    pub(crate) generation: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    pub(crate) source: String,
    pub(crate) epoch: u64,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) cuts: Vec<i64>,
    pub(crate) started_at: String,
    #[serde(default)]
    pub(crate) ended_at: Option<String>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) to_do: Option<String>,
    #[serde(default)]
    pub(crate) rows_read: Option<u64>,
    #[serde(default)]
    pub(crate) rows_written: Option<u64>,
    #[serde(default)]
    pub(crate) rows_skipped: Option<u64>,
    #[serde(default)]
    pub(crate) seconds: Option<f64>,
    #[serde(default)]
    pub(crate) drift: Value,
    #[serde(default)]
    pub(crate) report: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Source {
    pub(crate) source: String,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) views: BTreeMap<String, u64>,
    pub(crate) runs: Vec<Run>,
    #[serde(default)]
    pub(crate) newest_complete: Option<Run>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Overview {
    pub(crate) now: String,
    pub(crate) sources: Vec<Source>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LetterKind {
    pub(crate) source: String,
    pub(crate) kind: String,
    pub(crate) letters: u64,
    pub(crate) last_at: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LetterCounts {
    pub(crate) counts: Vec<LetterKind>,
    pub(crate) letters: u64,
    pub(crate) complete: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Letter {
    pub(crate) id: String,
    pub(crate) source: String,
    pub(crate) reason: String,
    pub(crate) origin: String,
    pub(crate) at: String,
    pub(crate) raw_bytes: u64,
    pub(crate) raw: LetterBytes,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LetterBytes {
    Text(String),
    Hex(String),
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Letters {
    pub(crate) dead_letters: Vec<Letter>,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LettersReplayed {
    pub(crate) accepted: u64,
    pub(crate) superseded: u64,
    pub(crate) erased: u64,
    pub(crate) still_bad: u64,
    pub(crate) broken: u64,
    #[serde(default)]
    pub(crate) first: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Approval {
    pub(crate) schedule: String,
    pub(crate) view: String,
    pub(crate) total: u64,
    pub(crate) by: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ReconciliationRow {
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) epoch: u64,
    pub(crate) at: String,
    #[serde(default)]
    pub(crate) total: Option<u64>,
    pub(crate) keys: u64,
    pub(crate) is_lower_bound: bool,
    #[serde(default)]
    pub(crate) unknown: Option<String>,
    /// The keys that differ most.
    #[serde(default)]
    pub(crate) worst: Value,
    #[serde(default)]
    pub(crate) comparison: Value,
    #[serde(default)]
    pub(crate) approval: Option<Approval>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Reconciliations {
    pub(crate) reconciliations: Vec<ReconciliationRow>,
    #[serde(default)]
    pub(crate) cursor: Option<String>,
}
