//! History of comparisons: the drift of each batch run, and each comparison by the Reconciler.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::{Extension, Json};
use futures::future::try_join_all;
use schemas::provenance::Provenance;
use schemas::seam::RunState;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::approvals::{self, Approval, NotApproved};
use stores::reconciliations::{self, Reconciliation};
use stores::views::RunDetails;
use utoipa::ToSchema;

use super::params::{PageQuery, Params, parse_stored_number};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::runs::build_runs_provenance;
use super::{Api, Caller, csv, cursor};
use crate::answer::{ProvenanceShape, format_ms};

/// Maximum length of a reason, in characters.
const REASON_CHARS_MAX: usize = 500;
/// The actor of an approval until a key exists.
const LOCAL_ACTOR: &str = "this machine";
/// Number of runs per read of a source.
const RUNS_PER_READ: usize = 200;

/// A comparison. A batch run compares live counts with its own results for the same events. The
/// Reconciler compares served values with expected ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReconciliationResponse {
    /// batch-run: by a batch run, of the epochs that it covers. restorate: by the Reconciler,
    /// manual or scheduled.
    pub(crate) kind: String,
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The batch run, or the run whose rows were compared.
    pub(crate) epoch: u64,
    /// End of the run or start of the comparison, in UTC.
    pub(crate) at: String,
    /// The sum of the absolute differences: 0 in a healthy system, null if unknown.
    pub(crate) total: Option<u64>,
    /// The number of keys that differ.
    pub(crate) keys: u64,
    /// True if `total` and `keys` are lower bounds.
    pub(crate) is_lower_bound: bool,
    /// Why the difference is unknown.
    pub(crate) unknown: Option<String>,
    /// For each view: job, total, keys, is_lower_bound, causes (share of total by cause) and
    /// unknown.
    #[schema(value_type = Vec<Object>)]
    pub(crate) views: Value,
    /// The keys with the largest differences: job, key, batch, live and cause. For the Reconciler,
    /// the fields of `restorate --json`.
    #[schema(value_type = Vec<Object>)]
    pub(crate) worst: Value,
    /// The approval to repair the differences of a scheduled comparison: by, reason, total, at.
    /// Null without comparison, and once the schedule has compared again.
    pub(crate) approval: Option<ApprovalResponse>,
    /// For the Reconciler: number, outcome (right, differs, put_right, held_back, unknown, failed,
    /// applying, cut_off), view, expected, schedule, by, reason, asked, position, keys, differ,
    /// causes, live_unknown, ahead, applied, held_back, restoration, error, warnings, disk_bytes
    /// and seconds. Null for a batch run.
    #[schema(value_type = Option<Object>)]
    pub(crate) comparison: Value,
}

/// A page of reconciliations.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Reconciliations)]
pub(crate) struct ReconciliationsPage {
    /// Newest first.
    pub(crate) reconciliations: Vec<ReconciliationResponse>,
    /// The cursor of the next page; null on the last page.
    pub(crate) cursor: Option<String>,
    /// The end of each source's newest complete run.
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// Kinds of comparisons: by a batch run, and by the Reconciler.
pub(crate) const BATCH_RUN: &str = "batch-run";
pub(crate) const RECONCILER: &str = "restorate";

/// Fields of a comparison's record that the response has at its top level.
const TOP_LEVEL_FIELDS: [&str; 4] = ["worst", "source", "epoch", "total"];

/// The approval to repair the differences that a comparison found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ApprovalResponse {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The comparison's number.
    pub(crate) number: u64,
    pub(crate) schedule: String,
    pub(crate) view: String,
    /// The maximum total amount to repair.
    pub(crate) total: u64,
    pub(crate) by: String,
    pub(crate) reason: String,
    /// Time of approval in UTC.
    pub(crate) at: String,
}

impl From<Approval> for ApprovalResponse {
    fn from(approval: Approval) -> Self {
        Self {
            source: approval.source,
            number: approval.number,
            schedule: approval.schedule,
            view: approval.view,
            total: approval.total,
            by: approval.by,
            reason: approval.reason,
            at: format_ms(approval.at_ms),
        }
    }
}

