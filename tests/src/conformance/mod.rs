//! Conformance suite: laws that every adapter of a port must satisfy.
//!
//! A law is a function on new, empty stores; some take a second set of ports to the same stores, as
//! another process has. A broken law panics with its name; an error of a store is returned. The
//! tests of an adapter create its stores and call each law once.

pub mod achievements;
pub mod archive;
pub mod counts;
pub mod entities;
pub mod entity_admin;
mod entity_admin_model;
pub mod entity_calls;
pub mod entity_connections;
pub mod entity_erasure;
pub mod entity_expiry;
pub mod entity_model;
pub mod entity_names;
pub mod entity_reads;
pub mod entity_recounts;
pub mod entity_rows;
pub mod erasures;
pub mod keys;
pub mod lease;
pub mod live;
pub mod live_entries;
pub mod live_model;
pub mod live_scans;
pub mod log;
pub mod reconciliations;
pub mod records;
pub mod runs;
pub mod versions;
pub mod view_scans;
pub mod views;

use arrow::array::BinaryArray;
use schemas::seam::{Cut, Epoch, Generation, GenerationStart, Offset};
use schemas::source::Source;
use stores::live::PartitionId;

/// A view that the laws write.
pub const VIEW: &str = "plays_owner_hour@1";

/// Another view.
pub const OTHER_VIEW: &str = "plays_track_day@2";

/// Starts a new generation of a partition state at an offset of the newest complete run.
#[must_use]
pub const fn new_generation(
    newest: Epoch,
    next_offset: Offset,
    hint: Generation,
) -> GenerationStart {
    GenerationStart {
        newest,
        cut: Cut {
            next_offset,
            last: None,
        },
        log_end: 0,
        generation_min: hint,
    }
}

/// Returns the id of a partition's state.
#[must_use]
pub const fn state_id(partition: u32) -> PartitionId {
    PartitionId {
        source: Source::Plays,
        partition,
    }
}

/// Builds an array of these bytes.
pub fn binary<T: AsRef<[u8]>>(values: impl IntoIterator<Item = T>) -> BinaryArray {
    BinaryArray::from_iter_values(values)
}

/// Returns the bytes of an array.
#[must_use]
pub fn bytes(array: &BinaryArray) -> Vec<Vec<u8>> {
    array.iter().flatten().map(<[u8]>::to_vec).collect()
}
