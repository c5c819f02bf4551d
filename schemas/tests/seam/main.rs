//! Tests of the seam protocol: unit tests of each rule, and simulated histories of the protocol.
//!
//! A **history** is a random sequence of steps that follows from a seed. In each step, one actor
//! performs one atomic operation on the simulated stores (the **world**). The **actors** are:
//!
//! - Workers, two for each log partition, so that one of them is often stale. A worker folds
//!   records of the log into live state.
//! - Two batch processes. A batch process ends an epoch, seals its cuts and publishes rows.
//! - Readers. A reader merges rows and live state into an answer.
//!
//! An actor is an `async` function, which ends each step with `end_step().await`.
//!
//! Between the steps, **faults** occur: actors die, and partition states revert or vanish. Then the
//! faults end, workers and batch runs finish their work, and all data is read once more.
//!
//! **Invariants** compare each answer with data that the actors cannot see: the whole log, and all
//! scores that members ever had. [`Invariant`](simulation::Invariant) lists them.
//!
//! A **mutant** is a set of rules with one rule broken. Its test finds a history that violates an
//! invariant. So the rule is needed, and the histories detect its absence. The mutants are in
//! [`simulation::protocol`], `aggregates/mutants.rs` and `boards/mutants.rs`.
//!
//! [`simulation`] is common to both kinds of views. [`aggregates`] and [`boards`] add what differs:
//! the live data, what a run publishes, and how a reader merges.

#![allow(clippy::panic, reason = "a failed expectation ends the test")]

mod aggregates;
mod boards;
mod rules_tests;
mod simulation;
