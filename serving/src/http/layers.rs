//! Middleware of every route: concurrency limits, panics, request ids, metrics, problem documents.

use std::any::Any;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use metrics::Label;
use schemas::traces;
use tokio::time::Instant;
use tower_http::cors::CorsLayer;
use tower_http::request_id::RequestId;
use tracing::{Instrument, Span};

use super::accept::wants_page;
use super::access::limits::{RATE_LIMIT, RATE_LIMIT_POLICY};
use super::access::{X_API_KEY, find_client_network, is_same_origin};
use super::ingest::IDEMPOTENCY_KEY;
use super::problem::{Problem, ProblemKind};
use super::{Api, Caller, Permit, csv, is_over_tls};
use crate::options::ServingOptions;
use crate::pages::{PageResponse, render_problem};

/// Path of the liveness check.
const LIVEZ_PATH: &str = "/livez";
/// Path of the change events for pages.
const CHANGE_EVENTS_PATH: &str = "/live";
/// Path of the page for users that an application cannot connect.
const LIMIT_PAGE_PATH: &str = "/api/v1/applications/{id}/limit";
/// Label of requests to unknown paths.
const UNKNOWN_ROUTE: &str = "unknown";
/// Paths outside the API that are not pages.
const NON_PAGE_PATHS: [&str; 5] = [
    LIVEZ_PATH,
    "/readyz",
    "/metrics",
    "/openapi.json",
    UNKNOWN_ROUTE,
];
/// Maximum length of an origin in a problem document.
const ORIGIN_BYTES_MAX: usize = 200;
/// Header in which browsers report the relation of a page to the service.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
const X_REQUEST_ID: &str = "x-request-id";
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Maximum number of logged refusals per second.
const LOGS_PER_SECOND_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// How long browsers may cache the result of a preflight request.
const CORS_MAX_AGE: Duration = Duration::from_secs(600);

/// Refuses requests beyond the concurrency limit, and writes from pages of other sites.
pub(crate) async fn limit_requests(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map_or("", MatchedPath::as_str);
    // Liveness is answered under any load. A request that a page makes counts as part of the page;
    // only this process can have set its caller.
    let is_exempt = path == LIVEZ_PATH || request.extensions().get::<Caller>().is_some();
    // Streams of change events have their own limit.
    let is_endless = path == CHANGE_EVENTS_PATH;
    let permit = match is_exempt {
        true => None,
        false => {
            let detail = "the maximum number of concurrent requests is reached: retry later";
            let permit = api
                .request_permits
                .acquire(find_client_network(&api, &request));
            Some(permit.map_err(|_| ProblemKind::Busy.with_detail(detail))?)
        }
    };
    if !request.method().is_safe()
        && let Some(origin) = find_foreign_origin(&api.options, &request)
    {
        let detail = format!(
            "pages of {origin:?} may not write: add the origin to serving.cors_origins to allow it"
        );
        return Err(ProblemKind::NotPermitted.with_detail(detail));
    }
    let mut response = next.run(request).await;
    // The permit is released when the client has received the response.
    if let Some(permit) = permit.filter(|_| !is_endless) {
        response.extensions_mut().insert(permit);
    }
    Ok(response)
}

/// Returns the origin of a request from another site's page, unless it is configured. Browsers send
/// `Origin` or `Sec-Fetch-Site` with every request that writes.
fn find_foreign_origin(options: &ServingOptions, request: &Request) -> Option<String> {
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN);
    let origin = origin.map(|origin| origin.to_str().unwrap_or_default());
    let is_allowed = |origin: &str| options.cors_origins.iter().any(|allowed| allowed == origin);
    if origin.is_some_and(is_allowed) {
        return None;
    }
    let site = headers.get(SEC_FETCH_SITE);
    let is_cross_site = site.is_some_and(|site| site == "cross-site");
    let is_same_site = origin.is_none() || is_same_origin(headers, request.uri());
    let origin = origin.unwrap_or("another site");
    let prefix = &origin[..origin.floor_char_boundary(ORIGIN_BYTES_MAX)];
    (is_cross_site || !is_same_site).then(|| prefix.to_owned())
}

/// Replaces an `X-Request-Id` that is not a single id of 1 to 128 characters `[A-Za-z0-9._-]`. The
/// id appears in logs, traces and responses.
pub(crate) async fn check_request_id(mut request: Request) -> Request {
    let mut ids = request.headers().get_all(X_REQUEST_ID).iter();
    let is_valid_id = |id: &HeaderValue| {
        let is_in_set = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_in_set)
    };
    let is_valid = ids.next().is_some_and(is_valid_id) && ids.next().is_none();
    if !is_valid {
        request.headers_mut().remove(X_REQUEST_ID);
    }
    request
}

