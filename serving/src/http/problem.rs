//! Problem documents (RFC 9457), the only form of error responses.

use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use problem_details::{ProblemDetails, ProblemType};
use serde_json::{Map, Value};
use utoipa::{IntoResponses, ToSchema};

use schemas::key::KeyError;

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
}

/// The kind of a problem. It decides the document's `type`, title and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    Unauthenticated,
    NotPermitted,
    RateLimited,
    Busy,
    BadParameter,
    BadBody,
    UnknownPath,
    UnknownMetric,
    UnknownSource,
    UnknownRun,
    UnknownBoard,
    UnknownApplication,
    UnknownRequest,
    UnknownDeadLetter,
    UnknownComparison,
    NotOnBoard,
    AthleteDeleted,
    AthleteErased,
    CapacityExceeded,
    RequestOpen,
    AlreadyDecided,
    NothingToApprove,
    ManagedElsewhere,
    NotCollected,
    MethodNotAllowed,
    SlowBody,
    BodyTooLarge,
    EncodedBody,
    TooManyWriters,
    CountOverflow,
    Internal,
    SeamMismatch,
    NotReady,
    StoreUnavailable,
    TimedOut,
}

/// The document, for the OpenAPI description.
#[derive(Debug, ToSchema)]
#[schema(as = Problem)]
#[expect(
    dead_code,
    reason = "only describes the schema of a type of another crate"
)]
pub(crate) struct ProblemShape {
    /// The kind of the problem, as a path that is stable across versions.
    r#type: String,
    /// The kind in a few words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The fault of this request, and the action to take.
    detail: String,
    /// The id of the request in the log of the service.
    request_id: String,
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
    /// Returns the status, the last segment of the document's `type`, and the title.
    const fn parts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::Unauthenticated => (401, "no-key", "Authentication required"),
            Self::NotPermitted => (403, "not-permitted", "Not permitted"),
            Self::RateLimited => (429, "too-often", "Rate limit exceeded"),
            Self::Busy => (503, "busy", "Too many concurrent requests"),
            Self::BadParameter => (400, "bad-parameter", "Invalid parameter"),
            Self::BadBody => (400, "bad-body", "Invalid body"),
            Self::UnknownPath => (404, "unknown-path", "Path not found"),
            Self::UnknownMetric => (404, "unknown-metric", "Metric not found"),
            Self::UnknownSource => (404, "unknown-source", "Source not found"),
            Self::UnknownRun => (404, "unknown-run", "Batch run not found"),
            Self::UnknownBoard => (404, "unknown-board", "Board not found"),
            Self::UnknownApplication => (404, "unknown-application", "Application not found"),
            Self::UnknownRequest => (404, "unknown-request", "Capacity request not found"),
            Self::UnknownDeadLetter => (404, "unknown-dead-letter", "Dead letter not found"),
            Self::UnknownComparison => (404, "unknown-comparison", "Comparison not found"),
            Self::NotOnBoard => (404, "not-on-board", "Athlete not on the board"),
            Self::AthleteDeleted => (409, "athlete-deleted", "Athlete deleted"),
            Self::AthleteErased => (409, "athlete-erased", "Athlete erased"),
            Self::CapacityExceeded => (403, "capacity-exceeded", "Application at capacity"),
            Self::RequestOpen => (409, "request-open", "A capacity request is already open"),
            Self::AlreadyDecided => (409, "already-decided", "Capacity request already decided"),
            Self::NothingToApprove => (409, "nothing-to-approve", "Nothing to approve"),
            Self::ManagedElsewhere => (409, "managed-elsewhere", "Managed in another database"),
            Self::NotCollected => (404, "not-collected", "Metrics not collected"),
            Self::MethodNotAllowed => (405, "method-not-allowed", "Method not allowed"),
            Self::SlowBody => (408, "slow-body", "Request body too slow"),
            Self::BodyTooLarge => (413, "body-too-large", "Request body too large"),
            Self::EncodedBody => (415, "encoded-body", "Unsupported content encoding"),
            Self::TooManyWriters => (429, "too-many-writers", "Too many concurrent writers"),
            Self::CountOverflow => (500, "count-overflow", "Count out of range"),
            Self::Internal => (500, "internal", "Internal error"),
            Self::SeamMismatch => (503, "not-whole", "Data temporarily incomplete"),
            Self::NotReady => (503, "not-ready", "Service not ready"),
            Self::StoreUnavailable => (503, "store-unavailable", "Store unavailable"),
            Self::TimedOut => (503, "timed-out", "Request timed out"),
        }
    }

    /// The `type` of the document.
    fn problem_type(self) -> ProblemType {
        let path = format!("/problems/{}", self.parts().1);
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
        }
    }
}

impl Problem {
    /// Creates the problem of an invalid parameter. `detail` names it and the expected value.
    pub(crate) fn parameter(detail: impl Into<String>) -> Self {
        ProblemKind::BadParameter.with_detail(detail)
    }

    /// Changes the kind from an invalid parameter to an invalid body.
    pub(crate) fn into_body_problem(mut self) -> Self {
        self.kind = ProblemKind::BadBody;
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
