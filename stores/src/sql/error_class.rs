//! The classes of errors of servers.

/// The class of an error of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// The server is overloaded, starting or stopping, or rolled back a transaction, for example
    /// after a deadlock.
    Retryable,
    /// Tables or columns are missing.
    MissingSchema,
    /// The user or the password is wrong.
    Unauthenticated,
    /// The server does not offer TLS, or its certificate is not trusted.
    UntrustedTls,
    /// The user lacks a right.
    PermissionDenied,
    /// Any other error.
    Other,
}
