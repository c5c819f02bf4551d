//! Problem documents (RFC 9457), the only form of error responses.

use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use problem_details::{ProblemDetails, ProblemType};
use serde_json::{Map, Value};
use utoipa::{IntoResponses, ToSchema};

use schemas::key::KeyError;

use super::access::limits::RateState;
use crate::answer::Overflow;
use crate::read_error::ReadError;

/// An error as the client sees it. Details meant for operators are logged instead.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: ProblemKind,
    detail: String,
    extensions: Map<String, Value>,
    /// Seconds after which the client may retry, if known.
    retry_after_s: Option<u64>,
    /// The supported content codings, for a body in an unsupported one.
    accept_encoding: Option<&'static str>,
    /// The exceeded rate limit.
    rate_state: Option<RateState>,
}

/// Defines the kinds of problems: HTTP status, last segment of `type`, title, and explanation.
macro_rules! problem_kinds {
    ($($variant:ident = $status:literal $slug:literal $title:literal $explanation:literal;)+) => {
        /// The kind of a problem. It decides the document's `type`, title and status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum ProblemKind {
            $($variant,)+
        }

        impl ProblemKind {
            pub(crate) const ALL: [Self; [$($slug),+].len()] = [$(Self::$variant),+];

            /// Returns status, last segment of the document's `type`, title, and explanation.
            const fn parts(self) -> (u16, &'static str, &'static str, &'static str) {
                match self {
                    $(Self::$variant => ($status, $slug, $title, $explanation),)+
                }
            }
        }
    };
}

problem_kinds! {
    Unauthenticated = 401 "no-key" "Authentication required"
        "The request has no key, or a wrong, expired or revoked one. Send a valid key as \
         Authorization: Bearer bsk_….";
    NotPermitted = 403 "not-permitted" "Not permitted"
        "The key lacks the scope of this route, or a page of another site tried to write. Follow \
         the advice in detail.";
    RateLimited = 429 "too-often" "Rate limit exceeded"
        "This key or this address sends too many requests per second. Wait for the seconds of \
         Retry-After.";
    Busy = 503 "busy" "Too many concurrent requests"
        "The service handles its maximum number of requests. Retry after the seconds of \
         Retry-After.";
    BadParameter = 400 "bad-parameter" "Invalid parameter"
        "A parameter is unknown, repeated, missing or invalid; the member parameter names it. \
         Correct it as detail says.";
    BadBody = 400 "bad-body" "Invalid body"
        "The body is not in the expected form. Correct it as detail says, and send it again.";
    UnknownPath = 404 "unknown-path" "Path not found"
        "No route has this path. /openapi.json lists all routes.";
    UnknownMetric = 404 "unknown-metric" "Metric not found"
        "No view has this metric. The detail lists the metrics.";
    UnknownSource = 404 "unknown-source" "Source not found"
        "There is no such source. The detail lists the sources.";
    UnknownRun = 404 "unknown-run" "Batch run not found"
        "The source has no batch run of this epoch. /api/v1/batch/runs lists them.";
    UnknownBoard = 404 "unknown-board" "Board not found"
        "No view has a board of this name. The detail lists the boards.";
    UnknownApplication = 404 "unknown-application" "Application not found"
        "There is no application of this id. Ingest it first.";
    UnknownRequest = 404 "unknown-request" "Capacity request not found"
        "There is no capacity request of this id. /api/v1/capacity-requests lists them.";
    UnknownDeadLetter = 404 "unknown-dead-letter" "Dead letter not found"
        "There is no dead letter of this id, or it has expired. /api/v1/dead-letters lists them.";
    UnknownComparison = 404 "unknown-comparison" "Comparison not found"
        "There is no comparison of this number. /api/v1/reconciliations lists them.";
    NotOnBoard = 404 "not-on-board" "Athlete not on the board"
        "The athlete has no entry on this board, with these filters.";
    AthleteDeleted = 409 "athlete-deleted" "Athlete deleted"
        "A deleted athlete cannot be connected. Ingest the athlete again first.";
    AthleteErased = 409 "athlete-erased" "Athlete erased"
        "The athlete was erased, and cannot be connected.";
    CapacityExceeded = 403 "capacity-exceeded" "Application at capacity"
        "The application has reached its capacity of connected athletes. Disconnect athletes, or \
         request a higher capacity.";
    RequestOpen = 409 "request-open" "A capacity request is already open"
        "The application already has an open capacity request. Wait for its decision.";
    AlreadyDecided = 409 "already-decided" "Capacity request already decided"
        "The capacity request was granted or refused already.";
    NothingToApprove = 409 "nothing-to-approve" "Nothing to approve"
        "The comparison has no differences to approve, or a newer one replaced it.";
    ManagedElsewhere = 409 "managed-elsewhere" "Managed in another database"
        "Another database manages this data. Change it there, or leave out what detail names.";
    NotCollected = 404 "not-collected" "Metrics not collected"
        "The process was started without metrics. Enable them in its configuration.";
    MethodNotAllowed = 405 "method-not-allowed" "Method not allowed"
        "The path does not have this method. The header Allow lists the methods.";
    SlowBody = 408 "slow-body" "Request body too slow"
        "The body arrived too slowly. Send a smaller body, or use a faster connection.";
    BodyTooLarge = 413 "body-too-large" "Request body too large"
        "The body exceeds the limit that detail names. Split it.";
    EncodedBody = 415 "encoded-body" "Unsupported content encoding"
        "The body has an unsupported Content-Encoding. The header Accept-Encoding lists the \
         supported ones.";
    TooManyWriters = 429 "too-many-writers" "Too many concurrent writers"
        "Too many bodies are being ingested. Retry after the seconds of Retry-After.";
    CountOverflow = 500 "count-overflow" "Count out of range"
        "A count does not fit into a 64-bit integer. Request a shorter period.";
    Internal = 500 "internal" "Internal error"
        "The service failed. Its log has the cause, under the request_id of the problem.";
    SeamMismatch = 503 "not-whole" "Data temporarily incomplete"
        "Live state is being rebuilt, so the answer would be incomplete. Retry after the seconds \
         of Retry-After.";
    NotReady = 503 "not-ready" "Service not ready"
        "A check failed. The member checks lists the failed checks.";
    StoreUnavailable = 503 "store-unavailable" "Store unavailable"
        "A store did not answer, or is damaged. Retry; if it persists, see the log of the service.";
    TimedOut = 503 "timed-out" "Request timed out"
        "The request took too long. Request less, or retry later.";
}

