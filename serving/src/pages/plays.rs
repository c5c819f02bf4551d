//! The plays of an owner or a track: how many, over time, and counted apart.

use askama::Template;
use axum::response::Response;
use futures::future::join_all;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use schemas::time::Interval;
use stores::names::Named;

use super::ask::{Answer, ApiClient, ApiError, Called, path};
use super::chart::Chart;
use super::found::page_of;
use super::parts::{Choice, Frame, From, Tools, answered, choices, kind_title, share, tabs};
use super::query::Query;
use super::shown::{Change, Moment, key, number, percent};
use super::{Number, api};
use crate::http::Caller;
use crate::metric::by_name;

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
const KINDS: [(&str, &str); 3] = [("", "All"), ("play", "Plays"), ("download", "Downloads")];
const BYS: [(&str, &str); 6] = [
    ("track", "Track"),
    ("country", "Country"),
    ("referrer", "Referrer"),
    ("app", "App"),
    ("listener", "Listener"),
    ("owner", "Owner"),
];
/// Filters that are kept from page to page, besides the kind.
const FILTERS: [&str; 6] = [
    "owner_id",
    "track_id",
    "country",
    "referrer",
    "app_id",
    "listener_id",
];
/// Rows of a breakdown.
const ROWS: &str = "20";

#[derive(Debug, Template)]
#[template(path = "plays.html")]
struct PlaysPage {
    frame: Frame,
    asked: Asked,
    called: AllCalled,
    heading: String,
    /// What is shown by number, where the heading has its name.
    number: Option<String>,
    range: String,
    tiles: Vec<Tile>,
    /// Where the same period before and after this one is shown.
    around: (Option<String>, Option<String>),
    series: Answer<SeriesShown>,
    apart: Answer<api::Breakdown>,
    apart_tools: Tools,
}

impl PlaysPage {
    fn error(&self) -> Option<&ApiError> {
        // The total is the first of them.
        self.tiles.first()?.shown.as_ref().err()
    }

    /// Why nothing of the page is answered: each part would say the same.
    fn refused(&self) -> Option<&ApiError> {
        self.error().filter(|error| error.is_refusal())
    }

    fn apart_title(&self) -> &'static str {
        let title = BYS.iter().find(|(by, _)| *by == self.asked.by);
        title.map_or("Value", |(_, title)| title)
    }

    /// The name of a row, or its key.
    fn name(&self, row: &api::Row) -> String {
        match row_id(row).and_then(|id| self.called.rows.get(id)) {
            Some(name) => name.to_owned(),
            None => key(&row.key_text().into()),
        }
    }

    /// This page, filtered by a row.
    fn link(&self, row: &api::Row) -> Option<String> {
        let value = row.key_text().filter(|value| !value.is_empty())?;
        let filter = filter_of(&self.asked.by)?;
        let changes = [(filter, Some(value.as_str())), ("cursor", None)];
        Some(self.asked.link(&changes))
    }
}

/// What plays are filtered by, and where to go without it.
#[derive(Debug)]
struct Filter {
    title: String,
    /// Nothing where the key permits no more.
    link: Option<String>,
    /// The page of what it names.
    page: Option<String>,
}

/// A number with where it comes from.
#[derive(Debug)]
pub(super) struct Tile {
    pub(super) title: &'static str,
    pub(super) shown: Answer<TileShown>,
    pub(super) tools: Tools,
}

#[derive(Debug)]
pub(super) struct TileShown {
    pub(super) value: String,
    pub(super) note: Option<String>,
    pub(super) change: Option<Change>,
    pub(super) from: From,
}

#[derive(Debug)]
pub(super) struct SeriesShown {
    pub(super) chart: Option<Chart>,
    pub(super) from: From,
    pub(super) tools: Tools,
}

/// What is asked, as the page's address says it.
#[derive(Debug)]
struct Asked {
    /// An owner or a track.
    of: Named,
    id: String,
    query: Query,
    /// Of whose plays of a track alone is read, where that is not all.
    owner: Option<String>,
    period: String,
    interval: String,
    by: String,
}

