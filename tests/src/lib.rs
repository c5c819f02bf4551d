//! What tests that cross crates stand on: the plain recount, a whole installation in one process,
//! the binary as processes, and the conformance suite of the stores.

pub mod conformance;
pub mod http;
pub mod process;
pub mod questions;
pub mod recount;
pub mod world;
