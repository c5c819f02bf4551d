//! The tasks of a run: one for each file of the snapshot, with every job.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::compute::{Compute, Files};
use super::manifest::ResultFile;
use crate::executor::Executor;
use crate::snapshot::Snapshot;
use crate::task::{Output, Shared, Task, mismatch};
use crate::{Progress, Result};

/// Computes every job over the snapshot: for each, by file of the snapshot, the files of its rows.
pub(crate) async fn compute(
    compute: &Arc<Compute>,
    executor: &Executor,
    snapshot: &Snapshot,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<Vec<Vec<Vec<ResultFile>>>> {
    let mut done: Vec<Files> = vec![Files::new(); snapshot.files.len()];
    let files = snapshot.files.iter().cloned().enumerate();
    let tasks = files.map(|(index, file)| Task::Boards { index, file });
    let take = |task, output| {
        let (Task::Boards { index, file }, Output::Boards(files)) = (task, output) else {
            return Err(mismatch());
        };
        if let Some(place) = done.get_mut(index) {
            *place = files;
        }
        progress.advance(file.rows);
        Ok(())
    };
    let shared = Shared::Boards(Arc::clone(compute));
    executor.run(shared, tasks.collect(), stop, take).await?;
    let mut by_job: Vec<Vec<Vec<ResultFile>>> = vec![Vec::new(); compute.jobs.len()];
    for of_file in done {
        for (stretches, files) in by_job.iter_mut().zip(of_file) {
            stretches.push(files);
        }
    }
    Ok(by_job)
}
