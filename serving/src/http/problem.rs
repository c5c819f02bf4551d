//! Problem documents (RFC 9457): the only form in which an error goes out.

use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
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

/// The problems that any request behind a key can meet, for the API's description: each operation has them, or says more of one.
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
    /// The status, the last part of the document's `type`, and its title.
    const fn parts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::NoKey => (401, "no-key", "Nobody knows who is asking"),
            Self::NotPermitted => (403, "not-permitted", "This is not permitted"),
            Self::TooOften => (429, "too-often", "This was asked too often"),
            Self::Busy => (503, "busy", "Too many are asking at once"),
            Self::BadParameter => (400, "bad-parameter", "A parameter can't be used"),
            Self::BadBody => (400, "bad-body", "The body can't be read"),
            Self::UnknownPath => (404, "unknown-path", "There is nothing here"),
            Self::UnknownMetric => (404, "unknown-metric", "There is no such metric"),
            Self::UnknownSource => (404, "unknown-source", "There is no such source"),
            Self::UnknownRun => (404, "unknown-run", "There is no such run"),
            Self::UnknownBoard => (404, "unknown-board", "There is no such board"),
            Self::UnknownApplication => {
                (404, "unknown-application", "There is no such application")
            }
            Self::UnknownRequest => (404, "unknown-request", "There is no such request"),
            Self::UnknownDeadLetter => (404, "unknown-dead-letter", "There is no such dead letter"),
            Self::UnknownComparison => (404, "unknown-comparison", "There is no such comparison"),
            Self::NotOnBoard => (404, "not-on-board", "The athlete is not on the board"),
            Self::AthleteDeleted => (409, "athlete-deleted", "The athlete was deleted"),
            Self::AthleteErased => (409, "athlete-erased", "The athlete was erased"),
            Self::CapacityExceeded => (403, "capacity-exceeded", "The application is full"),
            Self::RequestOpen => (409, "request-open", "A request is open already"),
            Self::AlreadyDecided => (409, "already-decided", "The request is decided already"),
            Self::NothingToApprove => (409, "nothing-to-approve", "There is nothing to approve"),
            Self::ManagedElsewhere => (409, "managed-elsewhere", "The app changes this itself"),
            Self::NotCollected => (404, "not-collected", "Metrics are not collected here"),
            Self::MethodNotAllowed => (405, "method-not-allowed", "The method is not allowed here"),
            Self::SlowBody => (408, "slow-body", "The body came too slowly"),
            Self::BodyTooLarge => (413, "body-too-large", "The body is too large"),
            Self::EncodedBody => (
                415,
                "encoded-body",
                "The body is encoded in a way that is not read here",
            ),
            Self::TooManyWriters => (429, "too-many-writers", "Too many are writing at once"),
            Self::CountOverflow => (500, "count-overflow", "The count is too large"),
            Self::Internal => (500, "internal", "The service failed"),
            Self::NotWhole => (
                503,
                "not-whole",
                "Live state and batch rows do not join yet",
            ),
            Self::NotReady => (503, "not-ready", "The service is not ready"),
            Self::StoreUnavailable => (503, "store-unavailable", "A store could not be used"),
            Self::TimedOut => (503, "timed-out", "The answer took too long"),
        }
    }

    /// The `type` of the document.
    fn path(self) -> ProblemType {
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

    /// A problem of this kind. The text says what is wrong this time, and what to do.
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
    /// A parameter that can't be used; the text says which, and what is expected.
    pub(crate) fn parameter(detail: impl Into<String>) -> Self {
        Kind::BadParameter.with_detail(detail)
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
            .with_type(self.kind.path())
            .with_title(self.kind.title())
            .with_detail(&self.detail)
            .with_extensions(extensions);
        let bearer = HeaderValue::from_static("Bearer realm=\"backstitch\"");
        let codings = self.accept_encoding.map(HeaderValue::from_static);
        let headers = [
            (header::RETRY_AFTER, self.ask_again()),
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
            ReadError::NotWhole(not_whole) => Kind::NotWhole
                .with_detail(not_whole.to_string())
                .with("partition", not_whole.partition)
                .with("view", not_whole.view.clone()),
            ReadError::Store(error) => (&*error).into(),
            ReadError::Replaced => Kind::NotWhole.with_detail(error.to_string()),
            ReadError::DamagedBoard(what) => {
                tracing::error!(what, "a stored board can't be read");
                Kind::StoreUnavailable
                    .with_detail("stored rows could not be read: see the service's log")
            }
            ReadError::Damaged(error) => {
                tracing::error!(%error, "a stored key does not decode");
                Kind::StoreUnavailable
                    .with_detail("stored rows could not be read: see the service's log")
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
            stores::ErrorKind::Retry => {
                Kind::StoreUnavailable.with_detail("a store did not answer in time: ask again")
            }
            stores::ErrorKind::Fatal => Kind::StoreUnavailable
                .with_detail("a store is damaged, full or not accessible: see the service's log"),
            stores::ErrorKind::Reject => Kind::Internal
                .with_detail("a store refused what it was asked for: see the service's log"),
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
        Kind::CountOverflow.with_detail(error.to_string())
    }
}
