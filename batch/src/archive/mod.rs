//! The master data set: the log's events as Parquet, never changed once written.

mod manifest;
mod read;
mod write;

pub(crate) use manifest::{Manifest, read_all};
pub(crate) use read::{DayTotals, EventStream};
pub(crate) use write::Archiver;

use serde::Serialize;

/// What an archiver did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ArchiveReport {
    /// Events that were written.
    pub events: u64,
    /// Records that could not be taken; the speed layer keeps them as dead letters.
    pub rejected: u64,
    /// Files that were written.
    pub files: u64,
}
