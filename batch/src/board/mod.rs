//! Boards of entities: computed from a snapshot by stretches of keys, and published as an edition
//! for each key whose boards differ.

mod check;
mod compute;
mod drift;
mod editions;
mod held_back;
mod history;
mod manifest;
mod planning;
mod publish;
mod run;
mod told;

pub(crate) use compute::Compute;
pub(crate) use manifest::BoardManifest;
pub(crate) use run::{encoded_key, shape};
