//! Runs the tasks of a run: on threads of this process, or on workers elsewhere.
//!
//! A worker elsewhere gets a task as text ([`Request`]), and runs it with the same code on the same archive, where what the
//! tasks of a stage share is written as a [`Note`](crate::task::Note). A task may run anywhere, and more than once: each try
//! writes files of its own, and only those count that the output names which was taken.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::side_by_side::side_by_side;
use crate::task::{Output, Request, Response, Shared, Task};
use crate::{Error, Result, manifest_file};

/// Tries of a task that fails for a reason that may pass.
const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// Workers elsewhere, on other machines perhaps.
#[async_trait]
pub trait Workers: fmt::Debug + Send + Sync {
    /// How many tasks may be under way at the same time.
    fn at_once(&self) -> usize;

    /// Has a task carried out by a worker, and returns the answer of [`Worker::carry_out`](crate::Worker::carry_out).
    /// Cancels the task when `stop` is cancelled.
    ///
    /// # Errors
    /// [`Error::Workers`] if no worker has come to its end, [`Error::Stopped`].
    async fn carry_out(&self, task: &str, stop: &CancellationToken) -> Result<String>;

    /// Cancels what is still under way.
    async fn call_off(&self);
}

/// Runs tasks.
#[derive(Debug, Clone)]
pub(crate) enum Executor {
    /// This process, with so many threads.
    Local(usize),
    /// Workers elsewhere.
    Remote(Arc<dyn Workers>),
}

impl Executor {
    /// Runs the tasks of a stage, several at once, and passes each with its output to `take`, in the order in which they
    /// end. After `stop` is cancelled no further task begins, and the call ends with those that had begun.
    ///
    /// # Errors
    /// The first error of a task or of `take`, which ends the others; [`Error::Stopped`].
    pub(crate) async fn run(
        &self,
        shared: Shared,
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
                side_by_side(*threads, tasks, stop, take).await
            }
            Self::Remote(workers) => {
                let (archive, files) = shared.archive();
                // The note of a run that was killed is deleted with its results.
                let note = format!("{files}-note-{}.json", Uuid::new_v4());
                manifest_file::create(archive, &note, &shared.note()).await?;
                let tasks = tasks.into_iter().map(|task| {
                    let request = Request::new(&note, &task);
                    let (workers, stop) = (Arc::clone(workers), stop.clone());
                    async move {
                        let output = send(&*workers, &request, &stop).await?;
                        Ok((task, output))
                    }
                });
                let done = side_by_side(workers.at_once(), tasks, stop, take).await;
                if done.is_err() {
                    workers.call_off().await;
                }
                if let Err(error) = archive.delete(&note).await {
                    tracing::debug!(note, %error, "the note of a run stays");
                }
                done
            }
        }
    }
}

/// Has one task carried out.
async fn send(
    workers: &dyn Workers,
    request: &Request,
    stop: &CancellationToken,
) -> Result<Output> {
    let request =
        serde_json::to_string(request).map_err(|e| Error::fault("writing a task down", e))?;
    let mut tries = 1;
    loop {
        let response = workers.carry_out(&request, stop).await?;
        let response = serde_json::from_str(&response)
            .map_err(|e| Error::fault("reading what a worker answered", e))?;
        let failure = match response {
            Response::Done(output) => return Ok(output),
            Response::Failed(failure) => failure,
        };
        if !failure.may_pass || tries == TRIES_MAX {
            return Err(failure.into());
        }
        tracing::warn!(tries, error = failure.what, "a task is tried again");
        tries += 1;
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = stop.cancelled() => return Err(Error::Stopped),
        }
    }
}
