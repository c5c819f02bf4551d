//! The pages of an owner's or track's plays: totals, series and breakdown.

use askama::Template;
use axum::response::Response;
use futures::future::join_all;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use schemas::time::Interval;
use stores::names::NamedKind;

use super::api;
use super::api_error::{ApiError, ApiResult};
use super::chart::Chart;
use super::client::{ApiClient, EntityNames};
use super::components::{
    Choice, ExportLinks, PageContext, ProvenanceLabel, build_choices, build_tabs, format_share,
    kind_title, render_page,
};
use super::extractors::Number;
use super::formatting::{Change, Moment, format_key, format_number, format_percent};
use super::query::{Query, entity_path, path_with_query};
use crate::metric::parameter_name;

const PERIODS: [(&str, &str); 7] = [
    ("today", "Today"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("month", "This month"),
    ("year", "This year"),
    ("all", "All time"),
    ("custom", "From … to …"),
];
const INTERVALS: [(&str, &str); 4] = [
    ("hour", "Hour"),
    ("day", "Day"),
    ("week", "Week"),
    ("month", "Month"),
];
const KINDS: [(&str, &str); 3] = [
    ("play", "Plays"),
    ("download", "Downloads"),
    (ALL_KINDS, "Plays and downloads"),
];
/// Value of the page's parameter `kind` for all kinds. The API has none.
const ALL_KINDS: &str = "all";
const BREAKDOWNS: [(&str, &str); 6] = [
    ("track", "Track"),
    ("country", "Country"),
    ("referrer", "Referrer"),
    ("app", "App"),
    ("listener", "Listener"),
    ("owner", "Owner"),
];
/// Filters that links keep, besides the kind.
const FILTERS: [&str; 6] = [
    "owner_id",
    "track_id",
    "country",
    "referrer",
    "app_id",
    "listener_id",
];
/// Rows of a breakdown.
const BREAKDOWN_ROWS: &str = "20";

#[derive(Debug, Template)]
#[template(path = "plays.html")]
struct PlaysPage {
    context: PageContext,
    request: PlaysPageRequest,
    names: PageNames,
    heading: String,
    /// The number of the owner or track, if the heading has its name.
    number: Option<String>,
    range: String,
    tiles: Vec<Tile>,
    /// Links to the previous and the next period.
    adjacent_periods: (Option<String>, Option<String>),
    series: ApiResult<SeriesPart>,
    breakdown: ApiResult<api::Breakdown>,
    breakdown_export: ExportLinks,
}

impl PlaysPage {
    fn error(&self) -> Option<&ApiError> {
        // The total determines the status of the page.
        self.tiles.first()?.content.as_ref().err()
    }

    /// The error if the request is invalid: each part of the page would show the same one.
    fn request_error(&self) -> Option<&ApiError> {
        self.error().filter(|error| error.is_client_error())
    }

    fn breakdown_title(&self) -> &'static str {
        let title = BREAKDOWNS.iter().find(|(by, _)| *by == self.request.by);
        title.map_or("Value", |(_, title)| title)
    }

    /// The name of a row, or its key.
    fn name(&self, row: &api::BreakdownRow) -> String {
        match row_id(row).and_then(|id| self.names.rows.get(id)) {
            Some(name) => name.to_owned(),
            None => format_key(&row.key_text().into()),
        }
    }

    /// Link to this page, filtered by a row.
    fn link(&self, row: &api::BreakdownRow) -> Option<String> {
        let value = row.key_text().filter(|value| !value.is_empty())?;
        let filter = filter_parameter(&self.request.by)?;
        let changes = [(filter, Some(value.as_str())), ("cursor", None)];
        Some(self.request.link(&changes))
    }
}

/// An active filter, with a link that removes it.
#[derive(Debug)]
struct Filter {
    title: String,
    /// `None` if the key does not permit to remove the filter.
    link: Option<String>,
    /// Page of the entity that the filter names.
    page: Option<String>,
}

/// A number with its provenance.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) title: String,
    pub(super) content: ApiResult<TileContent>,
    pub(super) export: ExportLinks,
}

