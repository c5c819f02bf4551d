//! What the archive holds: one manifest for each file, numbered, create-only.
//!
//! Manifest n begins where manifest n - 1 ends. Two archivers at once write different files, and
//! only one of them gets the manifest; the other one's file is never read. Of manifests with little each one with a file
//! of all of it is made later, a *merged* one ([`super::merge`]), and from then on it counts in their place.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use futures::{StreamExt, TryStreamExt};
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};

use super::scrub::record;
use crate::manifest_file::{from_bytes, to_bytes};
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The number, from 0 on; of a merged one that of the last one in it.
    pub(crate) seq: u64,
    /// The number of the first one in it, if it is a merged one.
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

    /// The number of the first one in it.
    pub(crate) fn first(&self) -> u64 {
        self.first.unwrap_or(self.seq)
    }

    /// How many events its file holds.
    pub(crate) fn rows(&self) -> u64 {
        self.days.values().map(|day| day.rows).sum()
    }

    fn path(&self, source: Source) -> String {
        let seq = self.seq;
        match self.first {
            None => format!("{}/{seq:010}.json", folder(source)),
            Some(first) => format!("{}/{seq:010}-{first:010}.json", merged_folder(source)),
        }
    }
}

fn folder(source: Source) -> String {
    format!("archive/{source}/manifests")
}

fn merged_folder(source: Source) -> String {
    format!("archive/{source}/merged")
}

/// Where the files of events are.
pub(crate) fn data_folder(source: Source) -> String {
    format!("archive/{source}/data")
}

/// Writes a manifest; answers whether it is this one that counts.
pub(crate) async fn create(archive: &Archive, source: Source, manifest: &Manifest) -> Result<bool> {
    let path = manifest.path(source);
    Ok(archive.create(&path, to_bytes(manifest)?).await? == Created::New)
}

/// Manifests that are read at the same time.
pub(super) const READS: usize = 16;

/// A manifest that is there, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    first: u64,
    last: u64,
    path: String,
    /// When it was written, in milliseconds since the Unix epoch.
    at_ms: i64,
}

/// The manifests that are there.
#[derive(Debug, Default)]
struct Listed {
    /// Those that count, in their order.
    counting: Vec<Entry>,
    /// Those that merged ones stand for.
    merged: Vec<Entry>,
}

impl Listed {
    /// Which of these count: from 0 on each time the one that reaches the farthest.
    ///
    /// # Errors
    /// The number of one that is missing.
    fn of(mut entries: Vec<Entry>) -> std::result::Result<Self, u64> {
        entries.sort_by_key(|entry| (entry.first, std::cmp::Reverse(entry.last)));
        let mut listed = Self::default();
        let mut next = 0;
        for entry in entries {
            match entry.first.cmp(&next) {
                std::cmp::Ordering::Less => listed.merged.push(entry),
                std::cmp::Ordering::Equal => {
                    next = entry.last + 1;
                    listed.counting.push(entry);
                }
                std::cmp::Ordering::Greater => return Err(next),
            }
        }
        Ok(listed)
    }
}

async fn list(archive: &Archive, source: Source) -> Result<Listed> {
    let mut entries = Vec::new();
    // Those that others stand for go after these are there.
    for folder in [merged_folder(source), folder(source)] {
        for object in archive.objects(&folder).await? {
            let name = object.path.rsplit('/').next().unwrap_or_default();
            let numbers = name.trim_end_matches(".json");
            let (last, first) = numbers.split_once('-').unwrap_or((numbers, numbers));
            let (Ok(last), Ok(first)) = (last.parse(), first.parse()) else {
                return Err(Error::damaged(&object.path, "its name has no number"));
            };
            entries.push(Entry {
                first,
                last,
                at_ms: object.written_at_ms,
                path: object.path,
            });
        }
    }
    Listed::of(entries).map_err(|missing| {
        let path = format!("{}/{missing:010}.json", folder(source));
        Error::damaged(&path, format!("expected manifest {missing}: it is missing"))
    })
}

/// How often manifests are listed again that were merged while they were read.
const LISTS: usize = 3;

