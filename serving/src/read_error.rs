//! Reason why a read of views or boards failed.

use std::sync::Arc;

use jobs::merge::SeamMismatch;
use schemas::key::KeyError;
use schemas::time::SeriesError;

use crate::plan::PlanError;

/// Reason why a read failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error(transparent)]
    SeamMismatch(#[from] SeamMismatch),
    #[error(transparent)]
    Store(Arc<stores::Error>),
    #[error(transparent)]
    Damaged(#[from] KeyError),
    #[error("the batch rows of a board are being replaced; the next read sees the new ones")]
    Replaced,
    #[error("{0}")]
    DamagedBoard(String),
}

impl From<stores::Error> for ReadError {
    fn from(error: stores::Error) -> Self {
        Self::Store(Arc::new(error))
    }
}
