//! Error of an API request, as pages show it.

use askama::Template;
use axum::http::StatusCode;
use serde::Deserialize;

/// Error of an API request, as pages show it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Template)]
#[template(path = "error.html")]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) title: String,
    pub(crate) detail: String,
    #[serde(default)]
    pub(crate) request_id: String,
    /// Path and title of a page that helps.
    #[serde(skip)]
    pub(crate) link: Option<(String, &'static str)>,
}

impl ApiError {
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// True if the request is invalid, as opposed to a failure of the service.
    pub(crate) const fn is_client_error(&self) -> bool {
        matches!(self.status, 400..429)
    }

    /// True if a retry may succeed.
    pub(crate) const fn may_retry(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    /// Error that a page detects itself.
    pub(crate) fn new(status: u16, title: &str, detail: impl Into<String>) -> Self {
        Self {
            status,
            title: title.to_owned(),
            detail: detail.into(),
            request_id: String::new(),
            link: None,
        }
    }

    /// Replaces the detail, which names parameters of the API, by one for readers of pages.
    pub(crate) fn explain(
        mut self,
        detail: impl Into<String>,
        path: impl Into<String>,
        title: &'static str,
    ) -> Self {
        self.detail = detail.into();
        self.link = Some((path.into(), title));
        self
    }

    pub(super) fn unreadable(error: impl std::fmt::Display) -> Self {
        tracing::error!(%error, "a page cannot read the response of the API");
        let detail = "The page cannot read a response of the API; see the log of the service.";
        Self::new(500, "Internal error", detail)
    }
}

/// Result of an API request, or of a part of a page that depends on it.
pub(crate) type ApiResult<T> = Result<T, ApiError>;
