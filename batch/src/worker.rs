//! Remote worker: runs tasks of runs of other processes. The counterpart of [`crate::executor`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use jobs::{Catalog, Engine};
use stores::StoresOptions;
use stores::archive::Archive;
use stores::views::ViewsWrite;
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;

use crate::batch::FILE_CACHE_BYTES;
use crate::task::{Failure, Output, Request, Response, StageInput, StageInputFile};
use crate::{Error, Result, manifest_file, tally};

/// Stage inputs that are cached, for tasks of several stages at the same time.
const CACHED_INPUTS_MAX: usize = 4;

/// Runs tasks of runs. It needs the run's archive, and the view store if it publishes; nothing else
/// of the installation.
#[derive(Debug)]
pub struct Worker {
    archive: Archive,
    /// Options of the view store, which the first publishing task opens.
    stores: StoresOptions,
    views: OnceCell<Option<Arc<dyn ViewsWrite>>>,
    catalog: Catalog,
    engine: Engine,
    /// The worker's name in messages.
    name: String,
    inputs: Mutex<VecDeque<(String, Arc<StageInput>)>>,
}

impl Worker {
    /// Creates a worker. It opens the view store of `stores` when it publishes first. `name`
    /// identifies the worker in messages.
    #[must_use]
    pub fn new(
        archive: Archive,
        stores: StoresOptions,
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
            inputs: Mutex::default(),
        }
    }

    /// Runs a task of [`crate::Workers::run_task`], and returns the encoded output or failure.
    pub async fn run_task(&self, task: &str) -> String {
        let since = Instant::now();
        let response = match self.run(task).await {
            Ok(output) => {
                let seconds = since.elapsed().as_secs_f64();
                tracing::info!(task = output.task_kind(), seconds, "task done");
                Response::Done(output)
            }
            Err(error) => {
                tracing::warn!(%error, "task failed");
                Response::Failed(Failure::from(&error))
            }
        };
        // A response has only text and numbers, so encoding cannot fail.
        serde_json::to_string(&response).unwrap_or_default()
    }

    async fn run(&self, request: &str) -> Result<Output> {
        let Request {
            input_path, task, ..
        } = Request::parse(request)?;
        self.load_input(&input_path).await?.run(&task).await
    }

    /// Reads the input of a stage, or returns the cached one. Concurrent tasks share one read.
    async fn load_input(&self, path: &str) -> Result<Arc<StageInput>> {
        let mut inputs = self.inputs.lock().await;
        if let Some((_, shared)) = inputs.iter().find(|(known, _)| known == path) {
            return Ok(Arc::clone(shared));
        }
        let file = manifest_file::read(&self.archive, path).await?;
        let file = file.ok_or_else(|| self.missing_input_error(path))?;
        let shared = Arc::new(self.open_input(file).await?);
        if inputs.len() == CACHED_INPUTS_MAX {
            inputs.pop_front();
        }
        inputs.push_back((path.to_owned(), Arc::clone(&shared)));
        Ok(shared)
    }

    async fn open_input(&self, file: StageInputFile) -> Result<StageInput> {
        let (catalog, engine) = (&self.catalog, self.engine.clone());
        match file {
            StageInputFile::Boards(file) => {
                let compute = file.into_compute(catalog, engine, self.archive.clone())?;
                Ok(StageInput::Boards(Arc::new(compute)))
            }
            StageInputFile::Aggregates(file) => {
                let archive = self.archive.with_cache(FILE_CACHE_BYTES);
                let publisher = match file.edition {
                    Some(edition) => Some(self.open_publisher(edition, archive.clone()).await?),
                    None => None,
                };
                let shared = file.shared(catalog, engine, archive, publisher)?;
                Ok(StageInput::Aggregates(Box::new(shared)))
            }
        }
    }

    async fn open_publisher(
        &self,
        edition: tally::Edition,
        archive: Archive,
    ) -> Result<tally::Publisher> {
        let views = self.views.get_or_try_init(|| self.stores.views()).await?;
        let views = views.as_ref().ok_or_else(|| self.missing_views_error())?;
        Ok(tally::Publisher {
            views: Arc::clone(views),
            archive,
            edition,
            // A run that cancels a task ignores its output.
            stop: CancellationToken::new(),
        })
    }

    fn missing_views_error(&self) -> Error {
        Error::Request(format!(
            "{} cannot publish because it has no view store: configure the [cassandra] of the run, or remove batch.executors_publish from the run's configuration",
            self.name
        ))
    }

    fn missing_input_error(&self, path: &str) -> Error {
        Error::Request(format!(
            "{} cannot read the input of a stage: {path} is not in {}. Either the run has ended, or the executor uses another archive: configure the same bucket in [s3], or the same folder (--data-dir) and namespace",
            self.name,
            self.archive.describe_location()
        ))
    }
}
