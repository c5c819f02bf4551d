//! Problem documents (RFC 9457): the only form in which an error goes out.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use problem_details::{ProblemDetails, ProblemType};
use serde_json::{Map, Value};
use utoipa::{IntoResponses, ToSchema};

use schemas::key::KeyError;

use crate::answer::Overflow;
use crate::read::ReadError;

/// An error as the asker sees it. What only an operator should see is logged instead.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    extensions: Map<String, Value>,
    /// After how many seconds to ask again, where that is known.
    retry_after_s: Option<u64>,
    /// The codings in which a body is read, where it came in another.
    accept_encoding: Option<&'static str>,
}

/// What kind of problem it is: the `type` of the document and its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    NoKey,
    NotPermitted,
    TooOften,
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
    NotWhole,
    NotReady,
    StoreUnavailable,
    TimedOut,
}

/// The document, for the API's description.
#[derive(Debug, ToSchema)]
#[schema(as = Problem)]
#[expect(
    dead_code,
    reason = "only describes the schema of a type of another crate"
)]
pub(crate) struct ProblemShape {
    /// What kind of problem it is, as a path: it stays the same from version to version.
    r#type: String,
    /// The same in a few words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is wrong this time, and what to do.
    detail: String,
    /// By what the service's log calls the request.
    request_id: String,
}

/// The problems that any request behind a key can meet, for the API's description. An operation that says more of one of them
/// names it after these.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only describes the documents of problems")]
pub(crate) enum Problems {
    /// The body or a parameter can't be used
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(ProblemShape),
    /// No valid key was sent
    #[response(status = 401, content_type = "application/problem+json")]
    NoKey(ProblemShape),
    /// The key does not permit this
    #[response(status = 403, content_type = "application/problem+json")]
    NotPermitted(ProblemShape),
    /// Too many requests of this key or address: ask again after Retry-After seconds
    #[response(status = 429, content_type = "application/problem+json")]
    TooOften(ProblemShape),
    /// Not whole yet, busy, or a store does not answer: ask again after Retry-After seconds
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemShape),
}

