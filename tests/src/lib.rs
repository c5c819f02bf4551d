//! Shared test library: an independent recount, an installation in one process, the binary as
//! processes, and the conformance suite of the stores.

#![expect(clippy::panic, reason = "what does not hold ends the test")]

pub mod boards;
pub mod catalog;
pub mod certificates;
pub mod conformance;
pub mod feats;
pub mod folder;
pub mod hand;
pub mod histories;
pub mod hostile;
pub mod http;
pub mod interruption;
pub mod listener;
pub mod own;
pub mod place;
pub mod plays;
pub mod process;
pub mod proxy;
pub mod questions;
pub mod records;
pub mod recount;
pub mod scripted;
pub mod servers;
pub mod shared_servers;
pub mod stages;
pub mod standings;
pub mod topic;
pub mod world;
