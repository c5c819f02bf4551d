//! What went wrong at a store, and what the caller can do about it.

use schemas::seam::Offset;

/// The result of a call to a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The store did not answer or was busy: the same call may go through later.
    Retry,
    /// The call was wrong or its time is over: it will be refused again.
    Reject,
    /// The store is damaged, full, not to be written, or not what it was: a person must look.
    Fatal,
}

/// An error of a store. The message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not answer in time, or was busy for too long.
    #[error("{what}: {why}; it may go through later")]
    Unavailable {
        /// What was to be done, and where.
        what: String,
        /// What the store said.
        why: String,
    },
    /// The store's memory is full. It is not waited for: the caller may have what can go first.
    #[error("{what}: {why}; it may go through later")]
    Full {
        /// What was to be done, and where.
        what: String,
        /// What the store said, and what to do.
        why: String,
    },
    /// The log does not hold the offset that was asked for.
    #[error(
        "{topic}/{partition}: offset {asked} is not in the log, which reaches from {start} to {end}"
    )]
    OffsetOutOfRange {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The offset that was asked for.
        asked: Offset,
        /// The first offset that the log still holds.
        start: Offset,
        /// The offset that the next record will have.
        end: Offset,
    },
    /// The log has no such topic, or not so many partitions.
    #[error("{what}: there is no such topic or partition; make the topic first")]
    NoPartition {
        /// What was to be done, and where.
        what: String,
    },
    /// A newer run, another owner of the lease, or a record that is already there.
    #[error("{0}")]
    Refused(String),
    /// A file of the archive is not what was written.
    #[error("{path} is damaged or missing: {why}")]
    DamagedFile {
        /// The file, as a path within the archive.
        path: String,
        /// What shows it, and what to do.
        why: String,
    },
    /// What is stored is not what it should be, or can't be read or written.
    #[error("{what}: {why}")]
    Broken {
        /// What was to be done, and where.
        what: String,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl Error {
    /// What the caller can do.
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
    pub fn broken(what: impl Into<String>, why: impl ToString) -> Self {
        Self::Broken {
            what: what.into(),
            why: why.to_string(),
        }
    }
}
