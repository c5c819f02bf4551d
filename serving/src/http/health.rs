//! Whether the service lives, whether it can answer, and its metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jobs::merge::{Gap, NotWhole, Seam};
use jobs::{Board, Job};
use schemas::seam::Slot;
use schemas::source::Source;
use serde::Serialize;
use serde_json::json;
use stores::views::RunsSeen;
use utoipa::ToSchema;

use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, Caller};
use crate::metric::Metric;
use crate::read::newest_of;

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
        checks.extend(check_metric(&api, metric).await);
    }
    for job in api.boards.values() {
        checks.extend(check_board(&api, job).await);
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
    Err(Problem::new(Kind::NotReady, detail).with("checks", json!(checks)))
}

async fn check_metric(api: &Api, metric: &Metric) -> Vec<Check> {
    check_source(api, metric.source, |runs, slots| {
        check_views(metric, runs, slots)
    })
    .await
}

async fn check_board(api: &Api, job: &Job<Board>) -> Vec<Check> {
    check_source(api, job.source(), |runs, slots| {
        let seam = seam(runs, slots, (job.view(), job.view()));
        uncounted_is_ready(seam.check(seam.newest))
    })
    .await
}

async fn check_source(
    api: &Api,
    source: Source,
    is_whole: impl Fn(&RunsSeen, &[Option<Slot>]) -> Result<(), NotWhole>,
) -> Vec<Check> {
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
    if let (Ok(runs), Ok(live)) = (&runs, &live) {
        let whole = is_whole(runs, live);
        checks.push(check("seam", source.name(), whole));
    }
    checks
}

/// Views that are counted live only since their definition came are no reason not to be ready: what they alone
/// answer is refused until the next run, and everything else is not.
fn check_views(metric: &Metric, runs: &RunsSeen, slots: &[Option<Slot>]) -> Result<(), NotWhole> {
    for job in &metric.views {
        let seam = seam(runs, slots, (job.view(), metric.live(job)));
        uncounted_is_ready(seam.check(seam.newest))?;
    }
    Ok(())
}

fn uncounted_is_ready(checked: Result<(), NotWhole>) -> Result<(), NotWhole> {
    match checked {
        Err(new) if new.gap == Gap::Uncounted => {
            tracing::warn!(%new, "a view is not answered from yet");
            Ok(())
        }
        checked => checked,
    }
}

fn seam<'a>(
    runs: &'a RunsSeen,
    slots: &'a [Option<Slot>],
    (view, live): (&'a str, &'a str),
) -> Seam<'a> {
    Seam {
        view,
        live,
        newest: newest_of(runs, view),
        runs: &runs.runs,
        slots,
        only: None,
    }
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
        Problem::new(
            Kind::NotCollected,
            "this process was started without metrics",
        )
    })?;
    let kind = (header::CONTENT_TYPE, crate::monitor::TEXT);
    Ok(([kind], text.render()).into_response())
}
