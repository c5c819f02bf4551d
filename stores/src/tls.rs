//! What all clients that speak TLS share.

use rustls::crypto::ring::default_provider;

use crate::{Error, Result};

/// Makes ring what signs and enciphers in this process. Two such libraries are built in, and rustls
/// chooses neither by itself.
pub(crate) fn prepare() {
    // An error says that somebody has chosen already.
    let _chosen = default_provider().install_default();
}

/// The text of a file of certificates; nothing for no file.
///
/// # Errors
/// [`Error::Broken`] if it can't be read.
pub(crate) fn certificates(file: &str) -> Result<Option<Vec<u8>>> {
    if file.is_empty() {
        return Ok(None);
    }
    let pem = std::fs::read(file);
    pem.map(Some).map_err(|error| {
        let what = format!("reading the certificates in {file}");
        Error::broken(what, format!("{error}; name a PEM file that can be read"))
    })
}
