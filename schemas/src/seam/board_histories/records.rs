//! The results that heads may have.

use super::entity_rows::KEYS;
use crate::seam::Cut;

/// The computed keys.
pub(super) type Keys = [bool; KEYS];

/// The result of a try of a run: its cuts and its keys (all if `None`).
#[derive(Debug, Clone)]
pub(super) struct RunResult {
    pub(super) cuts: Vec<Cut>,
    pub(super) keys: Option<Keys>,
}

/// The results of which versions may exist.
#[derive(Debug, Clone, Default)]
pub(super) struct Results {
    /// The result that was published last.
    pub(super) published: Option<RunResult>,
    /// Later results of which something may have been written.
    pub(super) started: Vec<RunResult>,
}
