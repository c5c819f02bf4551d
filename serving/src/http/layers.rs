//! What goes around every handler: time limits, panics, request ids, metrics, problem documents.

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
use tokio::time::{Instant, timeout};
use tower_http::cors::CorsLayer;
use tower_http::request_id::RequestId;
use tracing::{Instrument, Span};

use super::access::{Caller, X_API_KEY, asking, is_of_own_page};
use super::ingest::IDEMPOTENCY_KEY;
use super::problem::{Kind, Problem};
use super::{Api, Place, csv};
use crate::options::ServingOptions;
use crate::pages::cookie::is_over_tls;
use crate::pages::refused;

/// Where a process says that it lives.
const LIVEZ: &str = "/livez";
/// Where pages are told that something has moved.
const LIVE: &str = "/live";
/// The page to which apps send people.
const LIMIT: &str = "/api/v1/applications/{id}/limit";
/// The route of a request that leads nowhere.
const UNKNOWN: &str = "unknown";
/// What is no page, beside the API.
const NO_PAGES: [&str; 5] = [LIVEZ, "/readyz", "/metrics", "/openapi.json", UNKNOWN];
/// The most of an origin that is repeated, in bytes.
const ORIGIN_BYTES_MAX: usize = 200;
/// Where a request's page is, as its browser says.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
const X_REQUEST_ID: &str = "x-request-id";
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Refusals that are told of in a second.
const TOLD_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// How long browsers keep what pages of others may ask.
const CORS_KEPT: Duration = Duration::from_secs(600);

/// Gives up on an answer that takes too long.
pub(crate) async fn time_out(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    in_time(&api, next.run(request)).await
}

/// Waits for something no longer than an answer may take.
pub(crate) async fn in_time<T>(api: &Api, work: impl Future<Output = T>) -> Result<T, Problem> {
    let limit = api.options.request_timeout();
    timeout(limit, work).await.map_err(|_| {
        let limit = limit.as_millis();
        Kind::TimedOut.with_detail(format!(
            "no answer within {limit} ms: ask for less (a shorter period, fewer rows), or ask again later"
        ))
    })
}

/// Refuses a request where too many are answered already, and one that writes and comes from a page of others.
pub(crate) async fn within_limits(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map_or("", MatchedPath::as_str);
    // Whether the process lives is told however busy it is. What a page asks for has the page's place: only this process can have
    // said who asks.
    let is_free = path == LIVEZ || request.extensions().get::<Caller>().is_some();
    // There are only so many of these, and they go on.
    let is_endless = path == LIVE;
    let place = match is_free {
        true => None,
        false => {
            let detail = "as many requests are answered at once as may be: ask again later";
            let place = api.requests.take(asking(&api, &request));
            Some(place.map_err(|_| Kind::Busy.with_detail(detail))?)
        }
    };
    if !request.method().is_safe()
        && let Some(origin) = stranger_page(&api.options, &request)
    {
        let detail = format!("pages of {origin:?} may not write here");
        return Err(Kind::NotPermitted.with_detail(detail));
    }
    let mut response = next.run(request).await;
    // It is over when the client has taken the answer.
    if let Some(place) = place.filter(|_| !is_endless) {
        response.extensions_mut().insert(place);
    }
    Ok(response)
}

/// The origin of another site's page from which a browser sends a request. Browsers send `Origin` or `Sec-Fetch-Site`
/// with every request that writes.
fn stranger_page(options: &ServingOptions, request: &Request) -> Option<String> {
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN);
    let origin = origin.map(|origin| origin.to_str().unwrap_or_default());
    let is_let_in = |origin: &str| options.cors_origins.iter().any(|known| known == origin);
    if origin.is_some_and(is_let_in) {
        return None;
    }
    let site = headers.get(SEC_FETCH_SITE);
    let is_cross_site = site.is_some_and(|site| site == "cross-site");
    let is_own = origin.is_none() || is_of_own_page(headers, request.uri());
    let origin = origin.unwrap_or("another site");
    let shown = &origin[..origin.floor_char_boundary(ORIGIN_BYTES_MAX)];
    (is_cross_site || !is_own).then(|| shown.to_owned())
}

/// Replaces an `X-Request-Id` that is not one id of 1 to 128 of `[A-Za-z0-9._-]`: a new one is made. The id is
/// written into logs, traces and answers.
pub(crate) async fn check_request_id(mut request: Request) -> Request {
    let mut sent = request.headers().get_all(X_REQUEST_ID).iter();
    let is_plain = |id: &HeaderValue| {
        let is_in_set = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_in_set)
    };
    let is_used = sent.next().is_some_and(is_plain) && sent.next().is_none();
    if !is_used {
        request.headers_mut().remove(X_REQUEST_ID);
    }
    request
}

