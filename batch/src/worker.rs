//! The other side of [`crate::hands`]: a process that carries out tasks of runs of other processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use jobs::{Catalog, Engine};
use serde::de::DeserializeOwned;
use stores::StoresOptions;
use stores::archive::Archive;
use stores::views::ViewsWrite;
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;

use crate::errand::{Answer, Errand, Failure, Outcome, Sent};
use crate::hands::read_note;
use crate::run::KNOWN_BYTES;
use crate::tally::Manifests;
use crate::{Error, Result, board, tally};

/// Notes that are remembered: those of the tasks that come side by side.
const NOTES_MAX: usize = 4;

/// Carries out tasks of runs. It needs the archive of the run and, where it is to publish, the store of the views; nothing
/// else of the installation.
#[derive(Debug)]
pub struct Worker {
    archive: Archive,
    /// Opened by the first task that publishes.
    stores: StoresOptions,
    views: OnceCell<Option<Arc<dyn ViewsWrite>>>,
    catalog: Catalog,
    engine: Engine,
    /// Who it is, for people.
    name: String,
    notes: Mutex<VecDeque<(String, Noted)>>,
}

/// What a note says.
#[derive(Debug, Clone)]
enum Noted {
    Tallies(Arc<tally::Compute>),
    Computed(Arc<Manifests>),
    Boards(Arc<board::Compute>),
}

impl Worker {
    /// A worker on the archive of some stores, of which it opens the views only where it publishes; `name` says who it is,
    /// for people.
    #[must_use]
    pub fn new(
        (archive, stores): (Archive, StoresOptions),
        catalog: Catalog,
        engine: Engine,
        name: String,
    ) -> Self {
        Self {
            archive,
            stores,
            views: OnceCell::new(),
            catalog,
            engine,
            name,
            notes: Mutex::default(),
        }
    }

    /// Carries out a task that [`crate::Workers::carry_out`] was given, and answers what came of it, also if it failed.
    pub async fn carry_out(&self, errand: &str) -> String {
        let since = Instant::now();
        let answer = match self.done(errand).await {
            Ok(outcome) => {
                let seconds = since.elapsed().as_secs_f64();
                tracing::info!(task = outcome.name(), seconds, "a task is done");
                Answer::Done(outcome)
            }
            Err(error) => {
                tracing::warn!(%error, "a task failed");
                Answer::Failed(Failure::from(&error))
            }
        };
        // Text and numbers only: that can always be written.
        serde_json::to_string(&answer).unwrap_or_default()
    }

    async fn done(&self, errand: &str) -> Result<Outcome> {
        match Sent::read(errand)? {
            Errand::Days { plan, days } => {
                let compute = self.tallies(&plan).await?;
                Ok(Outcome::Days(compute.day_task(&days).await?))
            }
            Errand::Coarse {
                plan,
                computed,
                job,
            } => {
                let compute = self.tallies(&plan).await?;
                let computed = self.computed(&computed).await?;
                Ok(Outcome::Coarse(compute.coarse(&job, &computed).await?))
            }
            Errand::Publish {
                plan,
                computed,
                edition,
                job,
                pieces,
            } => {
                let compute = self.tallies(&plan).await?;
                let computed = self.computed(&computed).await?;
                let views = self.views.get_or_try_init(|| self.stores.views());
                let views = views.await?.as_ref();
                let views = views.ok_or_else(|| self.without_views())?;
                let publisher = tally::Publisher {
                    views: Arc::clone(views),
                    archive: self.archive.clone(),
                    edition,
                    // Who calls a task off lets go of it.
                    stop: CancellationToken::new(),
                };
                let of = (job.as_str(), &pieces);
                let published = compute.publish(&publisher, &computed, of).await?;
                Ok(Outcome::Published(published))
            }
            Errand::Boards { plan, file } => {
                let read = |note: board::Note| {
                    let archive = self.archive.clone();
                    let compute = note.compute(&self.catalog, self.engine.clone(), archive)?;
                    Ok(Noted::Boards(Arc::new(compute)))
                };
                let Noted::Boards(compute) = self.noted(&plan, read).await? else {
                    return Err(mixed_up());
                };
                Ok(Outcome::Boards(compute.file(&file).await?))
            }
        }
    }

    async fn computed(&self, path: &str) -> Result<Arc<Manifests>> {
        let read = |manifests| Ok(Noted::Computed(Arc::new(manifests)));
        match self.noted(path, read).await? {
            Noted::Computed(computed) => Ok(computed),
            _ => Err(mixed_up()),
        }
    }

    async fn tallies(&self, plan: &str) -> Result<Arc<tally::Compute>> {
        let read = |note: tally::Note| {
            let archive = self.archive.remembering(KNOWN_BYTES);
            let compute = note.compute(&self.catalog, self.engine.clone(), archive)?;
            Ok(Noted::Tallies(Arc::new(compute)))
        };
        match self.noted(plan, read).await? {
            Noted::Tallies(compute) => Ok(compute),
            _ => Err(mixed_up()),
        }
    }

    /// What a note says, read once by all tasks that need it at the same time.
    async fn noted<T: DeserializeOwned>(
        &self,
        path: &str,
        read: impl FnOnce(T) -> Result<Noted>,
    ) -> Result<Noted> {
        let mut notes = self.notes.lock().await;
        if let Some((_, noted)) = notes.iter().find(|(known, _)| known == path) {
            return Ok(noted.clone());
        }
        let note = read_note(&self.archive, path).await?;
        let note = note.ok_or_else(|| self.other_archive(path))?;
        let noted = read(note)?;
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back((path.to_owned(), noted.clone()));
        Ok(noted)
    }

    fn without_views(&self) -> Error {
        Error::Request(format!(
            "{} is to publish and has no store of the views: name that of the run in its [cassandra], or leave batch.executors_publish out of the run's configuration",
            self.name
        ))
    }

    fn other_archive(&self, path: &str) -> Error {
        Error::Request(format!(
            "{} has another archive than the run: {path} is not in {}. Give each executor the archive of the run, the same bucket in [s3] or the same folder by --data-dir and namespace; or the run has ended meanwhile",
            self.name,
            self.archive.told()
        ))
    }
}

fn mixed_up() -> Error {
    Error::Fault("a note that says something else than its task".to_owned())
}

/// The error for a job that is another one here than where the run is.
pub(crate) fn other_definition(job: &str) -> Error {
    Error::Request(format!(
        "the definition of job {job} is another one for this worker than for the run: use the same version of Backstitch, and the same views_dir, everywhere"
    ))
}
