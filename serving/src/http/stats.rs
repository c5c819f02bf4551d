//! Totals, series, breakdowns and unique counts of a metric.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::time::{
    Interval, PeriodError, PeriodQuery, ResolvedPeriod, TimeRange, compute_points, resolve,
};

use super::params::{LIMIT_DEFAULT, LIMIT_MAX, PageQuery, Params, Path};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::{self, AnswerSpec, Breakdown, Series, Total, Uniques, UniquesSeries};
use crate::metric::{Metric, parameter_name};
use crate::read::{Reading, read};
use crate::request_coalescer::seeded_hash;
use crate::stats_query::{OpenSeries, Prefer, RequestedTime, StatsQuery, TimeSegments};

/// Parameters that select the period.
const PERIOD_PARAMS: [&str; 5] = ["period", "from", "to", "tz", "date"];

/// Filters of events, which combine. `owner_id`, `track_id` or `kind` is required; `kind` alone
/// counts events of all owners.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "only describes parameters, of which a metric may have others"
)]
pub(super) struct FilterParams {
    /// Only this owner. One of owner_id, track_id and kind is required
    owner_id: Option<i64>,
    /// Only this track. One of owner_id, track_id and kind is required
    track_id: Option<i64>,
    /// Only this country (ISO 3166 alpha-2)
    country: Option<String>,
    /// Only this referrer
    referrer: Option<String>,
    /// Only this application
    app_id: Option<i64>,
    /// Only this listener
    listener_id: Option<i64>,
    /// play or download; default both
    kind: Option<String>,
}

/// The selected period.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "only describes parameters, which are read together"
)]
pub(super) struct PeriodParams {
    /// today, 7d, 30d, month, year, all or custom; default all
    period: Option<String>,
    /// Start, inclusive: a date, or an instant on a quarter of an hour
    from: Option<String>,
    /// End, exclusive: a date, or an instant on a quarter of an hour
    to: Option<String>,
    /// IANA time zone of hours, days, weeks and months; default UTC
    tz: Option<String>,
    /// A day in the period; default today
    date: Option<String>,
    /// previous: compare with the previous period. A running period is compared with the same
    /// elapsed part of the previous one
    compare: Option<String>,
}