/// The document, for the OpenAPI description.
#[derive(Debug, ToSchema)]
#[schema(as = Problem)]
#[expect(
    dead_code,
    reason = "only describes the schema of a type of another crate"
)]
pub(crate) struct ProblemShape {
    /// The kind of the problem, as the stable path of a page that explains it.
    r#type: String,
    /// The kind in a few words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The fault of this request, and the action to take.
    detail: String,
    /// The id of the request in the log of the service.
    request_id: String,
    /// The parameter that the problem is about.
    parameter: Option<String>,
}

/// The problems that every operation with a key may return, for the OpenAPI description. An
/// operation may describe a problem in more detail.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only describes problem documents")]
pub(crate) enum Problems {
    /// The body or a parameter is invalid
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(ProblemShape),
    /// The request has no valid key
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthenticated(ProblemShape),
    /// The key does not have the required scope
    #[response(status = 403, content_type = "application/problem+json")]
    NotPermitted(ProblemShape),
    /// Too many requests with this key or from this address: retry after Retry-After seconds
    #[response(status = 429, content_type = "application/problem+json")]
    RateLimited(ProblemShape),
    /// Data is incomplete, the service is busy, or a store does not answer: retry after Retry-After
    /// seconds
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemShape),
}

impl ProblemKind {
    /// Returns the kind with this last segment of `type`.
    pub(crate) fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.slug() == slug)
    }

    /// The last segment of the document's `type`.
    pub(crate) const fn slug(self) -> &'static str {
        self.parts().1
    }

    /// The meaning of the kind, and the action to take.
    pub(crate) const fn explanation(self) -> &'static str {
        self.parts().3
    }

    /// The `type` of the document.
    fn problem_type(self) -> ProblemType {
        let path = format!("/problems/{}", self.slug());
        ProblemType::from(path.parse::<Uri>().unwrap_or_default())
    }

    /// The title of the document.
    pub(crate) const fn title(self) -> &'static str {
        self.parts().2
    }

    pub(crate) fn status(self) -> StatusCode {
        StatusCode::from_u16(self.parts().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Creates a problem of this kind. `detail` names the fault and the action to take.
    pub(crate) fn with_detail(self, detail: impl Into<String>) -> Problem {
        Problem {
            kind: self,
            detail: detail.into(),
            extensions: Map::new(),
            retry_after_s: None,
            accept_encoding: None,
            rate_state: None,
        }
    }
}

impl Problem {
    /// Creates the problem of an invalid parameter. `detail` names it and the expected value.
    pub(crate) fn parameter(detail: impl Into<String>) -> Self {
        ProblemKind::BadParameter.with_detail(detail)
    }

    /// Names the parameter that the problem is about.
    pub(crate) fn with_parameter(self, name: &str) -> Self {
        self.with_extension("parameter", name)
    }

    /// Changes the kind from an invalid parameter to an invalid body.
    pub(crate) fn into_body_problem(mut self) -> Self {
        self.kind = ProblemKind::BadBody;
        self.extensions.remove("parameter");
        self
    }

    /// Adds an extension field.
    pub(crate) fn with_extension(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the delay after which the client may retry.
    pub(crate) const fn with_retry_after_s(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Sets the header `Accept-Encoding` to the supported content codings.
    pub(crate) const fn with_accept_encoding(mut self, codings: &'static str) -> Self {
        self.accept_encoding = Some(codings);
        self
    }

    /// Adds the headers of an exceeded rate limit.
    pub(crate) const fn with_rate_state(mut self, state: RateState) -> Self {
        self.rate_state = Some(state);
        self
    }

    pub(crate) const fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The fault of this request, and the action to take.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the value of `Retry-After`, if a retry may succeed.
    pub(crate) fn retry_after_header(&self) -> Option<HeaderValue> {
        let is_temporary = matches!(
            self.kind.status(),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        );
        is_temporary.then(|| HeaderValue::from(self.retry_after_s.unwrap_or(1)))
    }

    /// Renders the document, with the id of the request.
    pub(crate) fn render(&self, request_id: Option<&str>) -> Response {
        let status = self.kind.status();
        let mut extensions = self.extensions.clone();
        if let Some(id) = request_id {
            extensions.insert("request_id".to_owned(), id.into());
        }
        let document = ProblemDetails::from_status_code(status)
            .with_type(self.kind.problem_type())
            .with_title(self.kind.title())
            .with_detail(&self.detail)
            .with_extensions(extensions);
        let bearer = HeaderValue::from_static("Bearer realm=\"backstitch\"");
        let codings = self.accept_encoding.map(HeaderValue::from_static);
        let headers = [
            (header::RETRY_AFTER, self.retry_after_header()),
            (header::ACCEPT_ENCODING, codings),
            (
                header::WWW_AUTHENTICATE,
                (status == StatusCode::UNAUTHORIZED).then_some(bearer),
            ),
        ];
        let headers = headers.into_iter();
        let headers = headers.filter_map(|(name, value)| Some((name, value?)));
        (AppendHeaders(headers), document).into_response()
    }
}

impl IntoResponse for Problem {
    /// Defers the body to the middleware, because the id of the request is not available here.
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        if let Some(state) = self.rate_state {
            state.add_headers(response.headers_mut());
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Plan(error) => Self::parameter(error.to_string()),
            ReadError::Series(error) => Self::parameter(error.to_string()),
            ReadError::SeamMismatch(mismatch) => ProblemKind::SeamMismatch
                .with_detail(mismatch.to_string())
                .with_extension("partition", mismatch.partition)
                .with_extension("view", mismatch.view.clone()),
            ReadError::Store(error) => (&*error).into(),
            ReadError::Replaced => ProblemKind::SeamMismatch.with_detail(error.to_string()),
            ReadError::DamagedBoard(fault) => {
                tracing::error!(fault, "a stored board is damaged");
                ProblemKind::StoreUnavailable
                    .with_detail("stored rows could not be read: see the log of the service")
            }
            ReadError::Damaged(error) => {
                tracing::error!(%error, "cannot decode a stored key");
                ProblemKind::StoreUnavailable
                    .with_detail("stored rows could not be read: see the log of the service")
            }
        }
    }
}

impl From<stores::Error> for Problem {
    fn from(error: stores::Error) -> Self {
        (&error).into()
    }
}

impl From<&stores::Error> for Problem {
    fn from(error: &stores::Error) -> Self {
        tracing::error!(%error, "a store operation failed");
        match error.kind() {
            stores::ErrorKind::Retry => {
                ProblemKind::StoreUnavailable.with_detail("a store did not answer in time: retry")
            }
            stores::ErrorKind::Fatal => ProblemKind::StoreUnavailable.with_detail(
                "a store is damaged, full or not accessible: see the log of the service",
            ),
            stores::ErrorKind::Reject => ProblemKind::Internal
                .with_detail("a store rejected the request: see the log of the service"),
        }
    }
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Self {
        ReadError::from(error).into()
    }
}

impl From<Overflow> for Problem {
    fn from(error: Overflow) -> Self {
        ProblemKind::CountOverflow.with_detail(error.to_string())
    }
}
