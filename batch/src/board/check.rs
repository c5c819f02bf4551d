//! Checks a result of boards before it is published.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::TryStreamExt;
use jobs::board::VersionTrees;
use jobs::{Board, Job};
use stores::views::ViewsWrite;

use super::manifest::BoardManifest;
use super::planning::{Plan, PlannedView};
use super::view::encode_key;
use crate::Result;
use crate::pages::stream_pages;
use crate::snapshot::Snapshot;

/// Keys whose heads are read by one call.
const KEYS_PER_READ: usize = 1_000;

/// Returns the faults of a result; empty if it is plausible. Also sets in each manifest the number
/// of rows that its view has after publishing.
pub(crate) async fn check(
    views: &dyn ViewsWrite,
    plan: &Plan,
    snapshot: &Snapshot,
    manifests: &mut BTreeMap<String, BoardManifest>,
    rows_min: u64,
) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for view in plan.computed_views() {
        let name = view.job.name();
        let Some(manifest) = manifests.get_mut(name) else {
            faults.push(format!("job {name} has no result"));
            continue;
        };
        let (rows, visible) = (manifest.rows(), snapshot.visible_rows);
        let keys = manifest.keys.as_ref();
        let (previous, other_keys) = count_previous_rows(views, view, keys).await?;
        manifest.view_rows = Some(other_keys + rows);
        if previous >= rows_min && rows < previous / 2 {
            faults.push(format!(
                "job {name} has {rows} rows, fewer than half of the {previous} before"
            ));
        } else if rows == 0 && visible >= rows_min {
            faults.push(format!(
                "job {name} has no row, although the snapshot has {visible} visible rows"
            ));
        }
    }
    Ok(faults)
}

/// Returns how many rows a view has for the keys of a result, and how many for other keys.
async fn count_previous_rows(
    views: &dyn ViewsWrite,
    view: &PlannedView,
    keys: Option<&BTreeSet<i64>>,
) -> Result<(u64, u64)> {
    let total = match view.rows {
        Some(rows) => rows,
        None => count_all_rows(views, &view.job).await?,
    };
    let Some(keys) = keys else {
        return Ok((total, 0));
    };
    let keys = keys.iter().map(|key| encode_key(&view.job, *key));
    let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
    let mut rows = 0;
    for keys in keys.chunks(KEYS_PER_READ) {
        rows += count_key_rows(views, &view.job, keys).await?;
    }
    Ok((rows, total.saturating_sub(rows)))
}

async fn count_all_rows(views: &dyn ViewsWrite, job: &Job<Board>) -> Result<u64> {
    let mut rows = 0;
    let mut pages = pin!(stream_pages(
        |after| views.keys(job.view(), after, KEYS_PER_READ),
        Vec::clone
    ));
    while let Some(keys) = pages.try_next().await? {
        rows += count_key_rows(views, job, &keys).await?;
    }
    Ok(rows)
}

/// Returns the number of rows according to the heads of some keys.
async fn count_key_rows(views: &dyn ViewsWrite, job: &Job<Board>, keys: &[Vec<u8>]) -> Result<u64> {
    let heads = views.heads(job.view(), keys).await?.unwrap_or_default();
    let has_scores = !job.score().0.is_empty();
    // An unreadable head is ignored: it is about to be replaced.
    let versions = heads
        .into_iter()
        .filter_map(|head| VersionTrees::open(&head?.root, has_scores).ok());
    Ok(versions.map(|version| version.entry_count()).sum())
}
