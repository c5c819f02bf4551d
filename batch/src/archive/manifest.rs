//! What the archive holds: one manifest for each file, numbered, create-only.
//!
//! Manifest n begins where manifest n - 1 ends. Two archivers at once write different files, and
//! only one of them gets the manifest; the other one's file is never read. Of neighbours with little in them one with a file of
//! all of it is made later, which counts in their place ([`super::merged`]).

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use futures::{StreamExt, TryStreamExt};
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};

use super::merged::{Merged, merged};
use super::scrub::record;
use crate::manifest_file::{from_bytes, read_listed, to_bytes};
use crate::{Error, Result};

/// Events of one UTC day in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DayRows {
    /// The row groups that hold them.
    pub(crate) row_groups: Range<usize>,
    /// How many there are.
    pub(crate) rows: u64,
}

/// One file of events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The number, from 0 on; of one that stands for several that of the last of them.
    pub(crate) seq: u64,
    /// Of one that stands for several: the number of the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<u64>,
    /// By partition: the first offset of the stretch.
    pub(crate) from: Vec<Offset>,
    /// By partition: where the stretch ends.
    pub(crate) to: Vec<Cut>,
    /// The file; none if the stretch holds no event.
    pub(crate) file: Option<String>,
    /// By UTC day (days since 1970-01-01) of the events' time.
    pub(crate) days: BTreeMap<i64, DayRows>,
    /// Records of the stretch that could not be taken.
    pub(crate) rejected: u64,
    /// The number of the newest erasure of a listener that its writer knew of: those who were erased until
    /// then are not in it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) suppressed: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_none(number: &u64) -> bool {
    *number == 0
}

impl Manifest {
    /// Whether the stretch holds an offset in `[since, cuts)` of any partition.
    pub(crate) fn overlaps(&self, since: &[Cut], cuts: &[Cut]) -> bool {
        let at = |cuts: &[Cut], partition: usize| cuts.get(partition).map_or(0, |c| c.next_offset);
        self.to.iter().enumerate().any(|(partition, to)| {
            let from = self.from.get(partition).copied().unwrap_or(0);
            from.max(at(since, partition)) < to.next_offset.min(at(cuts, partition))
        })
    }

    /// Whether all of the stretch lies below the cuts. What a backfill brought stands before the log.
    pub(crate) fn is_below(&self, cuts: &[Cut]) -> bool {
        let at = |partition: usize| cuts.get(partition).map_or(0, |cut| cut.next_offset);
        let mut ends = self.to.iter().enumerate();
        ends.all(|(partition, to)| to.next_offset <= at(partition))
    }

    /// Whether it begins where `before` ends.
    fn follows(&self, before: &Self) -> bool {
        let at = |partition: usize| before.to.get(partition).map_or(0, |cut| cut.next_offset);
        self.from.len() >= before.to.len()
            && self
                .from
                .iter()
                .enumerate()
                .all(|(partition, from)| *from == at(partition))
    }

    /// The number of the first one that it stands for.
    pub(crate) fn first(&self) -> u64 {
        self.first.unwrap_or(self.seq)
    }

    /// How many events its file holds.
    pub(crate) fn rows(&self) -> u64 {
        self.days.values().map(|day| day.rows).sum()
    }

    /// Where that of a single file is.
    pub(super) fn path(&self, source: Source) -> String {
        format!("{}/{:010}.json", folder(source), self.seq)
    }
}

/// The days of the events between two cuts (of all events without `since`), and `others`: with the number of records that
/// the archive has of each.
pub(crate) fn days_between(
    manifests: &[Manifest],
    since: Option<&[Cut]>,
    cuts: &[Cut],
    others: impl IntoIterator<Item = i64>,
) -> BTreeMap<i64, u64> {
    let mut days: BTreeMap<i64, u64> = others.into_iter().map(|day| (day, 0)).collect();
    for manifest in manifests {
        // A backfill begins a table, so everything is computed then.
        if since.is_none_or(|since| manifest.overlaps(since, cuts)) {
            days.extend(manifest.days.keys().map(|day| (*day, 0)));
        }
    }
    for (day, of_day) in manifests.iter().flat_map(|manifest| &manifest.days) {
        if let Some(rows) = days.get_mut(day) {
            *rows += of_day.rows;
        }
    }
    days
}

/// Divides days into tasks of at most `rows_max` records, where a day does not have more; each with its records.
pub(crate) fn day_tasks(days: &BTreeMap<i64, u64>, rows_max: u64) -> Vec<(Vec<i64>, u64)> {
    let mut tasks: Vec<(Vec<i64>, u64)> = Vec::new();
    for (day, rows) in days {
        match tasks.last_mut() {
            Some((days, sum)) if *sum + rows <= rows_max => {
                days.push(*day);
                *sum += rows;
            }
            _ => tasks.push((vec![*day], *rows)),
        }
    }
    tasks
}

fn folder(source: Source) -> String {
    format!("archive/{source}/manifests")
}

/// Where the files of events are.
pub(crate) fn data_folder(source: Source) -> String {
    format!("archive/{source}/data")
}

/// Writes a manifest; answers whether it is this one that counts.
pub(crate) async fn create(archive: &Archive, source: Source, manifest: &Manifest) -> Result<bool> {
    let path = manifest.path(source);
    if archive.create(&path, to_bytes(manifest)?).await? != Created::New {
        return Ok(false);
    }
    // The one that had this number before may have gone, since another one stands for it.
    Ok(!merged(archive, source).await?.covers(manifest.seq))
}

