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
//! newest version's. [`collect_garbage`] deletes replaced and dead files.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use schemas::seam::Cut;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created, StoredObject};
use uuid::Uuid;

use super::expire::ExpiredDays;
use super::file_entry::FileEntry;
use super::legacy;
use crate::manifest_file::{from_bytes, to_bytes};
use crate::{Error, Result};

/// Digits of the number at the start of a file name.
const NUMBER_DIGITS: usize = 10;

/// One version of a source's archive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// Counts from 1; 0 if no version exists yet.
    pub(super) number: u64,
    /// Milliseconds since the Unix epoch.
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
    /// Milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
    /// True if it may name an erased listener.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_redacted: bool,
}

/// Selects the retired files that garbage collection deletes. Dead files are always deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GarbageScope {
    /// Deletes files that were retired before this time, in milliseconds since the Unix epoch.
    pub(crate) before_ms: i64,
    /// Deletes all retired files that may name an erased listener. The grace period of their
    /// readers must be over.
    pub(crate) redacted: bool,
}

impl GarbageScope {
    /// Deletes no retired file.
    pub(crate) const DEAD: Self = Self {
        before_ms: i64::MIN,
        redacted: false,
    };
    /// Deletes all retired files.
    pub(crate) const ALL: Self = Self {
        before_ms: i64::MAX,
        redacted: true,
    };

    const fn includes(self, file: &RetiredFile) -> bool {
        file.at_ms < self.before_ms || (self.redacted && file.is_redacted)
    }
}

impl Version {
    /// Reads the newest version. Migrates a local archive of the older layout first, because no
    /// process of an older release uses the folder then. [`Version::migrate`] migrates an archive
    /// on a server.
    ///
    /// # Errors
    /// Errors of the archive, and [`Error::Damaged`].
    pub(crate) async fn newest(archive: &Archive, source: Source) -> Result<Self> {
        loop {
            let Some(path) = archive.list(&folder(source)).await?.pop() else {
                if !legacy::has_records(archive, source).await? {
                    return Ok(Self::default());
                }
                if !archive.is_local() {
                    return Err(Error::Request(format!(
                        "the archive of {source} has the layout of an older release: run `backstitch migrate`"
                    )));
                }
                legacy::migrate(archive, source).await?;
                continue;
            };
            // If this version was deleted, a newer one exists.
            if let Some(bytes) = archive.get(&path).await? {
                return Self::parse(&path, &bytes);
            }
        }
    }

    /// Creates the first version of an archive of the older layout. Returns false if a version
    /// or no such archive exists. The caller must hold the leases of runs and backfills.
    ///
    /// # Errors
    /// The same as [`Version::newest`].
    pub(crate) async fn migrate(archive: &Archive, source: Source) -> Result<bool> {
        Ok(Self::has_older_layout(archive, source).await?
            && legacy::migrate(archive, source).await?)
    }

