//! Taking listeners out of files of the archive who were erased since these were written.
//!
//! Files are never changed. One that holds somebody who is suppressed is written once more without the
//! listener, and a *record* says which file stands in the place of which. Records are numbered and
//! create-only, and each holds all that the one before held: the newest counts. The names of the files that
//! a run writes begin with the number that its record is to have. So a file is dead, for ever and whoever
//! wrote it, once the record of its number is there and the newest one does not name it; and so are files of
//! manifests that another one stands for.
//!
//! What an older copy of the archive brings back is looked at by the next run: a manifest says which erasure
//! its writer knew of, and the record up to which one a file was looked at.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};
use stores::erasures::Suppressed;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::manifest::{DayRows, Manifest};
use super::merged::merged;
use super::numbered::{newest, number};
use super::reduced::take_reduced;
use super::without;
use super::write::encoded;
use crate::manifest_file::{from_bytes, to_bytes};
use crate::run::go_on;
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;

/// What became of a file that a manifest names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Scrubbed {
    /// The number of the newest erasure that it was looked at for.
    through: u64,
    /// What stands in its place, if it held somebody.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<File>,
}

/// A file that stands in the place of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct File {
    path: String,
    days: BTreeMap<i64, DayRows>,
}

/// The files of a source that were looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The number, from 1 on; 0 where there is no record yet.
    seq: u64,
    /// By the path that the manifest names.
    files: BTreeMap<String, Scrubbed>,
}

/// What was found in the archive.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ArchiveScrubbed {
    /// Files that were looked at.
    pub(crate) files: u64,
    /// Those of them that were written once more.
    pub(crate) rewritten: u64,
}

impl Record {
    /// What is to be read of manifests.
    pub(crate) fn applied(&self, manifests: Vec<Manifest>) -> Vec<Manifest> {
        let applied = manifests.into_iter().map(|mut manifest| {
            let entry = manifest.file.as_ref().and_then(|path| self.files.get(path));
            if let Some(entry) = entry {
                manifest.suppressed = manifest.suppressed.max(entry.through);
                if let Some(by) = &entry.by {
                    manifest.file = Some(by.path.clone());
                    manifest.days.clone_from(&by.days);
                }
            }
            manifest
        });
        applied.collect()
    }

    /// Whether another file stands in the place of this one.
    pub(crate) fn replaces(&self, path: &str) -> bool {
        let entry = self.files.get(path);
        entry.is_some_and(|entry| entry.by.is_some())
    }

    fn path(source: Source, seq: u64) -> String {
        format!("{}/{seq:010}.json", records_folder(source))
    }
}

fn records_folder(source: Source) -> String {
    format!("archive/{source}/scrubbed/records")
}

/// Where the files are that stand in the place of others.
pub(crate) fn scrubbed_folder(source: Source) -> String {
    format!("archive/{source}/scrubbed/data")
}

/// The newest record.
pub(crate) async fn record(archive: &Archive, source: Source) -> Result<Record> {
    let Some((path, bytes)) = newest(archive, &records_folder(source)).await? else {
        return Ok(Record::default());
    };
    from_bytes(&bytes).map_err(|what| Error::damaged(&path, what))
}

/// Takes those who are suppressed out of the files of some manifests, and answers what is to be read of
/// these, with what was done. Several may do so at once; one of them gets through, and the others begin
/// again. What was replaced stays for those who read it: [`remove_replaced`] deletes it.
///
/// # Errors
/// Those of the archive, and [`Error::Stopped`].
pub(crate) async fn scrub(
    archive: &Archive,
    source: Source,
    manifests: Vec<Manifest>,
    suppressed: &Suppressed,
    stop: &CancellationToken,
) -> Result<(Vec<Manifest>, ArchiveScrubbed)> {
    let through = suppressed.newest_listener();
    loop {
        let before = record(archive, source).await?;
        // After the record: one that knows of a merged file comes after that of what was merged.
        merged(archive, source).await?.expect_newest(&manifests)?;
        let mut next = Record {
            seq: before.seq + 1,
            ..before.clone()
        };
        let mut done = ArchiveScrubbed::default();
        let named: BTreeSet<&str> = manifests.iter().filter_map(|m| m.file.as_deref()).collect();
        // Of files that no manifest names any more nothing need be known.
        next.files.retain(|path, _| named.contains(path.as_str()));
        let applied = before.applied(manifests.clone());
        // Of what was let go only hashes are left, which name nobody. Should such a file come back, it is looked at then.
        let (readable, _) = take_reduced(archive, source, manifests.clone()).await?;
        for (named, manifest) in manifests.iter().zip(&readable) {
            let (Some(path), Some(file)) = (&named.file, &manifest.file) else {
                continue;
            };
            if manifest.suppressed >= through {
                continue;
            }
            go_on(stop)?;
            let name = format!(
                "{}/{:010}-{}.parquet",
                scrubbed_folder(source),
                next.seq,
                Uuid::new_v4()
            );
            let rewritten = rewrite(archive, (file, &manifest.days), name, suppressed).await;
            if rewritten.is_err() && is_let_go(archive, source, named).await? {
                continue;
            }
            let rewritten = rewritten?;
            done.files += 1;
            let by = match rewritten {
                Some(by) => {
                    done.rewritten += 1;
                    Some(by)
                }
                None => before.files.get(path).and_then(|entry| entry.by.clone()),
            };
            next.files.insert(path.clone(), Scrubbed { through, by });
        }
        if done.files == 0 {
            return Ok((applied, done));
        }
        go_on(stop)?;
        let path = Record::path(source, next.seq);
        if archive.create(&path, to_bytes(&next)?).await? == Created::New {
            return Ok((next.applied(manifests), done));
        }
        // Somebody else was first: what is there counts, and what was written here is dead.
        remove_dead(archive, source).await?;
    }
}

