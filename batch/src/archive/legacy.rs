//! Takes over an archive of the older layout, in which five kinds of records said which files count: a manifest for each
//! file, the newest record of merged files, the newest record of redacted files, a record of each expired file, and a
//! manifest for each backfill.
//!
//! The first version lists the same files where they are. Before that, an object is put among each kind of records that makes
//! processes of the older version stop with an error: they expect numbers as names, and a checksum.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stores::archive::Archive;

use super::expire::ExpiredFile;
use super::file_entry::{DayRows, FileEntry};
use super::version::{self, RetiredFile, Version};
use crate::manifest_file::{from_bytes, read_listed};
use crate::{Error, Result};

const READS_AT_ONCE: usize = 16;
/// The name of the object that stops older processes: they expect a number.
const FENCE: &str = "archive-has-versions";
const MANIFESTS: &str = "manifests";
const BACKFILLS: &str = "backfill/manifests";
const MERGED: &str = "merged/records";
const SCRUBBED: &str = "scrubbed/records";
/// Each process of the older version reads one of these before it writes.
const FENCED: [&str; 4] = [MANIFESTS, BACKFILLS, MERGED, SCRUBBED];

#[derive(Debug, Clone, Deserialize)]
struct Manifest {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    first: Option<u64>,
    from: Vec<Offset>,
    to: Vec<Cut>,
    file: Option<String>,
    days: BTreeMap<i64, DayRows>,
    rejected: u64,
    #[serde(default)]
    suppressed: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Merged {
    manifests: Vec<Manifest>,
    replaced: Vec<Replaced>,
}

#[derive(Debug, Deserialize)]
struct Replaced {
    path: String,
    at_ms: i64,
}

#[derive(Debug, Default, Deserialize)]
struct Scrubbed {
    files: BTreeMap<String, ScrubbedFile>,
}

#[derive(Debug, Deserialize)]
struct ScrubbedFile {
    through: u64,
    by: Option<File>,
}

#[derive(Debug, Deserialize)]
struct File {
    path: String,
    days: BTreeMap<i64, DayRows>,
}

#[derive(Debug, Deserialize)]
struct Reduced {
    file: String,
    identities: String,
    days: BTreeMap<i64, DayRows>,
    bytes: u64,
    at_ms: i64,
}

#[derive(Debug, Deserialize)]
struct BackfillManifest {
    seq: u64,
    files: Vec<File>,
    #[serde(default)]
    suppressed: u64,
}

/// Whether there are records of the older layout.
pub(super) async fn exists(archive: &Archive, source: Source) -> Result<bool> {
    for records in [MANIFESTS, BACKFILLS] {
        let paths = archive.list(&of(source, records)).await?;
        if paths.iter().any(|path| path.ends_with(".json")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates the first version from the records of the older layout. Returns false if there are none. It may be killed and
/// repeated, and several processes may do it at the same time.
///
/// # Errors
/// Those of the archive, and [`Error::Damaged`] if a record is missing or damaged.
pub(super) async fn take_over(archive: &Archive, source: Source) -> Result<bool> {
    if !exists(archive, source).await? {
        return Ok(false);
    }
    let text = "The archive has versions now. Use the version of Backstitch that created them.\n";
    for records in FENCED {
        let fence = of(source, &format!("{records}/{FENCE}"));
        let text = Bytes::from_static(text.as_bytes());
        archive.put(&fence, text).await?;
    }
    let first = OlderRecords::read(archive, source).await?.into_version();
    version::create_first(archive, source, &first).await?;
    tracing::info!(%source, files = first.files.len(), "the archive was taken over: its first version lists all files");
    Ok(true)
}

/// Everything that the older layout says about the files of a source.
struct OlderRecords {
    backfills: Vec<BackfillManifest>,
    /// Of the log, without those that a merged file replaces.
    manifests: Vec<Manifest>,
    replaced: Vec<Replaced>,
    scrubbed: Scrubbed,
    /// By the file of events.
    reduced: BTreeMap<String, Reduced>,
    /// The Parquet files that exist.
    present: BTreeSet<String>,
}

impl OlderRecords {
    async fn read(archive: &Archive, source: Source) -> Result<Self> {
        let folder = of(source, BACKFILLS);
        let backfills: Vec<BackfillManifest> = records(archive, &folder).await?;
        for (number, backfill) in (1..).zip(&backfills) {
            if backfill.seq != number {
                let what = format!("the manifest of backfill {number} is missing");
                return Err(Error::damaged(&folder, what));
            }
        }
        let folder = of(source, MANIFESTS);
        let merged: Merged = newest(archive, &of(source, MERGED)).await?;
        let mut manifests: Vec<Manifest> = records(archive, &folder).await?;
        let is_merged = |seq: u64| {
            let mut merged = merged.manifests.iter();
            merged.any(|merged| (merged.first()..=merged.seq).contains(&seq))
        };
        manifests.retain(|manifest| !is_merged(manifest.seq));
        manifests.extend(merged.manifests);
        manifests.sort_by_key(|manifest| manifest.seq);
        let mut next = 0;
        for manifest in &manifests {
            if manifest.first() != next {
                let what = format!("manifest {next} is missing");
                return Err(Error::damaged(&folder, what));
            }
            next = manifest.seq + 1;
        }
        let reduced: Vec<Reduced> = records(archive, &of(source, "reduced/manifests")).await?;
        let reduced = reduced.into_iter();
        Ok(Self {
            backfills,
            manifests,
            replaced: merged.replaced,
            scrubbed: newest(archive, &of(source, SCRUBBED)).await?,
            reduced: reduced.map(|one| (one.file.clone(), one)).collect(),
            present: version::objects(archive, source)
                .await?
                .into_keys()
                .collect(),
        })
    }

    fn into_version(mut self) -> Version {
        let replaced = std::mem::take(&mut self.replaced).into_iter();
        let replaced = replaced.filter(|file| self.present.contains(&file.path));
        let mut version = Version {
            number: 1,
            backfills: self.backfills.len() as u64,
            retired: replaced.map(Replaced::into_retired).collect(),
            ..Version::default()
        };
        let of_backfills = std::mem::take(&mut self.backfills).into_iter();
        let of_backfills = of_backfills.flat_map(BackfillManifest::into_entries);
        let of_log = std::mem::take(&mut self.manifests).into_iter();
        for mut entry in of_backfills.chain(of_log.map(Manifest::into_entry)) {
            version.retired.extend(self.redact(&mut entry));
            entry.expired = self.expired(&entry);
            version.files.push(entry);
        }
        version
    }

    /// Lists the redacted file in place of the original, which is returned.
    fn redact(&self, entry: &mut FileEntry) -> Option<RetiredFile> {
        let scrubbed = self.scrubbed.files.get(entry.path.as_ref()?)?;
        entry.redacted_through = entry.redacted_through.max(scrubbed.through);
        let by = scrubbed.by.as_ref()?;
        let path = entry.path.take()?;
        entry.days.clone_from(&by.days);
        entry.path = (!by.days.is_empty()).then(|| by.path.clone());
        Some(RetiredFile {
            path,
            at_ms: 0,
            is_redacted: true,
        })
    }

    /// What is left of a file that was deleted for its age.
    fn expired(&self, entry: &FileEntry) -> Option<ExpiredFile> {
        let path = entry.path.as_ref()?;
        let reduced = self
            .reduced
            .get(path)
            .filter(|_| !self.present.contains(path))?;
        Some(ExpiredFile {
            identities: reduced.identities.clone(),
            days: reduced.days.clone(),
            size_bytes: reduced.bytes,
            at_ms: reduced.at_ms,
        })
    }
}

impl Manifest {
    /// The number of the first manifest that it replaces.
    fn first(&self) -> u64 {
        self.first.unwrap_or(self.seq)
    }

    fn into_entry(self) -> FileEntry {
        FileEntry {
            from: self.from,
            to: self.to,
            path: self.file,
            days: self.days,
            rejected: self.rejected,
            redacted_through: self.suppressed,
            expired: None,
        }
    }
}

impl BackfillManifest {
    fn into_entries(self) -> impl Iterator<Item = FileEntry> {
        let redacted_through = self.suppressed;
        self.files.into_iter().map(move |file| FileEntry {
            path: Some(file.path),
            days: file.days,
            redacted_through,
            ..FileEntry::default()
        })
    }
}

impl Replaced {
    fn into_retired(self) -> RetiredFile {
        RetiredFile {
            path: self.path,
            at_ms: self.at_ms,
            is_redacted: false,
        }
    }
}

fn of(source: Source, folder: &str) -> String {
    format!("archive/{source}/{folder}")
}

/// All records of a folder, in the order of their names.
async fn records<T: DeserializeOwned>(archive: &Archive, folder: &str) -> Result<Vec<T>> {
    let paths = archive.list(folder).await?.into_iter();
    let paths: Vec<String> = paths.filter(|path| path.ends_with(".json")).collect();
    let read = async |path: String| read_listed(archive, &path).await;
    futures::stream::iter(paths)
        .map(read)
        .buffered(READS_AT_ONCE)
        .try_collect()
        .await
}

/// The newest record of a folder; the default if there is none.
async fn newest<T: DeserializeOwned + Default>(archive: &Archive, folder: &str) -> Result<T> {
    let mut paths = archive.list(folder).await?.into_iter();
    let Some(path) = paths.rfind(|path| path.ends_with(".json")) else {
        return Ok(T::default());
    };
    let bytes = archive.get(&path).await?;
    let bytes = bytes.ok_or_else(|| Error::damaged(&path, "it was listed, and is gone"))?;
    from_bytes(&bytes).map_err(|what| Error::damaged(&path, what))
}