impl Asked {
    fn new(of: Named, id: String, query: Query, caller: &Caller) -> Self {
        let is_custom = query.get("from").is_some() || query.get("to").is_some();
        let chosen = query.get("period");
        // A form sends what was chosen before, too.
        let is_as_before = query
            .get("shown")
            .is_some_and(|shown| chosen == Some(shown));
        let period = match chosen {
            Some(_) if is_custom && is_as_before => "custom",
            Some(period) if period != "custom" || is_custom => period,
            _ if is_custom => "custom",
            _ => "30d",
        };
        let interval = query.get("interval").unwrap_or(match period {
            "today" => "hour",
            "year" | "all" => "month",
            _ => "day",
        });
        let by = query.get("by").unwrap_or(match of {
            Named::Owner => "track",
            _ => "country",
        });
        let owner = query.get("owner_id").or_else(|| caller.only_owner());
        Self {
            of,
            id,
            owner: owner.map(str::to_owned),
            period: period.to_owned(),
            interval: interval.to_owned(),
            by: by.to_owned(),
            query,
        }
    }

    /// The parameter of the API that names what the page is of.
    fn parameter(&self) -> String {
        format!("{}_id", self.of.name())
    }

    /// A path of the API for the same filters and period, and some parameters more.
    fn path(&self, what: &str, more: &[(&str, Option<&str>)]) -> String {
        let (own, is_custom) = (self.parameter(), self.period == "custom");
        let mut parameters = vec![
            (own.as_str(), Some(self.id.as_str())),
            ("kind", self.query.get("kind")),
            ("tz", self.query.get("tz")),
            ("period", (!is_custom).then_some(self.period.as_str())),
            ("date", self.anchor()),
            ("from", self.date("from")),
            ("to", self.date("to")),
        ];
        for filter in FILTERS {
            let value = match filter {
                "owner_id" => self.owner.as_deref(),
                other => self.query.get(other),
            };
            if filter != own {
                parameters.push((filter, value));
            }
        }
        parameters.extend(more);
        path(&format!("/api/v1/stats/plays/{what}"), &parameters)
    }

    /// The day that the period is about, where that is not today and the period has such a day.
    fn anchor(&self) -> Option<&str> {
        let has_anchor = !matches!(self.period.as_str(), "all" | "custom");
        self.query.get("date").filter(|_| has_anchor)
    }

    /// A date that bounds the period, if dates do.
    fn date(&self, name: &str) -> Option<&str> {
        self.query.get(name).filter(|_| self.period == "custom")
    }

    /// This page with something else in its address.
    fn link(&self, changes: &[(&str, Option<&str>)]) -> String {
        self.query.with(&page_of(self.of.name(), &self.id), changes)
    }

    /// This page with further rows.
    fn after(&self, cursor: &str) -> String {
        self.link(&[("cursor", Some(cursor))])
    }

    fn compares(&self) -> bool {
        self.query.get("compare") == Some("previous") && self.period != "all"
    }

    fn compare(&self) -> (&'static str, Option<&'static str>) {
        ("compare", self.compares().then_some("previous"))
    }

    /// What a form keeps of the page's address.
    fn hidden(&self) -> Vec<(&'static str, &str)> {
        let own = self.parameter();
        let kept = FILTERS.into_iter().chain(["by", "date"]);
        let kept = kept.filter(|name| *name != own);
        kept.filter_map(|name| Some((name, self.query.get(name)?)))
            .collect()
    }

    /// By what plays are counted apart.
    fn bys(&self) -> Vec<Choice> {
        let page = page_of(self.of.name(), &self.id);
        let others = BYS.iter().filter(|(by, _)| *by != self.of.name());
        tabs((&self.query, &page, "by"), others, &self.by)
    }
}

/// All zones, and the one that is chosen.
fn zone(query: &Query) -> TimeZone {
    let named = query.get("tz").and_then(|name| TimeZone::get(name).ok());
    named.unwrap_or(TimeZone::UTC)
}

pub(super) async fn owner(client: ApiClient, Number(id): Number, query: Query) -> Response {
    let asked = Asked::new(Named::Owner, id, query, &client.caller);
    page(&client, asked).await
}

pub(super) async fn track(client: ApiClient, Number(id): Number, query: Query) -> Response {
    let asked = Asked::new(Named::Track, id, query, &client.caller);
    page(&client, asked).await
}

