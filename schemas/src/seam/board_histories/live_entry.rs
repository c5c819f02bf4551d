//! An entry of live state.

use super::entity_rows::{Group, State};
use crate::seam::{Epoch, Generation};

/// A live entry of a group, with its epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct LiveEntry {
    pub(super) generation: Generation,
    pub(super) epoch: Epoch,
    pub(super) group: Group,
    pub(super) state: State,
}
