//! What an erasure found where, and what is left.

use schemas::clock::Clock;
use serde::{Deserialize, Serialize};
use stores::erasures::{Erasure, Kind};

/// A place that was searched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What kind of place it is: log, live state, and so on.
    pub place: String,
    /// Which one: a topic, a table, a folder.
    pub at: String,
    /// How many records, events, rows or letters hold the person.
    pub found: u64,
}

/// What became of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erased {
    /// What kind of place it is.
    pub place: String,
    /// Which one.
    pub at: String,
    /// How many records, events, rows or letters held the person when the erasure began.
    pub found: u64,
    /// How many still do.
    pub left: u64,
    /// When it was looked at last, in milliseconds since the Unix epoch.
    pub looked_at_ms: i64,
}

/// The receipt of an erasure. It does not name the person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The erasure's number.
    pub number: u64,
    /// What was erased.
    pub kind: Kind,
    /// Who wanted it, as they said.
    pub by: String,
    /// Why, as they said.
    pub reason: String,
    /// When it began, in milliseconds since the Unix epoch.
    pub begun_at_ms: i64,
    /// When it was done; nothing while there is something left to do.
    pub finished_at_ms: Option<i64>,
    /// The last step that was done.
    pub step: String,
    /// Whether the log keeps its records until its own time.
    pub keep_log: bool,
    /// Every place that was searched.
    pub places: Vec<Erased>,
    /// What else is to be known.
    pub notes: Vec<String>,
}

impl Receipt {
    /// The receipt of an erasure as it was noted last, or a new one.
    pub(super) fn of(erasure: &Erasure) -> Self {
        let noted = serde_json::from_value::<Self>(erasure.receipt.clone()).ok();
        let mut receipt = noted.unwrap_or_else(|| Self {
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

    /// Notes what a search found: the first time what there was, and each time what is left.
    pub(super) fn note(&mut self, findings: &[Finding], clock: &dyn Clock) {
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
            self.places.push(Erased {
                place: finding.place.clone(),
                at: finding.at.clone(),
                found: finding.found,
                left: finding.found,
                looked_at_ms,
            });
        }
    }

    /// Whether nothing is left but what was to be kept, and what only an app can delete.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let mut left = self.places.iter().filter(|place| place.left > 0);
        left.all(|one| one.place == APPS || (self.keep_log && one.place == LOG))
    }
}

/// The place of records.
pub(super) const LOG: &str = "log";
/// The place of rows that are an app's own.
pub(super) const APPS: &str = "your own tables";
