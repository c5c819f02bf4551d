//! Runs tasks on threads of this process or on remote workers.
//!
//! A remote worker receives a task as JSON ([`Request`]) and runs it with the same code on the same
//! archive. The shared input of a stage is stored there as a
//! [`StageInputFile`](crate::task::StageInputFile). A task may run anywhere, and more than once:
//! each attempt writes its own files, and only files named by the accepted output count.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::concurrency::run_concurrently;
use crate::task::{Output, Request, Response, StageInput, Task};
use crate::{Error, Result, manifest_file};

/// Attempts of a task that fails for a transient reason.
const TRIES_MAX: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A client of workers in other processes, possibly on other machines.
#[async_trait]
pub trait Workers: fmt::Debug + Send + Sync {
    /// Returns how many tasks may run at the same time.
    fn concurrency_max(&self) -> usize;

    /// Runs a task on a worker and returns the response of
    /// [`Worker::run_task`](crate::Worker::run_task). Cancels the task when `stop` is cancelled.
    ///
    /// # Errors
    /// [`Error::Workers`] if no worker finished the task, and [`Error::Stopped`].
    async fn run_task(&self, task: &str, stop: &CancellationToken) -> Result<String>;

    /// Cancels all unfinished tasks.
    async fn cancel(&self);
}

/// Where tasks run.
#[derive(Debug, Clone)]
pub(crate) enum Executor {
    /// This process, with this number of threads.
    Local(usize),
    /// Remote workers.
    Remote(Arc<dyn Workers>),
}

impl Executor {
    /// Runs the tasks of a stage concurrently, and passes each with its output to `take` in the
    /// order of completion. After `stop` is cancelled, no further task starts, and the call returns
    /// when the running ones have ended.
    ///
    /// # Errors
    /// The first error of a task or of `take`, which cancels the others; [`Error::Stopped`].
    pub(crate) async fn run(
        &self,
        shared: StageInput,
        tasks: Vec<Task>,
        stop: &CancellationToken,
        mut take: impl FnMut(Task, Output) -> Result<()> + Send,
    ) -> Result<()> {
        let take = |(task, output)| take(task, output);
        match self {
            Self::Local(threads) => {
                let shared = Arc::new(shared);
                let tasks = tasks.into_iter().map(|task| {
                    let shared = Arc::clone(&shared);
                    async move {
                        let output = shared.run(&task).await?;
                        Ok((task, output))
                    }
                });
                run_concurrently(*threads, tasks, stop, take).await
            }
            Self::Remote(workers) => {
                let (archive, files) = shared.archive();
                // If the run is killed, the next run deletes this file with the results.
                let input_path = format!("{files}-note-{}.json", Uuid::new_v4());
                manifest_file::create(archive, &input_path, &shared.to_file()).await?;
                let tasks = tasks.into_iter().map(|task| {
                    let request = Request::new(&input_path, &task);
                    let (workers, stop) = (Arc::clone(workers), stop.clone());
                    async move {
                        let output = run_remotely(&*workers, &request, &stop).await?;
                        Ok((task, output))
                    }
                });
                let outcome = run_concurrently(workers.concurrency_max(), tasks, stop, take).await;
                if outcome.is_err() {
                    workers.cancel().await;
                }
                if let Err(error) = archive.delete(&input_path).await {
                    tracing::debug!(input_path, %error, "cannot delete the input of a stage; the next run does");
                }
                outcome
            }
        }
    }
}

/// Runs one task on a remote worker, with retries.
async fn run_remotely(
    workers: &dyn Workers,
    request: &Request,
    stop: &CancellationToken,
) -> Result<Output> {
    let request = serde_json::to_string(request).map_err(|e| Error::fault("encoding a task", e))?;
    let mut tries = 1;
    loop {
        let response = workers.run_task(&request, stop).await?;
        let response = serde_json::from_str(&response)
            .map_err(|e| Error::fault("decoding the response of a worker", e))?;
        let failure = match response {
            Response::Done(output) => return Ok(output),
            Response::Failed(failure) => failure,
        };
        if !failure.is_transient || tries == TRIES_MAX {
            return Err(failure.into());
        }
        tracing::warn!(tries, error = failure.message, "a task failed, retrying");
        tries += 1;
        tokio::select! {
            () = tokio::time::sleep(RETRY_PAUSE) => {}
            () = stop.cancelled() => return Err(Error::Stopped),
        }
    }
}
