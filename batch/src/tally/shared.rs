//! The input that the tasks of a stage share.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemas::time::UnixSeconds;

use super::compute::{Compute, Manifests};
use super::publish::{Published, Publisher};
use super::tables::compared;
use crate::error::stage_mismatch;
use crate::{Error, Result};

/// What the tasks of a stage share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) compute: Arc<Compute>,
    /// What was computed before.
    pub(crate) computed: Arc<Manifests>,
    /// The publisher, in the stage that publishes.
    pub(crate) publisher: Option<Publisher>,
}

impl Shared {
    /// Publishes some pieces of a view.
    pub(crate) async fn publish(
        &self,
        job: &str,
        pieces: &BTreeSet<UnixSeconds>,
    ) -> Result<Published> {
        let view = self.compute.plan.view(job)?;
        let unknown = || Error::Fault(format!("job {job} has no computed result"));
        let manifest = self.computed.get(job).ok_or_else(unknown)?;
        let publisher = self.publisher.as_ref().ok_or_else(stage_mismatch)?;
        publisher
            .publish(view, manifest, pieces, compared(view))
            .await
    }
}
