//! What can stop the speed layer.

/// The result of the speed layer's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a worker can't get over by itself. The message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store.
    #[error(transparent)]
    Store(#[from] stores::Error),
    /// A view's query.
    #[error(transparent)]
    Job(#[from] jobs::Error),
    /// The log is not the one that the live state was made from.
    #[error("{topic}/{partition}: {what}")]
    OtherLog {
        /// The topic.
        topic: &'static str,
        /// The partition.
        partition: u32,
        /// What shows it, and what to do.
        what: String,
    },
    /// A batch run stands in the way and does not go on.
    #[error(
        "{topic}/{partition}: a batch run has begun to end the epoch and does not go on, so nothing more can be counted; finish it with `backstitch batch run`, then try again"
    )]
    Waiting {
        /// The topic.
        topic: &'static str,
        /// The partition.
        partition: u32,
    },
    /// The partition state is not at the checkpoint that a worker believes: the worker refreshes.
    #[error("another process has changed the partition state")]
    Moved,
    /// What stood on boards before can't be told now.
    #[error("{0}; nothing is counted until it can be")]
    NotWhole(String),
    /// What is stored of boards can't be read.
    #[error(
        "what is stored of boards can't be read: {0}; `backstitch batch run --full` makes it anew"
    )]
    Damaged(String),
    /// A fault of this program.
    #[error("{0}; this is a fault of Backstitch, please report it")]
    Fault(String),
}

impl Error {
    /// Whether the same step may go through later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.kind() == stores::ErrorKind::Retry,
            Self::NotWhole(_) => true,
            _ => false,
        }
    }
}
