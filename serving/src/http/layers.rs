//! What goes around every handler: time limits, panics, request ids, metrics, problem documents.

use std::any::Any;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout};
use tower_http::request_id::RequestId;
use tracing::Instrument;

use super::Api;
use super::problem::{Kind, Problem};

/// Gives up on an answer that takes too long.
pub(crate) async fn time_out(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Response {
    match in_time(&api, next.run(request)).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

/// Waits for something no longer than an answer may take.
pub(crate) async fn in_time<T>(api: &Api, work: impl Future<Output = T>) -> Result<T, Problem> {
    let limit = api.options.request_timeout();
    timeout(limit, work).await.map_err(|_| {
        let limit = limit.as_millis();
        Problem::new(
            Kind::TimedOut,
            format!("no answer within {limit} ms: ask for less (a shorter period, fewer rows), or ask again later"),
        )
    })
}

/// Makes a problem of a panic.
pub(crate) fn on_panic(panic: Box<dyn Any + Send>) -> Response {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(what, "a request handler panicked");
    Problem::new(
        Kind::Internal,
        "the request met a fault of the service: see the service's log",
    )
    .into_response()
}

/// Measures a request, and writes its problem document if there is one.
pub(crate) async fn finish(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let request_id = request_id(&request);
    let span = tracing::info_span!("request", id = request_id.as_deref(), %method, route);
    let response = next.run(request).instrument(span).await;
    let response = with_document(response, request_id.as_deref());

    let seconds = begun.elapsed().as_secs_f64();
    let status = response.status().as_u16().to_string();
    let method = method_label(&method);
    metrics::counter!(
        "backstitch_http_requests_total",
        "method" => method, "route" => route.clone(), "status" => status
    )
    .increment(1);
    metrics::histogram!(
        "backstitch_http_request_duration_seconds",
        "method" => method, "route" => route
    )
    .record(seconds);
    response
}

/// The id of a request, which the asker may have given.
pub(crate) fn request_id(request: &Request) -> Option<String> {
    let id = request.extensions().get::<RequestId>()?;
    id.header_value().to_str().ok().map(str::to_owned)
}

/// Marks a response that is a page for people, whatever its status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page;

/// The document of a problem, and one for errors that others answered without.
fn with_document(mut response: Response, request_id: Option<&str>) -> Response {
    let status = response.status();
    let is_page = response.extensions().get::<Page>().is_some();
    let problem = match response.extensions_mut().remove::<Problem>() {
        Some(problem) => Some(problem),
        None if is_page => None,
        None if status.is_client_error() || status.is_server_error() => {
            Some(Problem::new(kind_of(status), "the request was refused"))
        }
        None => None,
    };
    if let Some(problem) = problem {
        let mut document = problem.render(request_id);
        for (name, value) in response.headers() {
            if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
                document.headers_mut().insert(name, value.clone());
            }
        }
        response = document;
    }
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    // An answer is of its moment.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

fn kind_of(status: StatusCode) -> Kind {
    match status {
        StatusCode::NOT_FOUND => Kind::UnknownPath,
        StatusCode::METHOD_NOT_ALLOWED => Kind::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Kind::BodyTooLarge,
        StatusCode::REQUEST_TIMEOUT => Kind::SlowBody,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Kind::EncodedBody,
        _ if status.is_server_error() => Kind::Internal,
        _ => Kind::BadParameter,
    }
}

/// Methods as labels: one for all that nobody serves, since a client can make up any.
fn method_label(method: &axum::http::Method) -> &'static str {
    use axum::http::Method;
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;

    #[test]
    fn methods_that_are_served_have_labels_of_their_own() {
        for method in ["GET", "HEAD", "POST", "PATCH", "DELETE"] {
            let asked = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(method_label(&asked), method);
        }
        assert_eq!(method_label(&Method::PUT), "other");
    }
}
