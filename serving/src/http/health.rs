//! Whether the service lives, whether it can answer, and its metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jobs::merge::{Gap, NotWhole};
use schemas::source::Source;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, Caller};
use crate::read::{Seen, newest_of};

/// That the process answers; nothing else is looked at.
#[utoipa::path(
    get,
    path = "/livez",
    tag = "service",
    responses((status = 200, description = "The process answers"))
)]
pub(crate) async fn livez() -> impl IntoResponse {
    Json(json!({"status": "live"}))
}

/// Why something is not as it should be, for whoever may not read all.
const NOT_TOLD: &str = "it is not as it should be: a key that reads all is told why";

/// A thing that was looked at.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Check {
    /// What was looked at.
    name: String,
    /// Whether it is as it should be.
    ok: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What was looked at.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    status: &'static str,
    checks: Vec<Check>,
}

/// Whether questions can be answered: the stores are there, and live state joins the batch rows.
/// Batch runs that fail do not make it unready.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "service",
    responses(
        (status = 200, description = "Ready", body = Readiness),
        (status = 503, description = "Not ready; says why", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn readyz(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Readiness>, Problem> {
    let mut checks = Vec::new();
    for metric in api.metrics.values() {
        let views = metric.views.iter();
        let views: Vec<_> = views.map(|job| (job.view(), metric.live(job))).collect();
        checks.extend(check_source(&api, metric.source, &views).await);
    }
    for job in api.boards.values() {
        let views = [(job.view(), job.view())];
        checks.extend(check_source(&api, job.source(), &views).await);
    }
    if !caller.may_read_all() {
        // Why may say where servers are.
        for check in &mut checks {
            check.reason = check.reason.take().map(|_| NOT_TOLD.to_owned());
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
    Err(Kind::NotReady
        .with_detail(detail)
        .with("checks", json!(checks)))
}

/// Checks the stores of a source, and whether its views join the live parts that each is named with.
async fn check_source(api: &Api, source: Source, views: &[(&str, &str)]) -> Vec<Check> {
    // Runs before slots, as every read does.
    let runs = api.ports.views.runs(source).await;
    let spans = api.ports.log.spans(source.topic()).await;
    let recorded = runs.as_ref().map_or(0, |seen| seen.runs.partitions());
    let partitions = spans.as_ref().map_or(0, Vec::len).max(recorded);
    let count = u32::try_from(partitions).unwrap_or(u32::MAX);
    let live = api.ports.live.partition_states(source, 0..count).await;
    let mut checks = vec![
        check("log", source.topic(), spans.map(drop)),
        check("live state", source.name(), live.as_ref().map(drop)),
        check("batch views", source.name(), runs.as_ref().map(drop)),
    ];
    if let (Ok(runs), Ok(slots)) = (runs, live) {
        let seen = Seen {
            runs: Arc::new(runs),
            slots,
        };
        checks.push(check("seam", source.name(), check_views(&seen, views)));
    }
    checks
}

/// Checks that views join their live parts. A view that is counted live only since its definition came does not make the service
/// unready: only what that view alone answers is refused until the next run.
fn check_views(seen: &Seen, views: &[(&str, &str)]) -> Result<(), NotWhole> {
    for (view, live) in views {
        let newest = newest_of(&seen.runs, view);
        match seen.seam((view, live), newest, None).check(newest) {
            Err(new) if new.gap == Gap::Uncounted => {
                tracing::warn!(%new, "a view is not answered from yet");
            }
            checked => checked?,
        }
    }
    Ok(())
}

fn check<E: std::fmt::Display>(name: &str, of: &str, found: Result<(), E>) -> Check {
    Check {
        name: format!("{name} of {of}"),
        ok: found.is_ok(),
        reason: found.err().map(|error| error.to_string()),
    }
}

/// The metrics of the process, in Prometheus' text format.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "service",
    responses((status = 200, description = "Metrics, whose names begin with backstitch_", content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let text = api.metrics_text.as_ref().ok_or_else(|| {
        Kind::NotCollected.with_detail("this process was started without metrics")
    })?;
    let kind = (header::CONTENT_TYPE, crate::monitor::TEXT);
    Ok(([kind], text.render()).into_response())
}
