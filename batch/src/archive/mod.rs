//! The archive: all events of the log as immutable Parquet files.

mod backfill;
mod commands;
mod compact;
mod expire;
mod expired_days;
mod file_entry;
mod garbage;
mod legacy;
mod newest;
mod read;
mod redact;
mod rewrite;
mod version;
mod write;

pub use backfill::{Backfill, BackfillReport};
pub(crate) use compact::{CompactedSize, CompactionLimits, compact};
pub(crate) use expire::{cut_offsets, expire, format_day};
pub(crate) use expired_days::ExpiredDays;
pub(crate) use file_entry::{FileEntry, count_day_events, plan_day_tasks};
pub(crate) use garbage::{GarbageScope, collect_garbage};
pub(crate) use read::{DayTotals, EventStream, ExpiredBase, RecordFilter, RepeatFilter};
pub(crate) use redact::{fence_writers, for_each_listener, redact};
pub(crate) use version::{Version, list_parquet_files};
pub(crate) use write::{Archiver, FileSize};

use std::ops::AddAssign;

use arrow::array::RecordBatch;
use schemas::plays::redact_listeners;
use serde::Serialize;
use stores::erasures::SuppressedPeople;

/// Removes erased listeners from rows that may name them.
pub(crate) fn remove_listeners(suppressed: &SuppressedPeople, rows: RecordBatch) -> RecordBatch {
    match suppressed.newest_listener() {
        0 => rows,
        _ => redact_listeners(&rows, |id| suppressed.contains_listener(id)).unwrap_or(rows),
    }
}

/// The report of an archiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ArchiveReport {
    /// Events that were written.
    pub events: u64,
    /// Records that could not be decoded; the speed layer makes them dead letters.
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
