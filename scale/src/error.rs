//! Errors of the cluster. Errors of a task itself are part of its response.

use crate::Address;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The scheduler did not answer.
    #[error(
        "no scheduler answers at {address}: {reason}. Check that `backstitch scheduler` runs there and is reachable from here"
    )]
    Unreachable {
        /// The address of the scheduler.
        address: Address,
        /// The cause.
        reason: String,
    },
    /// The scheduler has no executors.
    #[error(
        "the scheduler at {address} has had no executor for {seconds} s: start `backstitch executor --scheduler {address}` on at least one machine"
    )]
    NoExecutor {
        /// The address of the scheduler.
        address: Address,
        /// The time without executors.
        seconds: u64,
    },
    /// The scheduler rejected a task.
    #[error(
        "the scheduler at {address} rejected a task: {reason}. It must be `backstitch scheduler` of this version"
    )]
    Refused {
        /// The address of the scheduler.
        address: Address,
        /// The reason that the scheduler returned.
        reason: String,
    },
    /// All attempts of a task failed.
    #[error(
        "a task failed {tries} times on the executors of {address}, the last time with: {reason}. Read the logs of the executors, then run again"
    )]
    Lost {
        /// The address of the scheduler.
        address: Address,
        /// The number of attempts.
        tries: u32,
        /// The cause of the last failure.
        reason: String,
    },
    /// A port is not available.
    #[error("cannot listen on {address}: {reason}; choose another port, or 0 for a free one")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        reason: String,
    },
    /// An executor cannot run.
    #[error("cannot run an executor for the scheduler at {address}: {reason}")]
    Executor {
        /// The address of the scheduler.
        address: Address,
        /// The cause, and what to do.
        reason: String,
    },
    /// A scheduler cannot run.
    #[error("cannot run the scheduler: {0}")]
    Scheduler(String),
    /// The work was stopped by request.
    #[error("stopped")]
    Stopped,
}

/// Appends the causes of an error to its message. The errors of clients have short messages.
pub(crate) fn error_chain(message: &str, error: &dyn std::error::Error) -> String {
    let mut text = message.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}
