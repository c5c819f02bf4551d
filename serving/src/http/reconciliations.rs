//! What was compared, and what differed: the drift of each batch run, and each comparison by the Restorator.

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
use stores::views::RunStory;
use utoipa::ToSchema;

use super::access::Caller;
use super::params::{PageQuery, Params, stored_number};
use super::problem::{Kind, Problem, ProblemShape};
use super::runs::of_runs;
use super::{Api, csv, cursor};
use crate::answer::{ProvenanceShape, shown_ms};

/// The most characters of a reason.
const REASON_CHARS_MAX: usize = 500;
/// Who approves where nobody needs a key.
const HERE: &str = "this machine";
/// Runs of a source that are looked at by one read.
const STEP: usize = 200;

/// A comparison: by a batch run, of what was counted live with what the run found for the same events; or by the
/// Restorator, of what was served with what was expected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReconciliationShown {
    /// batch-run: a run compares what live state had counted in the epochs that it takes in. restorate: somebody compared, or
    /// a schedule.
    pub(crate) kind: String,
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The run, or that whose rows were compared.
    pub(crate) epoch: u64,
    /// When the run ended or the comparison began, in UTC.
    pub(crate) at: String,
    /// The sum of the absolute differences; 0 in a healthy system, null where it is not known.
    pub(crate) total: Option<u64>,
    /// How many keys differ.
    pub(crate) keys: u64,
    /// Whether `total` and `keys` are the least that they can be.
    pub(crate) is_lower_bound: bool,
    /// Why nothing is known.
    pub(crate) unknown: Option<String>,
    /// Of each view: job, total, keys, is_lower_bound, causes (by name, its part of total) and unknown.
    #[schema(value_type = Vec<Object>)]
    pub(crate) views: Value,
    /// The keys that differ most: job, key, batch, live and cause; of a comparison as `restorate --json` has them.
    #[schema(value_type = Vec<Object>)]
    pub(crate) worst: Value,
    /// Who has approved that the schedule puts right what the comparison found: by, reason, total, at; null of all others, and once
    /// the schedule has compared again.
    pub(crate) approval: Option<ApprovalShown>,
    /// Of a comparison: number, outcome (right, differs, put_right, held_back, unknown, failed, applying, cut_off), view,
    /// expected, schedule, by, reason, asked, position, keys, differ, causes, live_unknown, ahead, applied, held_back,
    /// restoration, error, warnings, disk_bytes and seconds. Null of a run.
    #[schema(value_type = Option<Object>)]
    pub(crate) comparison: Value,
}

/// A page of reconciliations.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Reconciliations {
    /// Newest first.
    pub(crate) reconciliations: Vec<ReconciliationShown>,
    /// Where the next page begins; null on the last one.
    pub(crate) cursor: Option<String>,
    /// Where the newest complete run of each source ends.
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// The kinds of comparisons: by a batch run, and by the Reconciler.
const KINDS: [&str; 2] = ["batch-run", "restorate"];

/// What is told of a comparison beside what all have.
const TOLD_APART: [&str; 4] = ["worst", "source", "epoch", "total"];

/// That what a comparison found may be put right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ApprovalShown {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The comparison's number.
    pub(crate) number: u64,
    pub(crate) schedule: String,
    pub(crate) view: String,
    /// How much may be put right in all, at most.
    pub(crate) total: u64,
    pub(crate) by: String,
    pub(crate) reason: String,
    /// When it was approved, in UTC.
    pub(crate) at: String,
}

impl From<Approval> for ApprovalShown {
    fn from(approval: Approval) -> Self {
        Self {
            source: approval.source,
            number: approval.number,
            schedule: approval.schedule,
            view: approval.view,
            total: approval.total,
            by: approval.by,
            reason: approval.reason,
            at: shown_ms(approval.at_ms),
        }
    }
}

impl ReconciliationShown {
    fn of_comparison(source: Source, one: &Reconciliation) -> Self {
        let number = |name: &str| one.record.get(name).and_then(Value::as_u64);
        let text = |name: &str| one.record.get(name).and_then(Value::as_str);
        let unknown = text("live_unknown").or_else(|| text("error"));
        let mut comparison = one.record.clone();
        if let Some(comparison) = comparison.as_object_mut() {
            comparison.retain(|name, _| !TOLD_APART.contains(&name.as_str()));
            comparison.insert("number".to_owned(), one.number.into());
        }
        let is_told = text("error").is_none();
        Self {
            kind: KINDS[1].to_owned(),
            source,
            epoch: number("epoch").unwrap_or_default(),
            at: shown_ms(one.at_ms),
            total: number("total").filter(|_| is_told),
            keys: number("differ").unwrap_or_default(),
            is_lower_bound: text("live_unknown").is_some() || number("ahead").unwrap_or(0) > 0,
            unknown: unknown.map(str::to_owned),
            views: Value::Array(Vec::new()),
            worst: one.record.get("worst").cloned().unwrap_or_default(),
            approval: None,
            comparison,
        }
    }

