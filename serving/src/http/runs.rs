//! The history of batch runs.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use jiff::SignedDuration;
use schemas::provenance::{Origin, Provenance};
use schemas::seam::{Epoch, RunState, Runs};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::lease::run_lease;
use stores::views::RunDetails;
use utoipa::ToSchema;

use super::params::{PageQuery, Params, Path, parse_stored_number};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::{ProvenanceShape, format_ms};
use crate::read::Watermark;

/// A batch run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunResponse {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The epoch that the run closes, which is also its number.
    pub(crate) epoch: u64,
    /// proposed, sealed, complete or abandoned.
    pub(crate) state: String,
    /// By partition: the run covers every event below this offset.
    pub(crate) cuts: Vec<i64>,
    /// Time of the first proposal, in UTC.
    pub(crate) started_at: String,
    /// Time of completion or abandonment, in UTC. Null while the run is open.
    pub(crate) ended_at: Option<String>,
    /// Seconds since the first proposal, while a process executes the run. Null otherwise.
    pub(crate) running_seconds: Option<f64>,
    /// Why the run is not published: the failed check, or the error of the last attempt. Null if it
    /// is published.
    pub(crate) reason: Option<String>,
    /// The action to take. Null if the run is published, or a later run covers its events.
    pub(crate) to_do: Option<String>,
    /// Number of events read.
    #[schema(value_type = Option<u64>)]
    pub(crate) rows_read: Value,
    /// Number of rows written.
    #[schema(value_type = Option<u64>)]
    pub(crate) rows_written: Value,
    /// Number of unchanged rows.
    #[schema(value_type = Option<u64>)]
    pub(crate) rows_skipped: Value,
    /// Total duration in seconds.
    pub(crate) seconds: Option<f64>,
    /// The difference between live counts and the run: 0 in a healthy system, null if the run ended
    /// before it was measured.
    #[schema(value_type = Option<Object>)]
    pub(crate) drift: Value,
    /// The complete report of the batch layer. Only in the response for a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) report: Option<Value>,
}

/// A page of runs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Runs)]
pub(crate) struct RunsPage {
    /// Newest first.
    runs: Vec<RunResponse>,
    /// The cursor of the next page; null on the last one.
    cursor: Option<String>,
    /// The end of the newest complete run.
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// One run with its report.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunReportResponse {
    #[serde(flatten)]
    run: RunResponse,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// Builds the provenance of batch results from each source's newest complete run. With several
/// sources, `epoch` is the lowest.
pub(super) fn build_runs_provenance<'a>(
    sources: impl IntoIterator<Item = (Source, &'a Runs)>,
) -> Provenance {
    let (mut epoch, mut as_of_ms, mut position) = (None, None, BTreeMap::new());
    for (source, runs) in sources {
        let newest = runs.newest_complete();
        let watermark = Watermark::from_run(runs, newest);
        as_of_ms = as_of_ms.max(watermark.as_of_ms);
        epoch = Some(epoch.map_or(newest, |epoch: Epoch| epoch.min(newest)));
        position.insert(source.name().to_owned(), watermark.position);
    }
    Provenance {
        source: Origin::Batch,
        as_of: as_of_ms.map(format_ms),
        epoch: epoch.unwrap_or_default(),
        complete: true,
        position,
        backfills: 0,
    }
}

impl RunResponse {
    /// Builds the response for a run. `newest` is the newest complete run of the source, and
    /// `running_at_ms` the present time if a process executes the open run.
    pub(crate) fn new(
        source: Source,
        details: &RunDetails,
        newest: Epoch,
        running_at_ms: Option<i64>,
    ) -> Self {
        let running_at_ms = running_at_ms.filter(|_| is_open(details));
        let (reason, to_do) = details
            .unpublished_reason(newest, running_at_ms.is_some())
            .map_or((None, None), |outcome| {
                (Some(outcome.reason), outcome.to_do)
            });
        let field = |name: &str| details.report.get(name).cloned().unwrap_or(Value::Null);
        // The clock of the process that started the run may be ahead.
        let running_ms =
            running_at_ms.map(|now_ms| now_ms.saturating_sub(details.started_at_ms).max(0));
        Self {
            source,
            epoch: details.run.epoch,
            state: details.run.state.name().to_owned(),
            cuts: details.run.cuts.iter().map(|cut| cut.next_offset).collect(),
            started_at: format_ms(details.started_at_ms),
            ended_at: details.ended_at_ms.map(format_ms),
            running_seconds: running_ms.map(|ms| SignedDuration::from_millis(ms).as_secs_f64()),
            reason,
            to_do,
            rows_read: field("rows_read"),
            rows_written: field("rows_written"),
            rows_skipped: field("rows_skipped"),
            seconds: total_seconds(&field("seconds")),
            drift: field("drift"),
            report: None,
        }
    }
}

const fn is_open(details: &RunDetails) -> bool {
    matches!(details.run.state, RunState::Proposed | RunState::Sealed)
}

/// Returns the present time if one of the runs is open and a process executes it: the process holds
/// the lease of the source's runs.
pub(super) async fn find_running_time(
    api: &Api,
    source: Source,
    runs: &[RunDetails],
) -> Result<Option<i64>, Problem> {
    if !runs.iter().any(is_open) {
        return Ok(None);
    }
    let holder = api.ports.leases.holder(&run_lease(source)).await?;
    Ok(holder.map(|_| api.ports.clock.now_ms()))
}

/// Returns the total difference between live counts and the run. Returns `None` if unknown.
pub(super) fn read_drift_total(details: &RunDetails) -> Option<u64> {
    details.report.get("drift")?.get("total")?.as_u64()
}

/// Returns the total of the seconds by stage.
fn total_seconds(by_stage: &Value) -> Option<f64> {
    let stages = by_stage.as_object()?.values().filter_map(Value::as_f64);
    stages.reduce(|total, seconds| total + seconds)
}

/// Batch runs, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/batch/runs",
    tag = "batch",
    params(
        ("source" = Option<String>, Query, description = "The source; default plays"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of runs", body = RunsPage)
    )
)]
pub(crate) async fn list_runs(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let (params, query) = PageQuery::parse(&uri, &["source"])?;
    let source = params.parse_source()?.unwrap_or(Source::Plays);
    let fingerprint = cursor::compute_fingerprint(&format!("runs {source}"));
    let (before_epoch, limit) = (
        query.decode_start(fingerprint, cursor::decode_run)?,
        query.limit,
    );
    let mut run_details = api
        .ports
        .views
        .list_run_details(source, before_epoch, limit + 1)
        .await?;
    let encode_cursor = |last: &RunDetails| cursor::encode(fingerprint, &last.run.epoch);
    let next_cursor = cursor::truncate_page(&mut run_details, limit, encode_cursor);
    let all_runs = api.ports.views.runs(source).await?.runs;
    let provenance = build_runs_provenance([(source, &all_runs)]);
    let running_at_ms = find_running_time(&api, source, &run_details).await?;
    let newest = all_runs.newest_complete();
    let runs = run_details
        .iter()
        .map(|details| RunResponse::new(source, details, newest, running_at_ms));
    let page = RunsPage {
        runs: runs.collect(),
        cursor: next_cursor.clone(),
        provenance,
    };
    let write_csv = |page: RunsPage| write_csv(&page.runs, &page.provenance);
    Ok(query.respond(&uri, next_cursor.as_deref(), page, write_csv))
}

