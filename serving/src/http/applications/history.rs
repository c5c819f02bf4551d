//! The history of an application: how many athletes were connected, day by day.

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
use stores::counts::{Day, History, date_of, day_of, day_of_date, past};
use utoipa::ToSchema;

use super::{APPLICATIONS, usage_of};
use crate::answer::{ProvenanceShape, provenance};
use crate::http::boards::{date, find, id};
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Kind, Problem, ProblemShape};
use crate::http::{Api, csv, cursor};
use crate::read::{Reach, Standing};

/// Days of a page unless it is said.
const LIMIT_DEFAULT: usize = 366;
/// Days of a page, at most.
const LIMIT_MAX: usize = 3_660;
/// Days that are answered where no first one is given.
const DAYS_DEFAULT: Day = 90;

/// How many athletes were connected, day by day.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplicationHistory)]
pub(crate) struct HistoryShown {
    pub(crate) application_id: i64,
    /// The oldest first, without a gap.
    pub(crate) days: Vec<DayShown>,
    /// Where the next page begins; null on the last one.
    pub(crate) cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

/// One day of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplicationDay)]
pub(crate) struct DayShown {
    /// The day, in UTC.
    #[schema(value_type = String, format = Date)]
    pub(crate) date: Date,
    /// Different athletes who were connected at the cut of the batch run.
    pub(crate) connected_athletes: u64,
    /// The last batch run of that day; on a day without any, that of the day before.
    pub(crate) epoch: Epoch,
}

/// How many athletes were connected to an application, day by day: as the last batch run of each day
/// (UTC, by the moment of its cut) found it. A day without a run has what the day before has. Days before the
/// first run and after the newest one are left out; what is now says the application itself.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/history",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("from" = Option<String>, Query, description = "The first day (UTC), such as 2026-11-21; 90 days before `to` if left out"),
        ("to" = Option<String>, Query, description = "The day after the last one; tomorrow if left out"),
        ("limit" = Option<usize>, Query, description = "Days of a page, at most 3,660; 366 if left out"),
        ("cursor" = Option<String>, Query, description = "cursor of the page before"),
        ("format" = Option<String>, Query, description = "json or csv; the header Link leads to the next page")
    ),
    responses(
        (status = 200, description = "The days, the oldest first", body = HistoryShown),
        (status = 404, description = "No such application, or its history is not kept", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn history(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read_within(&uri, &["from", "to"], LIMIT_DEFAULT, LIMIT_MAX)?;
    let application = id("id", &application)?;
    let days = days(&params, day_of(api.ports.clock.now_ms()))?;
    let question = format!("history of {application} {}", params.question());
    let fingerprint = cursor::fingerprint(&question);
    let begin: Option<i64> = query.start(fingerprint, cursor::last)?;
    let begin = begin.and_then(|day| Day::try_from(day).ok());
    let days = begin.unwrap_or(days.start)..days.end;
    usage_of(&api, application).await?;
    let job = find(&api, APPLICATIONS)?;
    if !job.keeps_counts() {
        let detail = "the history of applications is not kept: add the section [history] to the job.toml of their board";
        return Err(Kind::UnknownPath.with_detail(detail));
    }
    let key = job.key().encode_values(&[KeyValue::Int(application)]);
    let key = key.map_err(|error| Problem::parameter(format!("id: {error}")))?;
    let of = History {
        source: job.source(),
        job: job.name(),
        key: &key,
    };
    let from = (&*api.ports.counts, &*api.ports.views);
    let found = past(from, of, days, query.limit).await?;
    let next = found.next.map(|day| cursor::after(fingerprint, &day));
    let days = found.days.into_iter().map(|found| DayShown {
        date: date_of(found.day),
        connected_athletes: found.count,
        epoch: found.epoch,
    });
    let page = HistoryShown {
        application_id: application,
        days: days.collect(),
        cursor: next.clone(),
        provenance: of_runs(job.source(), &found.runs),
    };
    Ok(query.answer(&uri, next.as_deref(), page, |page| {
        let header = "date,connected_athletes,epoch";
        csv::objects(header, page.days, Some(&page.provenance))
    }))
}

/// The days that are asked for.
fn days(params: &Params, today: Day) -> Result<Range<Day>, Problem> {
    let (from, to) = (params.parsed("from", date)?, params.parsed("to", date)?);
    let to = to.map_or_else(|| today.saturating_add(1), day_of_date);
    let from = from.map_or_else(|| to.saturating_sub(DAYS_DEFAULT), day_of_date);
    if from < to {
        return Ok(from..to);
    }
    Err(Problem::parameter(format!(
        "from={} is not before to={}: `to` is the day after the last one, tomorrow if left out",
        date_of(from),
        date_of(to)
    )))
}

/// What is made of batch runs reaches as far as the newest one.
fn of_runs(source: Source, runs: &Runs) -> Provenance {
    let epoch = runs.newest();
    let Reach { position, as_of_ms } = Reach::of(runs, epoch);
    let standing = Standing {
        as_of_ms,
        position,
        ..Standing::nothing(source, epoch)
    };
    provenance(Origin::of(false, false, epoch), standing)
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
