//! Bodies of HTTP GET requests, written to files with limits on size and time.

#[cfg(feature = "http")]
mod client;

use std::time::Duration;

#[cfg(feature = "http")]
pub use client::fetch;

use crate::Secret;
#[cfg(not(feature = "http"))]
use crate::{Error, Result};

/// Whether this build can fetch a URL.
pub const HAS_CLIENT: bool = cfg!(feature = "http");

/// What an answer is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a header.
    Csv,
    /// A JSON object on each line.
    JsonLines,
    /// A JSON array of objects, or an object with one.
    Json,
}

/// Who is asked, and how.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    /// The address.
    pub url: &'a Secret,
    /// Who asks, as a bearer token; empty for none.
    pub bearer: &'a Secret,
    /// How many bytes are taken.
    pub bytes_max: u64,
    /// How long it may take.
    pub wait: Duration,
}

/// Refuses the request: this build has no HTTP client.
///
/// # Errors
/// Always [`Error::Refused`], with the feature that is missing.
#[cfg(not(feature = "http"))]
pub async fn fetch(_question: &Question<'_>, _to: &std::path::Path) -> Result<Format> {
    Err(Error::Refused(
        "cannot fetch a URL: this build has no HTTP client; build with the Cargo feature `http`, or pass a file"
            .to_owned(),
    ))
}