async fn page(client: &ApiClient, asked: Asked) -> Response {
    let zone = zone(&asked.query);
    let total_path = asked.path("total", &[asked.compare()]);
    let uniques_path = asked.path("uniques", &[asked.compare()]);
    let interval = ("interval", Some(asked.interval.as_str()));
    let series_path = asked.path("series", &[interval, asked.compare()]);
    let by = [
        ("by", Some(asked.by.as_str())),
        ("limit", Some(ROWS)),
        asked.compare(),
        ("cursor", asked.query.get("cursor")),
    ];
    let apart_path = asked.path("breakdown", &by[..3]);
    let more_path = asked.path("breakdown", &by);
    let (total, uniques, series, apart) = tokio::join!(
        client.get::<api::Total>(&total_path),
        client.get::<api::Uniques>(&uniques_path),
        client.get::<api::Series>(&series_path),
        client.get::<api::Breakdown>(&more_path),
    );
    let called = names(client, &asked, total.is_ok(), apart.as_ref().ok()).await;
    let tools = |of: &str, is_paged: bool| client.tools(of, is_paged);
    let range = series.as_ref().ok().and_then(|found| range(found, &zone));
    let step = (asked.interval.parse().unwrap_or(Interval::Day), &zone);
    let (what, name) = (asked.of.name(), called.own.clone());
    let numbered = format!("{what} {}", asked.id);
    let title = format!("{} {}", kind_title(asked.of), asked.id);
    let page = PlaysPage {
        frame: Frame::new(name.clone().unwrap_or(title), "plays", &client.caller)
            .following("plays")
            .of_kind(what)
            .with_keys(&[
                ("d", "period"),
                ("i", "interval"),
                ("z", "zone"),
                ("x", "compare"),
            ]),
        heading: format!("Plays of {}", name.as_ref().unwrap_or(&numbered)),
        number: name.is_some().then_some(numbered),
        range: range.unwrap_or_default(),
        tiles: vec![
            total_tile("Plays", total, tools(&total_path, false)),
            uniques_tile(uniques, tools(&uniques_path, false)),
        ],
        around: around(&asked, client.now(), &zone),
        series: series.map(|found| series_shown(&found, step, tools(&series_path, false))),
        apart_tools: tools(&apart_path, true),
        apart,
        asked,
        called,
    };
    answered(&page, page.error())
}

/// What has a name among what plays are counted apart by.
fn named(by: &str) -> Option<Named> {
    match by {
        "track" => Some(Named::Track),
        "owner" => Some(Named::Owner),
        "app" => Some(Named::Application),
        _ => None,
    }
}

