//! Fewer files in the place of many: each run appends one to the archive, however little has come, so a year of runs every
//! minute would be half a million of them, which each run has to list and open.
//!
//! Neighbours with little in them are written once more as one file, with a manifest that counts in their place. Only
//! what every published result holds is merged, so no run looks for what came since in it; and only what has as many
//! events after it as it has itself, so a file doubles each time, and an event is written a few times and not again and
//! again. What was merged goes when the next run begins ([`super::manifest::remove_orphans`]).

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use schemas::plays::without_listeners;
use schemas::seam::Cut;
use schemas::source::Source;
use stores::archive::Archive;
use stores::erasures::Suppressed;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::manifest::{Manifest, create, data_folder, read_all};
use super::reduced::take_reduced;
use super::scrub::record;
use super::write::encode;
use crate::run::go_on;
use crate::{Error, Result};

/// So many neighbours become one at least: fewer would be written again too often.
const MERGED_MIN: usize = 8;
/// So many of the newest stay, since archivers go on from them.
const NEWEST: usize = 2;
const BATCH_ROWS: usize = 32_768;

/// Merges what lies below the cuts, files of up to so many rows; answers how many manifests were made.
///
/// # Errors
/// Those of the archive, [`Error::Damaged`] if a file does not hold what its manifest says, [`Error::Stopped`].
pub(crate) async fn merge(
    archive: &Archive,
    source: Source,
    (cuts, rows_max): (&[Cut], u64),
    suppressed: &Suppressed,
    stop: &CancellationToken,
) -> Result<usize> {
    let manifests = read_all(archive, source).await?;
    let groups = groups(&manifests, cuts, rows_max);
    let mut made = 0;
    for group in groups {
        go_on(stop)?;
        let named = manifests.get(group).unwrap_or_default();
        // What was let go has no events any more, and its hashes stand by its name.
        let (readable, _) = take_reduced(archive, source, named.to_vec()).await?;
        let mut pairs = readable.iter().zip(named);
        if pairs.any(|(there, named)| there.file.is_none() && named.file.is_some()) {
            continue;
        }
        let readable = record(archive, source).await?.applied(readable);
        made += usize::from(merged(archive, source, &readable, suppressed).await?);
    }
    Ok(made)
}

/// Which neighbours become one: their places among all.
fn groups(manifests: &[Manifest], cuts: &[Cut], rows_max: u64) -> Vec<std::ops::Range<usize>> {
    let mut groups = Vec::new();
    let end = manifests.len().saturating_sub(NEWEST);
    let (mut first, mut rows) = (0, 0_u64);
    for (index, manifest) in manifests.iter().enumerate().take(end) {
        let is_small = manifest.rows() <= rows_max / 2 && is_below(manifest, cuts);
        if is_small && rows.saturating_add(manifest.rows()) <= rows_max {
            rows += manifest.rows();
            continue;
        }
        groups.push(first..index);
        (first, rows) = match is_small {
            true => (index, manifest.rows()),
            false => (index + 1, 0),
        };
    }
    groups.push(first..end);
    for group in &mut groups {
        let rows = |group: &std::ops::Range<usize>| {
            let among = manifests.get(group.clone()).unwrap_or_default();
            among.iter().map(Manifest::rows).sum::<u64>()
        };
        // One that is larger than all that came after it is not worth writing again.
        while rows(&(group.start..group.start + 1)) > rows(group) / 2 && group.start < group.end {
            group.start += 1;
        }
    }
    groups.retain(|group| group.len() >= MERGED_MIN);
    groups
}

/// Whether every event of a manifest lies below the cuts.
fn is_below(manifest: &Manifest, cuts: &[Cut]) -> bool {
    let at = |partition: usize| cuts.get(partition).map_or(0, |cut| cut.next_offset);
    let mut ends = manifest.to.iter().enumerate();
    ends.all(|(partition, to)| to.next_offset <= at(partition))
}

