//! What all clients that speak TLS share.

#[cfg(feature = "tls")]
use rustls::crypto::ring::default_provider;

use crate::{Error, Result};

/// Makes ring what signs and enciphers in this process. Two such libraries are built in, and rustls
/// chooses neither by itself.
#[cfg(feature = "tls")]
pub(crate) fn prepare() {
    // An error says that somebody has chosen already.
    let _chosen = default_provider().install_default();
}

/// A client for HTTP that also trusts the authorities of a file, if one is named.
///
/// # Errors
/// Those of [`certificates`], and what `unusable` makes of a certificate that can't be used.
#[cfg(any(feature = "http", feature = "s3"))]
pub(crate) fn http(
    ca_file: &str,
    unusable: &impl Fn(reqwest::Error) -> Error,
) -> Result<reqwest::ClientBuilder> {
    prepare();
    let http = reqwest::Client::builder();
    let Some(pem) = certificates(ca_file)? else {
        return Ok(http);
    };
    let trusted = reqwest::Certificate::from_pem_bundle(&pem).map_err(unusable)?;
    let add = reqwest::ClientBuilder::add_root_certificate;
    Ok(trusted.into_iter().fold(http, add))
}

/// The text of a file of certificates; nothing for no file.
///
/// # Errors
/// [`Error::Broken`] if it can't be read, or holds none: nobody would be trusted then, or somebody else.
pub(crate) fn certificates(file: &str) -> Result<Option<Vec<u8>>> {
    if file.is_empty() {
        return Ok(None);
    }
    let broken = |why: String| {
        let what = format!("reading the certificates in {file}");
        Error::broken(what, format!("{why}; name a PEM file that can be read"))
    };
    let pem = std::fs::read(file).map_err(|error| broken(error.to_string()))?;
    let begins = b"-----BEGIN CERTIFICATE-----";
    if !pem.windows(begins.len()).any(|part| part == begins) {
        return Err(broken("there is no certificate in it".to_owned()));
    }
    Ok(Some(pem))
}
