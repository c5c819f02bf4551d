//! The daily history of an application's connected athletes.

use std::ops::Range;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use jiff::civil::Date;
use schemas::key::KeyValue;
use schemas::provenance::{Origin, Provenance};
use schemas::seam::{Epoch, Runs};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::counts::{Day, HistoryQuery, date_of, day_of, day_of_date, read_history};
use utoipa::ToSchema;

use super::entity_store::find_usage;
use super::response::APPLICATIONS;
use crate::answer::{ProvenanceShape, provenance};
use crate::http::boards::{find_board, parse_date, parse_id};
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Problem, ProblemKind, ProblemShape};
use crate::http::{Api, csv, cursor};
use crate::read::Watermark;
use crate::read_position::ReadPosition;

/// Default number of days of a page.
const LIMIT_DEFAULT: usize = 366;
/// Maximum number of days of a page.
const LIMIT_MAX: usize = 3_660;
/// Default length of the range, in days.
const DAYS_DEFAULT: Day = 90;

/// The number of connected athletes by day.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplicationHistory)]
pub(crate) struct ApplicationHistory {
    pub(crate) application_id: i64,
    /// Oldest first, without gaps.
    pub(crate) days: Vec<ApplicationDay>,
    /// The cursor of the next page; null on the last one.
    pub(crate) cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One day of the history.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplicationDay)]
pub(crate) struct ApplicationDay {
    /// The day, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
    /// Number of athletes connected at the cut of the batch run.
    pub(crate) connected_athletes: u64,
    /// The last batch run of that day, or of the latest earlier day with a run.
    pub(crate) epoch: Epoch,
}

/// The number of athletes connected to an application by day, as counted by the last batch run of
/// each day (UTC, by the time of its cut). A day without a run repeats the day before. Days before
/// the first run and after the newest one are left out; the application itself has the current
/// number.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/history",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("from" = Option<String>, Query, description = "The first day (UTC), such as 2026-11-21; default 90 days before `to`"),
        ("to" = Option<String>, Query, description = "The day after the last one; default tomorrow"),
        ("limit" = Option<usize>, Query, description = "Days per page, at most 3,660; default 366"),
        ("cursor" = Option<String>, Query, description = "The field cursor of the previous page"),
        ("format" = Option<String>, Query, description = "json (default) or csv; the Link header has the URL of the next page")
    ),
    responses(
        (status = 200, description = "The days, oldest first", body = ApplicationHistory),
        (status = 404, description = "Unknown application, or no history is kept", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_history(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read_within(&uri, &["from", "to"], LIMIT_DEFAULT, LIMIT_MAX)?;
    let application = parse_id("id", &application)?;
    let days = requested_days(&params, day_of(api.ports.clock.now_ms()))?;
    let question = format!("history of {application} {}", params.question());
    let fingerprint = cursor::fingerprint(&question);
    let begin: Option<i64> = query.decode_start(fingerprint, cursor::decode)?;
    let begin = begin.and_then(|day| Day::try_from(day).ok());
    let days = begin.unwrap_or(days.start)..days.end;
    find_usage(&api, application).await?;
    let job = find_board(&api, APPLICATIONS)?;
    if !job.records_daily_counts() {
        let detail = "no history of applications is kept: add the section [history] to the job.toml of their board";
        return Err(ProblemKind::UnknownPath.with_detail(detail));
    }
    let key = job.key().encode_values(&[KeyValue::Int(application)]);
    let key = key.map_err(|error| Problem::parameter(format!("id: {error}")))?;
    let history_query = HistoryQuery {
        source: job.source(),
        job: job.name(),
        key: &key,
    };
    let (counts, views) = (&*api.ports.counts, &*api.ports.views);
    let found = read_history(counts, views, history_query, days, query.limit).await?;
    let next = found.next.map(|day| cursor::encode(fingerprint, &day));
    let days = found.days.into_iter().map(|found| ApplicationDay {
        date: date_of(found.day),
        connected_athletes: found.count,
        epoch: found.epoch,
    });
    let page = ApplicationHistory {
        application_id: application,
        days: days.collect(),
        cursor: next.clone(),
        provenance: provenance_of_runs(job.source(), &found.runs),
    };
    Ok(query.respond(&uri, next.as_deref(), page, |page| {
        let header = "date,connected_athletes,epoch";
        csv::write_objects(header, page.days, Some(&page.provenance))
    }))
}

/// Reads the range of days from the parameters.
fn requested_days(params: &Params, today: Day) -> Result<Range<Day>, Problem> {
    let (from, to) = (
        params.parsed("from", parse_date)?,
        params.parsed("to", parse_date)?,
    );
    let to = to.map_or_else(|| today.saturating_add(1), day_of_date);
    let from = from.map_or_else(|| to.saturating_sub(DAYS_DEFAULT), day_of_date);
    if from < to {
        return Ok(from..to);
    }
    Err(Problem::parameter(format!(
        "from={} is not before to={}: `to` is the day after the last one, and defaults to tomorrow",
        date_of(from),
        date_of(to)
    )))
}

/// Returns the provenance of batch results up to the newest run.
fn provenance_of_runs(source: Source, runs: &Runs) -> Provenance {
    let epoch = runs.newest();
    let Watermark { position, as_of_ms } = Watermark::from_run(runs, epoch);
    let standing = ReadPosition {
        as_of_ms,
        position,
        ..ReadPosition::empty(source, epoch)
    };
    provenance(Origin::from_layers(false, false, epoch), standing)
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
