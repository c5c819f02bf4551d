//! The input of a comparison of boards.

use std::sync::Arc;

use jobs::{Board, Job};
use schemas::source::Source;
use tokio_util::sync::CancellationToken;

use crate::Progress;
use crate::batch::Batch;
use crate::results::Results;

/// What is looked at.
pub(super) struct Look<'a> {
    pub(super) batch: &'a Batch,
    pub(super) job: &'a Arc<Job<Board>>,
    pub(super) results: &'a Results<'a>,
    pub(super) partitions: u32,
    pub(super) progress: &'a dyn Progress,
    pub(super) stop: &'a CancellationToken,
}

impl Look<'_> {
    pub(super) fn source(&self) -> Source {
        self.job.source()
    }
}
