//! Migration of an archive of the older layout, in which five kinds of records listed the files: a
//! manifest for each file, the newest record of merged files, the newest record of redacted files,
//! a record of each expired file, and a manifest for each backfill.
//!
//! The first version lists the same files at their old paths. Before that, a marker object is
//! written beside each kind of records. It makes processes of the older release stop with an error,
//! because they expect a number as name, and a checksum.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stores::archive::Archive;

use super::file_entry::{DayRows, ExpiredFile, FileEntry};
use super::version::{self, RetiredFile, Version};
use crate::manifest_file::{from_bytes, read_listed};
use crate::{Error, Result};

const READ_CONCURRENCY: usize = 16;
/// The name of the marker that stops older processes, which expect a number.
const MARKER_NAME: &str = "archive-has-versions";
const MANIFESTS: &str = "manifests";
const BACKFILLS: &str = "backfill/manifests";
const MERGED: &str = "merged/records";
const SCRUBBED: &str = "scrubbed/records";
/// Every process of the older release reads one of these folders before it writes.
const MARKED_FOLDERS: [&str; 4] = [MANIFESTS, BACKFILLS, MERGED, SCRUBBED];

#[derive(Debug, Clone, Deserialize)]
struct LegacyManifest {
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
struct LegacyCompaction {
    manifests: Vec<LegacyManifest>,
    replaced: Vec<LegacyReplacedFile>,
}

#[derive(Debug, Deserialize)]
struct LegacyReplacedFile {
    path: String,
    at_ms: i64,
}

#[derive(Debug, Default, Deserialize)]
struct LegacyRedactions {
    files: BTreeMap<String, LegacyRedactedFile>,
}

#[derive(Debug, Deserialize)]
struct LegacyRedactedFile {
    through: u64,
    by: Option<LegacyFile>,
}

#[derive(Debug, Deserialize)]
struct LegacyFile {
    path: String,
    days: BTreeMap<i64, DayRows>,
}

#[derive(Debug, Deserialize)]
struct LegacyExpiredFile {
    file: String,
    identities: String,
    days: BTreeMap<i64, DayRows>,
    bytes: u64,
    at_ms: i64,
}

#[derive(Debug, Deserialize)]
struct LegacyBackfill {
    seq: u64,
    files: Vec<LegacyFile>,
    #[serde(default)]
    suppressed: u64,
}

/// Returns whether the archive has records of the older layout.
pub(super) async fn has_records(archive: &Archive, source: Source) -> Result<bool> {
    for records in [MANIFESTS, BACKFILLS] {
        let paths = archive.list(&legacy_path(source, records)).await?;
        if paths.iter().any(|path| path.ends_with(".json")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates the first version from the records of the older layout. Returns false if there are none.
/// The migration may be interrupted and repeated, and several processes may run it at the same
/// time.
///
/// # Errors
/// Errors of the archive, and [`Error::Damaged`] if a record is missing or damaged.
pub(super) async fn migrate(archive: &Archive, source: Source) -> Result<bool> {
    if !has_records(archive, source).await? {
        return Ok(false);
    }
    let text = "This archive was migrated. Use the release of Backstitch that migrated it.\n";
    for records in MARKED_FOLDERS {
        let marker = legacy_path(source, &format!("{records}/{MARKER_NAME}"));
        let text = Bytes::from_static(text.as_bytes());
        archive.put(&marker, text).await?;
    }
    let first = LegacyRecords::read(archive, source).await?.into_version();
    version::create_first(archive, source, &first).await?;
    tracing::info!(%source, files = first.files.len(), "archive migrated: its first version lists all files");
    Ok(true)
}

/// All records of the older layout for a source.
struct LegacyRecords {
    backfills: Vec<LegacyBackfill>,
    /// Manifests of the log, without those that a merged file replaces.
    manifests: Vec<LegacyManifest>,
    replaced: Vec<LegacyReplacedFile>,
    scrubbed: LegacyRedactions,
    /// Records of expired files, by the path of the event file.
    reduced: BTreeMap<String, LegacyExpiredFile>,
    /// The paths of existing Parquet files.
    present: BTreeSet<String>,
}

impl LegacyRecords {
    async fn read(archive: &Archive, source: Source) -> Result<Self> {
        let folder = legacy_path(source, BACKFILLS);
        let backfills: Vec<LegacyBackfill> = read_records(archive, &folder).await?;
        for (number, backfill) in (1..).zip(&backfills) {
            if backfill.seq != number {
                let damage = format!("the manifest of backfill {number} is missing");
                return Err(Error::damaged(&folder, damage));
            }
        }
        let folder = legacy_path(source, MANIFESTS);
        let merged: LegacyCompaction = read_newest(archive, &legacy_path(source, MERGED)).await?;
        let mut manifests: Vec<LegacyManifest> = read_records(archive, &folder).await?;
        let is_merged = |seq: u64| {
            let mut merged = merged.manifests.iter();
            merged.any(|merged| (merged.first_number()..=merged.seq).contains(&seq))
        };
        manifests.retain(|manifest| !is_merged(manifest.seq));
        manifests.extend(merged.manifests);
        manifests.sort_by_key(|manifest| manifest.seq);
        let mut next = 0;
        for manifest in &manifests {
            if manifest.first_number() != next {
                let damage = format!("manifest {next} is missing");
                return Err(Error::damaged(&folder, damage));
            }
            next = manifest.seq + 1;
        }
        let expired: Vec<LegacyExpiredFile> =
            read_records(archive, &legacy_path(source, "reduced/manifests")).await?;
        let expired = expired.into_iter();
        Ok(Self {
            backfills,
            manifests,
            replaced: merged.replaced,
            scrubbed: read_newest(archive, &legacy_path(source, SCRUBBED)).await?,
            reduced: expired.map(|file| (file.file.clone(), file)).collect(),
            present: version::list_parquet_files(archive, source)
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
            retired: replaced.map(LegacyReplacedFile::into_retired).collect(),
            ..Version::default()
        };
        let backfill_entries = std::mem::take(&mut self.backfills).into_iter();
        let backfill_entries = backfill_entries.flat_map(LegacyBackfill::into_entries);
        let log_manifests = std::mem::take(&mut self.manifests).into_iter();
        for mut entry in backfill_entries.chain(log_manifests.map(LegacyManifest::into_entry)) {
            version.retired.extend(self.redact(&mut entry));
            entry.expired = self.find_expired(&entry);
            version.files.push(entry);
        }
        version
    }

    /// Replaces the original of a redacted file in its entry. Returns the original.
    fn redact(&self, entry: &mut FileEntry) -> Option<RetiredFile> {
        let scrubbed = self.scrubbed.files.get(entry.path.as_ref()?)?;
        entry.redacted_through = entry.redacted_through.max(scrubbed.through);
        let replacement = scrubbed.by.as_ref()?;
        let path = entry.path.take()?;
        entry.days.clone_from(&replacement.days);
        entry.path = (!replacement.days.is_empty()).then(|| replacement.path.clone());
        Some(RetiredFile {
            path,
            at_ms: 0,
            is_unredacted: true,
        })
    }

    /// Returns the remains of an expired file.
    fn find_expired(&self, entry: &FileEntry) -> Option<ExpiredFile> {
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

impl LegacyManifest {
    /// Returns the number of the first manifest that it replaces.
    fn first_number(&self) -> u64 {
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

impl LegacyBackfill {
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

impl LegacyReplacedFile {
    fn into_retired(self) -> RetiredFile {
        RetiredFile {
            path: self.path,
            at_ms: self.at_ms,
            is_unredacted: false,
        }
    }
}

fn legacy_path(source: Source, folder: &str) -> String {
    format!("archive/{source}/{folder}")
}

/// Reads all records of a folder, in the order of their names.
async fn read_records<T: DeserializeOwned>(archive: &Archive, folder: &str) -> Result<Vec<T>> {
    let paths = archive.list(folder).await?.into_iter();
    let paths: Vec<String> = paths.filter(|path| path.ends_with(".json")).collect();
    let read = async |path: String| read_listed(archive, &path).await;
    futures::stream::iter(paths)
        .map(read)
        .buffered(READ_CONCURRENCY)
        .try_collect()
        .await
}

/// Reads the newest record of a folder; the default if there is none.
async fn read_newest<T: DeserializeOwned + Default>(archive: &Archive, folder: &str) -> Result<T> {
    let mut paths = archive.list(folder).await?.into_iter();
    let Some(path) = paths.rfind(|path| path.ends_with(".json")) else {
        return Ok(T::default());
    };
    let bytes = archive.get(&path).await?;
    let bytes =
        bytes.ok_or_else(|| Error::damaged(&path, "it was listed, but no longer exists"))?;
    from_bytes(&bytes).map_err(|damage| Error::damaged(&path, damage))
}