/// All manifests that count, in order.
pub(crate) async fn read_all(archive: &Archive, source: Source) -> Result<Vec<Manifest>> {
    let mut left = LISTS;
    let manifests = loop {
        left -= 1;
        let listed = list(archive, source).await?;
        let found: Vec<Option<Manifest>> = futures::stream::iter(&listed.counting)
            .map(|entry| read(archive, entry))
            .buffered(READS)
            .try_collect()
            .await?;
        let gone = found.iter().position(Option::is_none);
        match gone.and_then(|index| listed.counting.get(index)) {
            None => break found.into_iter().flatten(),
            Some(_) if left > 0 => {}
            Some(entry) => return Err(Error::damaged(&entry.path, "it was listed, and is gone")),
        }
    };
    let manifests: Vec<Manifest> = manifests.collect();
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

/// Whether the last of the manifests that are known is still the last one.
pub(crate) async fn is_last(
    archive: &Archive,
    source: Source,
    manifests: &[Manifest],
) -> Result<bool> {
    let Some(last) = manifests.last() else {
        return Ok(true);
    };
    let path = last.path(source);
    let found = archive.get(&path).await?;
    Ok(found.is_some_and(|bytes| from_bytes::<Manifest>(&bytes).as_ref() == Ok(last)))
}

/// A manifest; nothing if it is gone.
async fn read(archive: &Archive, entry: &Entry) -> Result<Option<Manifest>> {
    let path = &entry.path;
    let Some(bytes) = archive.get(path).await? else {
        return Ok(None);
    };
    let manifest: Manifest = from_bytes(&bytes).map_err(|what| Error::damaged(path, what))?;
    if (manifest.first(), manifest.seq) != (entry.first, entry.last) {
        let (first, last) = (manifest.first(), manifest.seq);
        let what = format!("it says that it is of {first} to {last}, and its name does not");
        return Err(Error::damaged(path, what));
    }
    Ok(Some(manifest))
}

/// Which files that others stand for are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// Those that merged manifests stand for which were written before this moment: who began to read what was
    /// before has come to the end by then.
    Before(i64),
    /// All of them.
    All,
}

/// Deletes files of events that no manifest names and none can name any more, since the manifest of
/// their number is written: an archiver died between the two. And those that others stand for, since
/// somebody was erased or manifests were merged; the manifests that others stand for last.
pub(crate) async fn remove_orphans(
    archive: &Archive,
    source: Source,
    replaced: Replaced,
) -> Result<()> {
    let record = record(archive, source).await?;
    let listed = list(archive, source).await?;
    let manifests = read_all(archive, source).await?;
    let next = manifests.last().map_or(0, |last| last.seq + 1);
    let is_old = |entry: &&Entry| match replaced {
        Replaced::All => true,
        Replaced::Before(at_ms) => {
            let mut by = listed.counting.iter();
            let by = by.find(|by| (by.first..=by.last).contains(&entry.first));
            by.is_some_and(|by| by.at_ms < at_ms)
        }
    };
    let (gone, stay): (Vec<&Entry>, Vec<&Entry>) = listed.merged.iter().partition(is_old);
    let mut named: BTreeSet<String> = manifests.into_iter().filter_map(|m| m.file).collect();
    for entry in stay {
        let manifest = read(archive, entry).await?;
        named.extend(manifest.and_then(|manifest| manifest.file));
    }
    named.retain(|path| !record.replaces(path));
    let folder = data_folder(source);
    for path in archive.list(&folder).await? {
        let name = path.trim_start_matches(&folder).trim_start_matches('/');
        let seq: Option<u64> = name.split('-').next().and_then(|seq| seq.parse().ok());
        if seq.is_some_and(|seq| seq < next) && !named.contains(&path) {
            archive.delete(&path).await?;
        }
    }
    for entry in gone {
        archive.delete(&entry.path).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(entries: &[(u64, u64)]) -> std::result::Result<Listed, u64> {
        let entries = entries.iter().map(|(first, last)| Entry {
            first: *first,
            last: *last,
            path: format!("{first}-{last}"),
            at_ms: 0,
        });
        Listed::of(entries.collect())
    }

    #[test]
    fn those_count_that_reach_the_farthest() {
        let paths = |entries: Vec<Entry>| -> Vec<String> {
            entries.into_iter().map(|entry| entry.path).collect()
        };
        let found = listed(&[(0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (0, 2)]).expect("all");
        assert_eq!(paths(found.counting), ["0-2", "3-3"]);
        assert_eq!(paths(found.merged), ["0-1", "0-0", "1-1", "2-2"]);
        // Two that merged at the same time, not the same ones.
        let found = listed(&[(0, 4), (3, 6), (5, 5), (6, 6), (7, 7)]).expect("all");
        assert_eq!(paths(found.counting), ["0-4", "5-5", "6-6", "7-7"]);
        assert_eq!(paths(found.merged), ["3-6"]);
        assert_eq!(listed(&[(0, 4), (6, 6)]).expect_err("a hole"), 5);
        assert_eq!(listed(&[(1, 1)]).expect_err("a hole"), 0);
        assert!(listed(&[]).expect("nothing").counting.is_empty());
    }
}