/// Allows cross-origin requests from configured origins only.
pub(crate) fn build_cors_layer(options: &ServingOptions) -> Option<CorsLayer> {
    let origins = options.cors_origins.iter();
    let origins: Vec<HeaderValue> = origins.filter_map(|origin| origin.parse().ok()).collect();
    let layer = || {
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::PATCH, Method::DELETE])
            .allow_headers([
                header::AUTHORIZATION,
                header::CONTENT_ENCODING,
                header::CONTENT_TYPE,
                header::IF_NONE_MATCH,
                HeaderName::from_static(X_API_KEY),
                HeaderName::from_static(IDEMPOTENCY_KEY),
            ])
            .expose_headers([
                header::ETAG,
                header::LINK,
                header::RETRY_AFTER,
                csv::PROVENANCE_HEADER,
                RATE_LIMIT,
                RATE_LIMIT_POLICY,
            ])
            .max_age(CORS_MAX_AGE)
    };
    (!options.cors_origins.is_empty()).then(layer)
}

/// Turns a panic into a problem.
pub(crate) fn on_panic(panic: Box<dyn Any + Send>) -> Response {
    let panic_message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(panic_message, "a request handler panicked");
    ProblemKind::Internal
        .with_detail("the service failed while it handled the request: see the log of the service")
        .into_response()
}

/// The kind of a request in metrics. Each kind has its own metrics, so that its error rate is not
/// diluted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrafficKind {
    Api,
    Page,
    /// An API request that a page makes within this process.
    PageRead,
}

impl TrafficKind {
    fn new(request: &Request, route: &str) -> Self {
        // Before authentication only this process can have set the caller.
        if request.extensions().get::<Caller>().is_some() {
            return Self::PageRead;
        }
        match route.starts_with("/api/") || NON_PAGE_PATHS.contains(&route) {
            true => Self::Api,
            false => Self::Page,
        }
    }

    fn record(self, method: &'static str, route: String, status: StatusCode, duration: Duration) {
        let labels = vec![Label::new("method", method), Label::new("route", route)];
        let mut status_labels = labels.clone();
        status_labels.push(Label::new("status", status.as_u16().to_string()));
        let (count, seconds) = match self {
            Self::Api => (
                metrics::counter!("backstitch_http_requests_total", status_labels),
                metrics::histogram!("backstitch_http_request_duration_seconds", labels),
            ),
            Self::Page => (
                metrics::counter!("backstitch_pages_requests_total", status_labels),
                metrics::histogram!("backstitch_pages_request_duration_seconds", labels),
            ),
            Self::PageRead => (
                metrics::counter!("backstitch_pages_reads_total", status_labels),
                metrics::histogram!("backstitch_pages_read_duration_seconds", labels),
            ),
        };
        count.increment(1);
        seconds.record(duration.as_secs_f64());
    }
}

/// Measures a request, and writes its problem document, if any.
pub(crate) async fn finish_response(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = method_label(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| UNKNOWN_ROUTE.to_owned(), |path| path.as_str().to_owned());
    let traffic = TrafficKind::new(&request, &route);
    let request_id = find_request_id(&request);
    let span = tracing::info_span!("request", id = request_id.as_deref(), %method, route);
    let trace = start_trace_span(&request, &route, request_id.as_deref());
    let is_tls = is_over_tls(request.headers());
    let may_be_page = !request.uri().path().starts_with("/api/") || route == LIMIT_PAGE_PATH;
    let prefers_page = may_be_page && wants_page(request.headers());
    let handling = next.run(request).instrument(span.clone());
    let response = handling.instrument(trace.clone()).await;
    let mut response =
        span.in_scope(|| write_document(response, request_id.as_deref(), prefers_page));
    if is_tls {
        // A client that forges the header affects its own browser only.
        response
            .headers_mut()
            .insert(header::STRICT_TRANSPORT_SECURITY, HSTS_ONE_YEAR);
    }
    trace.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        trace.record("otel.status_code", "ERROR");
    }
    traffic.record(method, route, response.status(), started.elapsed());
    response
}

/// Starts a trace span of a request. It continues the client's trace if the request names one.
fn start_trace_span(request: &Request, route: &str, request_id: Option<&str>) -> Span {
    let method = method_label(request.method());
    let span = tracing::info_span!(
        target: traces::TARGET, "request",
        otel.name = %format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = tracing::field::Empty,
        request_id,
    );
    #[cfg(feature = "otel")]
    if !span.is_disabled() {
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        let headers = opentelemetry_http::HeaderExtractor(request.headers());
        let parent =
            opentelemetry::global::get_text_map_propagator(|format| format.extract(&headers));
        // Fails if no exporter is configured.
        span.set_parent(parent).ok();
    }
    span
}

