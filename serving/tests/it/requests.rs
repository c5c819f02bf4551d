//! Requests to a service without a socket, and parts of their responses.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use serde_json::Value;
use serving::{Serving, ServingOptions};
use tower::ServiceExt;

/// Options with which a request fails at once while live state is incomplete.
pub(crate) fn no_wait_options() -> ServingOptions {
    ServingOptions {
        whole_wait_ms: 0,
        ..ServingOptions::default()
    }
}

pub(crate) fn build_request(method: Method, uri: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::builder().method(method).uri(uri);
    request.body(body.into()).unwrap()
}

/// Sends a request. Returns the head of the response, and its body as text.
pub(crate) async fn send(serving: &Serving, request: Request<Body>) -> (Response<()>, String) {
    let response = send_unread(serving, request).await;
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (Response::from_parts(head, ()), text)
}

/// Sends a request, and leaves the body of the response unread. The request counts as in flight
/// until the response is dropped.
pub(crate) async fn send_unread(serving: &Serving, request: Request<Body>) -> Response {
    serving.router().oneshot(request).await.unwrap()
}

pub(crate) async fn get(serving: &Serving, uri: &str) -> (Response<()>, String) {
    send(serving, build_request(Method::GET, uri, Body::empty())).await
}

/// As [`get`]; returns the status and the JSON document, which is null for another body.
pub(crate) async fn get_json(serving: &Serving, uri: &str) -> (StatusCode, Value) {
    let (response, text) = get(serving, uri).await;
    (response.status(), parse_json(&text))
}

/// Parses a JSON document. Returns null for any other text.
pub(crate) fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Returns the URI of the next page from the header `Link`.
pub(crate) fn parse_next_link(headers: &HeaderMap) -> Option<String> {
    let link = headers.get("link")?.to_str().unwrap();
    let uri = link.strip_prefix('<').unwrap();
    Some(uri.strip_suffix(">; rel=\"next\"").unwrap().to_owned())
}
