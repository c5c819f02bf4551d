//! Liveness, readiness, and metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jobs::merge::{SeamGap, SeamMismatch};
use schemas::source::Source;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, Caller};
use crate::read::{RunsAndStates, newest_epoch};

/// Liveness: the process answers. No dependency is checked.
#[utoipa::path(
    get,
    path = "/livez",
    tag = "service",
    responses((status = 200, description = "The process answers"))
)]
pub(crate) async fn livez() -> impl IntoResponse {
    Json(json!({"status": "live"}))
}

/// Replaces the reason of a failed check for callers without the scope `read:*`.
const HIDDEN_REASON: &str = "failed: a key with the scope read:* may see the reason";

/// The result of one check.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Check {
    /// The component that was checked.
    name: String,
    /// True if the check passed.
    ok: bool,
    /// Why the check failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The result of all checks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    status: &'static str,
    checks: Vec<Check>,
}

/// Readiness of the stores and of live state.
///
/// All stores are available, and live state continues where the batch rows end. Failed batch runs
/// do not make the service unready.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "service",
    responses(
        (status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "Not ready, with the failed checks", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn readyz(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Readiness>, Problem> {
    let mut checks = Vec::new();
    for metric in api.metrics.values() {
        let views = metric.views.iter();
        let views: Vec<_> = views
            .map(|job| (job.view(), metric.live_view(job)))
            .collect();
        checks.extend(check_source(&api, metric.source, &views).await);
    }
    for job in api.boards.values() {
        let views = [(job.view(), job.view())];
        checks.extend(check_source(&api, job.source(), &views).await);
    }
    if !caller.may_read_all() {
        // Reasons may name addresses of servers.
        for check in &mut checks {
            check.reason = check.reason.take().map(|_| HIDDEN_REASON.to_owned());
        }
    }
    let reasons: Vec<String> = checks
        .iter()
        .filter_map(|check: &Check| {
            let reason = check.reason.as_ref()?;
            Some(format!("{}: {reason}", check.name))
        })
        .collect();
    if reasons.is_empty() {
        return Ok(Json(Readiness {
            status: "ready",
            checks,
        }));
    }
    let detail = reasons.join("; ");
    Err(ProblemKind::NotReady
        .with_detail(detail)
        .with_extension("checks", json!(checks)))
}

/// Checks the stores of a source, and that live state continues where each view's batch rows end.
/// Each pair names a view and its live part.
async fn check_source(api: &Api, source: Source, views: &[(&str, &str)]) -> Vec<Check> {
    // Runs are read before partition states, as every read does.
    let runs = api.ports.views.runs(source).await;
    let spans = api.ports.log.spans(source.topic()).await;
    let run_partitions = runs.as_ref().map_or(0, |runs| runs.runs.partition_count());
    let partitions = spans.as_ref().map_or(0, Vec::len).max(run_partitions);
    let count = u32::try_from(partitions).unwrap_or(u32::MAX);
    let states = api.ports.live.partition_states(source, 0..count).await;
    let mut checks = vec![
        build_check("log", source.topic(), spans.map(drop)),
        build_check("live state", source.name(), states.as_ref().map(drop)),
        build_check("batch views", source.name(), runs.as_ref().map(drop)),
    ];
    if let (Ok(runs), Ok(states)) = (runs, states) {
        let snapshot = RunsAndStates {
            runs: Arc::new(runs),
            states,
        };
        checks.push(build_check(
            "seam",
            source.name(),
            check_views(&snapshot, views),
        ));
    }
    checks
}

/// Checks that live state continues where each view's batch rows end. A new view without a complete
/// run does not make the service unready: only requests that need this view fail until its first
/// run.
fn check_views(snapshot: &RunsAndStates, views: &[(&str, &str)]) -> Result<(), SeamMismatch> {
    for (view, live_view) in views {
        let newest = newest_epoch(&snapshot.runs, view);
        match snapshot
            .build_seam(view, live_view, newest, None)
            .check(newest)
        {
            Err(mismatch) if mismatch.gap == SeamGap::Uncounted => {
                tracing::warn!(
                    %mismatch,
                    "a view has no complete run yet: requests that only it can answer fail"
                );
            }
            result => result?,
        }
    }
    Ok(())
}

fn build_check<E: std::fmt::Display>(name: &str, object: &str, result: Result<(), E>) -> Check {
    Check {
        name: format!("{name} of {object}"),
        ok: result.is_ok(),
        reason: result.err().map(|error| error.to_string()),
    }
}

/// The metrics of the process, in the Prometheus text format.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "service",
    responses((status = 200, description = "Metrics with names that begin with backstitch_", content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let text = api.metrics_text.as_ref().ok_or_else(|| {
        ProblemKind::NotCollected.with_detail("this process was started without metrics")
    })?;
    let content_type = (header::CONTENT_TYPE, crate::monitor::PROMETHEUS_TEXT);
    Ok(([content_type], text.render()).into_response())
}