/// Returns the id of a request, which the client may have set.
pub(crate) fn find_request_id(request: &Request) -> Option<String> {
    let id = request.extensions().get::<RequestId>()?;
    id.header_value().to_str().ok().map(str::to_owned)
}

/// Writes the document or page of a problem, including errors that axum answered without one. Adds
/// security headers.
fn write_document(
    mut response: Response,
    request_id: Option<&str>,
    prefers_page: bool,
) -> Response {
    let status = response.status();
    let is_page = response.extensions().get::<PageResponse>().is_some();
    let problem = match response.extensions_mut().remove::<Problem>() {
        Some(problem) => Some(problem),
        None if is_page => None,
        None if status.is_client_error() || status.is_server_error() => {
            Some(choose_problem_kind(status).with_detail("the request was refused"))
        }
        None => None,
    };
    if let Some(problem) = problem {
        log_problem(&problem);
        let mut document = match prefers_page {
            true => render_problem(response.extensions().get::<Caller>(), &problem, request_id),
            false => problem.render(request_id),
        };
        for (name, value) in response.headers() {
            if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
                document.headers_mut().insert(name, value.clone());
            }
        }
        // The client has not received this response either.
        if let Some(permit) = response.extensions_mut().remove::<Permit>() {
            document.extensions_mut().insert(permit);
        }
        response = document;
    }
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        let value = HeaderValue::from_static(value);
        headers
            .entry(HeaderName::from_static(name))
            .or_insert(value);
    }
    // Clients must not reuse a response, because the next one may differ.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Logs why a request was refused, with the id that its client knows. Clients decide how many
/// refusals there are, so the rate is limited, separately for refusals and failures.
fn log_problem(problem: &Problem) {
    static REFUSED: LazyLock<DefaultDirectRateLimiter> = LazyLock::new(new_log_limiter);
    static FAILED: LazyLock<DefaultDirectRateLimiter> = LazyLock::new(new_log_limiter);
    let kind = problem.kind();
    let (status, title, detail) = (kind.status().as_u16(), kind.title(), problem.detail());
    match status {
        401 | 403 if REFUSED.check().is_ok() => {
            tracing::info!(status, title, detail, "request refused")
        }
        500.. if FAILED.check().is_ok() => tracing::warn!(status, title, detail, "request failed"),
        _ => tracing::debug!(status, title, detail, "request refused"),
    }
}

fn new_log_limiter() -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(LOGS_PER_SECOND_MAX))
}

/// Browsers that used TLS once keep to it for a year.
const HSTS_ONE_YEAR: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Forbids browsers to run or embed responses that are not pages. Pages set their own policy.
const SECURITY_HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Returns the problem for an error status without a document.
fn choose_problem_kind(status: StatusCode) -> ProblemKind {
    match status {
        StatusCode::NOT_FOUND => ProblemKind::UnknownPath,
        StatusCode::METHOD_NOT_ALLOWED => ProblemKind::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => ProblemKind::BodyTooLarge,
        StatusCode::REQUEST_TIMEOUT => ProblemKind::SlowBody,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ProblemKind::EncodedBody,
        _ if status.is_server_error() => ProblemKind::Internal,
        _ => ProblemKind::BadParameter,
    }
}

/// Returns the metric label of a method. All methods that are not served share a label, because
/// clients may invent any number of them.
fn method_label(method: &Method) -> &'static str {
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
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;

    #[test]
    fn served_methods_have_their_own_labels() {
        for method in ["GET", "HEAD", "POST", "PATCH", "DELETE"] {
            let parsed = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(method_label(&parsed), method);
        }
        assert_eq!(method_label(&Method::PUT), "other");
    }

    #[test]
    fn every_page_counts_as_page_traffic() {
        let traffic = |route| TrafficKind::new(&Request::default(), route);
        for path in crate::pages::paths() {
            assert_eq!(traffic(path), TrafficKind::Page, "{path}");
        }
        for route in [
            "/api/v1/ingest/{source}",
            LIMIT_PAGE_PATH,
            "/readyz",
            UNKNOWN_ROUTE,
        ] {
            assert_eq!(traffic(route), TrafficKind::Api, "{route}");
        }
        let mut page_read = Request::default();
        page_read.extensions_mut().insert(Caller::trusted());
        assert_eq!(
            TrafficKind::new(&page_read, "/api/v1/overview"),
            TrafficKind::PageRead
        );
    }

    #[tokio::test]
    async fn a_panic_becomes_a_problem() {
        async fn handler() {
            panic!("on purpose");
        }
        let router: Router = Router::new()
            .route("/", get(handler))
            .layer(CatchPanicLayer::custom(on_panic))
            .layer(from_fn(finish_response));
        let response = router.oneshot(<Request>::default()).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let content_type = &response.headers()["content-type"];
        assert_eq!(content_type, "application/problem+json");
    }
}
