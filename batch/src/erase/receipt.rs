//! The receipt of an erasure: the findings, and the remains, in each place.

use schemas::clock::Clock;
use serde::{Deserialize, Serialize};
use stores::erasures::{Erasure, PersonKind};

/// A searched place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of the place: log, live state, and so on.
    pub place: String,
    /// The name of the place: a topic, a table, a folder.
    pub at: String,
    /// How many records, events, rows or dead letters contain the person.
    pub found: u64,
}

/// The result of the erasure in one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasedPlace {
    /// The kind of the place.
    pub place: String,
    /// The name of the place.
    pub at: String,
    /// How many records, events, rows or dead letters contained the person when the erasure
    /// started.
    pub found: u64,
    /// How many still contain the person.
    pub left: u64,
    /// When the place was last searched, in milliseconds since the Unix epoch.
    pub looked_at_ms: i64,
}

/// The receipt of an erasure. It does not name the person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The erasure's number.
    pub number: u64,
    /// The kind of person.
    pub kind: PersonKind,
    /// The requester, as stated.
    pub by: String,
    /// The reason, as stated.
    pub reason: String,
    /// When it started, in milliseconds since the Unix epoch.
    pub begun_at_ms: i64,
    /// When it finished; none while something remains to do.
    pub finished_at_ms: Option<i64>,
    /// The last finished step.
    pub step: String,
    /// True if the log keeps its records until its retention deletes them.
    pub keep_log: bool,
    /// All searched places.
    pub places: Vec<ErasedPlace>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Receipt {
    /// Returns the stored receipt of an erasure, or a new one.
    pub(super) fn new(erasure: &Erasure) -> Self {
        let stored = serde_json::from_value::<Self>(erasure.receipt.clone()).ok();
        let mut receipt = stored.unwrap_or_else(|| Self {
            number: erasure.number,
            kind: erasure.kind,
            by: erasure.by.clone(),
            reason: erasure.reason.clone(),
            begun_at_ms: erasure.begun_at_ms,
            finished_at_ms: None,
            step: "suppressed".to_owned(),
            keep_log: false,
            places: Vec::new(),
            notes: Vec::new(),
        });
        receipt.finished_at_ms = erasure.finished_at_ms;
        receipt
    }

    /// Records the findings of a search.
    pub(super) fn record_findings(&mut self, findings: &[Finding], clock: &dyn Clock) {
        let looked_at_ms = clock.now_ms();
        for place in &mut self.places {
            (place.left, place.looked_at_ms) = (0, looked_at_ms);
        }
        for finding in findings {
            let known = self
                .places
                .iter_mut()
                .find(|known| (&known.place, &known.at) == (&finding.place, &finding.at));
            if let Some(known) = known {
                known.left = finding.found;
                known.found = known.found.max(finding.found);
                continue;
            }
            self.places.push(ErasedPlace {
                place: finding.place.clone(),
                at: finding.at.clone(),
                found: finding.found,
                left: finding.found,
                looked_at_ms,
            });
        }
    }

    /// Returns whether nothing remains except what the request keeps and what only an app can
    /// delete.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let mut remains = self.places.iter().filter(|place| place.left > 0);
        remains.all(|place| place.place == APPS || (self.keep_log && place.place == LOG))
    }
}

/// The place of log records.
pub(super) const LOG: &str = "log";
/// The place of rows in an app's own tables.
pub(super) const APPS: &str = "your own tables";
