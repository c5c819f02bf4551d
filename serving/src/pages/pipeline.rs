//! The pipeline pages: positions and lag, batch runs, dead letters, and reconciliations.

use std::collections::BTreeSet;

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use serde_json::Value;
use stores::dead_letters::OTHER_KINDS;

use super::api;
use super::api_error::{ApiError, ApiResult};
use super::client::ApiClient;
use super::components::{ExportLinks, PageContext, render, render_page};
use super::differences::Differences;
use super::extractors::invalid_number_page;
use super::formatting::{Moment, format_elapsed, format_number, format_percent, format_quantity};
use super::live::parse_logged_source;
use super::overview::{describe_progress, format_count, format_drift, format_lag, source_title};
use super::query::{Query, path_with_query};
use crate::http::Path;

const OVERVIEW_PATH: &str = "/api/v1/overview";
const RUNS_PATH: &str = "/api/v1/batch/runs";
const DEAD_LETTERS_PATH: &str = "/api/v1/dead-letters";
/// Path of the page of dead letters.
pub(crate) const DEAD_LETTERS_PAGE: &str = "/pipeline/dead-letters";
/// Path of the page of reconciliations.
pub(crate) const RECONCILIATIONS_PAGE: &str = "/pipeline/reconciliations";
const RECONCILIATIONS_PATH: &str = "/api/v1/reconciliations";

fn format_or_dash<T: Into<i128>>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), format_number)
}

/// CSS class of a run's state.
fn state_class(run: &api::RunResponse) -> &'static str {
    match run.state.as_str() {
        "complete" => "good",
        _ if run.running_seconds.is_some() => "",
        "abandoned" => "bad",
        _ if run.reason.is_some() => "bad",
        _ => "",
    }
}

/// The state of a run, or its progress while a process executes it.
fn run_state(run: &api::RunResponse) -> String {
    describe_progress(run).unwrap_or_else(|| run.state.clone())
}

/// The reason why a run is not published, unless a process executes it.
fn run_reason(run: &api::RunResponse) -> Option<&str> {
    let reason = run.reason.as_deref();
    reason.filter(|_| run.running_seconds.is_none())
}

/// Formats the duration of a run.
fn format_run_duration(run: &api::RunResponse) -> String {
    run.seconds.map_or_else(|| "–".to_owned(), format_elapsed)
}

#[derive(Debug, Template)]
#[template(path = "pipeline.html")]
struct PipelinePage {
    context: PageContext,
    overview: ApiResult<api::Overview>,
    client: ApiClient,
}

impl PipelinePage {
    /// Export links for all runs of a source.
    fn all_runs(&self, source: &api::SourceOverview) -> ExportLinks {
        let parameters = [("source", Some(source.source.name()))];
        self.client
            .export_links(&path_with_query(RUNS_PATH, &parameters), true)
    }
}

/// Time when the generation of a partition's live state began.
fn generation_start(partition: &api::PartitionOverview) -> Option<Moment> {
    let start_ms = i64::try_from(partition.generation?).ok()?;
    let start = Timestamp::from_millisecond(start_ms).ok()?;
    Some(Moment::utc(&start.to_string()))
}

/// Status of a partition's live state.
const fn partition_status(partition: &api::PartitionOverview) -> &'static str {
    match (partition.next_offset, partition.replaying) {
        (None, _) => "none yet",
        (Some(_), Some(true)) => "rebuilding",
        _ => "complete",
    }
}

pub(super) async fn page(client: ApiClient) -> Response {
    let page = PipelinePage {
        context: PageContext::new("Pipeline", "pipeline", &client.caller).follow_all(),
        overview: client.get(OVERVIEW_PATH).await,
        client,
    };
    render_page(&page, page.overview.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "run.html")]
struct RunPage {
    context: PageContext,
    source: String,
    epoch: String,
    run: ApiResult<api::RunResponse>,
    export: ExportLinks,
}

/// Formats the cuts of a run.
fn format_cuts(run: &api::RunResponse) -> String {
    let cuts = run.cuts.iter().map(|cut| format_number(*cut));
    cuts.collect::<Vec<_>>().join(" · ")
}