    fn of_run(source: Source, story: &RunStory) -> Self {
        let drift = story.report.get("drift");
        let told = |name: &str| drift.and_then(|drift| drift.get(name));
        let list = |name: &str| {
            told(name)
                .cloned()
                .unwrap_or_else(|| Value::Array(Vec::new()))
        };
        let text = |name: &str| told(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            kind: KINDS[0].to_owned(),
            source,
            epoch: story.run.epoch,
            at: shown_ms(ended_ms(story)),
            total: told("total").and_then(Value::as_u64),
            keys: told("keys").and_then(Value::as_u64).unwrap_or_default(),
            is_lower_bound: told("is_lower_bound") == Some(&Value::Bool(true)),
            unknown: text("unknown"),
            views: list("views"),
            worst: list("worst"),
            approval: None,
            comparison: Value::Null,
        }
    }
}

/// Something that was compared.
struct Compared {
    /// Where the next page of its kind begins: the name of its list, and its number there.
    place: (String, u64),
    /// When it ended or began; where a clock went back, no later than the one after it.
    at_ms: i64,
    shown: ReconciliationShown,
}

/// The name of the list of comparisons of a source in a cursor.
fn of_comparisons(source: Source) -> String {
    format!("{source} restorate")
}

fn ended_ms(story: &RunStory) -> i64 {
    story.ended_at_ms.unwrap_or(story.started_at_ms)
}

/// What was compared, newest first: each complete batch run that says how far live state had drifted, and each comparison by
/// `restorate`, by hand or scheduled.
#[utoipa::path(
    get,
    path = "/api/v1/reconciliations",
    tag = "batch",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts or authorizations; all if left out"),
        ("kind" = Option<String>, Query, description = "batch-run or restorate; both if left out"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of reconciliations", body = Reconciliations)
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read(&uri, &["source", "kind"])?;
    let only = params.source()?;
    let kind = params.choice("kind", &KINDS.map(|kind| (kind, kind)))?;
    let is_asked = |of: &str| kind.is_none_or(|kind| kind == of);
    let fingerprint = cursor::fingerprint(&format!("reconciliations {only:?} {kind:?}"));
    let before = query.start(fingerprint, cursor::runs)?.unwrap_or_default();
    let limit = query.limit;
    let sources: Vec<Source> = Source::LOGGED
        .into_iter()
        .filter(|source| only.is_none_or(|only| only == *source))
        .collect();
    let seen = try_join_all(sources.iter().map(|source| api.ports.views.runs(*source))).await?;
    let seen = sources
        .iter()
        .copied()
        .zip(seen.iter().map(|seen| &seen.runs));
    let provenance = of_runs(seen);
    let kinds = KINDS.map(is_asked);
    let found = sources.into_iter();
    let found = found.map(|source| of_source(&api, source, kinds, (&before, limit + 1)));
    let mut found: Vec<_> = try_join_all(found).await?.into_iter().flatten().collect();
    // Those of a list stay in the order of their numbers.
    found.sort_by_key(|one| (Reverse(one.at_ms), one.shown.source.name()));
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = has_more.then(|| {
        let mut epochs: BTreeMap<String, u64> = before;
        epochs.extend(found.iter().map(|one| one.place.clone()));
        cursor::after(fingerprint, &epochs)
    });
    let approvals = approvals::list(&*api.ports.records).await?;
    let reconciliations = found.into_iter().map(|one| {
        let of = (one.shown.source, one.place.1);
        let mut approvals = approvals.iter();
        let approval = approvals.find(|approval| (approval.source, approval.number) == of);
        let approval = approval.filter(|_| one.shown.kind == KINDS[1]);
        ReconciliationShown {
            approval: approval.cloned().map(ApprovalShown::from),
            ..one.shown
        }
    });
    let page = Reconciliations {
        reconciliations: reconciliations.collect(),
        cursor: next.clone(),
        provenance,
    };
    let as_csv = |page: Reconciliations| as_csv(&page.reconciliations, &page.provenance);
    Ok(query.answer(&uri, next.as_deref(), page, as_csv))
}

