//! Totals, series and breakdowns of a metric.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use schemas::time::{Interval, PeriodQuery, Range, Resolved, points, resolve};

use super::params::{Format, Params, Path};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::{self, Breakdown, Series, Total};
use crate::metric::Metric;
use crate::question::{Open, Question, Segments, Time};
use crate::read::{Reading, read};

/// Parameters that say which time a question is about.
const TIME: [&str; 6] = ["period", "from", "to", "tz", "date", "compare"];

/// One number: the sum of the amounts of all events that the filters let through.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/total",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("owner_id" = Option<i64>, Query, description = "Only this owner; this or track_id is needed"),
        ("track_id" = Option<i64>, Query, description = "Only this track; this or owner_id is needed"),
        ("country" = Option<String>, Query, description = "Only this country (ISO 3166 alpha-2)"),
        ("referrer" = Option<String>, Query, description = "Only this referrer"),
        ("app_id" = Option<i64>, Query, description = "Only this application"),
        ("listener_id" = Option<i64>, Query, description = "Only this listener"),
        ("kind" = Option<String>, Query, description = "play or download; both if left out"),
        ("period" = Option<String>, Query, description = "today, 7d, 30d, month, year, all or custom; all if left out"),
        ("from" = Option<String>, Query, description = "Beginning, included: a date, or an instant on a quarter of an hour"),
        ("to" = Option<String>, Query, description = "End, excluded: a date, or an instant on a quarter of an hour"),
        ("tz" = Option<String>, Query, description = "IANA time zone of days; UTC if left out"),
        ("date" = Option<String>, Query, description = "The day that the period is about; today if left out"),
        ("compare" = Option<String>, Query, description = "previous: also the period before")
    ),
    responses(
        (status = 200, description = "The total", body = Total),
        (status = 400, description = "A parameter can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn total(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Json<Total>, Problem> {
    let asked = Asked::read(&api, &metric, &uri, &[])?;
    let segments = Segments::new(asked.ranges().collect());
    let reading = asked.answer(&api, None, Time::Segments(segments)).await?;
    let total = answer::total(reading, asked.resolved.range, asked.is_compared())?;
    Ok(Json(total))
}

/// A chart: the total of each local hour, day, week or month. One page of at most 10,000 points;
/// buckets at the ends are cut to the range. Without a beginning or an end it reaches as far as
/// there are events.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/series",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("interval" = Option<String>, Query, description = "hour, day, week or month; day if left out"),
        ("owner_id" = Option<i64>, Query, description = "Only this owner; this or track_id is needed"),
        ("track_id" = Option<i64>, Query, description = "Only this track; this or owner_id is needed"),
        ("country" = Option<String>, Query, description = "Only this country (ISO 3166 alpha-2)"),
        ("referrer" = Option<String>, Query, description = "Only this referrer"),
        ("app_id" = Option<i64>, Query, description = "Only this application"),
        ("listener_id" = Option<i64>, Query, description = "Only this listener"),
        ("kind" = Option<String>, Query, description = "play or download; both if left out"),
        ("period" = Option<String>, Query, description = "today, 7d, 30d, month, year, all or custom; all if left out"),
        ("from" = Option<String>, Query, description = "Beginning, included: a date, or an instant on a quarter of an hour"),
        ("to" = Option<String>, Query, description = "End, excluded: a date, or an instant on a quarter of an hour"),
        ("tz" = Option<String>, Query, description = "IANA time zone of hours, days, weeks and months; UTC if left out"),
        ("date" = Option<String>, Query, description = "The day that the period is about; today if left out"),
        ("compare" = Option<String>, Query, description = "previous: also the points of the period before"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The points", body = Series),
        (status = 400, description = "A parameter can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn series(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Asked::read(&api, &metric, &uri, &["interval", "format"])?;
    let format = asked.params.format()?;
    let (time, previous) = asked.points()?;
    let reading = asked.answer(&api, None, time).await?;
    let series = answer::series(reading, asked.resolved.range, previous)?;
    Ok(match format {
        Format::Json => Json(series).into_response(),
        Format::Csv => csv::response(
            csv::points(&series.points, series.previous.as_deref())?,
            Some(&series.provenance),
        ),
    })
}

/// A ranking: the total of each track, listener, country, referrer or application. Where periods
/// are compared, rows are those of the period that was asked for.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/breakdown",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("by" = String, Query, description = "track, listener, country, referrer, app, owner or kind"),
        ("owner_id" = Option<i64>, Query, description = "Only this owner; this or track_id is needed"),
        ("track_id" = Option<i64>, Query, description = "Only this track; this or owner_id is needed"),
        ("country" = Option<String>, Query, description = "Only this country (ISO 3166 alpha-2)"),
        ("referrer" = Option<String>, Query, description = "Only this referrer"),
        ("app_id" = Option<i64>, Query, description = "Only this application"),
        ("listener_id" = Option<i64>, Query, description = "Only this listener"),
        ("kind" = Option<String>, Query, description = "play or download; both if left out"),
        ("period" = Option<String>, Query, description = "today, 7d, 30d, month, year, all or custom; all if left out"),
        ("from" = Option<String>, Query, description = "Beginning, included: a date, or an instant on a quarter of an hour"),
        ("to" = Option<String>, Query, description = "End, excluded: a date, or an instant on a quarter of an hour"),
        ("tz" = Option<String>, Query, description = "IANA time zone of days; UTC if left out"),
        ("date" = Option<String>, Query, description = "The day that the period is about; today if left out"),
        ("compare" = Option<String>, Query, description = "previous: also the counts of the period before"),
        ("limit" = Option<usize>, Query, description = "Rows of a page, at most 1,000; 50 if left out"),
        ("cursor" = Option<String>, Query, description = "cursor of the page before"),
        ("format" = Option<String>, Query, description = "json or csv; the header Link leads to the next page")
    ),
    responses(
        (status = 200, description = "A page of the ranking", body = Breakdown),
        (status = 400, description = "A parameter can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn breakdown(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Asked::read(&api, &metric, &uri, &["by", "limit", "cursor", "format"])?;
    let (format, limit) = (asked.params.format()?, asked.params.limit()?);
    let by = asked.by()?;
    let fingerprint = cursor::fingerprint(&format!(
        "breakdown {} {} {:?}",
        asked.metric.name,
        asked.params.question(),
        asked.resolved.range
    ));
    let after = asked
        .params
        .get("cursor")
        .map(|text| cursor::place(fingerprint, text))
        .transpose()?;
    let segments = Segments::new(asked.ranges().collect());
    let reading = asked
        .answer(&api, Some(by.to_owned()), Time::Segments(segments))
        .await?;
    let compared = asked.is_compared();
    let page = answer::breakdown(reading, compared, after.as_ref(), limit)?;
    let next = page
        .last
        .as_ref()
        .map(|place| cursor::of_place(fingerprint, place));
    let link = next
        .as_deref()
        .and_then(|next| link_to_next(&uri, next, None));
    let mut response = match format {
        Format::Csv => csv::response(csv::rows(&page.rows, compared)?, Some(&page.provenance)),
        Format::Json => Json(Breakdown {
            rows: page.rows,
            total: page.total,
            cursor: next,
            range: answer::shown_range(asked.resolved.range),
            provenance: page.provenance,
        })
        .into_response(),
    };
    response.headers_mut().extend(link);
    Ok(response)
}

/// The header that leads to the next page of a list (RFC 8288). Where the page begins is said by the
/// cursor alone; `besides` is a parameter that the request left open.
pub(crate) fn link_to_next(
    uri: &Uri,
    cursor: &str,
    besides: Option<&str>,
) -> Option<(HeaderName, HeaderValue)> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let is_begin = |pair: &str| pair.starts_with("cursor=") || pair.starts_with("offset=");
    let kept = pairs.filter(|pair| !pair.is_empty() && !is_begin(pair));
    let mut query: Vec<&str> = kept.chain(besides).collect();
    let cursor = format!("cursor={cursor}");
    query.push(&cursor);
    let link = format!("<{}?{}>; rel=\"next\"", uri.path(), query.join("&"));
    Some((header::LINK, HeaderValue::try_from(link).ok()?))
}

/// A request for statistics, read but not yet answered.
struct Asked<'a> {
    metric: &'a Metric,
    params: Params,
    resolved: Resolved,
}

