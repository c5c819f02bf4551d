//! The tasks of a run of boards: one for each file of the snapshot, with every job.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::compute::{BoardComputation, JobFiles};
use super::manifest::ResultFile;
use crate::error::stage_mismatch;
use crate::executor::Executor;
use crate::snapshot::Snapshot;
use crate::task::{Output, StageInput, Task};
use crate::{Progress, Result};

/// Computes every job over the snapshot. Returns, for each job and snapshot file, the result files.
pub(crate) async fn compute(
    compute: &Arc<BoardComputation>,
    executor: &Executor,
    snapshot: &Snapshot,
    progress: &dyn Progress,
    stop: &CancellationToken,
) -> Result<Vec<Vec<Vec<ResultFile>>>> {
    let mut done: Vec<JobFiles> = vec![JobFiles::new(); snapshot.files.len()];
    let files = snapshot.files.iter().cloned().enumerate();
    let tasks = files.map(|(index, file)| Task::Boards { index, file });
    let take = |task, output| {
        let (Task::Boards { index, file }, Output::Boards(files)) = (task, output) else {
            return Err(stage_mismatch());
        };
        if let Some(files_of_file) = done.get_mut(index) {
            *files_of_file = files;
        }
        progress.advance(file.rows);
        Ok(())
    };
    let shared = StageInput::Boards(Arc::clone(compute));
    executor.run(shared, tasks.collect(), stop, take).await?;
    let mut by_job: Vec<Vec<Vec<ResultFile>>> = vec![Vec::new(); compute.jobs.len()];
    for job_files in done {
        for (key_ranges, files) in by_job.iter_mut().zip(job_files) {
            key_ranges.push(files);
        }
    }
    Ok(by_job)
}
