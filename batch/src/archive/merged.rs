//! Which manifests others stand for, since their files were merged ([`super::merge`]).
//!
//! What stands for what is in a *record*. Records are numbered and create-only, and each holds all that counts: the newest
//! one is read, and the manifests of single files that it does not cover. The name of a merged file begins with the number
//! that its record is to have. So whoever merges at the same time, or goes on after others did, gets no record, and what
//! it wrote is dead: no record names it, and none can any more.
//!
//! What others stand for is read by nobody who begins now, and stays a while for those who read it already.

use std::collections::BTreeSet;

use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};

use super::manifest::{self, Manifest};
use super::numbered::{newest, number};
use super::reduced::{event_files, take_reduced};
use crate::manifest_file::{from_bytes, to_bytes};
use crate::{Error, Result};

/// What was merged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Merged {
    /// The number, from 1 on; 0 where there is no record yet.
    pub(super) seq: u64,
    /// When it was written, in milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
    /// The manifests that stand for several, in their order.
    pub(super) manifests: Vec<Manifest>,
    /// What they stand for, and may still be there.
    pub(super) replaced: Vec<Replaced>,
}

/// A file of events, or a manifest, that another one stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    pub(super) path: String,
    /// Since when, in milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
}

impl Merged {
    /// Whether the manifest of a single file is one that another stands for.
    pub(super) fn covers(&self, seq: u64) -> bool {
        let mut manifests = self.manifests.iter();
        manifests.any(|manifest| (manifest.first()..=manifest.seq).contains(&seq))
    }

    /// Refuses manifests of which others stand for some: what they say is of an earlier moment.
    ///
    /// # Errors
    /// One that says to begin again.
    pub(super) fn expect_newest(&self, manifests: &[Manifest]) -> Result<()> {
        // Those of backfills are never merged.
        let of_log = manifests.iter().filter(|manifest| !manifest.to.is_empty());
        for manifest in of_log {
            let is_newest = match manifest.first {
                None => !self.covers(manifest.seq),
                Some(_) => self.manifests.contains(manifest),
            };
            if !is_newest {
                return Err(Error::Store(stores::Error::Unavailable {
                    what: "reading the archive".to_owned(),
                    why: "its files were merged by somebody else meanwhile; begin again".to_owned(),
                }));
            }
        }
        Ok(())
    }

    /// The files and manifests that others stand for and that stay a while.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &str> {
        self.replaced.iter().map(|replaced| &*replaced.path)
    }

    /// Whether there are any.
    pub(crate) fn waits(&self) -> bool {
        !self.replaced.is_empty()
    }

    fn path(source: Source, seq: u64) -> String {
        format!("{}/{seq:010}.json", records_folder(source))
    }

    /// Writes it down; answers whether it is this one that counts.
    pub(super) async fn create(&self, archive: &Archive, source: Source) -> Result<bool> {
        let path = Self::path(source, self.seq);
        Ok(archive.create(&path, to_bytes(self)?).await? == Created::New)
    }
}

fn records_folder(source: Source) -> String {
    format!("archive/{source}/merged/records")
}

/// Where merged files are.
pub(crate) fn merged_folder(source: Source) -> String {
    format!("archive/{source}/merged/data")
}

/// The newest record.
pub(crate) async fn merged(archive: &Archive, source: Source) -> Result<Merged> {
    match newest(archive, &records_folder(source)).await? {
        Some((path, bytes)) => parsed(&path, &bytes),
        None => Ok(Merged::default()),
    }
}

fn parsed(path: &str, bytes: &[u8]) -> Result<Merged> {
    from_bytes(bytes).map_err(|what| {
        let what = format!("{what}. It names all merged files: put it back from a copy");
        Error::damaged(path, what)
    })
}

/// Makes sure that what somebody has read who is merging still, without the lease, never counts, nor what was left by who died.
pub(crate) async fn end_merging(archive: &Archive, source: Source, now_ms: i64) -> Result<()> {
    loop {
        let newest = merged(archive, source).await?;
        let next = Merged {
            seq: newest.seq + 1,
            at_ms: now_ms,
            ..newest
        };
        if next.create(archive, source).await? {
            return Ok(());
        }
    }
}

/// The same, if somebody who died has left something.
pub(crate) async fn end_what_was_left(
    archive: &Archive,
    source: Source,
    now_ms: i64,
) -> Result<()> {
    let newest = merged(archive, source).await?;
    let folder = merged_folder(source);
    let paths = archive.list(&folder).await?;
    let mut numbers = paths.iter().filter_map(|path| number(path, &folder));
    if numbers.any(|seq| seq > newest.seq) {
        end_merging(archive, source, now_ms).await?;
    }
    Ok(())
}

/// Deletes what others have stood for since before a moment, and what is dead.
///
/// # Errors
/// Those of the archive, and [`Error::Damaged`] if what stands for it is not there: then nothing is deleted.
pub(crate) async fn remove_merged(archive: &Archive, source: Source, before_ms: i64) -> Result<()> {
    let newest = merged(archive, source).await?;
    if newest.seq == 0 {
        return Ok(());
    }
    let (standing, _) = take_reduced(archive, source, newest.manifests.clone()).await?;
    let present = event_files(archive, source).await?;
    for path in standing
        .iter()
        .filter_map(|manifest| manifest.file.as_ref())
    {
        if !present.contains(path) {
            let what = "it is missing, and stands for files that would be deleted now; nothing was. Put it back from a copy, or have it made anew from the log: backstitch restorate --expected archive --apply";
            return Err(Error::damaged(path, what));
        }
    }
    let singles = manifest::listed(archive, source).await?;
    let waiting: BTreeSet<&str> = newest.waiting().collect();
    // One that is covered and does not wait came back from a copy, or its writer was too late.
    let strays = singles
        .iter()
        .filter(|(seq, path)| newest.covers(*seq) && !waiting.contains(path.as_str()));
    let strays = strays.map(|(_, path)| path.as_str());
    let old = newest.replaced.iter();
    let old = old.filter(|replaced| replaced.at_ms < before_ms);
    let old = old.map(|replaced| replaced.path.as_str());
    let singles: BTreeSet<&str> = singles.iter().map(|(_, path)| path.as_str()).collect();
    let is_there = |path: &&str| present.contains(*path) || singles.contains(*path);
    let named: BTreeSet<&str> = newest
        .manifests
        .iter()
        .filter_map(|m| m.file.as_deref())
        .collect();
    let folder = merged_folder(source);
    let dead = present.iter().map(String::as_str).filter(|path| {
        number(path, &folder).is_some_and(|seq| seq <= newest.seq)
            && !named.contains(path)
            && !waiting.contains(path)
    });
    let gone: BTreeSet<&str> = strays.chain(old.filter(is_there)).chain(dead).collect();
    for path in gone {
        archive.delete(path).await?;
    }
    // Who copies the archive may have listed one a while ago.
    let records = archive.list(&records_folder(source)).await?;
    for pair in records.windows(2) {
        if let [path, next] = pair
            && let Some(bytes) = archive.get(next).await?
            && parsed(next, &bytes)?.at_ms < before_ms
        {
            archive.delete(path).await?;
        }
    }
    Ok(())
}