#[derive(Debug)]
pub(super) struct TileContent {
    pub(super) value: String,
    /// Standard error of an estimate.
    pub(super) error: Option<String>,
    /// The value of the previous period, if requested.
    pub(super) previous: Option<String>,
    pub(super) change: Option<Change>,
    pub(super) provenance: ProvenanceLabel,
}

#[derive(Debug)]
pub(super) struct SeriesPart {
    pub(super) chart: Option<Chart>,
    pub(super) provenance: ProvenanceLabel,
    pub(super) export: ExportLinks,
}

/// Parameters of the page.
#[derive(Debug)]
struct PlaysPageRequest {
    /// An owner or a track.
    kind: NamedKind,
    id: String,
    query: Query,
    /// The kind of events; `None` if the metric has no column for it.
    event_kind: Option<String>,
    /// Owner whose plays of a track are shown, if not all.
    owner: Option<String>,
    period: String,
    interval: String,
    by: String,
}

impl PlaysPageRequest {
    fn new(kind: NamedKind, id: String, query: Query, client: &ApiClient) -> Self {
        let is_custom = query.get("from").is_some() || query.get("to").is_some();
        let selected = query.get("period");
        // A form also sends the previous selection.
        let is_unchanged = query
            .get("shown")
            .is_some_and(|shown| selected == Some(shown));
        let period = match selected {
            Some(_) if is_custom && is_unchanged => "custom",
            Some(period) if period != "custom" || is_custom => period,
            _ if is_custom => "custom",
            _ => "30d",
        };
        let interval = query.get("interval").unwrap_or(match period {
            "today" => "hour",
            "year" | "all" => "month",
            _ => "day",
        });
        let by = query.get("by").unwrap_or(match kind {
            NamedKind::Owner => "track",
            _ => "country",
        });
        let owner = query.get("owner_id");
        let owner = owner.or_else(|| client.caller.only_owner());
        let event_kind = query.get("kind").unwrap_or("play");
        let has_kinds = client.has_column("plays", "kind");
        Self {
            kind,
            id,
            event_kind: has_kinds.then(|| event_kind.to_owned()),
            owner: owner.map(str::to_owned),
            period: period.to_owned(),
            interval: interval.to_owned(),
            by: by.to_owned(),
            query,
        }
    }

    /// The API parameter that selects the owner or track.
    fn parameter(&self) -> String {
        format!("{}_id", self.kind.name())
    }

    /// API path with the same filters and period, and additional parameters.
    fn api_path(&self, endpoint: &str, additional: &[(&str, Option<&str>)]) -> String {
        let (entity_parameter, is_custom) = (self.parameter(), self.period == "custom");
        let event_kind = self.event_kind.as_deref();
        let mut parameters = vec![
            (entity_parameter.as_str(), Some(self.id.as_str())),
            ("kind", event_kind.filter(|kind| *kind != ALL_KINDS)),
            ("tz", self.query.get("tz")),
            ("period", (!is_custom).then_some(self.period.as_str())),
            ("date", self.anchor_date()),
            ("from", self.custom_date("from")),
            ("to", self.custom_date("to")),
        ];
        for filter in FILTERS {
            let value = match filter {
                "owner_id" => self.owner.as_deref(),
                other => self.query.get(other),
            };
            if filter != entity_parameter {
                parameters.push((filter, value));
            }
        }
        parameters.extend(additional);
        path_with_query(&format!("/api/v1/stats/plays/{endpoint}"), &parameters)
    }

    /// The events that the numbers of the page count.
    fn counted_events(&self) -> &str {
        let Some(event_kind) = self.event_kind.as_deref() else {
            return "Plays";
        };
        let title = KINDS.iter().find(|(kind, _)| *kind == event_kind);
        title.map_or(event_kind, |(_, title)| title)
    }

    /// The text for a period without events.
    fn empty_text(&self) -> String {
        let events = self.counted_events().to_lowercase();
        format!("No {events} in this period: choose a longer one.")
    }

    /// The date that determines the period, if it is not today and the period depends on it.
    fn anchor_date(&self) -> Option<&str> {
        let has_anchor = !matches!(self.period.as_str(), "all" | "custom");
        self.query.get("date").filter(|_| has_anchor)
    }

