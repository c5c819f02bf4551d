//! The part of simulated histories that aggregates and boards share.

mod actors;
mod events;
mod history;
mod live_state;
mod mutants;
pub(crate) mod protocol;
mod run_records;
mod sealing;
mod view_kind;
mod worker;
mod world;

pub(crate) use actors::{Actors, SharedWorld, end_step};
pub(crate) use events::{Event, EventCounts, Invariant, Violation};
pub(crate) use history::{assert_no_violation, read_alone, run_undisturbed};
pub(crate) use live_state::{LiveState, Progress};
pub(crate) use mutants::{assert_violates, find_violations, mutants};
pub(crate) use protocol::Protocol;
pub(crate) use run_records::RunRecords;
pub(crate) use sealing::{seal_run, wait_grace_period};
pub(crate) use view_kind::{Phase, ViewKind};
pub(crate) use worker::Fold;
pub(crate) use world::{PARTITIONS, World, cut_at};