/// Approves that the schedule of a comparison puts right what that found of its view, as much as it found at most: the next time that
/// schedules are carried out, whatever their policy. Spent by the comparison that follows.
#[utoipa::path(
    post,
    path = "/api/v1/reconciliations/approve",
    tag = "batch",
    params(
        ("source" = String, Query, description = "plays, efforts or authorizations"),
        ("number" = u64, Query, description = "The comparison's number"),
        ("reason" = Option<String>, Query, description = "Why, for the record: 500 characters at most")
    ),
    responses(
        (status = 200, description = "What is approved", body = ApprovalShown),
        (status = 404, description = "No such comparison", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "It is nothing to approve: no schedule made it, nothing differs, or there is a newer one", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn approve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<ApprovalShown>, Problem> {
    let params = Params::read(&uri, &["source", "number", "reason"])?;
    let missing = |name: &str| Problem::parameter(format!("{name} is missing"));
    let source = params.source()?.ok_or_else(|| missing("source"))?;
    let number = params.parsed("number", |_, text| {
        stored_number(text).ok_or_else(|| {
            Problem::parameter(format!("number={text:?} is not the number of a comparison"))
        })
    });
    let number = number?.ok_or_else(|| missing("number"))?;
    let reason = params.get("reason").unwrap_or_default();
    if reason.chars().count() > REASON_CHARS_MAX {
        let detail = format!("reason has more than {REASON_CHARS_MAX} characters");
        return Err(Problem::parameter(detail));
    }
    let by = caller.actor().unwrap_or_else(|| HERE.to_owned());
    let records = &*api.ports.records;
    let now_ms = api.ports.clock.now_ms();
    let approved = approvals::approve(records, (source, number), (&by, reason), now_ms);
    // A write is not dropped for being slow.
    match approved.await? {
        Ok(approval) => Ok(Json(approval.into())),
        Err(NotApproved::UnknownComparison) => {
            let detail = format!(
                "there is no comparison {number} of {source}: /api/v1/reconciliations lists those there are"
            );
            Err(Kind::UnknownComparison.with_detail(detail))
        }
        Err(NotApproved::NotApprovable(why)) => {
            let detail = format!("comparison {number} can't be approved: {why}");
            Err(Kind::NothingToApprove.with_detail(detail))
        }
    }
}

/// The newest of a source before some of them, of the kinds that are asked for.
async fn of_source(
    api: &Api,
    source: Source,
    [runs, restorate]: [bool; 2],
    (before, limit): (&BTreeMap<String, u64>, usize),
) -> Result<Vec<Compared>, Problem> {
    let mut found = Vec::new();
    if runs {
        found.extend(compared(api, source, before.get(source.name()), limit).await?);
    }
    if restorate {
        let before = before.get(&of_comparisons(source));
        found.extend(comparisons(api, source, before, limit).await?);
    }
    Ok(found)
}

/// The newest complete runs of a source before one of them that say what they compared.
async fn compared(
    api: &Api,
    source: Source,
    before: Option<&u64>,
    limit: usize,
) -> Result<Vec<Compared>, Problem> {
    let (mut before, mut found) = (before.copied(), Vec::<Compared>::new());
    let step = limit.max(STEP);
    loop {
        let stories = api.ports.views.stories(source, before, step).await?;
        let is_last = stories.len() < step;
        before = stories.last().map(|story| story.run.epoch);
        for story in stories.into_iter().filter(has_compared) {
            let later_ms = found.last().map_or(i64::MAX, |later| later.at_ms);
            found.push(Compared {
                at_ms: ended_ms(&story).min(later_ms),
                place: (source.name().to_owned(), story.run.epoch),
                shown: ReconciliationShown::of_run(source, &story),
            });
        }
        if is_last || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

/// The newest comparisons of a source before one of them.
async fn comparisons(
    api: &Api,
    source: Source,
    before: Option<&u64>,
    limit: usize,
) -> Result<Vec<Compared>, Problem> {
    let all = reconciliations::list(&*api.ports.records, source, before.copied(), limit).await?;
    let mut later_ms = i64::MAX;
    let compared = all.into_iter().map(|one| {
        later_ms = later_ms.min(one.at_ms);
        Compared {
            place: (of_comparisons(source), one.number),
            at_ms: later_ms,
            shown: ReconciliationShown::of_comparison(source, &one),
        }
    });
    Ok(compared.collect())
}

fn has_compared(story: &RunStory) -> bool {
    let drift = story.report.get("drift");
    let told = |name| drift.and_then(|drift| drift.get(name));
    let is_told = |name| told(name).is_some_and(|value| !value.is_null());
    story.run.state == RunState::Complete && (is_told("total") || is_told("unknown"))
}

fn as_csv(found: &[ReconciliationShown], provenance: &Provenance) -> Response {
    let header = "kind,source,epoch,at,total,keys,is_lower_bound,unknown,number,view,expected,outcome,schedule,by";
    let rows = found.iter().map(|one| {
        let mut row = serde_json::to_value(one).unwrap_or_default();
        for name in ["number", "view", "expected", "outcome", "schedule", "by"] {
            row[name] = one.comparison[name].clone();
        }
        row
    });
    csv::objects(header, rows, Some(provenance))
}
