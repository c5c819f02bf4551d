//! Archive versions: which files hold the events of a source.
//!
//! A version is a numbered object that is created once and never changed. It lists every file that counts, in order: the
//! files of backfills first, then those of the log, each of which begins where the one before ends. A reader holds one
//! version. A writer changes a copy of the newest version and creates the next number. Only one of several writers succeeds;
//! the others read the newest version again, and rebase their change or give it up.
//!
//! The name of a file begins with the number of the version that its writer is about to create, and no other version may
//! be the first to list it. (A backfill reserves a number for all its files.) So an unlisted file whose number is not
//! above the newest version's is dead. [`collect_garbage`] is the rule that deletes replaced and dead files.

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

/// The digits of a number in the name of a file.
const NUMBER_DIGITS: usize = 10;

/// One version of a source's archive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    /// From 1 on; 0 where no version exists yet.
    pub(super) number: u64,
    /// Milliseconds since the Unix epoch.
    pub(super) created_at_ms: i64,
    /// The number of backfills whose files are listed.
    pub(super) backfills: u64,
    /// The numbers that open backfills reserved for their files.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) open_backfills: BTreeSet<u64>,
    /// Files of backfills, then files of the log in its order.
    pub(super) files: Vec<FileEntry>,
    /// Files that earlier versions list and that readers of these may still need.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) retired: Vec<RetiredFile>,
}

/// A file that newer versions do not list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RetiredFile {
    pub(super) path: String,
    /// Milliseconds since the Unix epoch.
    pub(super) at_ms: i64,
    /// Whether it may name a listener who was erased.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_redacted: bool,
}

/// Which retired files garbage collection deletes; it always deletes dead files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// Those that were retired before this moment, in milliseconds since the Unix epoch.
    pub(crate) before_ms: i64,
    /// Those that may name an erased listener, whenever they were retired. Their readers must have had the grace to end.
    pub(crate) redacted: bool,
}

impl Due {
    /// No retired file.
    pub(crate) const DEAD: Self = Self {
        before_ms: i64::MIN,
        redacted: false,
    };
    /// All retired files.
    pub(crate) const ALL: Self = Self {
        before_ms: i64::MAX,
        redacted: true,
    };

    const fn includes(self, file: &RetiredFile) -> bool {
        file.at_ms < self.before_ms || (self.redacted && file.is_redacted)
    }
}

impl Version {
    /// Reads the newest version. A local archive of the older layout is taken over first: no process of an older version
    /// works in the folder then. [`Version::take_over`] takes over an archive on a server.
    ///
    /// # Errors
    /// Those of the archive, and [`Error::Damaged`].
    pub(crate) async fn newest(archive: &Archive, source: Source) -> Result<Self> {
        loop {
            let Some(path) = archive.list(&folder(source)).await?.pop() else {
                if !legacy::exists(archive, source).await? {
                    return Ok(Self::default());
                }
                if !archive.is_local() {
                    return Err(Error::Request(format!(
                        "the archive of {source} has the layout of an older version: run `backstitch migrate`"
                    )));
                }
                legacy::take_over(archive, source).await?;
                continue;
            };
            // A newer version exists if this one is gone.
            if let Some(bytes) = archive.get(&path).await? {
                return Self::parse(&path, &bytes);
            }
        }
    }

    /// Creates the first version of an archive of the older layout. Returns false if there is a version, or no such archive.
    /// The caller holds the leases of runs and backfills.
    ///
    /// # Errors
    /// As [`Version::newest`].
    pub(crate) async fn take_over(archive: &Archive, source: Source) -> Result<bool> {
        Ok(Self::has_older_layout(archive, source).await?
            && legacy::take_over(archive, source).await?)
    }

    /// Whether the archive has the older layout and no version.
    ///
    /// # Errors
    /// Those of the archive.
    pub(crate) async fn has_older_layout(archive: &Archive, source: Source) -> Result<bool> {
        let has_version = !archive.list(&folder(source)).await?.is_empty();
        Ok(!has_version && legacy::exists(archive, source).await?)
    }

    fn parse(path: &str, bytes: &Bytes) -> Result<Self> {
        let damaged = |what: String| {
            let remedy = "It lists all files of the archive: restore it from a copy";
            Error::damaged(path, format!("{what}. {remedy}"))
        };
        let version: Self = from_bytes(bytes).map_err(damaged)?;
        if number_of(path) != Some(version.number) {
            return Err(damaged("its number does not match its name".to_owned()));
        }
        let of_backfills = version.log_begins_at() as u64;
        if version.backfills > of_backfills {
            return Err(damaged(
                "it lists fewer backfill files than backfills".to_owned(),
            ));
        }
        for pair in version.log_files().windows(2) {
            if let [before, after] = pair
                && !after.follows(before)
            {
                return Err(damaged(
                    "a file does not begin where the one before ends".to_owned(),
                ));
            }
        }
        Ok(version)
    }

    /// The number of backfills whose files are listed.
    pub(crate) const fn backfills(&self) -> u64 {
        self.backfills
    }

