//! Errors of stores, and how a caller can react to them.

use schemas::seam::Offset;

/// The result of a call to a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a caller can react.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The store did not answer or was busy. The same call may succeed later.
    Retry,
    /// The call was invalid or came too late. It will fail again.
    Reject,
    /// The store is damaged, full, read-only, or not the expected one. It needs an operator.
    Fatal,
}

/// An error of a store. The message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not answer in time, or was busy for too long.
    #[error("{operation}: {reason}; try again later")]
    Unavailable {
        /// The operation and its server.
        operation: String,
        /// The reason, as the store reports it.
        reason: String,
    },
    /// The memory of the store is full. The call is not retried: the caller may hold data that can
    /// be removed first.
    #[error("{operation}: {reason}; try again later")]
    Full {
        /// The operation and its server.
        operation: String,
        /// The reason as the store reports it, and what to do.
        reason: String,
    },
    /// The log does not contain the requested offset.
    #[error(
        "{topic}/{partition}: offset {requested} is not in the log, which has offsets {start} to {end}"
    )]
    OffsetOutOfRange {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The requested offset.
        requested: Offset,
        /// The first offset that the log still contains.
        start: Offset,
        /// The offset of the next record.
        end: Offset,
    },
    /// The topic does not exist, or has fewer partitions.
    #[error("{operation}: the topic or partition does not exist; create the topic first")]
    NoPartition {
        /// The operation and its server.
        operation: String,
    },
    /// The call is not permitted, for example because a newer run, another lease holder or a record
    /// exists.
    #[error("{0}")]
    Refused(String),
    /// A file of the archive does not have the content that was written.
    #[error("{path} is damaged or missing: {reason}")]
    DamagedFile {
        /// The file, as a path within the archive.
        path: String,
        /// The evidence, and what to do.
        reason: String,
    },
    /// Stored data is invalid, or can't be read or written.
    #[error("{operation}: {reason}")]
    Broken {
        /// The operation and its server.
        operation: String,
        /// The problem, and what to do.
        reason: String,
    },
}

impl Error {
    /// How a caller can react.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. } | Self::Full { .. } => ErrorKind::Retry,
            Self::OffsetOutOfRange { .. } | Self::NoPartition { .. } | Self::Refused(_) => {
                ErrorKind::Reject
            }
            Self::DamagedFile { .. } | Self::Broken { .. } => ErrorKind::Fatal,
        }
    }

    /// An error of the kind [`ErrorKind::Fatal`].
    pub fn broken(operation: impl Into<String>, reason: impl ToString) -> Self {
        Self::Broken {
            operation: operation.into(),
            reason: reason.to_string(),
        }
    }
}