/// What is called somehow on a page.
#[derive(Debug)]
struct AllCalled {
    /// Whose page it is.
    own: Option<String>,
    /// What its plays are counted apart by.
    rows: Called,
    /// What filters name, by parameter.
    filters: Vec<(&'static str, String)>,
}

/// What things on a page are called; nothing is told to who does not read them.
async fn names(
    client: &ApiClient,
    asked: &Asked,
    is_read: bool,
    apart: Option<&api::Breakdown>,
) -> AllCalled {
    // An owner is answered about any track, with what this owner has of it: nothing, of another's.
    let is_told = is_read && (asked.of == Named::Owner || client.caller.may_read_all());
    let id = crate::http::integer(&asked.id).filter(|_| is_told);
    let rows = async {
        let Some((by, apart)) = named(&asked.by).zip(apart) else {
            return Called::default();
        };
        let ids = apart.rows.iter().filter_map(row_id);
        client.names(by, ids.collect::<Vec<i64>>()).await
    };
    // By a filter an owner would hear what another's track is called.
    let may_hear = is_read && client.caller.may_read_all();
    let filters = FILTERS.into_iter().filter_map(|parameter| {
        let of = named(by_name(parameter))?;
        let value = asked.query.get(parameter).filter(|_| may_hear)?;
        let id = crate::http::integer(value)?;
        Some(async move {
            let name = client.names(of, [id]).await.get(id)?.to_owned();
            Some((parameter, name))
        })
    });
    let (own, rows, filters) = tokio::join!(client.names(asked.of, id), rows, join_all(filters));
    AllCalled {
        own: id.and_then(|id| own.get(id).map(str::to_owned)),
        rows,
        filters: filters.into_iter().flatten().collect(),
    }
}

pub(super) fn total_tile(title: &'static str, total: Answer<api::Total>, tools: Tools) -> Tile {
    let shown = total.map(|total| TileShown {
        value: number(total.count),
        note: total
            .previous
            .flatten()
            .map(|before| format!("{} before", number(before))),
        change: total.change.flatten().map(Change::of),
        from: From::of(&total.provenance),
    });
    Tile {
        title,
        shown,
        tools,
    }
}

fn uniques_tile(uniques: Answer<api::Uniques>, tools: Tools) -> Tile {
    let shown = uniques.map(|uniques| TileShown {
        value: number(uniques.count),
        note: (uniques.relative_error > 0.0)
            .then(|| format!("give or take {}", percent(uniques.relative_error))),
        change: uniques.change.flatten().map(Change::of),
        from: From::of(&uniques.provenance),
    });
    Tile {
        title: "Different listeners, about",
        shown,
        tools,
    }
}

pub(super) fn series_shown(
    series: &api::Series,
    by: (Interval, &TimeZone),
    tools: Tools,
) -> SeriesShown {
    SeriesShown {
        chart: Chart::of(&series.points, series.previous.as_deref(), by),
        from: From::of(&series.provenance),
        tools,
    }
}

/// The names of all zones.
fn zones() -> Vec<String> {
    let known = jiff::tz::db().available();
    known.map(|name| name.to_string()).collect()
}

fn range(series: &api::Series, zone: &TimeZone) -> Option<String> {
    let first = Moment::of(&series.points.first()?.at, zone).text;
    let last = Moment::of(series.range.to.as_deref()?, zone).text;
    Some(format!("{first} to {last}"))
}

fn filters(asked: &Asked, called: &[(&str, String)]) -> Vec<Filter> {
    let own = asked.parameter();
    let found = FILTERS.into_iter().filter(|name| *name != own);
    let found = found.filter_map(|name| {
        let asked_for = asked.query.get(name);
        let by_key = asked.owner.as_deref().filter(|_| name == "owner_id");
        let id = asked_for.or(by_key)?;
        let known = called.iter().find(|(of, _)| *of == name);
        let value = known.map_or(id, |(_, called)| called.as_str());
        let page = named(by_name(name)).filter(|_| crate::http::integer(id).is_some());
        Some(Filter {
            page: page.map(|of| page_of(of.name(), id)),
            title: format!("{}: {value}", by_name(name)),
            link: asked_for.map(|_| asked.link(&[(name, None), ("cursor", None)])),
        })
    });
    let date = asked.anchor().map(|date| Filter {
        title: format!("on {date}"),
        link: Some(asked.link(&[("date", None), ("cursor", None)])),
        page: None,
    });
    found.chain(date).collect()
}

/// The same period before this one, and after it where that has begun.
fn around(asked: &Asked, now: Timestamp, zone: &TimeZone) -> (Option<String>, Option<String>) {
    let step = match asked.period.as_str() {
        "today" => 1.day(),
        "7d" => 7.days(),
        "30d" => 30.days(),
        "month" => 1.month(),
        "year" => 1.year(),
        _ => return (None, None),
    };
    let today = now.to_zoned(zone.clone()).date();
    let date = match asked.query.get("date") {
        None => today,
        Some(date) => match date.parse::<Date>() {
            Ok(date) => date,
            Err(_) => return (None, None),
        },
    };
    let link = |date: Date| {
        let date = (date < today).then(|| date.to_string());
        asked.link(&[("date", date.as_deref()), ("cursor", None)])
    };
    // The last day of what is shown: another period comes after it once that is over.
    let last = match asked.period.as_str() {
        "month" => date.last_of_month(),
        "year" => date.last_of_year(),
        _ => date,
    };
    let before = date.checked_sub(step).ok();
    let after = date.checked_add(step).ok().filter(|_| last < today);
    (before.map(link), after.map(link))
}

/// The parameter that filters by what is counted apart.
fn filter_of(by: &str) -> Option<&'static str> {
    FILTERS.into_iter().find(|filter| by_name(filter) == by)
}

/// The id that a row is of, if it is of one.
const fn row_id(row: &api::Row) -> Option<i64> {
    match row.key {
        Some(api::RowKey::Int(id)) => Some(id),
        _ => None,
    }
}