impl<'a> Asked<'a> {
    fn read(api: &'a Api, name: &str, uri: &Uri, own: &[&str]) -> Result<Self, Problem> {
        let metric = api.metrics.get(name).ok_or_else(|| {
            let known: Vec<&str> = api.metrics.keys().map(String::as_str).collect();
            Problem::new(
                Kind::UnknownMetric,
                format!(
                    "there is no metric {name:?}; there is: {}",
                    known.join(", ")
                ),
            )
        })?;
        let columns = metric.columns().keys().map(String::as_str);
        let known: Vec<&str> = columns.chain(TIME).chain(own.iter().copied()).collect();
        let params = Params::read(uri, &known)?;
        let query = PeriodQuery {
            period: params.get("period"),
            from: params.get("from"),
            to: params.get("to"),
            date: params.get("date"),
            tz: params.get("tz"),
            compare: params.get("compare"),
        };
        let resolved =
            resolve(&query, api.now()).map_err(|error| Problem::parameter(error.to_string()))?;
        Ok(Self {
            metric,
            params,
            resolved,
        })
    }

    fn is_compared(&self) -> bool {
        self.params.get("compare").is_some()
    }

    /// The period before, if it was asked for, and the period.
    fn ranges(&self) -> impl Iterator<Item = Range> {
        self.resolved
            .previous
            .into_iter()
            .chain([self.resolved.range])
    }