/// Manifests that are read at the same time.
pub(super) const READS: usize = 16;

/// How often is looked again where manifests are merged meanwhile.
const LOOKS: usize = 3;

/// All manifests that count, in order.
pub(crate) async fn read_all(archive: &Archive, source: Source) -> Result<Vec<Manifest>> {
    let mut looks = 0;
    loop {
        let merged = merged(archive, source).await?;
        let before = merged.seq;
        let found = read_over(archive, source, merged).await;
        looks += 1;
        // What was there for the record that was read may have gone since a newer one stands for it.
        if found.is_err() && looks < LOOKS && self::merged(archive, source).await?.seq != before {
            continue;
        }
        return found;
    }
}

/// All manifests that count by a record of what was merged.
async fn read_over(archive: &Archive, source: Source, merged: Merged) -> Result<Vec<Manifest>> {
    let singles = listed(archive, source).await?;
    let singles = singles.into_iter().filter(|(seq, _)| !merged.covers(*seq));
    let mut manifests: Vec<Manifest> = futures::stream::iter(singles)
        .map(|(seq, path)| read(archive, seq, path))
        .buffered(READS)
        .try_collect()
        .await?;
    manifests.extend(merged.manifests);
    manifests.sort_by_key(Manifest::first);
    let mut next = 0;
    for manifest in &manifests {
        if manifest.first() != next {
            let what = format!("expected manifest {next} here: one is missing");
            return Err(Error::damaged(&manifest.path(source), what));
        }
        next = manifest.seq + 1;
    }
    for pair in manifests.windows(2) {
        if let [before, after] = pair
            && !after.follows(before)
        {
            let what = "it does not begin where the one before ends";
            return Err(Error::damaged(&after.path(source), what));
        }
    }
    Ok(manifests)
}

/// The manifests of single files that are there, with their numbers.
pub(super) async fn listed(archive: &Archive, source: Source) -> Result<Vec<(u64, String)>> {
    let paths = archive.list(&folder(source)).await?.into_iter();
    let numbered = paths.map(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        match name.trim_end_matches(".json").parse() {
            Ok(seq) => Ok((seq, path)),
            Err(_) => Err(Error::damaged(&path, "its name is no number of a manifest")),
        }
    });
    numbered.collect()
}

/// Whether the last of the manifests that are known is still the last one.
pub(crate) async fn is_last(
    archive: &Archive,
    source: Source,
    manifests: &[Manifest],
) -> Result<bool> {
    let Some(last) = manifests.last() else {
        return Ok(true);
    };
    if last.first.is_some() {
        let newest = merged(archive, source).await?;
        let mut singles = listed(archive, source).await?.into_iter();
        return Ok(newest.manifests.last() == Some(last) && singles.all(|(seq, _)| seq <= last.seq));
    }
    let found = archive.get(&last.path(source)).await?;
    Ok(found.is_some_and(|bytes| from_bytes::<Manifest>(&bytes).as_ref() == Ok(last)))
}

async fn read(archive: &Archive, seq: u64, path: String) -> Result<Manifest> {
    let manifest: Manifest = read_listed(archive, &path).await?;
    if manifest.seq != seq {
        let what = format!("expected manifest {seq} here: one is missing");
        return Err(Error::damaged(&path, what));
    }
    Ok(manifest)
}

/// Deletes files of events that no manifest names and none can name any more, since the manifest of
/// their number is written: an archiver died between the two. And those that others stand for, since
/// somebody was erased. What others stand for since it was merged has a time of its own.
pub(crate) async fn remove_orphans(
    archive: &Archive,
    source: Source,
    manifests: &[Manifest],
) -> Result<()> {
    let record = record(archive, source).await?;
    // After the manifests were read: a file is named by these, or waits.
    let merged = merged(archive, source).await?;
    let named = manifests.iter().filter_map(|m| m.file.as_deref());
    let named = named.filter(|path| !record.replaces(path));
    let named: HashSet<&str> = named.chain(merged.waiting()).collect();
    let next = manifests.last().map_or(0, |last| last.seq + 1);
    let folder = data_folder(source);
    for path in archive.list(&folder).await? {
        let name = path.trim_start_matches(&folder).trim_start_matches('/');
        let seq: Option<u64> = name.split('-').next().and_then(|seq| seq.parse().ok());
        if seq.is_some_and(|seq| seq < next) && !named.contains(path.as_str()) {
            archive.delete(&path).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(to: &[i64]) -> Manifest {
        let cut = |next_offset| Cut {
            next_offset,
            last: None,
        };
        Manifest {
            from: vec![0; to.len()],
            to: to.iter().copied().map(cut).collect(),
            ..Manifest::default()
        }
    }

    #[test]
    fn a_stretch_is_below_the_cuts_in_every_partition() {
        let cuts = manifest(&[5, 7]).to;
        assert!(manifest(&[5, 7]).is_below(&cuts));
        assert!(manifest(&[5]).is_below(&cuts));
        assert!(!manifest(&[5, 8]).is_below(&cuts));
        assert!(!manifest(&[0, 0, 1]).is_below(&cuts));
        assert!(!manifest(&[5, 7]).is_below(&[]));
        assert!(manifest(&[]).is_below(&cuts), "a backfill");
    }
}