impl Kind {
    /// The `type` of the document.
    const fn path(self) -> &'static str {
        match self {
            Self::NoKey => "/problems/no-key",
            Self::NotPermitted => "/problems/not-permitted",
            Self::TooOften => "/problems/too-often",
            Self::Busy => "/problems/busy",
            Self::BadParameter => "/problems/bad-parameter",
            Self::BadBody => "/problems/bad-body",
            Self::UnknownPath => "/problems/unknown-path",
            Self::UnknownMetric => "/problems/unknown-metric",
            Self::UnknownSource => "/problems/unknown-source",
            Self::UnknownRun => "/problems/unknown-run",
            Self::UnknownBoard => "/problems/unknown-board",
            Self::UnknownApplication => "/problems/unknown-application",
            Self::UnknownRequest => "/problems/unknown-request",
            Self::UnknownDeadLetter => "/problems/unknown-dead-letter",
            Self::UnknownComparison => "/problems/unknown-comparison",
            Self::NotOnBoard => "/problems/not-on-board",
            Self::AthleteDeleted => "/problems/athlete-deleted",
            Self::AthleteErased => "/problems/athlete-erased",
            Self::CapacityExceeded => "/problems/capacity-exceeded",
            Self::RequestOpen => "/problems/request-open",
            Self::AlreadyDecided => "/problems/already-decided",
            Self::NothingToApprove => "/problems/nothing-to-approve",
            Self::ManagedElsewhere => "/problems/managed-elsewhere",
            Self::NotCollected => "/problems/not-collected",
            Self::MethodNotAllowed => "/problems/method-not-allowed",
            Self::SlowBody => "/problems/slow-body",
            Self::BodyTooLarge => "/problems/body-too-large",
            Self::EncodedBody => "/problems/encoded-body",
            Self::TooManyWriters => "/problems/too-many-writers",
            Self::CountOverflow => "/problems/count-overflow",
            Self::Internal => "/problems/internal",
            Self::NotWhole => "/problems/not-whole",
            Self::NotReady => "/problems/not-ready",
            Self::StoreUnavailable => "/problems/store-unavailable",
            Self::TimedOut => "/problems/timed-out",
        }
    }

    /// The kind in a few words.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::NoKey => "Nobody knows who is asking",
            Self::NotPermitted => "This is not permitted",
            Self::TooOften => "This was asked too often",
            Self::Busy => "Too many are asking at once",
            Self::BadParameter => "A parameter can't be used",
            Self::BadBody => "The body can't be read",
            Self::UnknownPath => "There is nothing here",
            Self::UnknownMetric => "There is no such metric",
            Self::UnknownSource => "There is no such source",
            Self::UnknownRun => "There is no such run",
            Self::UnknownBoard => "There is no such board",
            Self::UnknownApplication => "There is no such application",
            Self::NotOnBoard => "The athlete is not on the board",
            Self::AthleteDeleted => "The athlete was deleted",
            Self::AthleteErased => "The athlete was erased",
            Self::CapacityExceeded => "The application is full",
            Self::UnknownRequest => "There is no such request",
            Self::UnknownDeadLetter => "There is no such dead letter",
            Self::UnknownComparison => "There is no such comparison",
            Self::NothingToApprove => "There is nothing to approve",
            Self::RequestOpen => "A request is open already",
            Self::AlreadyDecided => "The request is decided already",
            Self::ManagedElsewhere => "The app changes this itself",
            Self::NotCollected => "Metrics are not collected here",
            Self::MethodNotAllowed => "The method is not allowed here",
            Self::SlowBody => "The body came too slowly",
            Self::BodyTooLarge => "The body is too large",
            Self::EncodedBody => "The body is encoded in a way that is not read here",
            Self::TooManyWriters => "Too many are writing at once",
            Self::CountOverflow => "The count is too large",
            Self::Internal => "The service failed",
            Self::NotWhole => "Live state and batch rows do not join yet",
            Self::NotReady => "The service is not ready",
            Self::StoreUnavailable => "A store could not be used",
            Self::TimedOut => "The answer took too long",
        }
    }

    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::NoKey => StatusCode::UNAUTHORIZED,
            Self::NotPermitted => StatusCode::FORBIDDEN,
            Self::TooOften => StatusCode::TOO_MANY_REQUESTS,
            Self::BadParameter | Self::BadBody => StatusCode::BAD_REQUEST,
            Self::UnknownPath
            | Self::UnknownMetric
            | Self::UnknownSource
            | Self::UnknownRun
            | Self::UnknownBoard
            | Self::UnknownApplication
            | Self::UnknownRequest
            | Self::UnknownDeadLetter
            | Self::UnknownComparison
            | Self::NotOnBoard
            | Self::NotCollected => StatusCode::NOT_FOUND,
            Self::CapacityExceeded => StatusCode::FORBIDDEN,
            Self::RequestOpen
            | Self::AlreadyDecided
            | Self::NothingToApprove
            | Self::ManagedElsewhere
            | Self::AthleteDeleted
            | Self::AthleteErased => StatusCode::CONFLICT,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::EncodedBody => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooManyWriters => StatusCode::TOO_MANY_REQUESTS,
            Self::CountOverflow | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotWhole
            | Self::NotReady
            | Self::StoreUnavailable
            | Self::TimedOut
            | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            extensions: Map::new(),
            retry_after_s: None,
            accept_encoding: None,
        }
    }

    /// A parameter that can't be used; the text says which, and what is expected.
    pub(crate) fn parameter(detail: impl Into<String>) -> Self {
        Self::new(Kind::BadParameter, detail)
    }

    /// The same of what stands in a body.
    pub(crate) fn of_body(mut self) -> Self {
        self.kind = Kind::BadBody;
        self
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.to_owned(), value.into());
        self
    }

    /// The same, with when to ask again.
    pub(crate) const fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The same, with the codings in which a body is read.
    pub(crate) const fn accepting(mut self, codings: &'static str) -> Self {
        self.accept_encoding = Some(codings);
        self
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// What is wrong this time, and what to do.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// After how many seconds to ask again, where that may help.
    pub(crate) fn ask_again(&self) -> Option<HeaderValue> {
        let may_help = matches!(
            self.kind.status(),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        );
        may_help.then(|| HeaderValue::from(self.retry_after_s.unwrap_or(1)))
    }

    /// The document as a response, with the id of the request.
    pub(crate) fn render(&self, request_id: Option<&str>) -> Response {
        let status = self.kind.status();
        let mut extensions = self.extensions.clone();
        if let Some(id) = request_id {
            extensions.insert("request_id".to_owned(), id.into());
        }
        let document = ProblemDetails::from_status_code(status)
            .with_type(ProblemType::from(axum::http::Uri::from_static(
                self.kind.path(),
            )))
            .with_title(self.kind.title())
            .with_detail(&self.detail)
            .with_extensions(extensions);
        let mut response = document.into_response();
        if let Some(soon) = self.ask_again() {
            response.headers_mut().insert(header::RETRY_AFTER, soon);
        }
        if let Some(codings) = self.accept_encoding {
            let codings = HeaderValue::from_static(codings);
            response
                .headers_mut()
                .insert(header::ACCEPT_ENCODING, codings);
        }
        if status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer realm=\"backstitch\"");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl IntoResponse for Problem {
    /// The body is written later, when the id of the request is at hand.
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
            ReadError::NotWhole(not_whole) => Self::new(Kind::NotWhole, not_whole.to_string())
                .with("partition", not_whole.partition)
                .with("view", not_whole.view.clone()),
            ReadError::Store(error) => (&*error).into(),
            ReadError::Replaced => Self::new(Kind::NotWhole, error.to_string()),
            ReadError::DamagedBoard(what) => {
                tracing::error!(what, "a stored board can't be read");
                Self::new(
                    Kind::StoreUnavailable,
                    "stored rows could not be read: see the service's log",
                )
            }
            ReadError::Damaged(error) => {
                tracing::error!(%error, "a stored key does not decode");
                Self::new(
                    Kind::StoreUnavailable,
                    "stored rows could not be read: see the service's log",
                )
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
        tracing::error!(%error, "a store could not be used");
        match error.kind() {
            stores::ErrorKind::Retry => Self::new(
                Kind::StoreUnavailable,
                "a store did not answer in time: ask again",
            ),
            stores::ErrorKind::Fatal => Self::new(
                Kind::StoreUnavailable,
                "a store is damaged, full or not accessible: see the service's log",
            ),
            stores::ErrorKind::Reject => Self::new(
                Kind::Internal,
                "a store refused what it was asked for: see the service's log",
            ),
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
        Self::new(Kind::CountOverflow, error.to_string())
    }
}
