//! The other side of [`crate::executor`]: a process that carries out tasks of runs of other processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use jobs::{Catalog, Engine};
use stores::StoresOptions;
use stores::archive::Archive;
use stores::views::ViewsWrite;
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;

use crate::run::KNOWN_BYTES;
use crate::task::{Failure, Note, Output, Request, Response, Shared};
use crate::{Error, Result, manifest_file, tally};

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
    notes: Mutex<VecDeque<(String, Arc<Shared>)>>,
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

    /// Carries out a task that [`crate::Workers::carry_out`] was given, and returns the output or the failure.
    pub async fn carry_out(&self, task: &str) -> String {
        let since = Instant::now();
        let response = match self.run(task).await {
            Ok(output) => {
                let seconds = since.elapsed().as_secs_f64();
                tracing::info!(task = output.name(), seconds, "a task is done");
                Response::Done(output)
            }
            Err(error) => {
                tracing::warn!(%error, "a task failed");
                Response::Failed(Failure::from(&error))
            }
        };
        // Text and numbers only: that can always be written.
        serde_json::to_string(&response).unwrap_or_default()
    }

    async fn run(&self, request: &str) -> Result<Output> {
        let Request { note, task, .. } = Request::parse(request)?;
        self.noted(&note).await?.run(&task).await
    }

    /// Reads a note, once for all tasks that need it at the same time.
    async fn noted(&self, path: &str) -> Result<Arc<Shared>> {
        let mut notes = self.notes.lock().await;
        if let Some((_, shared)) = notes.iter().find(|(known, _)| known == path) {
            return Ok(Arc::clone(shared));
        }
        let note = manifest_file::read(&self.archive, path).await?;
        let note = note.ok_or_else(|| self.other_archive(path))?;
        let shared = Arc::new(self.shared(note).await?);
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back((path.to_owned(), Arc::clone(&shared)));
        Ok(shared)
    }

    async fn shared(&self, note: Note) -> Result<Shared> {
        let (catalog, engine) = (&self.catalog, self.engine.clone());
        match note {
            Note::Boards(note) => {
                let compute = note.compute(catalog, engine, self.archive.clone())?;
                Ok(Shared::Boards(Arc::new(compute)))
            }
            Note::Tallies(note) => {
                let archive = self.archive.remembering(KNOWN_BYTES);
                let publisher = match note.edition {
                    Some(edition) => Some(self.publisher(edition, archive.clone()).await?),
                    None => None,
                };
                let shared = note.shared(catalog, engine, archive, publisher)?;
                Ok(Shared::Tallies(Box::new(shared)))
            }
        }
    }

    async fn publisher(
        &self,
        edition: tally::Edition,
        archive: Archive,
    ) -> Result<tally::Publisher> {
        let views = self.views.get_or_try_init(|| self.stores.views()).await?;
        let views = views.as_ref().ok_or_else(|| self.without_views())?;
        Ok(tally::Publisher {
            views: Arc::clone(views),
            archive,
            edition,
            // A run that cancels a task ignores its output.
            stop: CancellationToken::new(),
        })
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

/// The error for a job that is another one here than where the run is.
pub(crate) fn other_definition(job: &str) -> Error {
    Error::Request(format!(
        "the definition of job {job} is another one for this worker than for the run: use the same version of Backstitch, and the same views_dir, everywhere"
    ))
}
