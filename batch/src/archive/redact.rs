//! Redaction: removes erased listeners from existing files.
//!
//! Files never change. A file that names an erased listener is rewritten without the listener, and
//! a new version lists the new file instead. An entry records up to which erasure its file was
//! searched, so a restored older copy of the archive is searched again.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;
use schemas::source::Source;
use stores::archive::Archive;
use stores::erasures::SuppressedPeople;
use tokio_util::sync::CancellationToken;

use super::file_entry::FileEntry;
use super::rewrite::Rewriter;
use super::version::Version;
use crate::Result;
use crate::lease::check_stop;

const BATCH_ROWS: usize = 32_768;

/// Maximum files whose search one version records. If another writer is faster, only the search of
/// these files is repeated.
const SEARCHES_MAX: u64 = 32;

/// The outcome of redacting a file.
enum RedactionOutcome {
    Unchanged,
    /// The entry of the new file.
    Replaced(FileEntry),
}

/// Removes erased listeners from the files of the newest version, and returns the resulting
/// version. Tolerates concurrent writers. [`super::collect_garbage`] deletes the replaced files.
///
/// # Errors
/// Errors of the archive, and [`crate::Error::Stopped`].
pub(crate) async fn redact(
    archive: &Archive,
    source: Source,
    suppressed: &SuppressedPeople,
    memory: &MemoryReservation,
    now_ms: i64,
    stop: &CancellationToken,
) -> Result<Version> {
    let through = suppressed.newest_listener();
    let rewriter = Rewriter {
        archive,
        suppressed,
        memory,
        stop,
    };
    loop {
        let newest = Version::read_newest(archive, source).await?;
        // Identities name no listener. An expired file is searched if it is restored from a copy.
        let (readable, _) = newest.read_contents(archive, source).await?;
        let mut next = newest.next(now_ms);
        let (mut searched, mut written, mut is_overtaken) = (0, Vec::new(), false);
        for (index, file) in readable.iter().enumerate() {
            if file.path.is_none() || file.redacted_through >= through || searched == SEARCHES_MAX {
                continue;
            }
            let outcome = match redact_file(&rewriter, file, &next.new_file_path(source)).await {
                Ok(outcome) => outcome,
                // Another writer may have replaced or expired the file.
                Err(error) if Version::read_newest(archive, source).await? == newest => {
                    return Err(error);
                }
                Err(_) => {
                    is_overtaken = true;
                    break;
                }
            };
            searched += 1;
            let mut entry = file.clone();
            if let RedactionOutcome::Replaced(replacement) = outcome {
                entry = replacement;
                written.extend(entry.path.clone());
                if let Some(path) = &file.path {
                    next.retire(path.clone());
                }
            }
            entry.redacted_through = through;
            if let Some(listed) = next.files.get_mut(index) {
                *listed = entry;
            }
        }
        if searched == 0 && !is_overtaken {
            return Ok(newest);
        }
        // Files that were retired earlier may name the same listeners.
        for file in &mut next.retired {
            file.is_unredacted = true;
        }
        if is_overtaken || !newest.commit(archive, source, &next).await? {
            Version::discard(archive, source, written).await?;
        }
    }
}

/// Creates a version with the same files. It makes files dead that other writers wrote for their
/// next version, and ends the reservations of open backfills.
///
/// # Errors
/// Errors of the archive.
pub(crate) async fn fence_writers(archive: &Archive, source: Source, now_ms: i64) -> Result<()> {
    loop {
        let newest = Version::read_newest(archive, source).await?;
        let mut next = newest.next(now_ms);
        next.open_backfills.clear();
        if newest.commit(archive, source, &next).await? {
            return Ok(());
        }
    }
}

async fn redact_file(
    rewriter: &Rewriter<'_>,
    file: &FileEntry,
    new_path: &str,
) -> Result<RedactionOutcome> {
    let Some(path) = &file.path else {
        return Ok(RedactionOutcome::Unchanged);
    };
    check_stop(rewriter.stop)?;
    let mut is_named = false;
    let visit = |id| is_named |= rewriter.suppressed.contains_listener(id);
    for_each_listener(rewriter.archive, path, Some(file.row_groups()), visit).await?;
    if !is_named {
        return Ok(RedactionOutcome::Unchanged);
    }
    let rewritten = rewriter.rewrite(std::slice::from_ref(file)).await?;
    rewritten.store(rewriter.archive, new_path).await?;
    Ok(RedactionOutcome::Replaced(FileEntry {
        path: rewritten.bytes.is_some().then(|| new_path.to_owned()),
        days: rewritten.days,
        ..file.clone()
    }))
}

/// Calls `visit` with the listener of each event that has one. Reads only this column, of all row
/// groups unless `groups` names some.
///
/// # Errors
/// Errors of the archive.
pub(crate) async fn for_each_listener(
    archive: &Archive,
    path: &str,
    groups: Option<Vec<usize>>,
    mut visit: impl FnMut(i64),
) -> Result<()> {
    let column = Some("listener_id");
    let mut batches = archive
        .read_columns(path, groups, BATCH_ROWS, column)
        .await?;
    while let Some(batch) = batches.try_next().await? {
        let listeners = batch.column_by_name("listener_id");
        let listeners = listeners.and_then(|column| column.as_primitive_opt::<Int64Type>());
        for id in listeners.iter().flat_map(|column| column.iter().flatten()) {
            visit(id);
        }
    }
    Ok(())
}
