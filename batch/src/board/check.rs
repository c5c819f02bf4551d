//! What a result of boards must hold before it is published.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::TryStreamExt;
use jobs::board::Sheet;
use jobs::{Board, Job};
use stores::views::ViewsWrite;

use super::manifest::BoardManifest;
use super::planning::{Plan, View};
use super::run::encoded_key;
use crate::Result;
use crate::pages::pages;
use crate::snapshot::Snapshot;

/// Keys whose heads are read at once.
const READ_KEYS: usize = 1_000;

/// What does not hold; empty if all is well. A manifest is told how many rows its view has once it is
/// published.
pub(crate) async fn check(
    views: &dyn ViewsWrite,
    plan: &Plan,
    snapshot: &Snapshot,
    manifests: &mut BTreeMap<String, BoardManifest>,
    rows_min: u64,
) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for view in plan.wanted() {
        let name = view.job.name();
        let Some(manifest) = manifests.get_mut(name) else {
            faults.push(format!("job {name}: there is no result"));
            continue;
        };
        let (rows, visible) = (manifest.rows(), snapshot.visible_rows);
        let (had, others) = had(views, view, manifest.keys.as_ref()).await?;
        manifest.view_rows = Some(others + rows);
        if had >= rows_min && rows < had / 2 {
            faults.push(format!(
                "job {name}: {rows} rows are left of {had}, fewer than half"
            ));
        } else if rows == 0 && visible >= rows_min {
            faults.push(format!(
                "job {name}: it gives no row, and the snapshot has {visible} that are neither hidden nor deleted"
            ));
        }
    }
    Ok(faults)
}

/// How many rows a view has of the keys that a result is about, and how many of others.
async fn had(
    views: &dyn ViewsWrite,
    view: &View,
    keys: Option<&BTreeSet<i64>>,
) -> Result<(u64, u64)> {
    let all = match view.rows {
        Some(rows) => rows,
        None => all_rows(views, &view.job).await?,
    };
    let Some(keys) = keys else {
        return Ok((all, 0));
    };
    let keys = keys.iter().map(|key| encoded_key(&view.job, *key));
    let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
    let mut rows = 0;
    for keys in keys.chunks(READ_KEYS) {
        rows += rows_of(views, &view.job, keys).await?;
    }
    Ok((rows, all.saturating_sub(rows)))
}

async fn all_rows(views: &dyn ViewsWrite, job: &Job<Board>) -> Result<u64> {
    let mut rows = 0;
    let mut pages = pin!(pages(
        |after| views.keys(job.view(), after, READ_KEYS),
        Vec::clone
    ));
    while let Some(keys) = pages.try_next().await? {
        rows += rows_of(views, job, &keys).await?;
    }
    Ok(rows)
}

/// The rows that the heads of some keys tell of.
async fn rows_of(views: &dyn ViewsWrite, job: &Job<Board>, keys: &[Vec<u8>]) -> Result<u64> {
    let heads = views.heads(job.view(), keys).await?.unwrap_or_default();
    let has_scores = !job.score().0.is_empty();
    // A head that can't be read has nothing to compare with: it is about to be replaced.
    let sheets = heads
        .into_iter()
        .filter_map(|head| Sheet::open(&head?.root, has_scores).ok());
    Ok(sheets.map(|sheet| sheet.rows()).sum())
}
