//! Deletes the files and versions of an archive that no reader needs.

use std::collections::BTreeSet;

use schemas::source::Source;
use stores::archive::Archive;

use super::version::{RetiredFile, Version, list_parquet_files, versions_folder};
use crate::{Error, Result};

/// Selects the retired files that garbage collection deletes. Dead files are always deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GarbageScope {
    /// Deletes files that were retired before this time, in milliseconds since the Unix epoch.
    pub(crate) before_ms: i64,
    /// Deletes all retired files that may name an erased listener. The grace period of their
    /// readers must be over.
    pub(crate) includes_unredacted: bool,
}

impl GarbageScope {
    /// Deletes no retired file.
    pub(crate) const DEAD_ONLY: Self = Self {
        before_ms: i64::MIN,
        includes_unredacted: false,
    };
    /// Deletes all retired files.
    pub(crate) const ALL: Self = Self {
        before_ms: i64::MAX,
        includes_unredacted: true,
    };

    const fn includes(self, file: &RetiredFile) -> bool {
        file.at_ms < self.before_ms || (self.includes_unredacted && file.is_unredacted)
    }
}

/// Deletes dead files, the retired files that `scope` selects, and versions that were replaced
/// before `scope.before_ms`.
///
/// # Errors
/// Errors of the archive, and [`Error::Damaged`] if a listed file is missing. Then no retired file
/// is deleted.
pub(crate) async fn collect_garbage(
    archive: &Archive,
    source: Source,
    scope: GarbageScope,
    now_ms: i64,
) -> Result<()> {
    let newest = Version::read_newest(archive, source).await?;
    if newest.number == 0 {
        return Ok(());
    }
    let present = list_parquet_files(archive, source).await?;
    let listed = newest.listed_paths();
    let retired: BTreeSet<&str> = newest.retired.iter().map(|file| &*file.path).collect();
    for path in present.keys().map(String::as_str) {
        let is_needed = listed.contains(path) || retired.contains(path);
        if !is_needed && newest.is_dead(path, source) {
            archive.delete(path).await?;
        }
    }
    // A tool that copies the archive may have listed a version until its successor was created.
    let versions = archive.list(&versions_folder(source)).await?;
    for pair in versions.windows(2) {
        let [path, next] = pair else { break };
        if let Some(bytes) = archive.get(next).await? {
            let created_at_ms = Version::parse(next, &bytes)?.created_at_ms;
            // A time in the future comes from a wrong clock, so later versions must still be
            // examined.
            if created_at_ms > now_ms && scope.before_ms != i64::MAX {
                continue;
            }
            if created_at_ms >= scope.before_ms {
                break;
            }
        }
        archive.delete(path).await?;
    }
    if !newest.retired.iter().any(|file| scope.includes(file)) {
        return Ok(());
    }
    let unexpired = newest.files.iter().filter(|file| file.expired.is_none());
    let mut paths = unexpired.filter_map(|file| file.path.as_ref());
    if let Some(path) = paths.find(|path| !present.contains_key(*path)) {
        let damage = "the file is missing, so no replaced file was deleted. Restore it from a copy, or run `backstitch reconcile --expected archive --apply`";
        return Err(Error::damaged(path, damage));
    }
    let files = newest.retired.iter().filter(|file| scope.includes(file));
    for file in files.filter(|file| present.contains_key(&file.path)) {
        archive.delete(&file.path).await?;
    }
    let mut next = newest.next(now_ms);
    next.retired.retain(|file| !scope.includes(file));
    newest.commit(archive, source, &next).await?;
    Ok(())
}
