//! Reads, plans and merges views.
//!
//! A view is a folder under `views/` with a definition (`job.toml`), one SQL query (`query.sql`)
//! and test cases. Both layers run the same query. Tables, live keys, serving and reconciliation
//! derive from the definition. This crate does not depend on any store.

mod aggregate;
mod aggregate_view;
pub mod board;
mod catalog;
mod columns;
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
pub mod tree;
mod truncate;

pub use aggregate_view::AggregateView;
pub use board::Board;
pub use catalog::Catalog;
pub use columns::{BUCKET, COUNT};
pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use fold::{AggregateFold, AggregateRows, Fold, FoldOutput};
pub use job::{Job, Layers};
pub use plan::{Input, check_rows, plan_job};
pub use rollup::Rollup;
