//! Tasks on several machines with Apache DataFusion Ballista: a scheduler, executors, and a client.
//!
//! Requests and responses of tasks are text, which this crate does not interpret. Each task is a
//! Ballista job with one stage of one partition, because Ballista distributes partitions only for
//! plan leaves that it knows. So tasks end, are cancelled and are retried independently of each
//! other.
//!
//! There is no authentication: every client that reaches a port of these processes can run tasks.

mod address;
mod cluster;
mod error;
mod executor;
mod plan;
mod scheduler;

use std::fmt;

use async_trait::async_trait;

pub use address::{Address, AddressError};
pub use cluster::Cluster;
pub use error::{Error, Result};
pub use executor::{Executor, ExecutorOptions};
pub use scheduler::{SchedulerOptions, run_scheduler};

/// The maximum size of a message between processes.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;

/// Runs the tasks that an executor receives.
#[async_trait]
pub trait TaskRunner: fmt::Debug + Send + Sync {
    /// Runs a task and returns its response, which also reports failures.
    async fn run_task(&self, request: &str) -> String;
}