    /// All files, in order.
    pub(crate) fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Whether readers of earlier versions may need files that this one does not list.
    pub(crate) const fn has_retired_files(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The index of the first file of the log.
    pub(super) fn log_begins_at(&self) -> usize {
        self.files.partition_point(FileEntry::is_of_backfill)
    }

    /// The files of the log, in its order.
    pub(super) fn log_files(&self) -> &[FileEntry] {
        self.files.get(self.log_begins_at()..).unwrap_or_default()
    }

    /// Where the archived log ends, by partition.
    pub(super) fn end(&self) -> &[Cut] {
        self.log_files().last().map_or(&[], |last| &last.to)
    }

    /// A copy for a writer to change, with the next number.
    pub(super) fn next(&self, now_ms: i64) -> Self {
        Self {
            number: self.number + 1,
            created_at_ms: now_ms,
            ..self.clone()
        }
    }

    /// The path of a new file of events that this version is the first to list.
    pub(super) fn new_file(&self, source: Source) -> String {
        new_path(&files_folder(source), self.number)
    }

    /// The path of a new file of identities that this version is the first to list.
    pub(super) fn new_identities(&self, source: Source) -> String {
        new_path(&identities_folder(source), self.number)
    }

    /// Stops listing a file. Readers of earlier versions may need it for a while.
    pub(super) fn retire(&mut self, path: String) {
        self.retired.push(RetiredFile {
            path,
            at_ms: self.created_at_ms,
            is_redacted: false,
        });
    }

    /// Creates `next`, the version after this one. Returns false if this is not known to be the newest version any more:
    /// another writer was faster, or the archive was moved away or restored from a copy.
    ///
    /// # Errors
    /// Those of the archive.
    pub(super) async fn commit(
        &self,
        archive: &Archive,
        source: Source,
        next: &Self,
    ) -> Result<bool> {
        if self.number > 0 {
            let found = archive.get(&self.path(source)).await?;
            if found.is_none_or(|bytes| from_bytes::<Self>(&bytes).as_ref() != Ok(self)) {
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

    /// Deletes files that a writer wrote for a version that it could not create.
    pub(super) async fn discard(
        archive: &Archive,
        source: Source,
        paths: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let newest = Self::newest(archive, source).await?;
        let listed = newest.listed();
        for path in paths {
            let is_retired = newest.retired.iter().any(|retired| retired.path == path);
            if !is_retired && !listed.contains(path.as_str()) {
                archive.delete(&path).await?;
            }
        }
        Ok(newest)
    }

    /// The files to read and the days without all their events. An expired file that was restored from a copy counts.
    ///
    /// # Errors
    /// Those of the archive.
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

    /// The first and the last day without all their events.
    ///
    /// # Errors
    /// Those of the archive.
    pub(crate) async fn expired_bounds(
        &self,
        archive: &Archive,
        source: Source,
    ) -> Result<Option<(i64, i64)>> {
        let (_, days) = self.contents(archive, source).await?;
        Ok(days.bounds())
    }

    /// A listed file of events that is missing.
    ///
    /// # Errors
    /// Those of the archive.
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

    /// Paths of events and identities.
    fn listed(&self) -> BTreeSet<&str> {
        let paths = self.files.iter().flat_map(|file| {
            let identities = file.expired.as_ref().map(|expired| &expired.identities);
            file.path.iter().chain(identities)
        });
        paths.map(String::as_str).collect()
    }

    /// Whether no version lists an unlisted file any more.
    fn is_dead(&self, path: &str, source: Source) -> bool {
        let is_current = [files_folder(source), identities_folder(source)]
            .iter()
            .any(|folder| path.starts_with(folder.as_str()));
        // Nothing writes to the folders of the older layout.
        !is_current
            || number_of(path).is_some_and(|number| {
                number <= self.number && !self.open_backfills.contains(&number)
            })
    }

    fn path(&self, source: Source) -> String {
        format!("{}/{:010}.json", folder(source), self.number)
    }
}

/// Deletes dead files, retired files that are due, and versions that were replaced before then.
///
/// # Errors
/// Those of the archive, and [`Error::Damaged`] if a listed file is missing: then no retired file is deleted.
pub(crate) async fn collect_garbage(
    archive: &Archive,
    source: Source,
    due: Due,
    now_ms: i64,
) -> Result<()> {
    let newest = Version::newest(archive, source).await?;
    if newest.number == 0 {
        return Ok(());
    }
    let present = objects(archive, source).await?;
    let listed = newest.listed();
    let retired: BTreeSet<&str> = newest.retired.iter().map(|file| &*file.path).collect();
    for path in present.keys().map(String::as_str) {
        let is_needed = listed.contains(path) || retired.contains(path);
        if !is_needed && newest.is_dead(path, source) {
            archive.delete(path).await?;
        }
    }
    // A tool that copies the archive may have listed a version until the next one was created.
    let versions = archive.list(&folder(source)).await?;
    for pair in versions.windows(2) {
        let [path, next] = pair else { break };
        if let Some(bytes) = archive.get(next).await? {
            let created_at_ms = Version::parse(next, &bytes)?.created_at_ms;
            // A clock that was ahead says nothing about later versions.
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
        let what = "it is missing, so no replaced file was deleted. Restore it from a copy or run `backstitch restorate --expected archive --apply`";
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

/// All Parquet files of a source's archive, by path.
///
/// # Errors
/// Those of the archive.
pub(crate) async fn objects(
    archive: &Archive,
    source: Source,
) -> Result<BTreeMap<String, StoredObject>> {
    let objects = archive.objects(&root(source)).await?.into_iter();
    let files = objects.filter(|object| object.path.ends_with(".parquet"));
    Ok(files.map(|object| (object.path.clone(), object)).collect())
}

/// The paths of all Parquet files of a source's archive.
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

/// The number that the name of a file begins with.
fn number_of(path: &str) -> Option<u64> {
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
