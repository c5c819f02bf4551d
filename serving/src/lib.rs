//! The serving layer: batch values plus what is newer, over HTTP.
//!
//! A request becomes a `question`, the catalog and the question give a `plan`, a
//! consistent `read` of the stores along that plan gives counts, and an `answer` puts
//! them into the shape that was asked for. Nothing here writes to a store but the way into the log,
//! and nothing here knows which store is behind a port.

mod answer;
mod board;
mod error;
mod explained;
mod gather;
mod http;
mod kept;
#[cfg(test)]
mod laws;
mod lock;
mod metric;
mod monitor;
mod network;
mod options;
mod pages;
mod patience;
mod plan;
mod question;
mod read;
mod rows;
mod runs_seen;
mod server;
mod service;
mod slots_seen;
mod tally;
mod walk;
#[cfg(test)]
mod world;

pub use error::{Error, ErrorKind, Result};
pub use monitor::monitor;
pub use network::Network;
pub use options::{MetricsText, ServingOptions, ServingPorts};
pub use service::Serving;
