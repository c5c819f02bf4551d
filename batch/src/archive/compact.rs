//! Compaction: merges neighboring small files.
//!
//! An archiver that writes one file per minute creates half a million files per year, and every run
//! opens those of the days that it reads. Compaction follows a run, under the run's lease. Its
//! inputs are retired first and deleted later, because readers of earlier versions may need them.

use std::ops::Range;

use datafusion::execution::memory_pool::MemoryReservation;
use schemas::clock::Clock;
use schemas::seam::Cut;
use schemas::source::Source;
use schemas::time::utc_day;
use stores::archive::Archive;
use stores::erasures::SuppressedPeople;
use tokio_util::sync::CancellationToken;

use super::file_entry::FileEntry;
use super::rewrite::Rewriter;
use super::version::{Version, list_parquet_files};
use crate::Result;
use crate::lease::check_stop;

/// Minimum inputs of a compaction, so that events are not rewritten too often.
const INPUTS_MIN: usize = 8;
/// The newest files are skipped, since archivers continue from them.
const NEWEST_SKIPPED: usize = 2;
/// Maximum files that one run writes, which bounds its duration.
const OUTPUTS_MAX: usize = 8;
/// Maximum files that one run reads.
const INPUTS_MAX: usize = 1_024;
/// Maximum span of the newest days of a group's files, in days. The output expires by its newest
/// day, which is at most this much later than the newest day of an input. The span exceeds
/// [`INPUTS_MIN`], since some installations write one file a day.
const DAYS_MAX: i64 = 14;

/// Limits and resources of a compaction.
#[derive(Clone, Copy)]
pub(crate) struct CompactionLimits<'a> {
    /// Only files below these cuts are eligible.
    pub(crate) cuts: &'a [Cut],
    pub(crate) size: CompactedSize,
    pub(crate) clock: &'a dyn Clock,
    /// Accounts for the memory.
    pub(crate) memory: &'a MemoryReservation,
}

/// The maximum size of a compacted file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactedSize {
    /// Maximum number of events.
    pub(crate) rows_max: u64,
    /// Maximum bytes of its inputs.
    pub(crate) bytes_max: u64,
}

/// Compacts files of a source. Returns the numbers of inputs and outputs.
///
/// # Errors
/// Errors of the archive, and [`crate::Error::Stopped`]. A group of files that cannot be compacted
/// is skipped.
pub(crate) async fn compact(
    archive: &Archive,
    source: Source,
    limits: CompactionLimits<'_>,
    suppressed: &SuppressedPeople,
    stop: &CancellationToken,
) -> Result<(usize, usize)> {
    let newest = Version::read_newest(archive, source).await?;
    let log_files = newest.log_files();
    let candidates = find_candidates(archive, source, log_files, limits).await?;
    let rewriter = Rewriter {
        archive,
        suppressed,
        memory: limits.memory,
        stop,
    };
    let (mut inputs, mut outputs) = (0, 0);
    for group in plan_groups(&candidates, limits.size)
        .into_iter()
        .take(OUTPUTS_MAX)
    {
        let group = group.start..group.end.min(group.start + INPUTS_MAX - inputs);
        let files = log_files.get(group).unwrap_or_default();
        if files.len() < INPUTS_MIN {
            break;
        }
        check_stop(stop)?;
        match compact_group(&rewriter, source, files, limits.clock).await {
            Ok(true) => {
                inputs += files.len();
                outputs += 1;
            }
            // Another writer replaced an input.
            Ok(false) => {}
            Err(error) => {
                check_stop(stop)?;
                // Other groups may still be readable.
                tracing::warn!(%source, %error, "cannot compact a group of archive files");
            }
        }
        limits.memory.free();
    }
    Ok((inputs, outputs))
}

/// Replaces neighboring files by one in a new version. Returns false if the newest version does not
/// list all of them.
async fn compact_group(
    rewriter: &Rewriter<'_>,
    source: Source,
    files: &[FileEntry],
    clock: &dyn Clock,
) -> Result<bool> {
    let (Some(first), Some(last)) = (files.first(), files.last()) else {
        return Ok(false);
    };
    let (archive, rewritten) = (rewriter.archive, rewriter.rewrite(files).await?);
    let mut newest = Version::read_newest(archive, source).await?;
    while let Some(start) = newest.files.iter().position(|file| file == first)
        && newest.files.get(start..start + files.len()) == Some(files)
    {
        let mut next = newest.next(clock.now_ms());
        let path = rewritten
            .bytes
            .is_some()
            .then(|| next.new_file_path(source));
        if let Some(path) = &path {
            rewritten.store(archive, path).await?;
        }
        let output = FileEntry {
            from: first.from.clone(),
            to: last.to.clone(),
            path: path.clone(),
            days: rewritten.days.clone(),
            rejected: files.iter().map(|file| file.rejected).sum(),
            redacted_through: rewriter.suppressed.newest_listener(),
            expired: None,
        };
        drop(next.files.splice(start..start + files.len(), [output]));
        for path in files.iter().filter_map(|file| file.path.clone()) {
            next.retire(path);
        }
        if newest.commit(archive, source, &next).await? {
            return Ok(true);
        }
        newest = Version::discard(archive, source, path).await?;
    }
    Ok(false)
}