/// The sum of the amounts of all events that match the filters.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/total",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        FilterParams,
        PeriodParams,
        ("prefer" = Option<String>, Query, description = "batch: batch rows where they exist, else live counts; realtime: live counts, also where a batch run has covered them; merged (default): batch rows and newer live counts"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The total", body = Total),
        (status = 304, description = "Not modified since the response that If-None-Match names"),
        (status = 404, description = "Unknown metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_total(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let request = StatsRequest::parse(&api, &metric, &uri, &["compare", "prefer", "format"])?;
    let (format, spec) = (request.params.parse_format()?, request.build_answer_spec()?);
    let reading = request.read_whole(&api, Aggregate::Sum).await?;
    let total = answer::build_total(reading, &spec)?;
    Ok(format.respond(total, |total| csv::write_total(&total)))
}

/// The totals by local hour, day, week or month.
///
/// One page of at most 10,000 points. Buckets at the ends are clipped to the range. A range without
/// start or end reaches as far as there are events.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/series",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("interval" = Option<String>, Query, description = "hour, day, week or month; default day"),
        FilterParams,
        PeriodParams,
        ("prefer" = Option<String>, Query, description = "batch, realtime or merged, for each point; default merged"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The points", body = Series),
        (status = 304, description = "Not modified since the response that If-None-Match names"),
        (status = 404, description = "Unknown metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_series(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let request = StatsRequest::parse(
        &api,
        &metric,
        &uri,
        &["compare", "interval", "prefer", "format"],
    )?;
    let (format, spec) = (request.params.parse_format()?, request.build_answer_spec()?);
    let (time, previous_count) = request.split_into_points()?;
    let reading = request.read_ranges(&api, Aggregate::Sum, time).await?;
    let series = answer::build_series(reading, &spec, previous_count)?;
    Ok(format.respond(series, |series| {
        let previous = series.previous.as_deref();
        csv::write_points(
            "at,count,source",
            &series.points,
            previous,
            &series.provenance,
        )
    }))
}

/// The totals by the values of a column, largest first.
///
/// Comparisons have only rows of the selected period.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/breakdown",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("by" = String, Query, description = "track, listener, country, referrer, app, owner or kind"),
        FilterParams,
        PeriodParams,
        ("prefer" = Option<String>, Query, description = "batch, realtime or merged, for each row; default merged"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of the breakdown", body = Breakdown),
        (status = 304, description = "Not modified since the response that If-None-Match names"),
        (status = 404, description = "Unknown metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_breakdown(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let other_params = ["compare", "by", "prefer", "limit", "cursor", "format"];
    let request = StatsRequest::parse(&api, &metric, &uri, &other_params)?;
    let query = PageQuery::from_params(&request.params, LIMIT_DEFAULT, LIMIT_MAX)?;
    let (by, spec) = (request.parse_by()?, request.build_answer_spec()?);
    let fingerprint = cursor::compute_fingerprint(&format!(
        "breakdown {} {} {:?}",
        request.metric.name,
        request.params.canonical_query(),
        request.resolved.range
    ));
    let after_row = query.decode_start(fingerprint, cursor::decode_breakdown_row)?;
    let reading = request
        .read_whole(&api, Aggregate::SumBy(by.to_owned()))
        .await?;
    let page = answer::build_breakdown(reading, &spec, after_row.as_ref(), query.limit)?;
    let last = page.last.as_ref();
    let next_cursor = last.map(|row| cursor::encode_breakdown_row(fingerprint, row));
    let breakdown = Breakdown {
        rows: page.rows,
        total: page.total,
        cursor: next_cursor.clone(),
        range: spec.answer_range(),
        provenance: page.provenance,
    };
    Ok(
        query.respond(&uri, next_cursor.as_deref(), breakdown, |page| {
            csv::write_rows(&page.rows, &page.provenance, spec.is_compared)
        }),
    )
}

/// The estimated number of unique listeners.
///
/// It has a relative error. A listener of several days counts once, so these numbers cannot be
/// added.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/uniques",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("of" = Option<String>, Query, description = "listener"),
        FilterParams,
        PeriodParams,
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The number", body = Uniques),
        (status = 304, description = "Not modified since the response that If-None-Match names"),
        (status = 404, description = "Unknown metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_uniques(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let request = StatsRequest::parse(&api, &metric, &uri, &["compare", "of", "format"])?;
    let (format, (name, column)) = (
        request.params.parse_format()?,
        request.find_distinct_column()?,
    );
    let reading = request
        .read_whole(&api, Aggregate::Distinct(column))
        .await?;
    let uniques = answer::build_uniques(reading, &request.build_answer_spec()?, &name);
    Ok(format.respond(uniques, |uniques| csv::write_unique_count(&uniques)))
}

/// The estimated number of unique listeners by time.
///
/// By local hour, day, week or month; at most 1,000 points.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/uniques/series",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("of" = Option<String>, Query, description = "listener"),
        ("interval" = Option<String>, Query, description = "hour, day, week or month; default day"),
        FilterParams,
        PeriodParams,
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The points", body = UniquesSeries),
        (status = 304, description = "Not modified since the response that If-None-Match names"),
        (status = 404, description = "Unknown metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_unique_series(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let request = StatsRequest::parse(
        &api,
        &metric,
        &uri,
        &["compare", "of", "interval", "format"],
    )?;
    let (format, spec) = (request.params.parse_format()?, request.build_answer_spec()?);
    let (name, column) = request.find_distinct_column()?;
    let (time, previous_count) = request.split_into_points()?;
    let reading = request
        .read_ranges(&api, Aggregate::Distinct(column), time)
        .await?;
    let series = answer::build_uniques_series(reading, &spec, &name, previous_count);
    Ok(format.respond(series, |series| {
        let (header, previous) = ("at,count,relative_error,source", series.previous.as_deref());
        csv::write_points(header, &series.points, previous, &series.provenance)
    }))
}

fn unknown_metric(api: &Api, name: &str) -> Problem {
    let names: Vec<&str> = api.metrics.keys().map(String::as_str).collect();
    let names = names.join(", ");
    ProblemKind::UnknownMetric
        .with_detail(format!("unknown metric {name:?}: the metrics are {names}"))
}

/// Builds the problem of an invalid period. A message about one parameter begins with its name.
fn period_problem(error: &PeriodError) -> Problem {
    let detail = error.to_string();
    let name = detail.split(['=', ' ']).next().unwrap_or_default();
    let problem = Problem::parameter(detail.as_str());
    match PERIOD_PARAMS.contains(&name) || name == "compare" {
        true => problem.with_parameter(name),
        false => problem,
    }
}

/// The requested aggregate.
enum Aggregate {
    /// The sum of amounts.
    Sum,
    /// The sum of amounts by the values of a column.
    SumBy(String),
    /// The number of distinct values of a column.
    Distinct(String),
    /// The sum of amounts, with the rows that it adds up.
    Explained,
}

/// Returns whether a read may return many values, each a count or a sketch. Memory has room for
/// only few such results.
fn returns_many_values(query: &StatsQuery) -> bool {
    let is_series = match &query.time {
        RequestedTime::Segments(segments) => segments.len() > 2,
        RequestedTime::Open(_) => true,
    };
    query.by.is_some() || query.explains || (query.distinct.is_some() && is_series)
}

/// A parsed request for statistics.
pub(super) struct StatsRequest<'a> {
    pub(super) metric: &'a Metric,
    pub(super) params: Params,
    resolved: ResolvedPeriod,
}