/// What pages of others may ask: nothing, but for origins that are named.
pub(crate) fn cors(options: &ServingOptions) -> Option<CorsLayer> {
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
                csv::PROVENANCE,
            ])
            .max_age(CORS_KEPT)
    };
    (!options.cors_origins.is_empty()).then(layer)
}

/// Makes a problem of a panic.
pub(crate) fn on_panic(panic: Box<dyn Any + Send>) -> Response {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(what, "a request handler panicked");
    Kind::Internal
        .with_detail("the request met a fault of the service: see the service's log")
        .into_response()
}

/// Whose request is measured: those of pages and those that pages make of the API have metrics of their own, so that no error
/// rate is diluted by the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Api,
    Page,
    /// A request of the API that a page makes within this process.
    PageRead,
}

impl Traffic {
    fn of(request: &Request, route: &str) -> Self {
        // Only this process can have said who asks before anything was looked at.
        if request.extensions().get::<Caller>().is_some() {
            return Self::PageRead;
        }
        match route.starts_with("/api/") || NO_PAGES.contains(&route) {
            true => Self::Api,
            false => Self::Page,
        }
    }

    fn note(self, (method, route): (&'static str, String), status: StatusCode, took: Duration) {
        let labels = vec![Label::new("method", method), Label::new("route", route)];
        let mut of_request = labels.clone();
        of_request.push(Label::new("status", status.as_u16().to_string()));
        let (count, seconds) = match self {
            Self::Api => (
                metrics::counter!("backstitch_http_requests_total", of_request),
                metrics::histogram!("backstitch_http_request_duration_seconds", labels),
            ),
            Self::Page => (
                metrics::counter!("backstitch_pages_requests_total", of_request),
                metrics::histogram!("backstitch_pages_request_duration_seconds", labels),
            ),
            Self::PageRead => (
                metrics::counter!("backstitch_pages_reads_total", of_request),
                metrics::histogram!("backstitch_pages_read_duration_seconds", labels),
            ),
        };
        count.increment(1);
        seconds.record(took.as_secs_f64());
    }
}

/// Measures a request, and writes its problem document if there is one.
pub(crate) async fn finish(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    // A client can make up a method as long as the head of a request.
    let method = method_label(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| UNKNOWN.to_owned(), |path| path.as_str().to_owned());
    let traffic = Traffic::of(&request, &route);
    let request_id = request_id(&request);
    let span = tracing::info_span!("request", id = request_id.as_deref(), %method, route);
    let trace = trace_of(&request, &route, request_id.as_deref());
    let came_by_tls = is_over_tls(request.headers());
    let has_page = !request.uri().path().starts_with("/api/") || route == LIMIT;
    let is_for_people = has_page && super::wants_page(request.headers());
    let answering = next.run(request).instrument(span.clone());
    let response = answering.instrument(trace.clone()).await;
    let mut response =
        span.in_scope(|| with_document(response, request_id.as_deref(), is_for_people));
    if came_by_tls {
        // Whoever says so without a proxy says it of the own browser alone.
        response
            .headers_mut()
            .insert(header::STRICT_TRANSPORT_SECURITY, STAYS_WITH_TLS);
    }
    trace.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        trace.record("otel.status_code", "ERROR");
    }
    traffic.note((method, route), response.status(), begun.elapsed());
    response
}

/// What a trace tells of a request; it goes on from the asker's, where the request says so.
fn trace_of(request: &Request, route: &str, request_id: Option<&str>) -> Span {
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
        let asker = opentelemetry::global::get_text_map_propagator(|known| known.extract(&headers));
        // Where nobody takes traces there is nothing to go on from.
        span.set_parent(asker).ok();
    }
    span
}

/// The id of a request, which the asker may have given.
pub(crate) fn request_id(request: &Request) -> Option<String> {
    let id = request.extensions().get::<RequestId>()?;
    id.header_value().to_str().ok().map(str::to_owned)
}

/// Marks a response that is a page for people, whatever its status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page;

/// The document of a problem, and one for errors that others answered without; for who reads pages a page.
fn with_document(
    mut response: Response,
    request_id: Option<&str>,
    is_for_people: bool,
) -> Response {
    let status = response.status();
    let is_page = response.extensions().get::<Page>().is_some();
    let problem = match response.extensions_mut().remove::<Problem>() {
        Some(problem) => Some(problem),
        None if is_page => None,
        None if status.is_client_error() || status.is_server_error() => {
            Some(kind_of(status).with_detail("the request was refused"))
        }
        None => None,
    };
    if let Some(problem) = problem {
        note(&problem);
        let mut document = match is_for_people {
            true => refused(response.extensions().get::<Caller>(), &problem, request_id),
            false => problem.render(request_id),
        };
        for (name, value) in response.headers() {
            if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
                document.headers_mut().insert(name, value.clone());
            }
        }
        // The client has not taken this one either.
        if let Some(place) = response.extensions_mut().remove::<Place>() {
            document.extensions_mut().insert(place);
        }
        response = document;
    }
    let headers = response.headers_mut();
    for (name, value) in SECURE {
        let value = HeaderValue::from_static(value);
        headers
            .entry(HeaderName::from_static(name))
            .or_insert(value);
    }
    // An answer is of its moment.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Notes why a request was refused, under the id that its asker is told: some of those that come in a second, since strangers