/// One batch run, with its complete report.
#[utoipa::path(
    get,
    path = "/api/v1/batch/runs/{epoch}",
    tag = "batch",
    params(
        ("epoch" = u64, Path, description = "The epoch of the run"),
        ("source" = Option<String>, Query, description = "The source; default plays"),
        ("format" = Option<String>, Query, description = "json (default) or csv")
    ),
    responses(
        (status = 200, description = "The run", body = RunReportResponse),
        (status = 404, description = "Unknown run", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_run(
    State(api): State<Arc<Api>>,
    Path(epoch): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let params = Params::parse(&uri, &["source", "format"])?;
    let source = params.parse_source()?.unwrap_or(Source::Plays);
    let format = params.parse_format()?;
    let unknown_run = || {
        let detail =
            format!("source {source} has no run {epoch:?}: list them at /api/v1/batch/runs");
        ProblemKind::UnknownRun.with_detail(detail)
    };
    let epoch_number = parse_stored_number(&epoch).ok_or_else(unknown_run)?;
    let details = api.ports.views.run_details(source, epoch_number).await?;
    let details = details.ok_or_else(unknown_run)?;
    let all_runs = api.ports.views.runs(source).await?.runs;
    let provenance = build_runs_provenance([(source, &all_runs)]);
    let running_at_ms = find_running_time(&api, source, slice::from_ref(&details)).await?;
    let newest = all_runs.newest_complete();
    let mut run = RunResponse::new(source, &details, newest, running_at_ms);
    run.report = Some(details.report);
    Ok(
        format.respond(RunReportResponse { run, provenance }, |response| {
            write_csv(&[response.run], &response.provenance)
        }),
    )
}

fn write_csv(runs: &[RunResponse], provenance: &Provenance) -> Response {
    let header = "source,epoch,state,started_at,ended_at,rows_read,rows_written,rows_skipped,seconds,drift,cuts,reason,to_do,running_seconds";
    let rows = runs.iter().map(|run| RunResponse {
        drift: run.drift["total"].clone(),
        ..run.clone()
    });
    csv::write_objects(header, rows, Some(provenance))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn adds_up_the_seconds_of_stages() {
        assert_eq!(total_seconds(&json!({"roll": 1.5, "plan": 2})), Some(3.5));
        assert_eq!(total_seconds(&json!({})), None);
        assert_eq!(total_seconds(&Value::Null), None);
    }
}