    /// Returns whether the archive has the older layout and no version.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(crate) async fn has_older_layout(archive: &Archive, source: Source) -> Result<bool> {
        let has_version = !archive.list(&folder(source)).await?.is_empty();
        Ok(!has_version && legacy::has_records(archive, source).await?)
    }

    fn parse(path: &str, bytes: &Bytes) -> Result<Self> {
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
            if let [before, after] = pair
                && !after.follows(before)
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
    pub(super) fn new_file(&self, source: Source) -> String {
        new_path(&files_folder(source), self.number)
    }

    /// Returns a path for a new file of identities, which this version is the first to list.
    pub(super) fn new_identities(&self, source: Source) -> String {
        new_path(&identities_folder(source), self.number)
    }

    /// Adds a file to the retired ones, since readers of earlier versions may still need it.
    pub(super) fn retire(&mut self, path: String) {
        self.retired.push(RetiredFile {
            path,
            at_ms: self.created_at_ms,
            is_redacted: false,
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
        Ok(archive.list(&folder(source)).await?.last() == Some(&path))
    }

    /// Deletes the files of a writer whose version was not created. Returns the newest version.
    pub(super) async fn discard(
        archive: &Archive,
        source: Source,
        paths: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let newest = Self::newest(archive, source).await?;
        let listed = newest.listed_paths();
        for path in paths {
            let is_retired = newest.retired.iter().any(|retired| retired.path == path);
            if !is_retired && !listed.contains(path.as_str()) {
                archive.delete(&path).await?;
            }
        }
        Ok(newest)
    }

    /// Returns the files to read, and the days with expired events. An expired file that was
    /// restored from a copy is readable again.
    ///
    /// # Errors
    /// Errors of the archive.
    pub(crate) async fn contents(
        &self,
        archive: &Archive,
        source: Source,
    ) -> Result<(Vec<FileEntry>, ExpiredDays)> {
        let (mut files, mut days) = (self.files.clone(), ExpiredDays::default());
        if files.iter().all(|file| file.expired.is_none()) {
            return Ok((files, days));
        }
        let present = event_files(archive, source).await?;
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
    pub(crate) async fn expired_bounds(
        &self,
        archive: &Archive,
        source: Source,
    ) -> Result<Option<(i64, i64)>> {
        let (_, days) = self.contents(archive, source).await?;
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
        let (files, _) = self.contents(archive, source).await?;
        let present = event_files(archive, source).await?;
        let listed = files.into_iter().filter_map(|file| file.path);
        Ok(listed.filter(|path| !present.contains(path)).collect())
    }

    /// Returns the paths of all listed files of events and identities.
    fn listed_paths(&self) -> BTreeSet<&str> {
        let paths = self.files.iter().flat_map(|file| {
            let identities = file.expired.as_ref().map(|expired| &expired.identities);
            file.path.iter().chain(identities)
        });
        paths.map(String::as_str).collect()
    }

    /// Returns whether an unlisted file is dead, so that no later version can list it.
    fn is_dead(&self, path: &str, source: Source) -> bool {
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
        format!("{}/{:010}.json", folder(source), self.number)
    }
}

/// Deletes dead files, the retired files that `due` selects, and versions that were replaced before
/// `due.before_ms`.
///
/// # Errors
/// Errors of the archive, and [`Error::Damaged`] if a listed file is missing. Then no retired file
/// is deleted.
pub(crate) async fn collect_garbage(
    archive: &Archive,
    source: Source,
    due: GarbageScope,
    now_ms: i64,
) -> Result<()> {
    let newest = Version::newest(archive, source).await?;
    if newest.number == 0 {
        return Ok(());
    }
    let present = objects(archive, source).await?;
    let listed = newest.listed_paths();
    let retired: BTreeSet<&str> = newest.retired.iter().map(|file| &*file.path).collect();
    for path in present.keys().map(String::as_str) {
        let is_needed = listed.contains(path) || retired.contains(path);
        if !is_needed && newest.is_dead(path, source) {
            archive.delete(path).await?;
        }
    }
    // A tool that copies the archive may have listed a version until its successor was created.
    let versions = archive.list(&folder(source)).await?;
    for pair in versions.windows(2) {
        let [path, next] = pair else { break };
        if let Some(bytes) = archive.get(next).await? {
            let created_at_ms = Version::parse(next, &bytes)?.created_at_ms;
            // A time in the future comes from a wrong clock, so later versions must still be
            // examined.
            if created_at_ms > now_ms && due.before_ms != i64::MAX {
                continue;
            }
            if created_at_ms >= due.before_ms {
                break;
            }
        }
        archive.delete(path).await?;
    }
    if !newest.retired.iter().any(|file| due.includes(file)) {
        return Ok(());
    }
    let unexpired = newest.files.iter().filter(|file| file.expired.is_none());
    let mut paths = unexpired.filter_map(|file| file.path.as_ref());
    if let Some(path) = paths.find(|path| !present.contains_key(*path)) {
        let what = "the file is missing, so no replaced file was deleted. Restore it from a copy, or run `backstitch reconcile --expected archive --apply`";
        return Err(Error::damaged(path, what));
    }
    let due_files = newest.retired.iter().filter(|file| due.includes(file));
    for file in due_files.filter(|file| present.contains_key(&file.path)) {
        archive.delete(&file.path).await?;
    }
    let mut next = newest.next(now_ms);
    next.retired.retain(|file| !due.includes(file));
    newest.commit(archive, source, &next).await?;
    Ok(())
}

/// Lists all Parquet files of a source's archive, by path.
///
/// # Errors
/// Errors of the archive.
pub(crate) async fn objects(
    archive: &Archive,
    source: Source,
) -> Result<BTreeMap<String, StoredObject>> {
    let objects = archive.objects(&root(source)).await?.into_iter();
    let files = objects.filter(|object| object.path.ends_with(".parquet"));
    Ok(files.map(|object| (object.path.clone(), object)).collect())
}

/// Lists the paths of all Parquet files of a source's archive.
async fn event_files(archive: &Archive, source: Source) -> Result<BTreeSet<String>> {
    let paths = archive.list(&root(source)).await?.into_iter();
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

fn root(source: Source) -> String {
    format!("archive/{source}")
}

fn folder(source: Source) -> String {
    format!("{}/versions", root(source))
}

pub(super) fn files_folder(source: Source) -> String {
    format!("{}/files", root(source))
}

pub(super) fn identities_folder(source: Source) -> String {
    format!("{}/identities", root(source))
}

#[cfg(test)]
#[path = "version_tests.rs"]
mod tests;