    /// A bound of a custom period.
    fn custom_date(&self, name: &str) -> Option<&str> {
        self.query.get(name).filter(|_| self.period == "custom")
    }

    /// Link to this page with changed parameters.
    fn link(&self, changes: &[(&str, Option<&str>)]) -> String {
        self.query
            .link_with(&entity_path(self.kind.name(), &self.id), changes)
    }

    /// Link to the next page of the breakdown.
    fn next_link(&self, cursor: &str) -> String {
        self.link(&[("cursor", Some(cursor))])
    }

    fn is_compared(&self) -> bool {
        self.query.get("compare") == Some("previous") && self.period != "all"
    }

    fn compare_parameter(&self) -> (&'static str, Option<&'static str>) {
        ("compare", self.is_compared().then_some("previous"))
    }

    /// Parameters that the form submits as hidden fields.
    fn hidden_fields(&self) -> Vec<(&'static str, &str)> {
        let entity_parameter = self.parameter();
        let parameters = FILTERS.into_iter().chain(["by", "date"]);
        let parameters = parameters.filter(|name| *name != entity_parameter);
        parameters
            .filter_map(|name| Some((name, self.query.get(name)?)))
            .collect()
    }

    /// Links that change the breakdown.
    fn breakdown_tabs(&self) -> Vec<Choice> {
        let page = entity_path(self.kind.name(), &self.id);
        let others = BREAKDOWNS.iter().filter(|(by, _)| *by != self.kind.name());
        build_tabs(&self.query, &page, "by", others, &self.by)
    }
}

/// The selected time zone.
fn selected_zone(query: &Query) -> TimeZone {
    let zone = query.get("tz").and_then(|name| TimeZone::get(name).ok());
    zone.unwrap_or(TimeZone::UTC)
}

pub(super) async fn owner(client: ApiClient, Number(id): Number, query: Query) -> Response {
    let request = PlaysPageRequest::new(NamedKind::Owner, id, query, &client);
    page(&client, request).await
}

pub(super) async fn track(client: ApiClient, Number(id): Number, query: Query) -> Response {
    let request = PlaysPageRequest::new(NamedKind::Track, id, query, &client);
    page(&client, request).await
}

async fn page(client: &ApiClient, request: PlaysPageRequest) -> Response {
    let zone = selected_zone(&request.query);
    let total_path = request.api_path("total", &[request.compare_parameter()]);
    let uniques_path = request.api_path("uniques", &[request.compare_parameter()]);
    let interval = ("interval", Some(request.interval.as_str()));
    let series_path = request.api_path("series", &[interval, request.compare_parameter()]);
    let breakdown_parameters = [
        ("by", Some(request.by.as_str())),
        ("limit", Some(BREAKDOWN_ROWS)),
        request.compare_parameter(),
        ("cursor", request.query.get("cursor")),
    ];
    let breakdown_path = request.api_path("breakdown", &breakdown_parameters[..3]);
    let breakdown_page_path = request.api_path("breakdown", &breakdown_parameters);
    let (total, uniques, series, breakdown) = tokio::join!(
        client.get::<api::Total>(&total_path),
        client.get::<api::Uniques>(&uniques_path),
        client.get::<api::Series>(&series_path),
        client.get::<api::Breakdown>(&breakdown_page_path),
    );
    let names = read_names(client, &request, total.is_ok(), breakdown.as_ref().ok()).await;
    let export_links = |path: &str, is_paged: bool| client.export_links(path, is_paged);
    let range = series
        .as_ref()
        .ok()
        .and_then(|series| format_range(series, &zone));
    let point_interval = request.interval.parse().unwrap_or(Interval::Day);
    let (kind, name) = (request.kind.name(), names.entity.clone());
    let events = request.counted_events().to_owned();
    let numbered = format!("{kind} {}", request.id);
    let title = format!("{} {}", kind_title(request.kind), request.id);
    let page = PlaysPage {
        context: PageContext::new(name.clone().unwrap_or(title), "plays", &client.caller)
            .follow("plays")
            .with_kind(kind)
            .with_shortcuts(&[
                ("d", "period"),
                ("i", "interval"),
                ("z", "zone"),
                ("x", "compare"),
            ]),
        heading: format!("{events} of {}", name.as_ref().unwrap_or(&numbered)),
        number: name.is_some().then_some(numbered),
        range: range.unwrap_or_default(),
        tiles: vec![
            build_total_tile(&events, total, export_links(&total_path, false)),
            build_uniques_tile(uniques, export_links(&uniques_path, false)),
        ],
        adjacent_periods: adjacent_periods(&request, client.now(), &zone),
        series: series.map(|series| {
            build_series_part(
                &series,
                point_interval,
                &zone,
                export_links(&series_path, false),
            )
        }),
        breakdown_export: export_links(&breakdown_path, true),
        breakdown,
        request,
        names,
    };
    render_page(&page, page.error())
}

