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
use stores::counts::{Day, HistoryQuery, date_from_day, day_from_date, day_from_ms, read_history};
use utoipa::ToSchema;

use super::entity_store::find_usage;
use super::response::APPLICATIONS_BOARD;
use crate::answer::{ProvenanceShape, build_provenance};
use crate::http::boards::{find_board, parse_date, parse_id};
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Problem, ProblemKind, ProblemShape};
use crate::http::{Api, csv, cursor};
use crate::read::Watermark;
use crate::read_position::ReadPosition;

/// Default number of days of a page.
pub(crate) const LIMIT_DEFAULT: usize = 366;
/// Maximum number of days of a page.
pub(crate) const LIMIT_MAX: usize = 3_660;
/// Default length of the range, in days.
const DAYS_DEFAULT: Day = 90;

/// The number of connected athletes by day.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
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
pub(crate) struct ApplicationDay {
    /// The day, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
    /// Number of athletes connected at the cut of the batch run.
    pub(crate) connected_athletes: u64,
    /// The last batch run of that day, or of the latest earlier day with a run.
    pub(crate) epoch: Epoch,
}

/// The number of connected athletes by day.
///
/// Counted by the last batch run of each day (UTC, by the time of its cut). A day without a run
/// repeats the day before. Days before the first run and after the newest one are left out; the
/// application itself has the current number.
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
    let (params, query) = PageQuery::parse_within(&uri, &["from", "to"], LIMIT_DEFAULT, LIMIT_MAX)?;
    let application_id = parse_id("id", &application)?;
    let days = parse_days(&params, day_from_ms(api.ports.clock.now_ms()))?;
    let canonical = format!("history of {application_id} {}", params.canonical_query());
    let fingerprint = cursor::compute_fingerprint(&canonical);
    let start: Option<i64> = query.decode_start(fingerprint, cursor::decode)?;
    let start = start.and_then(|day| Day::try_from(day).ok());
    let days = start.unwrap_or(days.start)..days.end;
    find_usage(&api, application_id).await?;
    let job = find_board(&api, APPLICATIONS_BOARD)?;
    if !job.records_daily_counts() {
        let detail = "no history of applications is kept: add the section [history] to the job.toml of their board";
        return Err(ProblemKind::UnknownPath.with_detail(detail));
    }
    let key = job.key().encode_values(&[KeyValue::Int(application_id)]);
    let key = key.map_err(|error| Problem::parameter(format!("id: {error}")))?;
    let history_query = HistoryQuery {
        source: job.source(),
        job: job.name(),
        key: &key,
    };
    let (counts, views) = (&*api.ports.counts, &*api.ports.views);
    let history = read_history(counts, views, history_query, days, query.limit).await?;
    let next_cursor = history.next.map(|day| cursor::encode(fingerprint, &day));
    let days = history.days.into_iter().map(|day| ApplicationDay {
        date: date_from_day(day.day),
        connected_athletes: day.count,
        epoch: day.epoch,
    });
    let page = ApplicationHistory {
        application_id,
        days: days.collect(),
        cursor: next_cursor.clone(),
        provenance: build_history_provenance(job.source(), &history.runs),
    };
    Ok(query.respond(&uri, next_cursor.as_deref(), page, |page| {
        let header = "date,connected_athletes,epoch";
        csv::write_objects(header, page.days, Some(&page.provenance))
    }))
}

/// Parses the range of days.
fn parse_days(params: &Params, today: Day) -> Result<Range<Day>, Problem> {
    let (from, to) = (
        params.parse_with("from", parse_date)?,
        params.parse_with("to", parse_date)?,
    );
    let to = to.map_or_else(|| today.saturating_add(1), day_from_date);
    let from = from.map_or_else(|| to.saturating_sub(DAYS_DEFAULT), day_from_date);
    if from < to {
        return Ok(from..to);
    }
    Err(Problem::parameter(format!(
        "from={} is not before to={}: `to` is the day after the last one, and defaults to tomorrow",
        date_from_day(from),
        date_from_day(to)
    )))
}

/// Builds the provenance of batch results up to the newest run.
fn build_history_provenance(source: Source, runs: &Runs) -> Provenance {
    let epoch = runs.newest_complete();
    let Watermark { position, as_of_ms } = Watermark::from_run(runs, epoch);
    let read_position = ReadPosition {
        as_of_ms,
        position,
        ..ReadPosition::empty(source, epoch)
    };
    build_provenance(Origin::from_layers(false, false, epoch), read_position)
}