impl ReconciliationResponse {
    fn from_comparison(source: Source, reconciliation: &Reconciliation) -> Self {
        let number = |name: &str| reconciliation.record.get(name).and_then(Value::as_u64);
        let text = |name: &str| reconciliation.record.get(name).and_then(Value::as_str);
        let unknown = text("live_unknown").or_else(|| text("error"));
        let mut comparison = reconciliation.record.clone();
        if let Some(comparison) = comparison.as_object_mut() {
            comparison.retain(|name, _| !TOP_LEVEL_FIELDS.contains(&name.as_str()));
            comparison.insert("number".to_owned(), reconciliation.number.into());
        }
        let has_succeeded = text("error").is_none();
        Self {
            kind: RECONCILER.to_owned(),
            source,
            epoch: number("epoch").unwrap_or_default(),
            at: format_ms(reconciliation.at_ms),
            total: number("total").filter(|_| has_succeeded),
            keys: number("differ").unwrap_or_default(),
            is_lower_bound: text("live_unknown").is_some() || number("ahead").unwrap_or(0) > 0,
            unknown: unknown.map(str::to_owned),
            views: Value::Array(Vec::new()),
            worst: reconciliation
                .record
                .get("worst")
                .cloned()
                .unwrap_or_default(),
            approval: None,
            comparison,
        }
    }

    fn from_run(source: Source, details: &RunDetails) -> Self {
        let drift = details.report.get("drift");
        let field = |name: &str| drift.and_then(|drift| drift.get(name));
        let list = |name: &str| {
            field(name)
                .cloned()
                .unwrap_or_else(|| Value::Array(Vec::new()))
        };
        let text = |name: &str| field(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            kind: BATCH_RUN.to_owned(),
            source,
            epoch: details.run.epoch,
            at: format_ms(newest_time_ms(details)),
            total: field("total").and_then(Value::as_u64),
            keys: field("keys").and_then(Value::as_u64).unwrap_or_default(),
            is_lower_bound: field("is_lower_bound") == Some(&Value::Bool(true)),
            unknown: text("unknown"),
            views: list("views"),
            worst: list("worst"),
            approval: None,
            comparison: Value::Null,
        }
    }
}

/// A comparison, with its position in the lists of a page.
struct ListedComparison {
    /// The list that it belongs to, and its number there, for the cursor.
    cursor: (String, u64),
    /// Its time, or that of the next newer comparison in its list if a clock was set back.
    at_ms: i64,
    response: ReconciliationResponse,
}

/// Returns the name of a source's list of comparisons by the Reconciler in a cursor.
fn reconciler_list_name(source: Source) -> String {
    format!("{source} restorate")
}

fn newest_time_ms(details: &RunDetails) -> i64 {
    details.ended_at_ms.unwrap_or(details.started_at_ms)
}