#[derive(Debug)]
struct Stage {
    name: String,
    duration: String,
    share: String,
    percent: String,
}

/// Parses the stages of a run from its report, in the order of execution.
fn parse_stages(run: &api::RunResponse) -> Vec<Stage> {
    const ORDER: [&str; 8] = [
        "seal", "archive", "snapshot", "compute", "check", "publish", "drift", "drop",
    ];
    let seconds = run.report.as_ref();
    let seconds = seconds.and_then(|report| report.get("seconds")?.as_object());
    let mut stages: Vec<(&str, f64)> = seconds
        .into_iter()
        .flatten()
        .filter_map(|(name, seconds)| Some((name.as_str(), seconds.as_f64()?)))
        .collect();
    stages.sort_by_key(|(name, _)| {
        ORDER
            .iter()
            .position(|stage| stage == name)
            .unwrap_or(ORDER.len())
    });
    let total_s: f64 = stages.iter().map(|(_, seconds)| seconds).sum();
    let stage = |(name, seconds): (&str, f64)| {
        let share = if total_s > 0.0 {
            seconds / total_s
        } else {
            0.0
        };
        Stage {
            name: name.to_owned(),
            duration: format_elapsed(seconds),
            share: format!("{share:.4}"),
            percent: format_percent(share),
        }
    };
    stages.into_iter().map(stage).collect()
}

/// Drift of the live state of a view.
#[derive(Debug)]
struct DriftRow {
    job: String,
    keys: String,
    total: String,
    causes: String,
}

impl DriftRow {
    fn parse_all(run: &api::RunResponse) -> Vec<Self> {
        let views = drift_field(run, "views").as_array();
        views.into_iter().flatten().map(Self::parse).collect()
    }

    fn parse(view: &Value) -> Self {
        let is_lower_bound = view.get("is_lower_bound") == Some(&Value::Bool(true));
        let count =
            |name: &str| format_count(view.get(name).and_then(Value::as_u64), is_lower_bound);
        let text = |name: &str| view.get(name).and_then(Value::as_str);
        let causes = view.get("causes").and_then(Value::as_object);
        let causes = causes.into_iter().flatten().map(|(cause, total)| {
            let total = total.as_u64().map(format_number).unwrap_or_default();
            format!("{} {total}", cause.replace('_', " "))
        });
        let causes = causes.collect::<Vec<_>>().join(", ");
        Self {
            job: text("job").unwrap_or_default().to_owned(),
            keys: count("keys"),
            total: count("total"),
            causes: text("unknown").map_or(causes, str::to_owned),
        }
    }
}

/// A field of the drift report of a run.
fn drift_field<'a>(run: &'a api::RunResponse, name: &str) -> &'a Value {
    const NOTHING: &Value = &Value::Null;
    let drift = run.report.as_ref().and_then(|report| report.get("drift"));
    drift.and_then(|drift| drift.get(name)).unwrap_or(NOTHING)
}

pub(super) async fn run(
    client: ApiClient,
    Path((source, epoch)): Path<(String, String)>,
) -> Response {
    let Some(epoch) = crate::http::parse_integer(&epoch) else {
        return invalid_number_page(&client, "runs", &epoch);
    };
    let api_path = path_with_query(
        &format!("{RUNS_PATH}/{epoch}"),
        &[("source", Some(&source))],
    );
    let run = client.get::<api::RunResponse>(&api_path).await;
    let epoch = format_number(epoch);
    let run = run.map_err(|error| match error.status {
        404 => {
            let detail = format!("There is no run {epoch} of {source}.");
            error.explain(detail, "/pipeline", "All runs")
        }
        _ => error,
    });
    let context = PageContext::new(format!("Run {epoch}"), "pipeline", &client.caller);
    let page = RunPage {
        context: match parse_logged_source(&source) {
            Some(source) => context.follow(source.name()),
            None => context,
        },
        run,
        export: client.export_links(&api_path, false),
        source,
        epoch,
    };
    render_page(&page, page.run.as_ref().err())
}

