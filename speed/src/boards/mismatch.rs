//! A difference of a cached board from its source that is not confirmed yet.

use bytes::Bytes;
use schemas::seam::Offset;

/// A cached board that differed once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SuspectedMismatch {
    pub(super) id: String,
    /// The root of the batch rows in that comparison.
    pub(super) root: Bytes,
    /// The end of the log at that time.
    pub(super) log_end: Offset,
}
