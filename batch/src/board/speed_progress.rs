//! Waits for the speed layer before a run publishes boards.
//!
//! Once a run covers a change, no process derives it again. If live state is then lost, the changes
//! in its outbox are lost, too. And of a pending member, a run can only publish the present entries
//! ([`super::pending`]). So a run waits until the speed layer has processed the log and has
//! published the changes below the cuts.

use std::time::Duration;

use jobs::Layers;
use schemas::achievement::OutboxMessageRef;
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use stores::live::Outbox;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::batch::Batch;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The progress of the speed layer in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PartitionProgress {
    /// All records below this offset are processed.
    counted: Offset,
    /// All changes of records below this offset are published.
    published: Offset,
    /// The number of the first unpublished entry. One notification may cause many entries.
    first_entry: u64,
}

impl PartitionProgress {
    /// Reads the progress from the first entry of an outbox. An unreadable entry will never be
    /// published.
    fn from_outbox(outbox: &Outbox) -> Self {
        let counted = outbox.state.position.next_offset;
        let first = outbox
            .entries
            .first()
            .map(|entry| OutboxMessageRef::decode(entry));
        let published = first.map_or(counted, |entry| {
            entry.map_or(0, |entry| entry.position.offset)
        });
        Self {
            counted,
            published,
            first_entry: outbox.sequence_numbers.start,
        }
    }

    /// Limits the progress to what a run waits for: records processed up to `end`, and changes
    /// published up to `cut`.
    fn limited_to(self, end: Offset, cut: Offset) -> Self {
        let is_published = self.published >= cut.min(self.counted);
        Self {
            counted: self.counted.min(end),
            published: self.published.min(cut),
            first_entry: if is_published { 0 } else { self.first_entry },
        }
    }
}

/// The progress of the speed layer after the wait.
#[derive(Debug, Default)]
pub(crate) struct SpeedProgress {
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
    /// By partition: all records below this offset are processed; `None` without live state.
    pub(crate) counted: Vec<Option<Offset>>,
    /// By partition: the end of the log, read after the progress.
    pub(crate) ends: Vec<Offset>,
}

/// Returns the offset of the run's cut in each partition. A partition that was added later has the
/// cut 0.
fn iter_cut_offsets(cuts: &[Cut]) -> impl Iterator<Item = Offset> {
    let ends = cuts.iter().map(|cut| cut.next_offset);
    ends.chain(std::iter::repeat(0))
}

