//! Who carries the tasks of a run out: threads of this process, or workers elsewhere.
//!
//! Here a task is a call and its outcome a value. Elsewhere it is an [`Errand`], written as text, that some
//! [`Worker`](crate::Worker) carries out with the same code on the same archive; what all errands of a run share lies
//! there as a [`Note`]. Nothing rests on where a task was carried out, nor on how often: each try writes files of its
//! own, and those count that the outcome names which was taken.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stores::archive::{Archive, Created};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::errand::{Answer, Errand, Outcome, Sent};
use crate::manifest_file::{from_bytes, to_bytes};
use crate::side_by_side::side_by_side;
use crate::{Error, Result};

/// How often a task is tried that fails for a reason that may pass.
const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// Workers elsewhere, on other machines perhaps.
#[async_trait]
pub trait Workers: fmt::Debug + Send + Sync {
    /// How many errands may be under way at the same time.
    fn at_once(&self) -> usize;

    /// Has an errand carried out by a worker, and answers what [`Worker::carry_out`](crate::Worker::carry_out) said.
    /// Told to stop, it calls the errand off.
    ///
    /// # Errors
    /// [`Error::Workers`] if no worker has come to its end, [`Error::Stopped`].
    async fn carry_out(&self, errand: &str, stop: &CancellationToken) -> Result<String>;

    /// Calls off what is still under way.
    async fn call_off(&self);
}

/// The tasks of one kind, and how each is carried out.
#[async_trait]
pub(crate) trait Work: Send + Sync + 'static {
    /// What one task is about.
    type Task: Send + Sync + 'static;
    /// What it gives.
    type Outcome: Send + 'static;

    /// Carries a task out in this process.
    async fn carry_out(&self, task: &Self::Task) -> Result<Self::Outcome>;

    /// The same task for a worker elsewhere.
    fn errand(&self, task: &Self::Task) -> Errand;

    /// What it gives, if the worker has answered to such a task.
    fn outcome(outcome: Outcome) -> Option<Self::Outcome>;
}

/// Who carries tasks out.
#[derive(Debug, Clone)]
pub(crate) enum Hands {
    /// So many threads of this process.
    Here(usize),
    /// Workers elsewhere.
    Elsewhere(Arc<dyn Workers>),
}

impl Hands {
    /// Has tasks carried out, several at once, and hands on what each gives, in the order in which they end. Told to
    /// stop, it begins none any more, and ends once those have ended that had begun.
    ///
    /// # Errors
    /// The first error of a task, which ends the others; [`Error::Stopped`].
    pub(crate) async fn carry_out<W: Work>(
        &self,
        work: &Arc<W>,
        tasks: Vec<W::Task>,
        stop: &CancellationToken,
        mut take: impl FnMut(W::Task, W::Outcome) + Send,
    ) -> Result<()> {
        let take = |(task, outcome)| take(task, outcome);
        match self {
            Self::Here(threads) => {
                let tasks = tasks.into_iter().map(|task| {
                    let work = Arc::clone(work);
                    async move {
                        let outcome = work.carry_out(&task).await?;
                        Ok((task, outcome))
                    }
                });
                side_by_side(*threads, tasks, stop, take).await
            }
            Self::Elsewhere(workers) => {
                let tasks = tasks.into_iter().map(|task| {
                    let errand = work.errand(&task);
                    let (workers, stop) = (Arc::clone(workers), stop.clone());
                    async move {
                        let outcome = sent_out(&*workers, errand, &stop).await?;
                        let outcome = W::outcome(outcome).ok_or_else(|| {
                            Error::Fault("a worker answered to another task".to_owned())
                        })?;
                        Ok((task, outcome))
                    }
                });
                let done = side_by_side(workers.at_once(), tasks, stop, take).await;
                if done.is_err() {
                    workers.call_off().await;
                }
                done
            }
        }
    }

    /// Writes down what tasks share, if they are carried out elsewhere. `files` is how paths of results begin: what is
    /// left of a run that was killed goes with its results.
    pub(crate) async fn note<'a, T: Serialize>(
        &self,
        archive: &'a Archive,
        files: &str,
        shared: impl FnOnce() -> T,
    ) -> Result<Note<'a>> {
        let mut note = Note {
            archive,
            path: None,
        };
        if let Self::Elsewhere(_) = self {
            let path = format!("{files}-note-{}.json", Uuid::new_v4());
            let bytes = to_bytes(&shared())?;
            match archive.create(&path, bytes).await? {
                Created::New => note.path = Some(path),
                Created::Exists => return Err(Error::Fault(format!("{path} is there already"))),
            }
        }
        Ok(note)
    }
}

/// Has one errand carried out.
async fn sent_out(
    workers: &dyn Workers,
    errand: Errand,
    stop: &CancellationToken,
) -> Result<Outcome> {
    let errand = serde_json::to_string(&Sent::now(errand))
        .map_err(|e| Error::fault("writing a task down", e))?;
    let mut tries = 1;
    loop {
        let answer = workers.carry_out(&errand, stop).await?;
        let answer: Answer = serde_json::from_str(&answer)
            .map_err(|e| Error::fault("reading what a worker answered", e))?;
        let failure = match answer {
            Answer::Done(outcome) => return Ok(outcome),
            Answer::Failed(failure) => failure,
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

/// What tasks share, where workers elsewhere read it; there is none where tasks are carried out here.
#[derive(Debug)]
pub(crate) struct Note<'a> {
    archive: &'a Archive,
    path: Option<String>,
}

impl Note<'_> {
    /// Where it is; nowhere is empty.
    pub(crate) fn path(&self) -> String {
        self.path.clone().unwrap_or_default()
    }

    /// Deletes it. One that stays the next run deletes.
    pub(crate) async fn remove(self) {
        if let Some(path) = &self.path
            && let Err(error) = self.archive.delete(path).await
        {
            tracing::debug!(path, %error, "the note of a run stays");
        }
    }
}

/// Reads a note; nothing if there is none.
pub(crate) async fn read_note<T: DeserializeOwned>(
    archive: &Archive,
    path: &str,
) -> Result<Option<T>> {
    let Some(bytes) = archive.get(path).await? else {
        return Ok(None);
    };
    let note = from_bytes(&bytes).map_err(|what| Error::damaged(path, what))?;
    Ok(Some(note))
}
