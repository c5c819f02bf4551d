//! Tallies of facts: computed from the archive by pieces of time, published where they differ, and
//! compared with what was counted live.

mod check;
mod compute;
mod drift;
mod planning;
mod publish;
mod repeats;
mod result;
mod run;

pub(crate) use compute::failed_of;
pub(crate) use publish::{NewRow, new_rows};
pub(crate) use result::ViewManifest;
pub(crate) use run::{kept_shape, shape};
