//! Entity tags: a client that already has the response gets 304 and no body.
//!
//! Clients may store every response, but must revalidate it before each use (`no-cache`). Nothing
//! is cached by age.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use xxhash_rust::xxh3::xxh3_128;

use super::problem::{Problem, ProblemKind};

/// Builds an entity tag. It is weak, because the same response may be sent compressed or not.
pub(crate) fn from_hash(hash: u128) -> HeaderValue {
    let text = format!("W/\"{hash:032x}\"");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("W/\"\""))
}

/// Adds an entity tag to a response. Replaces the response with 304 if the client has it already.
pub(crate) async fn add_etag(request: Request, next: Next) -> Result<Response, Problem> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let client_tags = request.headers().get_all(header::IF_NONE_MATCH);
    let client_tags: Vec<HeaderValue> = client_tags.iter().cloned().collect();
    let response = next.run(request).await;
    if !is_read || response.status() != StatusCode::OK {
        return Ok(response);
    }
    let mut response = match response.headers().contains_key(header::ETAG) {
        true => response,
        false => add_body_etag(response).await?,
    };
    let no_cache = HeaderValue::from_static("no-cache");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_cache);
    if !matches_tag(response.headers(), &client_tags) {
        return Ok(response);
    }
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::NOT_MODIFIED;
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    // RFC 9110 requires the Vary header of the 200 response, which may be compressed.
    let by_encoding = HeaderValue::from_static("accept-encoding");
    parts.headers.append(header::VARY, by_encoding);
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Adds a tag computed from the body, which is complete in memory.
async fn add_body_etag(response: Response) -> Result<Response, Problem> {
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| {
        tracing::error!(%error, "cannot read the body of a response");
        ProblemKind::Internal
            .with_detail("the response could not be written: see the log of the service")
    })?;
    parts
        .headers
        .insert(header::ETAG, from_hash(xxh3_128(&bytes)));
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// Returns whether the client already has this response. RFC 9110 requires the weak comparison for
/// `If-None-Match`.
fn matches_tag(headers: &HeaderMap, client_tags: &[HeaderValue]) -> bool {
    let Some(tag) = headers.get(header::ETAG).and_then(|tag| tag.to_str().ok()) else {
        return false;
    };
    let strip_weak_prefix = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    client_tags
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|header| header.split(','))
        .any(|client_tag| {
            client_tag.trim() == "*" || strip_weak_prefix(client_tag) == strip_weak_prefix(tag)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_matches_in_every_spelling() {
        let tag = from_hash(77);
        let text = tag.to_str().unwrap().to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::ETAG, tag);
        let is_match = |tag: &str| matches_tag(&headers, &[HeaderValue::try_from(tag).unwrap()]);
        assert!(is_match(&text));
        assert!(is_match(text.trim_start_matches("W/")));
        assert!(is_match(&format!("\"a\", {text} ,W/\"b\"")));
        assert!(is_match("*"));
        assert!(!is_match("W/\"\""));
        assert!(!is_match(""));
        assert!(!matches_tag(&headers, &[]));
    }
}