/// Whether the file of a manifest was let go, meanwhile perhaps.
async fn is_let_go(archive: &Archive, source: Source, manifest: &Manifest) -> Result<bool> {
    let (manifests, _) = take_reduced(archive, source, vec![manifest.clone()]).await?;
    Ok(manifests.iter().all(|manifest| manifest.file.is_none()))
}

/// Writes a file once more if it holds somebody who is suppressed.
async fn rewrite(
    archive: &Archive,
    (path, days): (&str, &BTreeMap<i64, DayRows>),
    name: String,
    suppressed: &Suppressed,
) -> Result<Option<File>> {
    let groups = days.values().flat_map(|day| day.row_groups.clone());
    let groups: Vec<usize> = groups.collect();
    let mut is_held = false;
    let note = |id| is_held |= suppressed.has_listener(id);
    listeners(archive, path, Some(groups.clone()), note).await?;
    if !is_held {
        return Ok(None);
    }
    let mut events: Vec<RecordBatch> = Vec::new();
    let mut batches = archive.rows(path, groups, BATCH_ROWS).await?;
    while let Some(batch) = batches.try_next().await? {
        events.push(without(suppressed, batch));
    }
    let (_, (bytes, days)) = encoded(events).await?;
    if let Some(bytes) = bytes {
        archive.put(&name, bytes).await?;
    }
    Ok(Some(File { path: name, days }))
}

/// Hands on the listener of each event of a file, where there is one. Only that column is read; all row
/// groups, unless some are named.
pub(crate) async fn listeners(
    archive: &Archive,
    path: &str,
    groups: Option<Vec<usize>>,
    mut note: impl FnMut(i64),
) -> Result<()> {
    let column = Some("listener_id");
    let mut batches = archive.columns(path, groups, BATCH_ROWS, column).await?;
    while let Some(batch) = batches.try_next().await? {
        let listeners = batch.column_by_name("listener_id");
        let listeners = listeners.and_then(|column| column.as_primitive_opt::<Int64Type>());
        for id in listeners
            .iter()
            .flat_map(|listeners| listeners.iter().flatten())
        {
            note(id);
        }
    }
    Ok(())
}

/// Deletes records that a newer one has taken the place of, and files that are dead: nobody reads them but
/// who began before the newest record was written. `named` are the files that manifests name.
pub(crate) async fn remove_replaced<'a>(
    archive: &Archive,
    source: Source,
    named: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let record = record(archive, source).await?;
    for path in named {
        if record.replaces(path) {
            archive.delete(path).await?;
        }
    }
    remove_dead(archive, source).await
}

async fn remove_dead(archive: &Archive, source: Source) -> Result<()> {
    let newest = record(archive, source).await?;
    let by = newest.files.values().filter_map(|entry| entry.by.as_ref());
    let named: BTreeSet<&str> = by.map(|file| file.path.as_str()).collect();
    let folder = scrubbed_folder(source);
    for path in archive.list(&folder).await? {
        if number(&path, &folder).is_some_and(|seq| (1..=newest.seq).contains(&seq))
            && !named.contains(path.as_str())
        {
            archive.delete(&path).await?;
        }
    }
    let folder = records_folder(source);
    for path in archive.list(&folder).await? {
        if path < Record::path(source, newest.seq) {
            archive.delete(&path).await?;
        }
    }
    Ok(())
}
