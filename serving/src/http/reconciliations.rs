//! What was compared, and what differed: the drift of each batch run.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use schemas::seam::RunState;
use schemas::source::Source;
use serde::Serialize;
use serde_json::Value;
use stores::views::RunStory;
use utoipa::ToSchema;

use super::params::{Format, Params};
use super::problem::{Problem, ProblemShape};
use super::stats::link_to_next;
use super::{Api, csv, cursor};
use crate::answer::shown_ms;

/// Runs of a source that are looked at by one read.
const STEP: usize = 200;

/// A comparison of what was counted live with what a batch run found for the same events.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ReconciliationShown {
    /// batch-run: a run compares what live state had counted in the epochs that it takes in.
    kind: &'static str,
    source: &'static str,
    /// The run.
    epoch: u64,
    /// When the run ended, in UTC.
    at: String,
    /// The sum of the absolute differences; 0 in a healthy system, null where it is not known.
    total: Option<u64>,
    /// How many keys differ.
    keys: u64,
    /// Whether `total` and `keys` are the least that they can be.
    is_lower_bound: bool,
    /// Why nothing is known.
    unknown: Option<String>,
    /// Of each view: job, total, keys, is_lower_bound, causes (by name, its part of total) and unknown.
    #[schema(value_type = Vec<Object>)]
    views: Value,
    /// The keys that differ most: job, key, batch, live and cause.
    #[schema(value_type = Vec<Object>)]
    worst: Value,
}

/// A page of reconciliations.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reconciliations {
    /// Newest first.
    reconciliations: Vec<ReconciliationShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
}

impl ReconciliationShown {
    fn of(Compared { source, story, .. }: &Compared) -> Self {
        let drift = story.report.get("drift");
        let told = |name: &str| drift.and_then(|drift| drift.get(name));
        let list = |name: &str| {
            told(name)
                .cloned()
                .unwrap_or_else(|| Value::Array(Vec::new()))
        };
        let text = |name: &str| told(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            kind: "batch-run",
            source: source.name(),
            epoch: story.run.epoch,
            at: shown_ms(ended_ms(story)),
            total: told("total").and_then(Value::as_u64),
            keys: told("keys").and_then(Value::as_u64).unwrap_or_default(),
            is_lower_bound: told("is_lower_bound") == Some(&Value::Bool(true)),
            unknown: text("unknown"),
            views: list("views"),
            worst: list("worst"),
        }
    }
}

/// A run that compared.
struct Compared {
    source: Source,
    story: RunStory,
    /// When it ended; where a clock went back, no later than the run after it.
    at_ms: i64,
}

fn ended_ms(story: &RunStory) -> i64 {
    story.ended_at_ms.unwrap_or(story.started_at_ms)
}

/// What was compared, newest first: each complete batch run that says how far live state had drifted.
#[utoipa::path(
    get,
    path = "/api/v1/reconciliations",
    tag = "batch",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts or authorizations; all if left out"),
        ("limit" = Option<usize>, Query, description = "Reconciliations of a page, at most 1,000; 50 if left out"),
        ("cursor" = Option<String>, Query, description = "cursor of the page before"),
        ("format" = Option<String>, Query, description = "json or csv; the header Link leads to the next page")
    ),
    responses(
        (status = 200, description = "A page of reconciliations", body = Reconciliations),
        (status = 400, description = "A parameter can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "A store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["source", "limit", "cursor", "format"])?;
    let only = params.get("source").map(str::parse::<Source>).transpose();
    let only = only.map_err(|error| Problem::parameter(error.to_string()))?;
    let (limit, format) = (params.limit()?, params.format()?);
    let fingerprint = cursor::fingerprint(&format!("reconciliations {only:?}"));
    let before = params.get("cursor");
    let before = before
        .map(|text| cursor::runs(fingerprint, text))
        .transpose()?;
    let before = before.unwrap_or_default();
    let sources = Source::LOGGED
        .into_iter()
        .filter(|source| only.is_none_or(|only| only == *source));
    let found = sources.map(|source| compared(&api, source, before.get(source.name()), limit + 1));
    let mut found: Vec<_> = try_join_all(found).await?.into_iter().flatten().collect();
    // Those of a source stay in the order of their runs.
    found.sort_by_key(|one| (Reverse(one.at_ms), one.source.name()));
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = has_more.then(|| {
        let mut epochs: BTreeMap<String, u64> = before;
        for one in &found {
            epochs.insert(one.source.name().to_owned(), one.story.run.epoch);
        }
        cursor::of_runs(fingerprint, &epochs)
    });
    let link = next
        .as_deref()
        .and_then(|next| link_to_next(&uri, next, None));
    let reconciliations: Vec<ReconciliationShown> =
        found.iter().map(ReconciliationShown::of).collect();
    let mut response = match format {
        Format::Csv => as_csv(&reconciliations),
        Format::Json => Json(Reconciliations {
            reconciliations,
            cursor: next,
        })
        .into_response(),
    };
    response.headers_mut().extend(link);
    Ok(response)
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
                source,
                story,
            });
        }
        if is_last || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

fn has_compared(story: &RunStory) -> bool {
    let drift = story.report.get("drift");
    let told = |name| drift.and_then(|drift| drift.get(name));
    let is_told = |name| told(name).is_some_and(|value| !value.is_null());
    story.run.state == RunState::Complete && (is_told("total") || is_told("unknown"))
}

fn as_csv(found: &[ReconciliationShown]) -> Response {
    let names = [
        "kind",
        "source",
        "epoch",
        "at",
        "total",
        "keys",
        "is_lower_bound",
        "unknown",
    ];
    let rows = found.iter().map(|one| {
        (
            (one.kind, one.source, one.epoch, one.at.clone()),
            (one.total, one.keys, one.is_lower_bound),
            one.unknown.clone(),
        )
    });
    csv::list(&names, rows.collect(), None)
}
