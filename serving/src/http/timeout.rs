//! The time limit of requests.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::Api;
use super::problem::{Problem, ProblemKind};

/// Applies the time limit of requests.
pub(crate) async fn apply_timeout(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    with_timeout(&api, next.run(request)).await
}

/// Runs a part of a request with the time limit of requests.
pub(crate) async fn with_timeout<T>(
    api: &Api,
    work: impl Future<Output = T>,
) -> Result<T, Problem> {
    let limit = api.options.request_timeout();
    timeout(limit, work).await.map_err(|_| {
        let limit = limit.as_millis();
        ProblemKind::TimedOut.with_detail(format!(
            "the request took longer than {limit} ms: request less (a shorter period, fewer rows), or retry later"
        ))
    })
}