/// Comparisons, newest first.
///
/// Each complete batch run with a drift report, and each comparison by the Reconciler, manual or
/// scheduled.
#[utoipa::path(
    get,
    path = "/api/v1/reconciliations",
    tag = "batch",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts or authorizations; default all"),
        ("kind" = Option<String>, Query, description = "batch-run or restorate; default both"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of reconciliations", body = ReconciliationsPage)
    )
)]
pub(crate) async fn list_reconciliations(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let (params, query) = PageQuery::parse(&uri, &["source", "kind"])?;
    let selected_source = params.parse_source()?;
    let kind = params.parse_choice("kind", &[BATCH_RUN, RECONCILER].map(|kind| (kind, kind)))?;
    let is_requested = |name: &str| kind.is_none_or(|kind| kind == name);
    let fingerprint =
        cursor::compute_fingerprint(&format!("reconciliations {selected_source:?} {kind:?}"));
    let before_numbers = query
        .decode_start(fingerprint, cursor::decode_runs)?
        .unwrap_or_default();
    let limit = query.limit;
    let sources: Vec<Source> = Source::LOGGED
        .into_iter()
        .filter(|source| selected_source.is_none_or(|selected| selected == *source))
        .collect();
    let snapshots =
        try_join_all(sources.iter().map(|source| api.ports.views.runs(*source))).await?;
    let runs = sources
        .iter()
        .copied()
        .zip(snapshots.iter().map(|snapshot| &snapshot.runs));
    let provenance = build_runs_provenance(runs);
    let kinds = [BATCH_RUN, RECONCILER].map(is_requested);
    let reads = sources.into_iter();
    let reads = reads
        .map(|source| list_source_reconciliations(&api, source, kinds, &before_numbers, limit + 1));
    let mut comparisons: Vec<_> = try_join_all(reads).await?.into_iter().flatten().collect();
    // The sort is stable, so each list keeps the order of its numbers.
    comparisons
        .sort_by_key(|comparison| (Reverse(comparison.at_ms), comparison.response.source.name()));
    let has_more = comparisons.len() > limit;
    comparisons.truncate(limit);
    let next_cursor = has_more.then(|| {
        let mut epochs: BTreeMap<String, u64> = before_numbers;
        epochs.extend(
            comparisons
                .iter()
                .map(|comparison| comparison.cursor.clone()),
        );
        cursor::encode(fingerprint, &epochs)
    });
    let approvals = approvals::list(&*api.ports.records).await?;
    let reconciliations = comparisons.into_iter().map(|comparison| {
        let id = (comparison.response.source, comparison.cursor.1);
        let mut approvals = approvals.iter();
        let approval = approvals.find(|approval| (approval.source, approval.number) == id);
        let approval = approval.filter(|_| comparison.response.kind == RECONCILER);
        ReconciliationResponse {
            approval: approval.cloned().map(ApprovalResponse::from),
            ..comparison.response
        }
    });
    let page = ReconciliationsPage {
        reconciliations: reconciliations.collect(),
        cursor: next_cursor.clone(),
        provenance,
    };
    let write_csv = |page: ReconciliationsPage| write_csv(&page.reconciliations, &page.provenance);
    Ok(query.respond(&uri, next_cursor.as_deref(), page, write_csv))
}

