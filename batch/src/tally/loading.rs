//! The tasks of publishing: some pieces of a view each. Several are written at once, by this process or by workers
//! elsewhere that reach the store of the views.
//!
//! A row is in one piece, and all rows of a run have its stamp: so it does not matter in which order tasks write, nor that
//! one which is thought lost writes once more what another wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemas::time::UnixSeconds;
use tokio_util::sync::CancellationToken;

use super::compute::{Compute, Computed, Manifests};
use super::publish::{Published, Publisher};
use super::result::ViewManifest;
use super::shared::Shared;
use crate::error::stage_mismatch;
use crate::executor::Executor;
use crate::task::{self, Output, Task};
use crate::{Progress, Result};

/// Publishes every view that was computed; returns by job what became of its touched pieces.
pub(crate) async fn load(
    compute: &Arc<Compute>,
    executor: &Executor,
    computed: &Computed,
    publisher: Publisher,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<BTreeMap<String, Published>> {
    let tasks = tasks(compute, &computed.manifests);
    let shared = task::StageInput::Aggregates(Box::new(Shared {
        compute: Arc::clone(compute),
        computed: Arc::clone(&computed.manifests),
        publisher: Some(publisher),
    }));
    let mut done: BTreeMap<String, Published> = BTreeMap::new();
    let take = |task, output| {
        let (
            Task::Publish {
                job,
                time_partitions: pieces,
            },
            Output::Published(published),
        ) = (task, output)
        else {
            return Err(stage_mismatch());
        };
        progress.advance(pieces.len() as u64);
        done.entry(job).or_default().add(published);
        Ok(())
    };
    executor.run(shared, tasks, stop, take).await?;
    Ok(done)
}

/// The touched pieces of all views, about as many rows in each task; of a view without any, a task without any: a run that
/// was overtaken must hear it.
fn tasks(compute: &Compute, manifests: &Manifests) -> Vec<Task> {
    let rows_of = |manifest: Option<&ViewManifest>, start: &UnixSeconds| {
        let piece = manifest.and_then(|manifest| manifest.pieces.get(start));
        piece.map_or(0, |piece| piece.rows)
    };
    let mut tasks = Vec::new();
    for view in compute.plan.wanted() {
        let Some(manifest) = manifests.get(view.job.name()) else {
            continue;
        };
        let part = |time_partitions| Task::Publish {
            job: view.job.name().to_owned(),
            time_partitions,
        };
        let (mut pieces, mut rows) = (BTreeSet::new(), 0);
        for start in &manifest.touched {
            let of_piece = rows_of(Some(manifest), start) + rows_of(view.published.as_ref(), start);
            if !pieces.is_empty() && rows + of_piece > compute.task_rows_max {
                tasks.push(part(std::mem::take(&mut pieces)));
                rows = 0;
            }
            pieces.insert(*start);
            rows += of_piece;
        }
        tasks.push(part(pieces));
    }
    tasks
}
