//! Archive versions: numbered lists of the files with the events of a source.
//!
//! A version is a numbered object that never changes. It lists every file in order: the files of
//! backfills first, then those of the log, each of which begins where the previous one ends. A
//! reader uses one version throughout. A writer changes a copy of the newest version and creates
//! the next number. Only one of several writers succeeds. The others apply their change to the new
//! version, or abandon it.
//!
//! The name of a file begins with the number of the version that its writer is about to create, and
//! only that version may be the first to list the file. (A backfill reserves a number for all its
//! files.) So a file is dead if the newest version does not list it and its number is not above the
//! newest version's. [`collect_garbage`](super::collect_garbage) deletes replaced and dead files.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use schemas::seam::Cut;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created, StoredObject};
use uuid::Uuid;

use super::expired_days::ExpiredDays;
use super::file_entry::FileEntry;
use crate::manifest_file::{from_bytes, to_bytes};
use crate::{Error, Result};

/// Digits of the number at the start of a file name.
const NUMBER_DIGITS: usize = 10;

/// One version of a source's archive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Counts from 1; 0 if no version exists yet.
    pub(super) number: u64,
    /// When it was created, in milliseconds since the Unix epoch.
    pub(super) created_at_ms: i64,
    /// The number of backfills whose files are listed.
    pub(super) backfills: u64,
    /// The numbers reserved for the files of open backfills.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) open_backfills: BTreeSet<u64>,
    /// Files of backfills, then files of the log in its order.
    pub(super) files: Vec<FileEntry>,
    /// Files that only earlier versions list, for readers of these versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) retired: Vec<RetiredFile>,
}

/// A file that newer versions do not list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RetiredFile {
    pub(super) path: String,
    /// When it was retired, in milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
    /// True if it may name an erased listener.
    #[serde(
        rename = "is_redacted",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub(super) is_unredacted: bool,
}

impl Version {
    pub(super) fn parse(path: &str, bytes: &Bytes) -> Result<Self> {
        let damaged = |damage: String| {
            let remedy = "It lists all files of the archive; restore it from a copy";
            Error::damaged(path, format!("{damage}. {remedy}"))
        };
        let version: Self = from_bytes(bytes).map_err(damaged)?;
        if version_number(path) != Some(version.number) {
            return Err(damaged("its number does not match its name".to_owned()));
        }
        let backfill_files = version.log_start_index() as u64;
        if version.backfills > backfill_files {
            return Err(damaged(
                "it lists fewer backfill files than backfills".to_owned(),
            ));
        }
        for pair in version.log_files().windows(2) {
            if let [previous, file] = pair
                && !file.follows(previous)
            {
                return Err(damaged(
                    "a file does not begin where the previous one ends".to_owned(),
                ));
            }
        }
        Ok(version)
    }

    /// Returns the number of backfills whose files are listed.
    pub(crate) const fn backfills(&self) -> u64 {
        self.backfills
    }

    /// Returns all files, in order.
    pub(crate) fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Returns whether readers of earlier versions may need files that this one does not list.
    pub(crate) const fn has_retired_files(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Returns the index of the first file of the log.
    pub(super) fn log_start_index(&self) -> usize {
        self.files.partition_point(FileEntry::is_backfill)
    }

    /// Returns the files of the log, in log order.
    pub(super) fn log_files(&self) -> &[FileEntry] {
        self.files.get(self.log_start_index()..).unwrap_or_default()
    }

    /// Returns the end of the archived log, by partition.
    pub(super) fn end(&self) -> &[Cut] {
        self.log_files().last().map_or(&[], |last| &last.to)
    }

    /// Returns a copy with the next number, for a writer to change.
    pub(super) fn next(&self, now_ms: i64) -> Self {
        Self {
            number: self.number + 1,
            created_at_ms: now_ms,
            ..self.clone()
        }
    }

    /// Returns a path for a new file of events, which this version is the first to list.
    pub(super) fn new_file_path(&self, source: Source) -> String {
        new_path(&files_folder(source), self.number)
    }

    /// Returns a path for a new file of identities, which this version is the first to list.
    pub(super) fn new_identities_path(&self, source: Source) -> String {
        new_path(&identities_folder(source), self.number)
    }

    /// Adds a file to the retired ones, since readers of earlier versions may still need it.
    pub(super) fn retire(&mut self, path: String) {
        self.retired.push(RetiredFile {
            path,
            at_ms: self.created_at_ms,
            is_unredacted: false,
        });
    }

    /// Creates `next`, the version after this one. Returns false if this version is not provably
    /// the newest: another writer was faster, or the archive was moved or restored from a copy.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(super) async fn commit(
        &self,
        archive: &Archive,
        source: Source,
        next: &Self,
    ) -> Result<bool> {
        if self.number > 0 {
            let stored = archive.get(&self.path(source)).await?;
            if stored.is_none_or(|bytes| from_bytes::<Self>(&bytes).as_ref() != Ok(self)) {
                return Ok(false);
            }
        }
        let path = next.path(source);
        if archive.create(&path, to_bytes(next)?).await? != Created::New {
            return Ok(false);
        }
        // A writer that stalled for hours may create a number that was deleted long ago.
        Ok(archive.list(&versions_folder(source)).await?.last() == Some(&path))
    }

