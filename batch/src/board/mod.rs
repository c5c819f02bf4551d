//! Boards of entities: computed from a snapshot by key ranges, and published as a new version of
//! each key whose boards differ.

mod check;
mod compute;
mod daily_counts;
mod drift;
mod input_file;
mod key_ranges;
mod manifest;
mod pending;
mod planning;
mod publish;
mod run;
mod speed_progress;
mod tasks;
mod versions;
mod view;

pub(crate) use compute::{BoardComputation, JobFiles};
pub(crate) use input_file::BoardInputFile;
pub(crate) use manifest::BoardManifest;
pub(crate) use pending::{add_uncounted_groups, find_unsent_groups};
pub(crate) use run::run_boards;
pub(crate) use speed_progress::wait_for_speed;
pub(crate) use tasks::compute;
pub(crate) use view::{encode_key, view_shape};
