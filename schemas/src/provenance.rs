//! Provenance: the layers and log positions from which an answer was computed. Every answer has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// The layers that contributed to a value.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Origin {
        /// Only batch rows contributed to the value.
        Batch = "batch",
        /// No batch row contributed to the value.
        Realtime = "realtime",
        /// Both contributed.
        Merged = "merged",
        /// The value was counted in the entity store.
        Canonical = "canonical",
    }
}

impl Origin {
    /// Returns the origin of a value to which batch rows, live deltas, both or neither contributed.
    ///
    /// Without any contribution, the origin is batch if there was a run, else realtime.
    #[must_use]
    pub const fn from_layers(has_batch: bool, has_live: bool, epoch: u64) -> Self {
        match (has_batch, has_live) {
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

/// The layers and positions from which an answer was computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The layers that contributed to the answer.
    pub source: Origin,
    /// When the newest event in the answer was logged: an RFC 3339 instant in UTC. `None` before
    /// the first event.
    pub as_of: Option<String>,
    /// The epoch of the newest complete batch run in the answer; 0 before the first run.
    pub epoch: u64,
    /// True if the answer includes exactly the events before `position`.
    pub complete: bool,
    /// By source, the next offset of each log partition. The answer includes all events before it.
    pub position: BTreeMap<String, Vec<i64>>,
    /// The number of backfills in the answer, whose events were never in the log. Omitted if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backfills: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde requires a reference"
)]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}