/// Writes one manifest for some; answers whether it is this one that counts.
async fn merged(
    archive: &Archive,
    source: Source,
    group: &[Manifest],
    suppressed: &Suppressed,
) -> Result<bool> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else {
        return Ok(false);
    };
    let (mut events, mut left_out): (Vec<RecordBatch>, u64) = (Vec::new(), 0);
    for manifest in group {
        let Some(path) = &manifest.file else { continue };
        let row_groups = manifest
            .days
            .values()
            .flat_map(|day| day.row_groups.clone());
        let row_groups: Vec<usize> = row_groups.collect();
        let mut batches = archive.rows(path, row_groups, BATCH_ROWS).await?;
        let mut rows = 0;
        while let Some(batch) = batches.try_next().await? {
            rows += batch.num_rows() as u64;
            let without = without_listeners(&batch, |id| suppressed.has_listener(id));
            let batch = match without {
                Some(without) => {
                    left_out += (batch.num_rows() - without.num_rows()) as u64;
                    without
                }
                None => batch,
            };
            events.push(batch);
        }
        if rows != manifest.rows() {
            let what = format!(
                "it holds {rows} events, and its manifest says {}",
                manifest.rows()
            );
            return Err(Error::damaged(path, what));
        }
    }
    let expected = group.iter().map(Manifest::rows).sum::<u64>() - left_out;
    let encoded = tokio::task::spawn_blocking(move || encode(&events)).await;
    let encoded = encoded.map_err(|e| Error::fault("writing Parquet ended", e))?;
    let (bytes, days) = encoded.map_err(|e| Error::fault("writing Parquet", e))?;
    let name = format!(
        "{}/{:010}-{}.parquet",
        data_folder(source),
        last.seq,
        Uuid::new_v4()
    );
    let manifest = Manifest {
        seq: last.seq,
        first: Some(first.first()),
        from: first.from.clone(),
        to: last.to.clone(),
        file: bytes.is_some().then(|| name.clone()),
        days,
        rejected: group.iter().map(|manifest| manifest.rejected).sum(),
        suppressed: suppressed.newest_listener(),
    };
    if let Some(bytes) = bytes {
        archive.put(&name, bytes).await?;
        verify(archive, (&name, &manifest), expected).await?;
    }
    create(archive, source, &manifest).await
}

/// Reads back what was written: the files that it stands for go.
async fn verify(
    archive: &Archive,
    (path, manifest): (&str, &Manifest),
    expected: u64,
) -> Result<()> {
    let mut found: BTreeMap<i64, u64> = BTreeMap::new();
    for (day, rows) in &manifest.days {
        let groups = Some(rows.row_groups.clone().collect());
        let mut batches = archive
            .columns(path, groups, BATCH_ROWS, Some("offset"))
            .await?;
        while let Some(batch) = batches.try_next().await? {
            *found.entry(*day).or_default() += batch.num_rows() as u64;
        }
    }
    let written = manifest.days.iter().map(|(day, rows)| (*day, rows.rows));
    if found == written.collect() && found.values().sum::<u64>() == expected {
        return Ok(());
    }
    let what = "it was just written, and does not hold what was written";
    Err(Error::damaged(path, what))
}

#[cfg(test)]
mod tests {
    use super::super::manifest::DayRows;
    use super::*;

    fn manifests(rows: &[u64]) -> Vec<Manifest> {
        let each = (0_u64..).zip(rows).map(|(seq, rows)| Manifest {
            seq,
            first: None,
            from: vec![seq.cast_signed()],
            to: vec![Cut {
                next_offset: seq.cast_signed() + 1,
                last: None,
            }],
            file: None,
            days: BTreeMap::from([(
                0,
                DayRows {
                    row_groups: 0..1,
                    rows: *rows,
                },
            )]),
            rejected: 0,
            suppressed: 0,
        });
        each.collect()
    }

    #[test]
    fn neighbours_with_little_become_one() {
        let all = [Cut {
            next_offset: 1_000,
            last: None,
        }];
        let groups = |manifests: &[Manifest], cuts: &[Cut], rows_max| -> Vec<(usize, usize)> {
            let groups = groups(manifests, cuts, rows_max).into_iter();
            groups.map(|group| (group.start, group.end)).collect()
        };
        let small = |count: usize| manifests(&vec![1; count]);
        assert_eq!(groups(&small(9), &all, 100), []);
        assert_eq!(groups(&small(10), &all, 100), [(0, 8)]);
        assert_eq!(groups(&small(50), &all, 20), [(0, 20), (20, 40), (40, 48)]);
        assert_eq!(groups(&[], &all, 20), []);
        // One that is large ends a row of small ones, and stays.
        let mut rows = vec![1; 30];
        rows[12] = 80;
        assert_eq!(groups(&manifests(&rows), &all, 100), [(0, 12), (13, 28)]);
        // One that is larger than what came since waits for more; then it doubles.
        let grown = |since: usize| {
            let mut rows = vec![20];
            rows.extend(vec![1; since]);
            groups(&manifests(&rows), &all, 100)
        };
        assert_eq!(grown(15), [(1, 14)]);
        assert_eq!(grown(9), []);
        assert_eq!(grown(22), [(0, 21)]);
        // What a published result does not hold yet is left alone.
        let some = [Cut {
            next_offset: 9,
            last: None,
        }];
        assert_eq!(groups(&small(50), &some, 100), [(0, 9)]);
        assert_eq!(groups(&small(50), &[], 100), []);
    }
}
