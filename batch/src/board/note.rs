//! What the tasks of a run share, as workers elsewhere read it.

use std::sync::Arc;

use jobs::{Catalog, Engine};
use serde::{Deserialize, Serialize};
use stores::archive::Archive;

use super::compute::Compute;
use crate::Result;
use crate::worker::other_definition;

/// A [`Compute`] without the engine and the archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    /// Jobs, and name and version of their definitions.
    jobs: Vec<(String, String)>,
    files: String,
    result_bytes_max: usize,
}

impl Note {
    /// What the tasks of a run share.
    pub(crate) fn of(compute: &Compute) -> Self {
        let jobs = compute.jobs.iter();
        Self {
            jobs: jobs
                .map(|job| (job.name().to_owned(), job.view().to_owned()))
                .collect(),
            files: compute.files.clone(),
            result_bytes_max: compute.result_bytes_max,
        }
    }

    /// The same for a worker.
    ///
    /// # Errors
    /// [`crate::Error::Request`] if its definitions are not those of the run.
    pub(crate) fn compute(
        self,
        catalog: &Catalog,
        engine: Engine,
        archive: Archive,
    ) -> Result<Compute> {
        let jobs = self.jobs.iter().map(|(name, definition)| {
            let mut boards = catalog.boards().iter();
            let found = boards.find(|job| job.name() == name && job.view() == definition);
            found.map(Arc::clone).ok_or_else(|| other_definition(name))
        });
        Ok(Compute {
            engine,
            archive,
            jobs: jobs.collect::<Result<_>>()?,
            files: self.files,
            result_bytes_max: self.result_bytes_max,
        })
    }
}
