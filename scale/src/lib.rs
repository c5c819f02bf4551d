//! Errands on several machines, by Apache DataFusion Ballista: a scheduler, executors that carry errands out, and a
//! client that has them carried out.
//!
//! An errand is text, and so is what comes of it; what they say is not known here. Each is a job of Ballista of its own,
//! with one stage of one partition: Ballista gives the partitions of a stage to tasks by cutting the leaves that it
//! knows, and ours it does not know. So errands end one by one, are called off and tried again one by one, and none
//! waits for the slowest of others. Nobody is asked who they are: whoever reaches a port of these can have work done.

mod address;
mod cluster;
mod error;
mod executor;
mod plan;
mod scheduler;

use std::fmt;

use async_trait::async_trait;

pub use address::Address;
pub use cluster::Cluster;
pub use error::{Error, Result};
pub use executor::{Executor, ExecutorOptions};
pub use scheduler::{SchedulerOptions, run_scheduler};

/// Bytes of one message between processes, at most.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;

/// Carries errands out, on an executor.
#[async_trait]
pub trait Worker: fmt::Debug + Send + Sync {
    /// Carries an errand out, and answers what came of it, also if it failed.
    async fn carry_out(&self, errand: &str) -> String;
}