/// Approves the repair of what a scheduled comparison found.
///
/// The next run of the schedule repairs at most that amount, regardless of its policy. The next
/// comparison uses up the approval.
#[utoipa::path(
    post,
    path = "/api/v1/reconciliations/approve",
    tag = "batch",
    params(
        ("source" = String, Query, description = "plays, efforts or authorizations"),
        ("number" = u64, Query, description = "The number of the comparison"),
        ("reason" = Option<String>, Query, description = "The reason for the record, at most 500 characters")
    ),
    responses(
        (status = 200, description = "The approval", body = ApprovalResponse),
        (status = 404, description = "Unknown comparison", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "The comparison cannot be approved: it is not scheduled, nothing differs, or a newer one exists", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn approve_reconciliation(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<ApprovalResponse>, Problem> {
    let params = Params::parse(&uri, &["source", "number", "reason"])?;
    let missing = |name: &str| Problem::parameter(format!("{name} is required"));
    let source = params.parse_source()?.ok_or_else(|| missing("source"))?;
    let number = params.parse_with("number", |_, text| {
        parse_stored_number(text).ok_or_else(|| {
            Problem::parameter(format!("number={text:?} is not the number of a comparison"))
        })
    });
    let number = number?.ok_or_else(|| missing("number"))?;
    let reason = params.get("reason").unwrap_or_default();
    if reason.chars().count() > REASON_CHARS_MAX {
        let detail = format!("reason has more than {REASON_CHARS_MAX} characters");
        return Err(Problem::parameter(detail));
    }
    let by = caller.actor().unwrap_or_else(|| LOCAL_ACTOR.to_owned());
    let records = &*api.ports.records;
    let now_ms = api.ports.clock.now_ms();
    let outcome = approvals::approve(records, source, number, &by, reason, now_ms);
    // No time limit: a slow write must not be aborted.
    match outcome.await? {
        Ok(approval) => Ok(Json(approval.into())),
        Err(NotApproved::UnknownComparison) => {
            let detail = format!(
                "source {source} has no comparison {number}: list them at /api/v1/reconciliations"
            );
            Err(ProblemKind::UnknownComparison.with_detail(detail))
        }
        Err(NotApproved::NotApprovable(reason)) => {
            let detail = format!("comparison {number} cannot be approved: {reason}");
            Err(ProblemKind::NothingToApprove.with_detail(detail))
        }
    }
}

/// Reads the newest comparisons of a source before a cursor, of the selected kinds.
async fn list_source_reconciliations(
    api: &Api,
    source: Source,
    [includes_runs, includes_reconciler]: [bool; 2],
    before_numbers: &BTreeMap<String, u64>,
    limit: usize,
) -> Result<Vec<ListedComparison>, Problem> {
    let mut comparisons = Vec::new();
    if includes_runs {
        comparisons.extend(
            list_compared_runs(api, source, before_numbers.get(source.name()), limit).await?,
        );
    }
    if includes_reconciler {
        let before_number = before_numbers.get(&reconciler_list_name(source));
        comparisons.extend(list_comparisons(api, source, before_number, limit).await?);
    }
    Ok(comparisons)
}

/// Reads a source's newest complete runs with a drift report, before a given run.
async fn list_compared_runs(
    api: &Api,
    source: Source,
    before_epoch: Option<&u64>,
    limit: usize,
) -> Result<Vec<ListedComparison>, Problem> {
    let (mut before_epoch, mut comparisons) =
        (before_epoch.copied(), Vec::<ListedComparison>::new());
    let limit_per_read = limit.max(RUNS_PER_READ);
    loop {
        let run_details = api
            .ports
            .views
            .list_run_details(source, before_epoch, limit_per_read)
            .await?;
        let is_last = run_details.len() < limit_per_read;
        before_epoch = run_details.last().map(|details| details.run.epoch);
        for details in run_details.into_iter().filter(has_drift_report) {
            let later_ms = comparisons.last().map_or(i64::MAX, |later| later.at_ms);
            comparisons.push(ListedComparison {
                at_ms: newest_time_ms(&details).min(later_ms),
                cursor: (source.name().to_owned(), details.run.epoch),
                response: ReconciliationResponse::from_run(source, &details),
            });
        }
        if is_last || comparisons.len() >= limit {
            comparisons.truncate(limit);
            return Ok(comparisons);
        }
    }
}

/// Reads a source's newest comparisons by the Reconciler, before a given one.
async fn list_comparisons(
    api: &Api,
    source: Source,
    before_number: Option<&u64>,
    limit: usize,
) -> Result<Vec<ListedComparison>, Problem> {
    let reconciliations =
        reconciliations::list(&*api.ports.records, source, before_number.copied(), limit).await?;
    let mut later_ms = i64::MAX;
    let comparisons = reconciliations.into_iter().map(|comparison| {
        later_ms = later_ms.min(comparison.at_ms);
        ListedComparison {
            cursor: (reconciler_list_name(source), comparison.number),
            at_ms: later_ms,
            response: ReconciliationResponse::from_comparison(source, &comparison),
        }
    });
    Ok(comparisons.collect())
}

fn has_drift_report(details: &RunDetails) -> bool {
    let drift = details.report.get("drift");
    let field = |name| drift.and_then(|drift| drift.get(name));
    let has_field = |name| field(name).is_some_and(|value| !value.is_null());
    details.run.state == RunState::Complete && (has_field("total") || has_field("unknown"))
}

fn write_csv(comparisons: &[ReconciliationResponse], provenance: &Provenance) -> Response {
    let header = "kind,source,epoch,at,total,keys,is_lower_bound,unknown,number,view,expected,outcome,schedule,by";
    let rows = comparisons.iter().map(|comparison| {
        let mut row = serde_json::to_value(comparison).unwrap_or_default();
        for name in ["number", "view", "expected", "outcome", "schedule", "by"] {
            row[name] = comparison.comparison[name].clone();
        }
        row
    });
    csv::write_objects(header, rows, Some(provenance))
}