/// The kind of entity whose names a breakdown shows.
fn entity_kind(by: &str) -> Option<NamedKind> {
    match by {
        "track" => Some(NamedKind::Track),
        "owner" => Some(NamedKind::Owner),
        "app" => Some(NamedKind::Application),
        _ => None,
    }
}

/// Names on a page.
#[derive(Debug)]
struct PageNames {
    /// Name of the owner or track.
    entity: Option<String>,
    /// Names of the breakdown's rows.
    rows: EntityNames,
    /// Names in filters, by parameter.
    filters: Vec<(&'static str, String)>,
}

/// Reads the names on a page that the caller may read.
async fn read_names(
    client: &ApiClient,
    request: &PlaysPageRequest,
    is_read: bool,
    breakdown: Option<&api::Breakdown>,
) -> PageNames {
    // The API answers an owner about any track, with 0 for tracks of others: their names stay
    // hidden.
    let may_read_name =
        is_read && (request.kind == NamedKind::Owner || client.caller.may_read_all());
    let id = crate::http::parse_integer(&request.id).filter(|_| may_read_name);
    let rows = async {
        let Some((by, breakdown)) = entity_kind(&request.by).zip(breakdown) else {
            return EntityNames::default();
        };
        let ids = breakdown.rows.iter().filter_map(row_id);
        client.fetch_names(by, ids.collect::<Vec<i64>>()).await
    };
    // A filter would disclose the name of another owner's track.
    let may_read_all_names = is_read && client.caller.may_read_all();
    let filters = FILTERS.into_iter().filter_map(|parameter| {
        let kind = entity_kind(parameter_name(parameter))?;
        let value = request
            .query
            .get(parameter)
            .filter(|_| may_read_all_names)?;
        let id = crate::http::parse_integer(value)?;
        Some(async move {
            let name = client.fetch_names(kind, [id]).await.get(id)?.to_owned();
            Some((parameter, name))
        })
    });
    let (entities, rows, filters) = tokio::join!(
        client.fetch_names(request.kind, id),
        rows,
        join_all(filters)
    );
    PageNames {
        entity: id.and_then(|id| entities.get(id).map(str::to_owned)),
        rows,
        filters: filters.into_iter().flatten().collect(),
    }
}

pub(super) fn build_total_tile(
    title: &str,
    total: ApiResult<api::Total>,
    export: ExportLinks,
) -> Tile {
    let content = total.map(|total| TileContent {
        value: format_number(total.count),
        error: None,
        previous: total.previous.flatten().map(format_number),
        change: total.change.flatten().map(Change::new),
        provenance: ProvenanceLabel::new(&total.provenance),
    });
    Tile {
        title: title.to_owned(),
        content,
        export,
    }
}

fn build_uniques_tile(uniques: ApiResult<api::Uniques>, export: ExportLinks) -> Tile {
    let is_estimate = |relative_error: f64| relative_error > 0.0;
    let format_estimate = |count: i64, relative_error: f64| {
        let sign = if is_estimate(relative_error) {
            "≈ "
        } else {
            ""
        };
        format!("{sign}{}", format_number(count))
    };
    let content = uniques.map(|uniques| TileContent {
        value: format_estimate(uniques.count, uniques.relative_error),
        error: is_estimate(uniques.relative_error)
            .then(|| format!("(±{})", format_percent(uniques.relative_error))),
        previous: uniques.previous.flatten().map(|previous| {
            let relative_error = uniques.previous_relative_error.flatten();
            format_estimate(previous, relative_error.unwrap_or_default())
        }),
        change: uniques.change.flatten().map(Change::new),
        provenance: ProvenanceLabel::new(&uniques.provenance),
    });
    Tile {
        title: "Unique listeners".to_owned(),
        content,
        export,
    }
}

pub(super) fn build_series_part(
    series: &api::Series,
    interval: Interval,
    zone: &TimeZone,
    export: ExportLinks,
) -> SeriesPart {
    SeriesPart {
        chart: Chart::new(&series.points, series.previous.as_deref(), interval, zone),
        provenance: ProvenanceLabel::new(&series.provenance),
        export,
    }
}

/// Lists the names of all time zones.
fn list_zones() -> Vec<String> {
    let zones = jiff::tz::db().available();
    zones.map(|name| name.to_string()).collect()
}

fn format_range(series: &api::Series, zone: &TimeZone) -> Option<String> {
    let first = Moment::new(&series.points.first()?.at, zone).text;
    let last = Moment::new(series.range.to.as_deref()?, zone).text;
    Some(format!("{first} to {last}"))
}

fn build_filters(request: &PlaysPageRequest, names: &[(&str, String)]) -> Vec<Filter> {
    let entity_parameter = request.parameter();
    let parameters = FILTERS.into_iter().filter(|name| *name != entity_parameter);
    let filters = parameters.filter_map(|name| {
        let removable = request.query.get(name);
        let required_owner = request.owner.as_deref().filter(|_| name == "owner_id");
        let id = removable.or(required_owner)?;
        let filter_name = names.iter().find(|(parameter, _)| *parameter == name);
        let value = filter_name.map_or(id, |(_, name)| name.as_str());
        let page =
            entity_kind(parameter_name(name)).filter(|_| crate::http::parse_integer(id).is_some());
        Some(Filter {
            page: page.map(|kind| {
                let event_kind = ("kind", request.query.get("kind"));
                path_with_query(&entity_path(kind.name(), id), &[event_kind])
            }),
            title: format!("{}: {value}", parameter_name(name)),
            link: removable.map(|_| request.link(&[(name, None), ("cursor", None)])),
        })
    });
    let date = request.anchor_date().map(|date| Filter {
        title: format!("on {date}"),
        link: Some(request.link(&[("date", None), ("cursor", None)])),
        page: None,
    });
    filters.chain(date).collect()
}

/// Links to the previous period, and to the next one if it has begun.
fn adjacent_periods(
    request: &PlaysPageRequest,
    now: Timestamp,
    zone: &TimeZone,
) -> (Option<String>, Option<String>) {
    let step = match request.period.as_str() {
        "today" => 1.day(),
        "7d" => 7.days(),
        "30d" => 30.days(),
        "month" => 1.month(),
        "year" => 1.year(),
        _ => return (None, None),
    };
    let today = now.to_zoned(zone.clone()).date();
    let date = match request.query.get("date") {
        None => today,
        Some(date) => match date.parse::<Date>() {
            Ok(date) => date,
            Err(_) => return (None, None),
        },
    };
    let link = |date: Date| {
        let date = (date < today).then(|| date.to_string());
        request.link(&[("date", date.as_deref()), ("cursor", None)])
    };
    // The last day of the shown period: the next period begins after it.
    let last = match request.period.as_str() {
        "month" => date.last_of_month(),
        "year" => date.last_of_year(),
        _ => date,
    };
    let previous = date.checked_sub(step).ok();
    let next = date.checked_add(step).ok().filter(|_| last < today);
    (previous.map(link), next.map(link))
}

/// The parameter that filters by a column of the breakdown.
fn filter_parameter(by: &str) -> Option<&'static str> {
    FILTERS
        .into_iter()
        .find(|filter| parameter_name(filter) == by)
}

/// The ID of a row, if its key is one.
const fn row_id(row: &api::BreakdownRow) -> Option<i64> {
    match row.key {
        Some(api::RowKey::Int(id)) => Some(id),
        _ => None,
    }
}
