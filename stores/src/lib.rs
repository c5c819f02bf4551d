//! The ports through which the layers reach their stores, and the adapters behind them.
//!
//! This is the only crate that names a client library. Readers are given a read port, writers a
//! write port. Every adapter of a port has the same semantics, and one conformance suite runs on
//! all of them.

pub mod achievements;
pub mod admin;
pub mod aged;
pub mod alerts;
pub mod answers;
pub mod approvals;
pub mod archive;
pub mod board_cache;
pub mod canon;
mod canon_sifted;
pub mod canon_sql;
pub mod cassandra;
pub mod corrections;
pub mod counts;
pub mod dead_letters;
mod durable;
pub mod embedded;
pub mod erasures;
mod error;
pub mod intake;
pub mod kafka;
pub mod kept_sum;
pub mod keys;
mod lazily;
pub mod lease;
pub mod listing;
pub mod live;
pub mod live_scan;
pub mod log;
mod mysql;
pub mod names;
pub mod namespace;
pub mod notices;
pub mod parquet_file;
mod patience;
mod postgres;
pub mod reconciliations;
pub mod recounts;
pub mod redis;
pub mod registry;
pub mod relay;
pub mod run_outcome;
mod run_rules;
pub mod s3;
mod secret;
mod shared;
mod stores;
pub mod telling;
mod tls;
pub mod view_scan;
pub mod views;
pub mod webhook;

pub use error::{Error, ErrorKind, Result};
pub use secret::Secret;
pub use stores::{Server, Stores, StoresOptions};
