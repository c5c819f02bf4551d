//! Shared test library: an independent recount, an installation in one process, the binary as
//! processes, and the conformance suite of the stores.

#![expect(clippy::panic, reason = "a failed check ends the test")]

pub mod boards;
pub mod catalog;
pub mod certificates;
pub mod conformance;
pub mod dedicated_servers;
pub mod direct_access;
pub mod expected_achievements;
pub mod expected_boards;
pub mod folder;
pub mod histories;
pub mod hostile;
pub mod http;
pub mod installation;
pub mod interruption;
pub mod play_queries;
pub mod plays;
pub mod process;
pub mod proxy;
pub mod records;
pub mod recount;
pub mod scripted_server;
pub mod servers;
pub mod shared_servers;
pub mod stages;
pub mod topic;
pub mod webhook_receiver;
pub mod world;
