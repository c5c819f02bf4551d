//! The serving layer: answers HTTP requests from batch rows and newer live state.
//!
//! A request for statistics becomes a `stats_query`. The catalog and the query determine a `plan`.
//! A consistent `read` of the stores executes it, and `answer` gives the counts their requested
//! form. This crate accesses stores only through ports. It writes only requested changes, and to
//! the log.

mod aggregation;
mod answer;
mod board;
mod error;
mod explanation;
mod http;
mod layered_count;
mod lock;
mod metric;
mod monitor;
mod network;
mod options;
mod pages;
mod partition_state_cache;
mod plan;
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
mod stats_query;

pub use error::{Error, ErrorKind, Result};
pub use http::Peer;
pub use monitor::monitor;
pub use network::Network;
pub use options::{MetricsText, ServingOptions, ServingPorts};
pub use service::Serving;
