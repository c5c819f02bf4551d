//! The history of batch runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::provenance::{Origin, Provenance};
use schemas::seam::{Epoch, Runs};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::views::RunStory;
use utoipa::ToSchema;

use super::params::{PageQuery, Params, Path, stored_number};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::{ProvenanceShape, shown_ms};
use crate::read::Reach;

/// A batch run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunShown {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The epoch that the run ends, which is also its number.
    pub(crate) epoch: u64,
    /// proposed, sealed, complete or abandoned.
    pub(crate) state: String,
    /// By partition: the offset below which the run covers every event.
    pub(crate) cuts: Vec<i64>,
    /// When it was first proposed, in UTC.
    pub(crate) started_at: String,
    /// When it was completed or abandoned, in UTC; null while it is neither.
    pub(crate) ended_at: Option<String>,
    /// Why it is not published: what its check found, or what stopped the last try; null where it is published.
    pub(crate) reason: Option<String>,
    /// What to do about it; null where it is published, or a later run holds its events.
    pub(crate) to_do: Option<String>,
    /// Rows of events that were read.
    #[schema(value_type = Option<u64>)]
    pub(crate) rows_read: Value,
    /// Rows of views that were written.
    #[schema(value_type = Option<u64>)]
    pub(crate) rows_written: Value,
    /// Rows of views that had not changed.
    #[schema(value_type = Option<u64>)]
    pub(crate) rows_skipped: Value,
    /// How long it took, in all.
    pub(crate) seconds: Option<f64>,
    /// What had been counted live and was another number in the run: 0 in a healthy system; null where the run did not come to it.
    #[schema(value_type = Option<Object>)]
    pub(crate) drift: Value,
    /// All that the batch layer told of it; only where one run is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub(crate) report: Option<Value>,
}

/// A page of runs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Runs)]
pub(crate) struct RunsPage {
    /// Newest first.
    runs: Vec<RunShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    /// Where the newest complete run ends.
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// One run, with where the newest complete one ends.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunTold {
    #[serde(flatten)]
    run: RunShown,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// What is told of runs comes from: the newest complete run of each source; of several sources the oldest epoch.
pub(super) fn of_runs<'a>(seen: impl IntoIterator<Item = (Source, &'a Runs)>) -> Provenance {
    let (mut epoch, mut as_of_ms, mut position) = (None, None, BTreeMap::new());
    for (source, runs) in seen {
        let newest = runs.newest();
        let reach = Reach::of(runs, newest);
        as_of_ms = as_of_ms.max(reach.as_of_ms);
        epoch = Some(epoch.map_or(newest, |epoch: Epoch| epoch.min(newest)));
        position.insert(source.name().to_owned(), reach.position);
    }
    Provenance {
        source: Origin::Batch,
        as_of: as_of_ms.map(shown_ms),
        epoch: epoch.unwrap_or_default(),
        complete: true,
        position,
        backfills: 0,
    }
}

impl RunShown {
    /// A run, where the newest complete one of its source is known.
    pub(crate) fn of(source: Source, story: &RunStory, newest: Epoch) -> Self {
        let (reason, to_do) = story.outcome(newest).map_or((None, None), |outcome| {
            (Some(outcome.reason), outcome.to_do)
        });
        let told = |name: &str| story.report.get(name).cloned().unwrap_or(Value::Null);
        Self {
            source,
            epoch: story.run.epoch,
            state: story.run.state.name().to_owned(),
            cuts: story.run.cuts.iter().map(|cut| cut.next_offset).collect(),
            started_at: shown_ms(story.started_at_ms),
            ended_at: story.ended_at_ms.map(shown_ms),
            reason,
            to_do,
            rows_read: told("rows_read"),
            rows_written: told("rows_written"),
            rows_skipped: told("rows_skipped"),
            seconds: seconds(&told("seconds")),
            drift: told("drift"),
            report: None,
        }
    }
}

/// How much the run found that live state had counted otherwise, in all; `None` where that is not known.
pub(super) fn drift_total(story: &RunStory) -> Option<u64> {
    story.report.get("drift")?.get("total")?.as_u64()
}

/// The seconds of all stages together; they come by the stage's name.
fn seconds(told: &Value) -> Option<f64> {
    let stages = told.as_object()?.values().filter_map(Value::as_f64);
    stages.reduce(|all, one| all + one)
}

/// The batch runs, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/batch/runs",
    tag = "batch",
    params(
        ("source" = Option<String>, Query, description = "plays, also if left out"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of runs", body = RunsPage)
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read(&uri, &["source"])?;
    let source = params.source()?.unwrap_or(Source::Plays);
    let fingerprint = cursor::fingerprint(&format!("runs {source}"));
    let (before, limit) = (query.start(fingerprint, cursor::run)?, query.limit);
    let mut stories = api.ports.views.stories(source, before, limit + 1).await?;
    let after = |last: &RunStory| cursor::after(fingerprint, &last.run.epoch);
    let next = cursor::page(&mut stories, limit, after);
    let seen = api.ports.views.runs(source).await?.runs;
    let provenance = of_runs([(source, &seen)]);
    let runs = stories.iter();
    let runs = runs.map(|story| RunShown::of(source, story, seen.newest()));
    let page = RunsPage {
        runs: runs.collect(),
        cursor: next.clone(),
        provenance,
    };
    let as_csv = |page: RunsPage| as_csv(&page.runs, &page.provenance);
    Ok(query.answer(&uri, next.as_deref(), page, as_csv))
}

/// One batch run, with all that is told of it.
#[utoipa::path(
    get,
    path = "/api/v1/batch/runs/{epoch}",
    tag = "batch",
    params(
        ("epoch" = u64, Path, description = "The number of the run"),
        ("source" = Option<String>, Query, description = "plays, also if left out"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The run", body = RunTold),
        (status = 404, description = "No such run", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Path(epoch): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["source", "format"])?;
    let source = params.source()?.unwrap_or(Source::Plays);
    let format = params.format()?;
    let unknown = || {
        let detail =
            format!("there is no run {epoch:?} of {source}: /api/v1/batch/runs lists them");
        Kind::UnknownRun.with_detail(detail)
    };
    let number = stored_number(&epoch).ok_or_else(unknown)?;
    let story = api.ports.views.story(source, number).await?;
    let story = story.ok_or_else(unknown)?;
    let seen = api.ports.views.runs(source).await?.runs;
    let provenance = of_runs([(source, &seen)]);
    let mut run = RunShown::of(source, &story, seen.newest());
    run.report = Some(story.report);
    Ok(format.answer(RunTold { run, provenance }, |told| {
        as_csv(&[told.run], &told.provenance)
    }))
}

fn as_csv(runs: &[RunShown], provenance: &Provenance) -> Response {
    let header = "source,epoch,state,started_at,ended_at,rows_read,rows_written,rows_skipped,seconds,drift,cuts,reason,to_do";
    let rows = runs.iter().map(|run| RunShown {
        drift: run.drift["total"].clone(),
        ..run.clone()
    });
    csv::objects(header, rows, Some(provenance))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_seconds_of_stages_add_up() {
        assert_eq!(seconds(&json!({"roll": 1.5, "plan": 2})), Some(3.5));
        assert_eq!(seconds(&json!({})), None);
        assert_eq!(seconds(&Value::Null), None);
    }
}
