//! Totals, series and breakdowns of a metric.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::time::{Interval, PeriodQuery, Range, Resolved, points, resolve};

use super::params::{LIMIT_DEFAULT, LIMIT_MAX, PageQuery, Params, Path};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::{self, Breakdown, Frame, Series, Total, Uniques, UniquesSeries};
use crate::gather::key_of;
use crate::metric::{Metric, by_name};
use crate::question::{Open, Prefer, Question, Segments, Time};
use crate::read::{Reading, read};

/// Parameters that say which time a question is about.
const TIME: [&str; 5] = ["period", "from", "to", "tz", "date"];

/// Which events are counted. At least `owner_id` or `track_id`, or `kind` alone for those of all owners; filters combine.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "only describes parameters, of which a metric may have others"
)]
pub(super) struct Filters {
    /// Only this owner; this, track_id or kind is needed
    owner_id: Option<i64>,
    /// Only this track; this, owner_id or kind is needed
    track_id: Option<i64>,
    /// Only this country (ISO 3166 alpha-2)
    country: Option<String>,
    /// Only this referrer
    referrer: Option<String>,
    /// Only this application
    app_id: Option<i64>,
    /// Only this listener
    listener_id: Option<i64>,
    /// play or download; both if left out
    kind: Option<String>,
}

/// The time that a question is about.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "only describes parameters, which are read together"
)]
pub(super) struct Times {
    /// today, 7d, 30d, month, year, all or custom; all if left out
    period: Option<String>,
    /// Beginning, included: a date, or an instant on a quarter of an hour
    from: Option<String>,
    /// End, excluded: a date, or an instant on a quarter of an hour
    to: Option<String>,
    /// IANA time zone of hours, days, weeks and months; UTC if left out
    tz: Option<String>,
    /// The day that the period is about; today if left out
    date: Option<String>,
    /// previous: also the period before, of a running period the same elapsed part of it
    compare: Option<String>,
}

