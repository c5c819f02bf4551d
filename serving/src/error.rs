//! Errors of the service as a whole. Errors of one request are problem documents.

/// Result of building or running the service.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How the caller can react to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A later attempt may succeed.
    Retry,
    /// The input is invalid.
    Reject,
    /// An operator has to intervene.
    Fatal,
}

/// Error of the service. The message states what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option has an invalid value.
    #[error("serving: {option} is {value}: {advice}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The invalid value.
        value: String,
        /// The corrective action.
        advice: &'static str,
    },
    /// The listening socket failed.
    #[error("serving on {address}: {source}; restart the service")]
    Listen {
        /// The address.
        address: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A request without a socket failed.
    #[error("serving {path}: {reason}")]
    Request {
        /// The requested path.
        path: String,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// How the caller can react.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Option { .. } | Self::Request { .. } => ErrorKind::Reject,
            Self::Listen { .. } => ErrorKind::Fatal,
        }
    }
}