async fn find_candidates(
    archive: &Archive,
    source: Source,
    files: &[FileEntry],
    limits: CompactionLimits<'_>,
) -> Result<Vec<CompactionCandidate>> {
    let objects = list_parquet_files(archive, source).await?;
    let today = utc_day(limits.clock.now_ms().div_euclid(1_000));
    let mut newest_day = None;
    let files = files.iter().map(|file| {
        let object = file.path.as_ref().map(|path| objects.get(path));
        // The day never decreases, since a file of late events is not older than the files before
        // it. It is at most today, since events may have wrong times.
        let file_newest_day = file.days.keys().next_back();
        newest_day = newest_day.max(file_newest_day.map(|day| (*day).min(today)));
        CompactionCandidate {
            rows: file.rows(),
            bytes: object.flatten().map_or(0, |object| object.size_bytes),
            newest_day,
            // An expired file has no events to write, and a missing one cannot be read.
            is_eligible: file.is_below(limits.cuts)
                && file.expired.is_none()
                && object != Some(None),
        }
    });
    Ok(files.collect())
}

/// The properties of a file that decide whether it is compacted.
#[derive(Debug, Clone, Copy)]
struct CompactionCandidate {
    rows: u64,
    bytes: u64,
    newest_day: Option<i64>,
    is_eligible: bool,
}

/// The size of neighbors that may become one file.
#[derive(Debug, Clone, Default)]
struct GroupSize {
    rows: u64,
    bytes: u64,
    /// The earliest and the latest newest day.
    days: Option<(i64, i64)>,
}

impl GroupSize {
    fn with(&self, file: &CompactionCandidate) -> Self {
        let days = match (self.days, file.newest_day) {
            (Some((first, last)), Some(day)) => Some((first.min(day), last.max(day))),
            (days, day) => days.or(day.map(|day| (day, day))),
        };
        Self {
            rows: self.rows.saturating_add(file.rows),
            bytes: self.bytes.saturating_add(file.bytes),
            days,
        }
    }

    fn fits(&self, size: CompactedSize) -> bool {
        let days = self.days.map_or(0, |(first, last)| last - first);
        self.rows <= size.rows_max && self.bytes <= size.bytes_max && days < DAYS_MAX
    }
}

/// Returns the ranges of neighbors to compact, by index.
fn plan_groups(files: &[CompactionCandidate], size: CompactedSize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let end = files.len().saturating_sub(NEWEST_SKIPPED);
    let (mut first, mut sum) = (0, GroupSize::default());
    for (index, file) in files.iter().enumerate().take(end) {
        let is_small = file.rows <= size.rows_max / 2 && file.bytes <= size.bytes_max / 2;
        let grown = sum.with(file);
        if file.is_eligible && is_small && grown.fits(size) {
            sum = grown;
            continue;
        }
        groups.push(first..index);
        (first, sum) = match file.is_eligible && is_small {
            true => (index, GroupSize::default().with(file)),
            false => (index + 1, GroupSize::default()),
        };
    }
    groups.push(first..end);
    for group in &mut groups {
        let rows = |group: &Range<usize>| {
            let group_files = files.get(group.clone()).unwrap_or_default();
            group_files.iter().map(|file| file.rows).sum::<u64>()
        };
        // It is not worth rewriting a file with more events than all following files together.
        while group.start < group.end && rows(&(group.start..group.start + 1)) > rows(group) / 2 {
            group.start += 1;
        }
    }
    groups.retain(|group| group.len() >= INPUTS_MIN);
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: CompactedSize = CompactedSize {
        rows_max: 100,
        bytes_max: 1_000,
    };

    fn file(rows: u64) -> CompactionCandidate {
        CompactionCandidate {
            rows,
            bytes: rows,
            newest_day: Some(0),
            is_eligible: true,
        }
    }

    fn plan_pairs(files: &[CompactionCandidate], size: CompactedSize) -> Vec<(usize, usize)> {
        let groups = plan_groups(files, size).into_iter();
        groups.map(|group| (group.start, group.end)).collect()
    }

    #[test]
    fn merges_small_neighbors() {
        let small = |count: usize| vec![file(1); count];
        let size_20 = CompactedSize {
            rows_max: 20,
            ..SIZE
        };
        assert_eq!(plan_pairs(&small(9), SIZE), []);
        assert_eq!(plan_pairs(&small(10), SIZE), [(0, 8)]);
        assert_eq!(
            plan_pairs(&small(50), size_20),
            [(0, 20), (20, 40), (40, 48)]
        );
        assert_eq!(plan_pairs(&[], size_20), []);
        let size_20_bytes = CompactedSize {
            bytes_max: 20,
            ..SIZE
        };
        assert_eq!(plan_pairs(&small(42), size_20_bytes), [(0, 20), (20, 40)]);
        // A large file or an ineligible one ends a group, and is not part of any.
        let mut files = small(30);
        files[12].rows = 80;
        assert_eq!(plan_pairs(&files, SIZE), [(0, 12), (13, 28)]);
        files[12] = file(1);
        files[12].is_eligible = false;
        assert_eq!(plan_pairs(&files, SIZE), [(0, 12), (13, 28)]);
    }

    #[test]
    fn skips_a_file_until_as_many_events_follow() {
        let grown = |since: usize| {
            let mut files = vec![file(20)];
            files.extend(vec![file(1); since]);
            plan_pairs(&files, SIZE)
        };
        assert_eq!(grown(15), [(1, 14)]);
        assert_eq!(grown(9), []);
        assert_eq!(grown(22), [(0, 21)]);
    }

    #[test]
    fn does_not_merge_files_of_distant_days() {
        let mut files = Vec::new();
        for day in 0..20 {
            let candidate = CompactionCandidate {
                newest_day: Some(day),
                ..file(1)
            };
            files.extend([candidate; 2]);
        }
        assert_eq!(plan_pairs(&files, SIZE), [(0, 28), (28, 38)]);
        // A file entry without events has no day.
        for file in &mut files {
            file.newest_day = None;
        }
        assert_eq!(plan_pairs(&files, SIZE), [(0, 38)]);
    }
}
