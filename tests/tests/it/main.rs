//! Everything that crosses crates, as one binary: fewer links, and servers are shared.

#![allow(clippy::panic, reason = "what does not hold ends the test")]

mod achievements;
mod application_days;
mod applications;
mod avro;
mod backfill;
mod board_cache;
mod board_cases;
mod board_drift;
mod board_law;
mod capacity;
mod cases;
mod conformance;
mod cutting;
mod dead_letters;
mod drift;
mod entities;
mod erasure;
mod erasure_athlete;
mod faults;
mod flights;
mod law;
mod likes;
mod live_sums;
mod matrix;
mod notices;
mod open_series;
mod outbox;
mod processes;
mod reconcile;
mod reconcile_processes;
mod recounts;
mod redis_servers;
mod restore;
mod restore_boards;
mod restore_files;
mod restore_gone;
mod retail;
mod retention;
mod retention_events;
mod routes;
mod runs;
mod strays;
mod tidy;
mod untold;
