//! Where an answer comes from: said on every answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// Which layers had a part in a value.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Origin {
        /// Nothing newer than the batch rows had a part in the value.
        Batch = "batch",
        /// No batch row had a part in the value.
        Realtime = "realtime",
        /// Both had.
        Merged = "merged",
        /// Neither: it was counted in the canonical store.
        Canonical = "canonical",
    }
}

impl Origin {
    /// The origin of a value in which batch rows or live parts, or neither, had a part. A value
    /// without any part stands on what the newest run found: batch, if there was a run at all.
    #[must_use]
    pub const fn of(batch: bool, live: bool, epoch: u64) -> Self {
        match (batch, live) {
            (true, true) => Self::Merged,
            (true, false) => Self::Batch,
            (false, true) => Self::Realtime,
            (false, false) => {
                if epoch == 0 {
                    Self::Realtime
                } else {
                    Self::Batch
                }
            }
        }
    }
}

/// Where an answer comes from, and how far it reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Which layers had a part in the answer.
    pub source: Origin,
    /// When the newest event that the answer includes was logged: an RFC 3339 instant in UTC, or
    /// nothing while no event has been taken.
    pub as_of: Option<String>,
    /// The epoch of the newest complete batch run that the answer rests on; 0 before the first run.
    pub epoch: u64,
    /// Whether the answer is exactly what all events up to `position` give.
    pub complete: bool,
    /// By source, the next offset of each log partition: the answer holds what all events before
    /// give.
    pub position: BTreeMap<String, Vec<i64>>,
    /// How many backfills of events that never were in the log the answer holds besides; left out
    /// where there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backfills: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}
