//! The ports through which the layers reach their stores, and the adapters behind them.
//!
//! This is the only crate that names a client library. Readers are given a read port, writers a
//! write port. Every adapter of a port has the same semantics, and one conformance suite runs on
//! all of them.

#![cfg_attr(
    not(feature = "servers"),
    allow(
        dead_code,
        reason = "some shared code has users in the adapters of servers alone"
    )
)]

pub mod achievements;
mod actor;
pub mod admin;
pub mod alerts;
pub mod approvals;
pub mod archive;
pub mod board_cache;
pub mod boards;
#[cfg(feature = "cassandra")]
pub mod cassandra;
pub mod corrections;
pub mod counts;
pub mod dead_letters;
mod durable;
pub mod embedded;
pub mod entities;
pub mod erasures;
mod error;
pub mod expiry;
pub mod http_fetch;
pub mod intake;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod keys;
pub mod lease;
pub mod listing;
pub mod live;
pub mod live_count;
mod live_rows;
pub mod live_scan;
pub mod log;
pub mod names;
pub mod namespace;
pub mod notices;
pub mod options;
pub mod outbox_publisher;
pub mod parquet_file;
pub mod parquet_values;
mod partition_id;
pub mod reconciliations;
pub mod records;
pub mod recounts;
#[cfg(feature = "redis")]
pub mod redis;
pub mod registry;
pub mod relay;
mod retry;
pub mod run_outcome;
mod run_rules;
#[cfg(feature = "s3")]
pub mod s3;
mod secret;
mod server;
mod servers;
#[cfg(feature = "cassandra")]
mod shared;
pub mod sql;
mod stores;
#[cfg(any(feature = "kafka", feature = "tls"))]
mod tls;
pub mod view_scan;
pub mod views;
pub mod webhook;

pub use error::{Error, ErrorKind, Result};
pub use secret::Secret;
pub use server::Server;
pub use stores::{MissingFeature, Stores, StoresOptions};
