//! The stored form of the input that all board tasks of a run share.

use std::sync::Arc;

use jobs::{Catalog, Engine};
use serde::{Deserialize, Serialize};
use stores::archive::Archive;

use super::compute::BoardComputation;
use crate::Result;
use crate::error::definition_mismatch;

/// A [`BoardComputation`] without the engine and the archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BoardInputFile {
    /// The jobs with the names of their views, which include the version of the definition.
    jobs: Vec<(String, String)>,
    files: String,
    result_bytes_max: usize,
}

impl BoardInputFile {
    /// Creates the stored form.
    pub(crate) fn new(compute: &BoardComputation) -> Self {
        let jobs = compute.jobs.iter();
        Self {
            jobs: jobs
                .map(|job| (job.name().to_owned(), job.view().to_owned()))
                .collect(),
            files: compute.files.clone(),
            result_bytes_max: compute.result_bytes_max,
        }
    }

    /// Restores the input on a worker.
    ///
    /// # Errors
    /// [`crate::Error::Request`] if the worker's definitions differ from the run's.
    pub(crate) fn into_compute(
        self,
        catalog: &Catalog,
        engine: Engine,
        archive: Archive,
    ) -> Result<BoardComputation> {
        let jobs = self.jobs.iter().map(|(name, definition)| {
            let mut boards = catalog.boards().iter();
            let job = boards.find(|job| job.name() == name && job.view() == definition);
            job.map(Arc::clone).ok_or_else(|| definition_mismatch(name))
        });
        Ok(BoardComputation {
            engine,
            archive,
            jobs: jobs.collect::<Result<_>>()?,
            files: self.files,
            result_bytes_max: self.result_bytes_max,
        })
    }
}
