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
    let manifests = of(source, MANIFESTS);
    let backfills: Vec<BackfillManifest> = records(archive, &of(source, BACKFILLS)).await?;
    for (number, backfill) in (1..).zip(&backfills) {
        if backfill.seq != number {
            let what = format!("the manifest of backfill {number} is missing");
            return Err(Error::damaged(&of(source, BACKFILLS), what));
        }
    }
    let merged: Merged = newest(archive, &of(source, MERGED)).await?;
    let mut singles: Vec<Manifest> = records(archive, &manifests).await?;
    let is_merged = |seq: u64| {
        let mut manifests = merged.manifests.iter();
        manifests.any(|merged| (merged.first.unwrap_or(merged.seq)..=merged.seq).contains(&seq))
    };
    singles.retain(|manifest| !is_merged(manifest.seq));
    singles.extend(merged.manifests.iter().cloned());
    singles.sort_by_key(|manifest| manifest.seq);
    let mut next = 0;
    for manifest in &singles {
        if manifest.first.unwrap_or(manifest.seq) != next {
            let what = format!("manifest {next} is missing");
            return Err(Error::damaged(&manifests, what));
        }
        next = manifest.seq + 1;
    }
    let scrubbed: Scrubbed = newest(archive, &of(source, SCRUBBED)).await?;
    let expired: Vec<Reduced> = records(archive, &of(source, "reduced/manifests")).await?;
    let expired: BTreeMap<_, _> = expired
        .into_iter()
        .map(|one| (one.file.clone(), one))
        .collect();
    let objects = version::objects(archive, source).await?;
    let present: BTreeSet<&String> = objects.keys().collect();
    let mut first = Version {
        number: 1,
        backfills: backfills.len() as u64,
        ..Version::default()
    };
    let retired = merged.replaced.into_iter();
    first.retired = retired
        .filter(|one| present.contains(&one.path))
        .map(|Replaced { path, at_ms }| RetiredFile {
            path,
            at_ms,
            is_redacted: false,
        })
        .collect();
    let of_backfills = backfills.into_iter().flat_map(|backfill| {
        let redacted_through = backfill.suppressed;
        backfill.files.into_iter().map(move |file| FileEntry {
            path: Some(file.path),
            days: file.days,
            redacted_through,
            ..FileEntry::default()
        })
    });
    let of_log = singles.into_iter().map(|manifest| FileEntry {
        from: manifest.from,
        to: manifest.to,
        path: manifest.file,
        days: manifest.days,
        rejected: manifest.rejected,
        redacted_through: manifest.suppressed,
        expired: None,
    });
    for mut entry in of_backfills.chain(of_log) {
        let found = entry
            .path
            .as_ref()
            .and_then(|path| scrubbed.files.get(path));
        if let Some(found) = found {
            entry.redacted_through = entry.redacted_through.max(found.through);
            if let Some(by) = &found.by {
                first
                    .retired
                    .extend(entry.path.take().map(|path| RetiredFile {
                        path,
                        at_ms: 0,
                        is_redacted: true,
                    }));
                entry.days.clone_from(&by.days);
                entry.path = (!by.days.is_empty()).then(|| by.path.clone());
            }
        }
        let is_missing = |path: &&String| !present.contains(path);
        let gone = entry
            .path
            .as_ref()
            .filter(is_missing)
            .and_then(|path| expired.get(path));
        entry.expired = gone.map(|gone| ExpiredFile {
            identities: gone.identities.clone(),
            days: gone.days.clone(),
            size_bytes: gone.bytes,
            at_ms: gone.at_ms,
        });
        first.files.push(entry);
    }
    version::create_first(archive, source, &first).await?;
    tracing::info!(%source, files = first.files.len(), "the archive was taken over: its first version lists all files");
    Ok(true)
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
    let paths = archive.list(folder).await?.into_iter();
    let Some(path) = paths.filter(|path| path.ends_with(".json")).next_back() else {
        return Ok(T::default());
    };
    let bytes = archive.get(&path).await?;
    let bytes = bytes.ok_or_else(|| Error::damaged(&path, "it was listed, and is gone"))?;
    from_bytes(&bytes).map_err(|what| Error::damaged(&path, what))
}
