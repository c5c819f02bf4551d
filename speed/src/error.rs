//! Errors that stop the speed layer.

/// The result of the speed layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a worker can't handle itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store failed.
    #[error(transparent)]
    Store(#[from] stores::Error),
    /// The query of a view failed.
    #[error(transparent)]
    Job(#[from] jobs::Error),
    /// The log is not the one from which live state was computed.
    #[error("{topic}/{partition}: {problem}")]
    LogReplaced {
        /// The topic.
        topic: &'static str,
        /// The partition.
        partition: u32,
        /// The evidence, and the remedy.
        problem: String,
    },
    /// An unfinished batch run blocks the worker.
    #[error(
        "{topic}/{partition}: an unfinished batch run is ending the epoch, so no more events can be counted; finish it with `backstitch batch run`, then try again"
    )]
    Waiting {
        /// The topic.
        topic: &'static str,
        /// The partition.
        partition: u32,
    },
    /// The partition state is not at the worker's checkpoint. The worker refreshes.
    #[error("another process has changed the partition state")]
    CheckpointMismatch,
    /// The previous entries of boards can't be determined now.
    #[error("{0}; processing waits until they can be read")]
    SeamMismatch(String),
    /// Stored board data is corrupt.
    #[error("stored board data is corrupt: {0}; rebuild it with `backstitch batch run --full`")]
    Damaged(String),
    /// A bug in this program.
    #[error("{0}; this is a bug in Backstitch, please report it")]
    Fault(String),
}

impl Error {
    /// Returns whether the same step may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.kind() == stores::ErrorKind::Retry,
            Self::SeamMismatch(_) => true,
            _ => false,
        }
    }
}