/// decide how many these are; the service's own failures apart.
fn note(problem: &Problem) {
    static REFUSED: LazyLock<DefaultDirectRateLimiter> = LazyLock::new(some_of_a_second);
    static FAILED: LazyLock<DefaultDirectRateLimiter> = LazyLock::new(some_of_a_second);
    let kind = problem.kind();
    let (status, title, detail) = (kind.status().as_u16(), kind.title(), problem.detail());
    match status {
        401 | 403 if REFUSED.check().is_ok() => tracing::info!(status, title, detail, "refused"),
        500.. if FAILED.check().is_ok() => tracing::warn!(status, title, detail, "not answered"),
        _ => tracing::debug!(status, title, detail, "refused"),
    }
}

fn some_of_a_second() -> DefaultDirectRateLimiter {
    RateLimiter::direct(Quota::per_second(TOLD_PER_SECOND))
}

/// Where TLS was used once it is used for a year.
const STAYS_WITH_TLS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// What a page that is none may do in a browser: nothing. Pages say themselves what they need.
const SECURE: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// The problem that a status without a document tells of.
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
    use std::collections::BTreeMap;

    use axum::body::Body;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tower::ServiceExt;

    use super::*;
    use crate::world::boards;

    #[test]
    fn methods_that_are_served_have_labels_of_their_own() {
        for method in ["GET", "HEAD", "POST", "PATCH", "DELETE"] {
            let asked = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(method_label(&asked), method);
        }
        assert_eq!(method_label(&Method::PUT), "other");
    }

    #[test]
    fn every_page_counts_as_one() {
        let of = |route| Traffic::of(&Request::default(), route);
        for path in crate::pages::paths() {
            assert_eq!(of(path), Traffic::Page, "{path}");
        }
        for route in ["/api/v1/ingest/{source}", LIMIT, "/readyz", UNKNOWN] {
            assert_eq!(of(route), Traffic::Api, "{route}");
        }
        let mut inside = Request::default();
        inside.extensions_mut().insert(Caller::trusted());
        assert_eq!(Traffic::of(&inside, "/api/v1/overview"), Traffic::PageRead);
    }

    /// What a page shows is asked within the process: that is no request of the API, and errors of the API are not diluted by it.
    #[tokio::test]
    async fn pages_and_what_they_ask_are_counted_apart() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let _recorded = metrics::set_default_local_recorder(&recorder);
        let (serving, _) = boards::serving(ServingOptions::default());
        for uri in [
            "/segments/1",
            "/api/v1/boards/segments/1",
            "/livez",
            "/nowhere",
        ] {
            let request = Request::get(uri).body(Body::empty()).unwrap();
            serving.router().oneshot(request).await.unwrap();
        }
        let text = handle.render();
        let counted = |metric: &str| {
            let lines = text
                .lines()
                .filter(|line| line.starts_with(&format!("{metric}{{")));
            let route = |line: &str| {
                let rest = line.split("route=\"").nth(1).unwrap();
                rest.split('"').next().unwrap().to_owned()
            };
            let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
            lines
                .map(|line| (route(line), count(line)))
                .collect::<BTreeMap<_, _>>()
        };
        let of_api = [
            ("/api/v1/boards/{name}/{key}", 1),
            ("/livez", 1),
            ("unknown", 1),
        ];
        let of_api = of_api.map(|(route, count)| (route.to_owned(), count));
        assert_eq!(
            counted("backstitch_http_requests_total"),
            of_api.into(),
            "{text}"
        );
        let of_pages = [("/segments/{segment_id}".to_owned(), 1)];
        assert_eq!(
            counted("backstitch_pages_requests_total"),
            of_pages.into(),
            "{text}"
        );
        let reads = counted("backstitch_pages_reads_total");
        assert_eq!(reads["/api/v1/boards/{name}/{key}"], 1, "{text}");
        assert_eq!(reads["/api/v1/segments/{segment_id}/counts"], 1, "{text}");
        for name in ["http_request", "pages_request", "pages_read"] {
            let sum = format!("backstitch_{name}_duration_seconds_sum{{");
            assert!(text.contains(&sum), "{sum}: {text}");
        }
    }
}
