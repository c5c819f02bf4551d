//! Host and scheme that a client sent a request to.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// Returns the host that a request is sent to.
pub(crate) fn find_request_host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let host = headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    uri.authority().map(Authority::as_str).or(host)
}

/// True if the client reached the first proxy over TLS, by `X-Forwarded-Proto`.
pub(crate) fn is_over_tls(headers: &HeaderMap) -> bool {
    let protocols = headers.get("x-forwarded-proto");
    let first = protocols.and_then(|protocols| protocols.to_str().ok()?.split(',').next());
    first.is_some_and(|first| first.trim().eq_ignore_ascii_case("https"))
}
