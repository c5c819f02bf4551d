//! Boards of entities: computed from a snapshot by stretches of keys, and published as an edition
//! for each key whose boards differ.

mod check;
mod compute;
mod drift;
mod editions;
mod held_back;
mod history;
mod manifest;
mod note;
mod planning;
mod publish;
mod run;
mod stretches;
mod tasks;
mod told;

pub(crate) use compute::{Compute, Files};
pub(crate) use manifest::BoardManifest;
pub(crate) use note::Note;
pub(crate) use run::{encoded_key, shape};
pub(crate) use tasks::compute;
