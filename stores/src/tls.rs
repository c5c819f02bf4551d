//! TLS setup that all clients share.

#[cfg(feature = "tls")]
use rustls::crypto::ring::default_provider;

use crate::{Error, Result};

/// Installs ring as the crypto provider of this process. Two providers are built in, and rustls
/// picks none by itself.
#[cfg(feature = "tls")]
pub(crate) fn install_crypto_provider() {
    // An error means that a provider is installed already.
    let _installed = default_provider().install_default();
}

/// A builder for an HTTP client that also trusts the authorities in a file, if one is named.
///
/// # Errors
/// Those of [`read_certificates`], and the error of `unusable` for an invalid certificate.
#[cfg(any(feature = "http", feature = "s3"))]
pub(crate) fn http_client_builder(
    ca_file: &str,
    unusable: &impl Fn(reqwest::Error) -> Error,
) -> Result<reqwest::ClientBuilder> {
    install_crypto_provider();
    let builder = reqwest::Client::builder();
    let Some(pem) = read_certificates(ca_file)? else {
        return Ok(builder);
    };
    let trusted = reqwest::Certificate::from_pem_bundle(&pem).map_err(unusable)?;
    let add = reqwest::ClientBuilder::add_root_certificate;
    Ok(trusted.into_iter().fold(builder, add))
}

/// Reads a file of certificates; `None` for no file.
///
/// # Errors
/// [`Error::Broken`] if the file can't be read or has no certificate: then no authority, or the
/// wrong ones, would be trusted.
pub(crate) fn read_certificates(file: &str) -> Result<Option<Vec<u8>>> {
    if file.is_empty() {
        return Ok(None);
    }
    let broken_error = |reason: String| {
        let operation = format!("reading the certificates in {file}");
        Error::broken(operation, format!("{reason}; use a readable PEM file"))
    };
    let pem = std::fs::read(file).map_err(|error| broken_error(error.to_string()))?;
    let pem_header = b"-----BEGIN CERTIFICATE-----";
    if !pem.windows(pem_header.len()).any(|part| part == pem_header) {
        return Err(broken_error("the file contains no certificate".to_owned()));
    }
    Ok(Some(pem))
}
