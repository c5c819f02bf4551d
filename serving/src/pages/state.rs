//! State of the page handlers.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;

use crate::http::Api;

/// State of the page handlers.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    /// Router of the API, which pages query.
    pub(super) router: Router,
    pub(crate) api: Arc<Api>,
}

impl Pages {
    pub(super) fn now_s(&self) -> i64 {
        self.api.ports.clock.now_ms() / 1_000
    }
}

impl FromRef<Pages> for Arc<Api> {
    fn from_ref(pages: &Pages) -> Self {
        Self::clone(&pages.api)
    }
}
