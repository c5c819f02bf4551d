//! The serving layer: answers HTTP requests from batch rows and newer live state.
//!
//! A request becomes a `question`. The catalog and the question determine a `plan`, a consistent
//! `read` of the stores executes it, and `answer` gives the counts their requested form. This crate
//! accesses stores only through ports, and writes only requested changes and to the log.

mod aggregation;
mod answer;
mod board;
mod error;
mod explanation;
mod http;
#[cfg(test)]
mod laws;
mod layered_count;
mod lock;
mod metric;
mod monitor;
mod network;
mod options;
mod pages;
mod partition_state_cache;
mod plan;
mod question;
mod read;
mod read_error;
mod read_position;
mod request_coalescer;
mod retry_budget;
mod row_cache;
mod run_record_cache;
mod scan;
mod server;
mod service;
mod stale_cache;
#[cfg(test)]
mod world;

pub use error::{Error, ErrorKind, Result};
pub use monitor::monitor;
pub use network::Network;
pub use options::{MetricsText, ServingOptions, ServingPorts};
pub use service::Serving;