    /// Returns the files to read, and the days with expired events. An expired file that was
    /// restored from a copy is readable again.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(crate) async fn read_contents(
        &self,
        archive: &Archive,
        source: Source,
    ) -> Result<(Vec<FileEntry>, ExpiredDays)> {
        let (mut files, mut days) = (self.files.clone(), ExpiredDays::default());
        if files.iter().all(|file| file.expired.is_none()) {
            return Ok((files, days));
        }
        let present = list_parquet_paths(archive, source).await?;
        for file in &mut files {
            let is_present = file
                .path
                .as_ref()
                .is_some_and(|path| present.contains(path));
            if let Some(expired) = file.expired.take().filter(|_| !is_present) {
                file.path = None;
                days.add(file, &expired);
            }
        }
        Ok((files, days))
    }

    /// Returns the first and last day with expired events.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(crate) async fn find_expired_bounds(
        &self,
        archive: &Archive,
        source: Source,
    ) -> Result<Option<(i64, i64)>> {
        let (_, days) = self.read_contents(archive, source).await?;
        Ok(days.bounds())
    }

    /// Returns the listed files of events that are missing.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(crate) async fn missing_files(
        &self,
        archive: &Archive,
        source: Source,
    ) -> Result<Vec<String>> {
        let (files, _) = self.read_contents(archive, source).await?;
        let present = list_parquet_paths(archive, source).await?;
        let listed = files.into_iter().filter_map(|file| file.path);
        Ok(listed.filter(|path| !present.contains(path)).collect())
    }

    /// Returns the paths of all listed files of events and identities.
    pub(super) fn listed_paths(&self) -> BTreeSet<&str> {
        let paths = self.files.iter().flat_map(|file| {
            let identities = file.expired.as_ref().map(|expired| &expired.identities);
            file.path.iter().chain(identities)
        });
        paths.map(String::as_str).collect()
    }

    /// Returns whether an unlisted file is dead, so that no later version can list it.
    pub(super) fn is_dead(&self, path: &str, source: Source) -> bool {
        let is_current = [files_folder(source), identities_folder(source)]
            .iter()
            .any(|folder| path.starts_with(folder.as_str()));
        // No process writes to the folders of the older layout.
        !is_current
            || version_number(path).is_some_and(|number| {
                number <= self.number && !self.open_backfills.contains(&number)
            })
    }

    fn path(&self, source: Source) -> String {
        format!("{}/{:010}.json", versions_folder(source), self.number)
    }
}

/// Lists all Parquet files of a source's archive, by path.
///
/// # Errors
/// Errors of the archive.
pub(crate) async fn list_parquet_files(
    archive: &Archive,
    source: Source,
) -> Result<BTreeMap<String, StoredObject>> {
    let objects = archive
        .list_objects(&archive_folder(source))
        .await?
        .into_iter();
    let files = objects.filter(|object| object.path.ends_with(".parquet"));
    Ok(files.map(|object| (object.path.clone(), object)).collect())
}

/// Lists the paths of all Parquet files of a source's archive.
async fn list_parquet_paths(archive: &Archive, source: Source) -> Result<BTreeSet<String>> {
    let paths = archive.list(&archive_folder(source)).await?.into_iter();
    Ok(paths.filter(|path| path.ends_with(".parquet")).collect())
}

/// Creates the first version. Returns false if one exists.
pub(super) async fn create_first(
    archive: &Archive,
    source: Source,
    version: &Version,
) -> Result<bool> {
    let created = archive
        .create(&version.path(source), to_bytes(version)?)
        .await?;
    Ok(created == Created::New)
}

pub(super) fn new_path(folder: &str, number: u64) -> String {
    format!("{folder}/{number:010}-{}.parquet", Uuid::new_v4())
}

/// Parses the number at the start of a file name.
fn version_number(path: &str) -> Option<u64> {
    let name = path.rsplit('/').next()?;
    name.get(..NUMBER_DIGITS)?.parse().ok()
}

fn archive_folder(source: Source) -> String {
    format!("archive/{source}")
}

pub(super) fn versions_folder(source: Source) -> String {
    format!("{}/versions", archive_folder(source))
}

pub(super) fn files_folder(source: Source) -> String {
    format!("{}/files", archive_folder(source))
}

pub(super) fn identities_folder(source: Source) -> String {
    format!("{}/identities", archive_folder(source))
}

#[cfg(test)]
#[path = "version_tests.rs"]
mod tests;