impl<'a> StatsRequest<'a> {
    pub(super) fn parse(
        api: &'a Api,
        name: &str,
        uri: &Uri,
        other_params: &[&str],
    ) -> Result<Self, Problem> {
        let metric = api
            .metrics
            .get(name)
            .ok_or_else(|| unknown_metric(api, name))?;
        let columns = metric.columns().keys().map(String::as_str);
        let known = columns
            .chain(PERIOD_PARAMS)
            .chain(other_params.iter().copied());
        let params = Params::parse(uri, &known.collect::<Vec<_>>())?;
        let query = PeriodQuery {
            period: params.get("period"),
            from: params.get("from"),
            to: params.get("to"),
            date: params.get("date"),
            tz: params.get("tz"),
            compare: params.get("compare"),
        };
        let resolved = resolve(&query, api.now()).map_err(|error| period_problem(&error))?;
        Ok(Self {
            metric,
            params,
            resolved,
        })
    }

    fn parse_prefer(&self) -> Result<Prefer, Problem> {
        let choices = [
            ("batch", Prefer::Batch),
            ("realtime", Prefer::Realtime),
            ("merged", Prefer::Newest),
        ];
        let prefer = self.params.parse_choice("prefer", &choices)?;
        Ok(prefer.unwrap_or(Prefer::Newest))
    }

    pub(super) fn build_answer_spec(&self) -> Result<AnswerSpec, Problem> {
        Ok(AnswerSpec {
            range: self.resolved.range,
            is_running: self.resolved.is_running,
            is_compared: self.params.get("compare").is_some(),
            prefer: self.parse_prefer()?,
        })
    }

    /// Returns the name and the column of the distinct values.
    fn find_distinct_column(&self) -> Result<(String, String), Problem> {
        let name = self.params.get("of");
        let column = self.metric.distinct_column(name).ok_or_else(|| {
            let names = self.metric.distinct_names().join(", ");
            Problem::parameter(match name {
                _ if names.is_empty() => {
                    format!("the metric {} has no unique counts", self.metric.name)
                }
                Some(name) => format!("of={name:?} is invalid: use one of {names}"),
                None => format!("of is required: use one of {names}"),
            })
            .with_parameter("of")
        })?;
        Ok((parameter_name(column).to_owned(), column.to_owned()))
    }

    /// Reads the rows that the total adds up.
    pub(super) async fn read_rows(&self, api: &Arc<Api>) -> Result<Reading, Problem> {
        let segments = TimeSegments::new(vec![self.resolved.range]);
        self.read_ranges(api, Aggregate::Explained, RequestedTime::Segments(segments))
            .await
    }