/// Renders a page that may show the result of a form.
fn page_with_outcome(
    page: &impl Template,
    outcome: Option<&ApiResult<String>>,
    error: Option<&ApiError>,
) -> Response {
    match outcome {
        Some(Err(error)) => render(error.status(), page),
        Some(Ok(_)) | None => render_page(page, error),
    }
}

#[derive(Debug, Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    context: PageContext,
    /// True if the caller may reprocess dead letters.
    may_replay: bool,
    /// Result of a reprocessing that the form requested.
    outcome: Option<ApiResult<String>>,
    query: Query,
    counts: ApiResult<api::CountsResponse>,
    counts_export: ExportLinks,
    page: ApiResult<api::DeadLettersPage>,
    export: ExportLinks,
}

/// URL of the page of dead letters of a kind.
fn kind_url(kind: &api::DeadLetterKind) -> String {
    let source = ("source", Some(kind.source.name()));
    path_with_query(DEAD_LETTERS_PAGE, &[source, ("reason", Some(&kind.kind))])
}

/// True if the API can filter by the kind.
fn is_searchable(kind: &api::DeadLetterKind) -> bool {
    !kind.kind.trim().is_empty() && kind.kind != OTHER_KINDS
}

/// Reprocesses dead letters: the one that a form names, or those of a source and a reason.
pub(crate) async fn replay_dead_letters(client: &ApiClient, form: &Query) -> ApiResult<String> {
    let fields = ["id", "source", "reason"];
    let has_field = |field: &str| form.get(field).is_some();
    let is_selected = has_field("id") || (has_field("source") && has_field("reason"));
    if !is_selected {
        // Without parameters, the API would reprocess all dead letters.
        let detail = "The form does not name any dead letters: use a button of the page.";
        return Err(ApiError::new(400, "No dead letters reprocessed", detail));
    }
    let api_path = path_with_query(
        &format!("{DEAD_LETTERS_PATH}/replay"),
        &fields.map(|field| (field, form.get(field))),
    );
    let response = client.post::<api::ReplayResponse>(&api_path).await?;
    let mut text = format!(
        "{} ingested, {} rejected again.",
        format_number(response.accepted),
        format_number(response.still_bad)
    );
    for (count, reason) in [
        (
            response.superseded,
            "skipped, because a row with the same id and version exists",
        ),
        (response.erased, "skipped, because the athlete is erased"),
        (response.broken, "skipped, because its format is invalid"),
    ] {
        if count > 0 {
            let letters = format_quantity(count, "record");
            text.push_str(&format!(" {letters} {reason}."));
        }
    }
    if let Some(first) = response.first {
        text.push_str(&format!(" First rejected: {first}"));
    }
    Ok(text)
}

pub(super) async fn dead_letters(
    client: &ApiClient,
    query: Query,
    outcome: Option<ApiResult<String>>,
) -> Response {
    let parameters = ["source", "reason"].map(|name| (name, query.get(name)));
    let mut with_cursor = parameters.to_vec();
    with_cursor.extend([("cursor", query.get("cursor")), ("limit", Some("20"))]);
    let page_path = path_with_query(DEAD_LETTERS_PATH, &with_cursor);
    let counts_path = format!("{DEAD_LETTERS_PATH}/counts");
    let (counts, page) = tokio::join!(
        client.get::<api::CountsResponse>(&counts_path),
        client.get::<api::DeadLettersPage>(&page_path)
    );
    let page = DeadLettersPage {
        context: PageContext::new("Dead letters", "pipeline", &client.caller).follow_all(),
        may_replay: client.caller.may_administer(),
        outcome,
        counts_export: client.export_links(&counts_path, false),
        export: client.export_links(&path_with_query(DEAD_LETTERS_PATH, &parameters), true),
        query,
        counts,
        page,
    };
    page_with_outcome(&page, page.outcome.as_ref(), page.page.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "reconciliations.html")]
struct ReconciliationsPage {
    context: PageContext,
    /// Result of an approval that the form requested.
    outcome: Option<ApiResult<String>>,
    query: Query,
    page: ApiResult<api::ReconciliationsPage>,
    may_approve: bool,
    export: ExportLinks,
}