/// One number: the sum of the amounts of all events that the filters let through.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/total",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        Filters,
        Times,
        ("prefer" = Option<String>, Query, description = "batch: the batch layer's value where there is one, else what was counted live; realtime: what was counted live, also of what a run has covered since; merged: both, if left out"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The total", body = Total),
        (status = 304, description = "The same as the answer that If-None-Match names"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn total(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Asked::read(&api, &metric, &uri, &["compare", "prefer", "format"])?;
    let (format, frame) = (asked.params.format()?, asked.frame()?);
    let reading = asked.whole(&api, Counted::Amounts).await?;
    let total = answer::total(reading, &frame)?;
    Ok(format.answer(total, |total| csv::total(&total)))
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
        Filters,
        Times,
        ("prefer" = Option<String>, Query, description = "batch, realtime or merged, at each point"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The points", body = Series),
        (status = 304, description = "The same as the answer that If-None-Match names"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn series(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Asked::read(
        &api,
        &metric,
        &uri,
        &["compare", "interval", "prefer", "format"],
    )?;
    let (format, frame) = (asked.params.format()?, asked.frame()?);
    let (time, previous) = asked.points()?;
    let reading = asked.answer(&api, Counted::Amounts, time).await?;
    let series = answer::series(reading, &frame, previous)?;
    Ok(format.answer(series, |series| {
        let previous = series.previous.as_deref();
        csv::points(
            "at,count,source",
            &series.points,
            previous,
            &series.provenance,
        )
    }))
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
        Filters,
        Times,
        ("prefer" = Option<String>, Query, description = "batch, realtime or merged, in each row"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of the ranking", body = Breakdown),
        (status = 304, description = "The same as the answer that If-None-Match names"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn breakdown(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let own = ["compare", "by", "prefer", "limit", "cursor", "format"];
    let asked = Asked::read(&api, &metric, &uri, &own)?;
    let query = PageQuery::of(&asked.params, LIMIT_DEFAULT, LIMIT_MAX)?;
    let (by, frame) = (asked.by()?, asked.frame()?);
    let fingerprint = cursor::fingerprint(&format!(
        "breakdown {} {} {:?}",
        asked.metric.name,
        asked.params.question(),
        asked.resolved.range
    ));
    let after = query.start(fingerprint, cursor::place)?;
    let reading = asked.whole(&api, Counted::By(by.to_owned())).await?;
    let page = answer::breakdown(reading, &frame, after.as_ref(), query.limit)?;
    let last = page.last.as_ref();
    let next = last.map(|place| cursor::after_place(fingerprint, place));
    let breakdown = Breakdown {
        rows: page.rows,
        total: page.total,
        cursor: next.clone(),
        range: frame.shown(),
        provenance: page.provenance,
    };
    Ok(query.answer(&uri, next.as_deref(), breakdown, |page| {
        csv::rows(&page.rows, &page.provenance, frame.compared)
    }))
}

/// How many different listeners there are, about: a sketch of fixed size, whose error the answer states.
/// Such numbers are never added up: whoever comes on two days is one.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/uniques",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("of" = Option<String>, Query, description = "listener"),
        Filters,
        Times,
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The number", body = Uniques),
        (status = 304, description = "The same as the answer that If-None-Match names"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn uniques(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Asked::read(&api, &metric, &uri, &["compare", "of", "format"])?;
    let (format, (name, column)) = (asked.params.format()?, asked.of()?);
    let reading = asked.whole(&api, Counted::Distinct(column)).await?;
    let uniques = answer::uniques(reading, &asked.frame()?, &name);
    Ok(format.answer(uniques, |uniques| csv::unique(&uniques)))
}

/// A chart of how many different listeners each local hour, day, week or month has, about. At most 1,000
/// points.
#[utoipa::path(
    get,
    path = "/api/v1/stats/{metric}/uniques/series",
    tag = "stats",
    params(
        ("metric" = String, Path, description = "plays"),
        ("of" = Option<String>, Query, description = "listener"),
        ("interval" = Option<String>, Query, description = "hour, day, week or month; day if left out"),
        Filters,
        Times,
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The points", body = UniquesSeries),
        (status = 304, description = "The same as the answer that If-None-Match names"),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn uniques_series(
    State(api): State<Arc<Api>>,
    Path(metric): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let asked = Asked::read(
        &api,
        &metric,
        &uri,
        &["compare", "of", "interval", "format"],
    )?;
    let (format, frame) = (asked.params.format()?, asked.frame()?);
    let (name, column) = asked.of()?;
    let (time, previous) = asked.points()?;
    let reading = asked.answer(&api, Counted::Distinct(column), time).await?;
    let series = answer::uniques_series(reading, &frame, &name, previous);
    Ok(format.answer(series, |series| {
        let (header, previous) = ("at,count,relative_error,source", series.previous.as_deref());
        csv::points(header, &series.points, previous, &series.provenance)
    }))
}

fn unknown(api: &Api, name: &str) -> Problem {
    let known: Vec<&str> = api.metrics.keys().map(String::as_str).collect();
    let known = known.join(", ");
    Kind::UnknownMetric.with_detail(format!("there is no metric {name:?}; there is: {known}"))
}

/// What is counted: amounts, amounts by the values of a column, or different values of one.
enum Counted {
    Amounts,
    By(String),
    Distinct(String),
    /// Amounts, with the rows that they are made of.
    Rows,
}

/// Whether a read may have many values, each with a count or a sketch: few of these are in memory at once.
fn has_many(question: &Question) -> bool {
    let is_series = match &question.time {
        Time::Segments(segments) => segments.len() > 2,
        Time::Open(_) => true,
    };
    question.by.is_some() || question.explains || (question.distinct.is_some() && is_series)
}

/// A request for statistics, read but not yet answered.
pub(super) struct Asked<'a> {
    pub(super) metric: &'a Metric,
    pub(super) params: Params,
    resolved: Resolved,
}

impl<'a> Asked<'a> {
    pub(super) fn read(api: &'a Api, name: &str, uri: &Uri, own: &[&str]) -> Result<Self, Problem> {
        let metric = api.metrics.get(name).ok_or_else(|| unknown(api, name))?;
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

    fn prefer(&self) -> Result<Prefer, Problem> {
        let choices = [
            ("batch", Prefer::Batch),
            ("realtime", Prefer::Realtime),
            ("merged", Prefer::Newest),
        ];
        let prefer = self.params.choice("prefer", &choices)?;
        Ok(prefer.unwrap_or(Prefer::Newest))
    }

    pub(super) fn frame(&self) -> Result<Frame, Problem> {
        Ok(Frame {
            range: self.resolved.range,
            running: self.resolved.running,
            compared: self.params.get("compare").is_some(),
            prefer: self.prefer()?,
        })
    }

    /// What different values are counted of: its name and its column.
    fn of(&self) -> Result<(String, String), Problem> {
        let of = self.params.get("of");
        let column = self.metric.distinct_column(of).ok_or_else(|| {
            let names = self.metric.distinct_names().join(", ");
            let given = of.map_or_else(|| "of is left out".to_owned(), |of| format!("of={of:?}"));
            Problem::parameter(if names.is_empty() {
                format!("no different values are counted of {}", self.metric.name)
            } else {
                format!("{given}: write one of {names}")
            })
        })?;
        Ok((by_name(column).to_owned(), column.to_owned()))
    }

    /// What the rows are that the total is made of.
    pub(super) async fn rows(&self, api: &Arc<Api>) -> Result<Reading, Problem> {
        let segments = Segments::new(vec![self.resolved.range]);
        self.answer(api, Counted::Rows, Time::Segments(segments))
            .await
    }

    /// Reads the period, and the one before if it was asked for, each as a whole.
    async fn whole(&self, api: &Arc<Api>, counted: Counted) -> Result<Reading, Problem> {
        let segments = Segments::new(self.ranges().collect());
        self.answer(api, counted, Time::Segments(segments)).await
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

    async fn answer(
        &self,
        api: &Arc<Api>,
        counted: Counted,
        time: Time,
    ) -> Result<Reading, Problem> {
        let explains = matches!(counted, Counted::Rows);
        let (by, distinct) = match counted {
            Counted::Amounts | Counted::Rows => (None, None),
            Counted::By(column) => (Some(column), None),
            Counted::Distinct(column) => (None, Some(column)),
        };
        let question = Question {
            filters: self.params.filters(self.metric)?,
            by,
            distinct,
            explains,
            prefer: self.prefer()?,
            time,
        };
        let has_many = has_many(&question);
        let key = key_of(&(&self.metric.name, format!("{question:?}")));
        let (api, name) = (Arc::clone(api), self.metric.name.clone());
        let gathered = Arc::clone(&api);
        let read = async move {
            let metric = api.metrics.get(&name).ok_or_else(|| unknown(&api, &name))?;
            // Those wait for their own, so that others do not wait behind them.
            let _large = match has_many {
                true => Some(api.large_tallies.acquire().await),
                false => None,
            };
            let _place = api.tallies.acquire().await;
            let stores = (&api.ports, &api.memory);
            let reading = read(stores, metric, &question, api.options.whole_wait()).await;
            Ok(Arc::new(api.kept_tallies.or_kept(key, reading)?))
        };
        let reading = gathered.tally_reads.read(key, read).await?;
        Ok(Arc::unwrap_or_clone(reading))
    }
}
