//! Fetches a URL into a file, with limits on size and time.

#[cfg(feature = "http")]
mod client;

use std::time::Duration;

#[cfg(feature = "http")]
pub use client::fetch;

use crate::Secret;
#[cfg(not(feature = "http"))]
use crate::{Error, Result};

/// True if this build can fetch a URL.
pub const HAS_CLIENT: bool = cfg!(feature = "http");

/// The format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFormat {
    /// Comma-separated values with a header.
    Csv,
    /// A JSON object on each line.
    JsonLines,
    /// A JSON array of objects, or an object with one.
    Json,
}

/// A request.
#[derive(Debug, Clone)]
pub struct FetchRequest<'a> {
    /// The URL.
    pub url: &'a Secret,
    /// The bearer token; empty for none.
    pub bearer: &'a Secret,
    /// The maximum size of the response.
    pub bytes_max: u64,
    /// The deadline of the whole response.
    pub timeout: Duration,
}

/// Rejects the request: this build has no HTTP client.
///
/// # Errors
/// Always [`Error::Refused`], with the missing feature.
#[cfg(not(feature = "http"))]
pub async fn fetch(_request: &FetchRequest<'_>, _to: &std::path::Path) -> Result<ResponseFormat> {
    Err(Error::Refused(
        "cannot fetch a URL: this build has no HTTP client; build with the Cargo feature `http`, or pass a file"
            .to_owned(),
    ))
}