/// Waits until the speed layer has reached the current end of the log and has published the
/// changes below the cuts. Gives up after `speed_wait_ms` without progress.
pub(crate) async fn wait_for_speed(
    batch: &Batch,
    source: Source,
    cuts: &[Cut],
    stop: &CancellationToken,
) -> Result<SpeedProgress> {
    let mut live_boards = batch.catalog.boards_in_layer(source, Layers::Speed);
    if live_boards.next().is_none() {
        return Ok(SpeedProgress::default());
    }
    let ends = batch.read_partition_ends(source).await?;
    let partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
    let wait_max = Duration::from_millis(batch.options.speed_wait_ms);
    let mut last_progress: Vec<PartitionProgress> = Vec::new();
    let mut progress_time = Instant::now();
    while !stop.is_cancelled() {
        let outboxes = batch.ports.live.outboxes(source, 0..partitions, 1).await?;
        let counted = outboxes
            .iter()
            .map(|outbox| Some(outbox.as_ref()?.state.position.next_offset));
        let counted: Vec<Option<Offset>> = counted.collect();
        let progress: Vec<PartitionProgress> = outboxes
            .iter()
            .map(|outbox| {
                let outbox = outbox.as_ref();
                outbox.map_or_else(PartitionProgress::default, PartitionProgress::from_outbox)
            })
            .collect();
        let mut partition_ends = progress.iter().zip(&ends);
        let is_counted = partition_ends.all(|(progress, end)| progress.counted >= *end);
        let unpublished = list_unpublished(&progress, cuts);
        if is_counted && unpublished.is_empty() {
            let warnings = Vec::new();
            return finish_wait(batch, source, warnings, counted).await;
        }
        // Later records are not waited for, since they may arrive endlessly.
        let awaited = progress.iter().zip(&ends).zip(iter_cut_offsets(cuts));
        let progress: Vec<PartitionProgress> = awaited
            .map(|((progress, end), cut)| progress.limited_to(*end, cut))
            .collect();
        if progress != last_progress {
            (last_progress, progress_time) = (progress, Instant::now());
        }
        if progress_time.elapsed() >= wait_max {
            let warnings = warn_of_unpublished(source, &unpublished);
            return finish_wait(batch, source, warnings, counted).await;
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(SpeedProgress::default())
}

/// Builds the result of a wait. Reads the log ends after the progress: a worker forwards misrouted
/// notifications before it counts them, so they are below these ends.
async fn finish_wait(
    batch: &Batch,
    source: Source,
    warnings: Vec<String>,
    counted: Vec<Option<Offset>>,
) -> Result<SpeedProgress> {
    let ends = batch.read_partition_ends(source).await?;
    Ok(SpeedProgress {
        warnings,
        counted,
        ends,
    })
}

/// Returns the partitions with processed but unpublished changes below the cuts.
fn list_unpublished(progress: &[PartitionProgress], cuts: &[Cut]) -> Vec<usize> {
    let partitions = progress.iter().zip(cuts).enumerate();
    let unpublished = partitions
        .filter(|(_, (progress, cut))| progress.published < progress.counted.min(cut.next_offset));
    unpublished.map(|(partition, _)| partition).collect()
}

/// Logs and returns a warning of unpublished changes.
fn warn_of_unpublished(source: Source, unpublished: &[usize]) -> Vec<String> {
    if unpublished.is_empty() {
        return Vec::new();
    }
    tracing::warn!(%source, partitions = ?unpublished, "a run covers unpublished board changes; they are lost if live state is lost before the speed layer publishes them");
    let partitions: Vec<String> = unpublished.iter().map(ToString::to_string).collect();
    vec![format!(
        "this run covers unpublished board changes in partition(s) {} of {source}; run `backstitch speed` to publish them, since they are lost if live state is lost before",
        partitions.join(", ")
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(counted: Offset, published: Offset) -> PartitionProgress {
        PartitionProgress {
            counted,
            published,
            first_entry: 0,
        }
    }

    /// Later records do not prolong the wait.
    #[test]
    fn ignores_progress_beyond_the_end_and_the_cut() {
        let limited = |counted, published, first_entry| {
            let progress = PartitionProgress {
                counted,
                published,
                first_entry,
            };
            progress.limited_to(10, 8)
        };
        // No change is published, and the log grows.
        assert_eq!(limited(10, 5, 3), limited(11, 5, 3));
        // All changes of the run are published; later ones are, too.
        assert_eq!(limited(12, 9, 3), limited(15, 13, 7));
        assert_ne!(limited(9, 5, 3), limited(10, 5, 3));
        assert_ne!(limited(10, 5, 3), limited(10, 6, 3));
        // One notification may cause many entries.
        assert_ne!(limited(10, 5, 3), limited(10, 5, 4));
    }

    #[test]
    fn lists_partitions_with_unpublished_changes_below_the_cut() {
        let cut = Cut {
            next_offset: 10,
            last: None,
        };
        let cuts = [cut; 5];
        // Partition 0 has an unpublished entry below the cut, 1 has one at the cut, 2 is behind the
        // cut, 3 has no live state, 4 has an entry below the cut, and 5 was added after the run.
        let partitions = [
            progress(12, 9),
            progress(12, 10),
            progress(5, 5),
            PartitionProgress::default(),
            progress(5, 4),
            progress(5, 0),
        ];
        assert_eq!(list_unpublished(&partitions, &cuts), [0, 4]);
        assert!(warn_of_unpublished(Source::Efforts, &[]).is_empty());
        let [warning] = &warn_of_unpublished(Source::Efforts, &[0, 4])[..] else {
            panic!("one warning");
        };
        assert!(
            warning.contains("partition(s) 0, 4 of efforts"),
            "{warning}"
        );
    }
}
