//! The views: their definitions, and the crate that reads, plans and merges them.
//!
//! A view is a folder under `views/`: a definition (`job.toml`), one SQL query (`query.sql`) and
//! cases. Both layers run the same query; tables, live keys, serving and reconciliation derive from
//! the definition. Nothing in this crate knows a store.

pub mod board;
mod catalog;
pub mod counting;
mod engine;
mod error;
mod fold;
mod job;
pub mod merge;
mod min_struct;
mod plan;
mod rollup;
pub mod sketch;
mod spec;
mod spill;
mod sums;
pub mod tables;
mod tally;
pub mod tree;
mod truncate;

pub use board::Board;
pub use catalog::Catalog;
pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use fold::{Fold, Folded, TallyFold, TallyRows};
pub use job::{Job, Layers};
pub use plan::{Input, checked, query};
pub use rollup::Rollup;
pub use tally::{BUCKET, COUNT, Tally};
