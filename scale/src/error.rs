//! What can stand in the way of an errand, apart from what it says of itself.

use crate::Address;

/// The result of this crate's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. The message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is written is no address.
    #[error("{text:?} is no address: write a host and a port, as in 127.0.0.1:50050")]
    Address {
        /// What is written.
        text: String,
    },
    /// The scheduler did not answer.
    #[error(
        "no scheduler answers at {address}: {why}. Look whether `backstitch scheduler` runs there and can be reached from here"
    )]
    Unreachable {
        /// Where it should be.
        address: Address,
        /// What happened.
        why: String,
    },
    /// The scheduler has no executors.
    #[error(
        "the scheduler at {address} has had no executor for {seconds} s: start `backstitch executor --scheduler {address}` on one machine at least"
    )]
    NoExecutor {
        /// Where the scheduler is.
        address: Address,
        /// How long.
        seconds: u64,
    },
    /// The scheduler does not take our errands.
    #[error(
        "the scheduler at {address} does not take what it was sent: {why}. It must be `backstitch scheduler` of this version"
    )]
    Refused {
        /// Where it is.
        address: Address,
        /// What it said.
        why: String,
    },
    /// Executors were lost with an errand again and again.
    #[error(
        "a task was lost {times} times by the executors of {address}, the last time with: {why}. Their logs say more; then run again"
    )]
    Lost {
        /// Where the scheduler is.
        address: Address,
        /// How often.
        times: u32,
        /// What happened the last time.
        why: String,
    },
    /// A port that can't be listened on.
    #[error("listening on {at}: {why}; choose another port, or 0 for a free one")]
    Listen {
        /// The address.
        at: String,
        /// What stands in the way.
        why: String,
    },
    /// An executor that can't work for its scheduler.
    #[error("working for the scheduler at {address}: {why}")]
    Executor {
        /// Where the scheduler is.
        address: Address,
        /// What happened, and what to do.
        why: String,
    },
    /// A scheduler that can't work.
    #[error("running the scheduler: {0}")]
    Scheduler(String),
    /// It was asked to stop.
    #[error("stopped")]
    Stopped,
}
