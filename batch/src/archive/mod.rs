//! The master data set: the log's events as Parquet, never changed once written.

mod backfill;
mod compact;
mod expire;
mod file_entry;
mod legacy;
mod read;
mod redact;
mod rewrite;
mod version;
mod write;

pub use backfill::{Backfill, BackfillReport};
pub(crate) use compact::{CompactedSize, CompactionLimits, compact};
pub(crate) use expire::{ExpiredDays, expire, format_day, offsets};
pub(crate) use file_entry::{FileEntry, day_tasks, days_between};
pub(crate) use read::{Base, DayTotals, EventStream, Keep, Repeats};
pub(crate) use redact::{fence_writers, for_each_listener, redact};
pub(crate) use version::{Due, Version, collect_garbage, objects};
pub(crate) use write::{Archiver, FileSize};

use std::ops::AddAssign;

use arrow::array::RecordBatch;
use schemas::plays::without_listeners;
use serde::Serialize;
use stores::erasures::Suppressed;

/// Removes erased listeners from rows that may name them.
pub(crate) fn without(suppressed: &Suppressed, rows: RecordBatch) -> RecordBatch {
    match suppressed.newest_listener() {
        0 => rows,
        _ => without_listeners(&rows, |id| suppressed.has_listener(id)).unwrap_or(rows),
    }
}

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

impl AddAssign for ArchiveReport {
    fn add_assign(&mut self, more: Self) {
        self.events += more.events;
        self.rejected += more.rejected;
        self.files += more.files;
    }
}
