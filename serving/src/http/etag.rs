//! Tags of answers: who has an answer asks whether it is still the same one.
//!
//! Every answer may be kept by whoever got it, and must be asked for again before it is used
//! (`no-cache`): then an answer that did not change costs no body. Nothing is cached by time.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use xxhash_rust::xxh3::xxh3_128;

use super::problem::{Kind, Problem};

/// A tag. It is a weak one, since the same answer may be sent compressed or not.
pub(crate) fn of(hash: u128) -> HeaderValue {
    let text = format!("W/\"{hash:032x}\"");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("W/\"\""))
}

/// Gives an answer its tag, and none of it to who has it already.
pub(crate) async fn tagged(request: Request, next: Next) -> Result<Response, Problem> {
    let asked = matches!(*request.method(), Method::GET | Method::HEAD);
    let known = request.headers().get_all(header::IF_NONE_MATCH);
    let known: Vec<HeaderValue> = known.iter().cloned().collect();
    let response = next.run(request).await;
    if !asked || response.status() != StatusCode::OK {
        return Ok(response);
    }
    let mut response = match response.headers().contains_key(header::ETAG) {
        true => response,
        false => hashed(response).await?,
    };
    let no_cache = HeaderValue::from_static("no-cache");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_cache);
    if !is_known(response.headers(), &known) {
        return Ok(response);
    }
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::NOT_MODIFIED;
    parts.headers.remove(header::CONTENT_TYPE);
    parts.headers.remove(header::CONTENT_LENGTH);
    // As the answer itself has it, which may be sent compressed.
    let by_encoding = HeaderValue::from_static("accept-encoding");
    parts.headers.insert(header::VARY, by_encoding);
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Tags an answer by its bytes, which are all there already.
async fn hashed(response: Response) -> Result<Response, Problem> {
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| {
        tracing::error!(%error, "cannot read an answer");
        Kind::Internal.with_detail("the answer could not be written")
    })?;
    parts.headers.insert(header::ETAG, of(xxh3_128(&bytes)));
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

/// Whether the asker has the answer: by RFC 9110, tags are compared weakly here.
fn is_known(headers: &HeaderMap, known: &[HeaderValue]) -> bool {
    let Some(tag) = headers.get(header::ETAG).and_then(|tag| tag.to_str().ok()) else {
        return false;
    };
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    known
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|header| header.split(','))
        .any(|given| given.trim() == "*" || opaque(given) == opaque(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_known_in_any_writing() {
        let tag = of(77);
        let text = tag.to_str().unwrap().to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::ETAG, tag);
        let is = |known: &str| is_known(&headers, &[HeaderValue::try_from(known).unwrap()]);
        assert!(is(&text));
        assert!(is(text.trim_start_matches("W/")));
        assert!(is(&format!("\"a\", {text} ,W/\"b\"")));
        assert!(is("*"));
        assert!(!is("W/\"\""));
        assert!(!is(""));
        assert!(!is_known(&headers, &[]));
    }
}