    /// The points of a series, and how many of them are of the period before.
    fn points(&self) -> Result<(Time, Option<usize>), Problem> {
        let refused = |error: schemas::time::SeriesError| Problem::parameter(error.to_string());
        let interval: Interval = match self.params.get("interval") {
            None => Interval::Day,
            Some(name) => name.parse().map_err(refused)?,
        };
        let zone = &self.resolved.zone;
        let range = self.resolved.range;
        if range.from.is_none() || range.to.is_none() {
            let open = Open {
                zone: zone.clone(),
                interval,
                range,
            };
            return Ok((Time::Open(open), None));
        }
        let mut all = Vec::new();
        let mut previous = None;
        for (index, range) in self.ranges().enumerate() {
            let (Some(from), Some(to)) = (range.from, range.to) else {
                continue;
            };
            let points = points(zone, interval, from, to).map_err(refused)?;
            if self.resolved.previous.is_some() && index == 0 {
                previous = Some(points.len());
            }
            all.extend_from_slice(Segments::of(&points).ranges());
        }
        Ok((Time::Segments(Segments::new(all)), previous))
    }

    fn by(&self) -> Result<&str, Problem> {
        let names = || self.metric.by_names().join(", ");
        let by = self
            .params
            .get("by")
            .ok_or_else(|| Problem::parameter(format!("by is needed: write one of {}", names())))?;
        self.metric.by_column(by).ok_or_else(|| {
            Problem::parameter(format!("by={by:?} is unknown: write one of {}", names()))
        })
    }

    async fn answer(&self, api: &Api, by: Option<String>, time: Time) -> Result<Reading, Problem> {
        let question = Question {
            filters: self.params.filters(self.metric)?,
            by,
            time,
        };
        let patience = api.options.whole_wait();
        let reading = read(&api.ports, self.metric, &question, patience).await;
        let asked = (&self.metric.name, &question);
        Ok(api.kept_tallies.or_kept(&asked, reading)?)
    }
}