    /// Reads the whole period and, if requested, the whole previous one.
    async fn read_whole(&self, api: &Arc<Api>, aggregate: Aggregate) -> Result<Reading, Problem> {
        let segments = TimeSegments::new(self.ranges().collect());
        self.read_ranges(api, aggregate, RequestedTime::Segments(segments))
            .await
    }

    /// Returns the previous period, if requested, and the period.
    fn ranges(&self) -> impl Iterator<Item = TimeRange> {
        self.resolved
            .previous
            .into_iter()
            .chain([self.resolved.range])
    }

    /// Splits the period into the points of a series. Also returns the number of points that belong
    /// to the previous period.
    fn split_into_points(&self) -> Result<(RequestedTime, Option<usize>), Problem> {
        let invalid = |error: schemas::time::SeriesError| {
            Problem::parameter(error.to_string()).with_parameter("interval")
        };
        let interval: Interval = match self.params.get("interval") {
            None => Interval::Day,
            Some(name) => name.parse().map_err(invalid)?,
        };
        let zone = &self.resolved.zone;
        let range = self.resolved.range;
        if range.from.is_none() || range.to.is_none() {
            let open = OpenSeries {
                zone: zone.clone(),
                interval,
                range,
            };
            return Ok((RequestedTime::Open(open), None));
        }
        let mut ranges = Vec::new();
        let mut previous_count = None;
        for (index, range) in self.ranges().enumerate() {
            let (Some(from), Some(to)) = (range.from, range.to) else {
                continue;
            };
            let points = compute_points(zone, interval, from, to).map_err(invalid)?;
            if self.resolved.previous.is_some() && index == 0 {
                previous_count = Some(points.len());
            }
            ranges.extend_from_slice(TimeSegments::from_points(&points).ranges());
        }
        Ok((
            RequestedTime::Segments(TimeSegments::new(ranges)),
            previous_count,
        ))
    }

    fn parse_by(&self) -> Result<&str, Problem> {
        let names = || self.metric.grouping_names().join(", ");
        let invalid = |fault: String| {
            let detail = format!("{fault}: use one of {}", names());
            Problem::parameter(detail).with_parameter("by")
        };
        let by = self.params.get("by");
        let by = by.ok_or_else(|| invalid("by is required".to_owned()))?;
        let column = self.metric.grouping_column(by);
        column.ok_or_else(|| invalid(format!("by={by:?} is invalid")))
    }

    async fn read_ranges(
        &self,
        api: &Arc<Api>,
        aggregate: Aggregate,
        time: RequestedTime,
    ) -> Result<Reading, Problem> {
        let explains = matches!(aggregate, Aggregate::Explained);
        let (by, distinct) = match aggregate {
            Aggregate::Sum | Aggregate::Explained => (None, None),
            Aggregate::SumBy(column) => (Some(column), None),
            Aggregate::Distinct(column) => (None, Some(column)),
        };
        let query = StatsQuery {
            filters: self.params.parse_filters(self.metric)?,
            by,
            distinct,
            explains,
            prefer: self.parse_prefer()?,
            time,
        };
        let is_large = returns_many_values(&query);
        let key = seeded_hash(&(&self.metric.name, format!("{query:?}")));
        let (api, name) = (Arc::clone(api), self.metric.name.clone());
        let caller_api = Arc::clone(&api);
        let read = async move {
            let metric = api
                .metrics
                .get(&name)
                .ok_or_else(|| unknown_metric(&api, &name))?;
            // Large reads have their own permits, so that small ones do not wait behind them.
            let _large_permit = match is_large {
                true => Some(api.large_stats_read_permits.acquire().await),
                false => None,
            };
            let _permit = api.stats_read_permits.acquire().await;
            let retry_for = api.options.live_state_wait();
            let reading = read(&api.ports, &api.read_caches, metric, &query, retry_for).await;
            Ok(Arc::new(api.stats_cache.or_stale(key, reading)?))
        };
        let reading = caller_api.stats_coalescer.read(key, read).await?;
        Ok(Arc::unwrap_or_clone(reading))
    }
}
