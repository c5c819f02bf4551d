//! What the tasks of a run share, as workers elsewhere read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::{Catalog, Engine};
use schemas::seam::{Cut, Epoch};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;
use stores::erasures::SuppressedPeople;

use super::compute::{Compute, Manifests, Plan, View};
use super::publish::{Edition, Publisher};
use super::shared::Shared;
use crate::Result;
use crate::archive::{ExpiredDays, FileEntry};
use crate::error::definition_mismatch;

/// A [`Shared`]. Of the plan that is what they look at: which days there are the run itself knows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    source: Source,
    epoch: Epoch,
    cuts: Vec<Cut>,
    views: Vec<View<NamedJob>>,
    archive_files: Vec<FileEntry>,
    expired: ExpiredDays,
    full: bool,
    /// Given where rows are taken over that may name somebody who is suppressed.
    suppressed: Option<Arc<SuppressedPeople>>,
    task_rows_max: u64,
    files: String,
    result_bytes_max: usize,
    computed: Manifests,
    /// What is published, in the stage that publishes.
    pub(crate) edition: Option<Edition>,
}

/// A job by its name, with name and version of its definition.
type NamedJob = (String, String);

impl Note {
    /// What the tasks of a run share.
    pub(crate) fn of(shared: &Shared) -> Self {
        let compute = &shared.compute;
        let plan = &compute.plan;
        let takes_over = |view: &View| view.published.is_none() && view.before.is_some();
        let takes_over = plan.views.iter().any(takes_over);
        let views = plan.views.iter().map(|view| {
            let job = (view.job.name().to_owned(), view.job.view().to_owned());
            view.clone().with_job(job)
        });
        Self {
            source: plan.source,
            epoch: plan.epoch,
            cuts: plan.cuts.clone(),
            views: views.collect(),
            archive_files: plan.files.clone(),
            expired: plan.expired.clone(),
            full: plan.full,
            suppressed: takes_over.then(|| Arc::clone(&plan.suppressed)),
            task_rows_max: compute.task_rows_max,
            files: compute.files.clone(),
            result_bytes_max: compute.result_bytes_max,
            computed: Manifests::clone(&shared.computed),
            edition: shared.publisher.as_ref().map(|of| of.edition),
        }
    }

    /// The same for a worker.
    ///
    /// # Errors
    /// [`crate::Error::Request`] if its definitions are not those of the run.
    pub(crate) fn shared(
        self,
        catalog: &Catalog,
        engine: Engine,
        archive: Archive,
        publisher: Option<Publisher>,
    ) -> Result<Shared> {
        let views = self.views.into_iter().map(|view| {
            let (name, definition) = &view.job;
            let job = catalog.job(name).filter(|job| job.view() == definition);
            let job = Arc::clone(job.ok_or_else(|| definition_mismatch(name))?);
            Ok(view.with_job(job))
        });
        let compute = Compute {
            engine,
            archive,
            plan: Plan {
                source: self.source,
                epoch: self.epoch,
                cuts: self.cuts,
                views: views.collect::<Result<_>>()?,
                files: self.archive_files,
                expired: self.expired,
                of: Default::default(),
                suppressed: self.suppressed.unwrap_or_default(),
                full: self.full,
                days: BTreeMap::new(),
            },
            task_rows_max: self.task_rows_max,
            files: self.files,
            result_bytes_max: self.result_bytes_max,
        };
        Ok(Shared {
            compute: Arc::new(compute),
            computed: Arc::new(self.computed),
            publisher,
        })
    }
}
