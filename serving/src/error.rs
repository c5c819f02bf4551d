//! What can go wrong with the service as a whole. What goes wrong with one request is a problem
//! document.

/// The result of building or running the service.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The same may go through later.
    Retry,
    /// What was given is wrong.
    Reject,
    /// A person must look.
    Fatal,
}

/// An error of the service. The message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option that can't be used.
    #[error("serving: {option} is {given}: {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What was given.
        given: String,
        /// What is expected.
        expected: &'static str,
    },
    /// The listening socket failed.
    #[error("serving on {address}: {source}; restart the service")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something that was asked without a socket can't be asked or answered.
    #[error("serving {path}: {what}")]
    Asked {
        /// What was asked.
        path: String,
        /// Why it can't be.
        what: String,
    },
}

impl Error {
    /// What the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Option { .. } | Self::Asked { .. } => ErrorKind::Reject,
            Self::Listen { .. } => ErrorKind::Fatal,
        }
    }
}