impl ReconciliationsPage {
    fn rows<'a>(&self, page: &'a api::ReconciliationsPage) -> Vec<ReconciliationRow<'a>> {
        let mut newer = BTreeSet::new();
        let row =
            |reconciliation| ReconciliationRow::new(reconciliation, self.may_approve, &mut newer);
        page.reconciliations.iter().map(row).collect()
    }
}

#[derive(Debug)]
struct ReconciliationRow<'a> {
    reconciliation: &'a api::ReconciliationResponse,
    subject: String,
    outcome: String,
    class: &'static str,
    reason: Option<&'a str>,
    /// Number of the reconciliation, if the caller may approve its result.
    to_approve: Option<u64>,
}

/// Outcomes that a schedule repairs once they are approved.
const APPROVABLE_OUTCOMES: [&str; 2] = ["differs", "held_back"];

impl<'a> ReconciliationRow<'a> {
    /// A row; `newer` contains the schedules and views whose newer reconciliations precede it.
    fn new(
        reconciliation: &'a api::ReconciliationResponse,
        may_approve: bool,
        newer: &mut BTreeSet<(&'a str, &'a str)>,
    ) -> Self {
        let field = |name: &str| reconciliation.comparison.get(name).and_then(Value::as_str);
        let schedule_and_view = field("schedule").zip(field("view"));
        let is_newest = schedule_and_view.is_some_and(|pair| newer.insert(pair));
        let is_open =
            field("outcome").is_some_and(|outcome| APPROVABLE_OUTCOMES.contains(&outcome));
        let can_approve = may_approve && is_newest && is_open && reconciliation.approval.is_none();
        let number = reconciliation
            .comparison
            .get("number")
            .and_then(Value::as_u64);
        let outcome = field("outcome").map_or_else(
            || match (reconciliation.total, reconciliation.keys) {
                (None, _) => "unknown".to_owned(),
                (Some(0), 0) => "right".to_owned(),
                _ => "differs".to_owned(),
            },
            |outcome| outcome.replace('_', " "),
        );
        let class = match outcome.as_str() {
            "right" | "put right" => "good",
            "applying" | "unknown" => "",
            _ => "bad",
        };
        let subject = match (reconciliation.kind.as_str(), field("view")) {
            ("batch-run", _) => "drift of a batch run".to_owned(),
            (_, Some(view)) => match field("expected") {
                Some(expected) => format!("{view} against {expected}"),
                None => view.to_owned(),
            },
            _ => "comparison".to_owned(),
        };
        Self {
            reconciliation,
            subject,
            outcome,
            class,
            reason: reconciliation
                .unknown
                .as_deref()
                .or_else(|| field("held_back")),
            to_approve: number.filter(|_| can_approve),
        }
    }
}

/// Approves the result of the reconciliation that a form names.
pub(crate) async fn approve_reconciliation(client: &ApiClient, form: &Query) -> ApiResult<String> {
    let fields = ["source", "number", "reason"];
    let api_path = path_with_query(
        &format!("{RECONCILIATIONS_PATH}/approve"),
        &fields.map(|field| (field, form.get(field))),
    );
    let response = client.post::<api::ApprovalResponse>(&api_path).await?;
    Ok(format!(
        "Approved: the next run of schedule {} repairs up to {} of {}.",
        response.schedule,
        format_number(response.total),
        response.view
    ))
}

pub(super) async fn reconciliations(
    client: &ApiClient,
    query: Query,
    outcome: Option<ApiResult<String>>,
) -> Response {
    let api_path = path_with_query(RECONCILIATIONS_PATH, &[("cursor", query.get("cursor"))]);
    let page = ReconciliationsPage {
        context: PageContext::new("Reconciliations", "pipeline", &client.caller).follow_all(),
        outcome,
        query,
        page: client.get(&api_path).await,
        may_approve: client.caller.may_administer(),
        export: client.export_links(RECONCILIATIONS_PATH, true),
    };
    page_with_outcome(&page, page.outcome.as_ref(), page.page.as_ref().err())
}
