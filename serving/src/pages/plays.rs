//! The plays of an owner or a track: how many, over time, and counted apart.

use askama::Template;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use stores::names::Named;

use super::api;
use super::ask::{Answer, ApiClient, ApiError, Called, path};
use super::chart::{Chart, Step};
use super::parts::{About, Choice, Frame, From, Tools, choices, share};
use super::query::Query;
use super::shown::{Change, Moment, key, number, percent};
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
pub(crate) struct PlaysPage {
    frame: Frame,
    heading: String,
    /// What is shown by number, where the heading has its name.
    number: Option<String>,
    range: String,
    periods: Vec<Choice>,
    intervals: Vec<Choice>,
    kinds: Vec<Choice>,
    from: String,
    to: String,
    tz: String,
    zones: Vec<String>,
    compares: bool,
    hidden: Vec<(String, String)>,
    filters: Vec<Filter>,
    tiles: Vec<Tile>,
    /// The period that is shown: whoever only writes dates into the form means these.
    shown: String,
    /// Where the same period before and after this one is shown.
    around: (Option<String>, Option<String>),
    series: Answer<SeriesShown>,
    apart_title: &'static str,
    bys: Vec<Choice>,
    apart: Answer<Apart>,
}

impl PlaysPage {
    /// Why nothing of the page is answered: each part would say the same.
    fn refused(&self) -> Option<&ApiError> {
        self.error().filter(|error| error.is_refusal())
    }
}

impl About for PlaysPage {
    fn error(&self) -> Option<&ApiError> {
        // The total is the first of them.
        self.tiles.first()?.shown.as_ref().err()
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

#[derive(Debug)]
struct Apart {
    rows: Vec<ApartRow>,
    from: From,
    more: Option<String>,
    tools: Tools,
}

#[derive(Debug)]
struct ApartRow {
    key: String,
    link: Option<String>,
    count: String,
    share: String,
    percent: String,
    change: Option<Change>,
    source: &'static str,
}

/// Whose plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Owner,
    Track,
}

impl Of {
    const ALL: [Self; 2] = [Self::Owner, Self::Track];

    const fn parameter(self) -> &'static str {
        match self {
            Self::Owner => "owner_id",
            Self::Track => "track_id",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Track => "track",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Owner => "Owner",
            Self::Track => "Track",
        }
    }

    pub(crate) fn page(self, id: &str) -> String {
        format!("/{}s/{id}", self.name())
    }
}

/// What is asked, as the page's address says it.
struct Asked<'a> {
    of: Of,
    id: &'a str,
    query: &'a Query,
    /// Of whose plays of a track alone is read, where that is not all.
    owner: Option<&'a str>,
    period: &'a str,
    interval: &'a str,
    by: &'a str,
}

impl<'a> Asked<'a> {
    fn new(of: Of, id: &'a str, query: &'a Query, caller: &'a Caller) -> Self {
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
            Of::Owner => "track",
            Of::Track => "country",
        });
        Self {
            of,
            id,
            query,
            owner: query.get("owner_id").or_else(|| caller.only_owner()),
            period,
            interval,
            by,
        }
    }

    /// A path of the API for the same filters and period, and some parameters more.
    fn path(&self, what: &str, more: &[(&str, Option<&str>)]) -> String {
        let is_custom = self.period == "custom";
        let mut parameters = vec![
            (self.of.parameter(), Some(self.id)),
            ("kind", self.query.get("kind")),
            ("tz", self.query.get("tz")),
            ("period", (!is_custom).then_some(self.period)),
            ("date", self.anchor()),
            ("from", self.date("from")),
            ("to", self.date("to")),
        ];
        for filter in FILTERS {
            let value = match filter {
                "owner_id" => self.owner,
                other => self.query.get(other),
            };
            if filter != self.of.parameter() {
                parameters.push((filter, value));
            }
        }
        parameters.extend(more);
        path(&format!("/api/v1/stats/plays/{what}"), &parameters)
    }

    /// The day that the period is about, where that is not today and the period has such a day.
    fn anchor(&self) -> Option<&'a str> {
        let has_anchor = !matches!(self.period, "all" | "custom");
        self.query.get("date").filter(|_| has_anchor)
    }

    /// A date that bounds the period, if dates do.
    fn date(&self, name: &str) -> Option<&'a str> {
        self.query.get(name).filter(|_| self.period == "custom")
    }

    /// This page with something else in its address.
    fn link(&self, changes: &[(&str, Option<&str>)]) -> String {
        self.query.with(&self.of.page(self.id), changes)
    }

    fn compares(&self) -> bool {
        self.query.get("compare") == Some("previous") && self.period != "all"
    }

    fn compare(&self) -> (&'static str, Option<&'static str>) {
        ("compare", self.compares().then_some("previous"))
    }
}

/// All zones, and the one that is chosen.
fn zone(query: &Query) -> TimeZone {
    let named = query.get("tz").and_then(|name| TimeZone::get(name).ok());
    named.unwrap_or(TimeZone::UTC)
}

pub(crate) async fn page(client: &ApiClient, (of, id): (Of, &str), query: &Query) -> PlaysPage {
    let asked = Asked::new(of, id, query, &client.caller);
    let zone = zone(query);
    let total_path = asked.path("total", &[asked.compare()]);
    let uniques_path = asked.path("uniques", &[asked.compare()]);
    let series_path = asked.path(
        "series",
        &[("interval", Some(asked.interval)), asked.compare()],
    );
    let by = [
        ("by", Some(asked.by)),
        ("limit", Some(ROWS)),
        asked.compare(),
        ("cursor", query.get("cursor")),
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
    let name = called.own.clone();
    let tools = |of: &str, is_paged: bool| client.tools(of, is_paged);
    let tiles = vec![
        total_tile("Plays", total, tools(&total_path, false)),
        uniques_tile(uniques, tools(&uniques_path, false)),
    ];
    let range = range(series.as_ref().ok(), &zone);
    let step = (Step::of(asked.interval), &zone);
    let series = series.map(|found| series_shown(&found, step, tools(&series_path, false)));
    let apart_tools = tools(&apart_path, true);
    let apart = apart.map(|found| apart_shown(&asked, &found, &called.rows, apart_tools));
    let by_title = BYS.iter().find(|(by, _)| *by == asked.by);
    let numbered = format!("{} {id}", of.name());
    let title = (name.clone()).unwrap_or_else(|| format!("{} {id}", of.title()));
    PlaysPage {
        frame: Frame::new(title.clone(), "plays", &client.caller)
            .following("plays")
            .of_kind(of.name())
            .with_keys(&[
                ("d", "period"),
                ("i", "interval"),
                ("z", "zone"),
                ("x", "compare"),
            ]),
        heading: format!("Plays of {}", name.as_ref().unwrap_or(&numbered)),
        number: name.is_some().then_some(numbered),
        range,
        periods: choices(&PERIODS, asked.period),
        intervals: choices(&INTERVALS, asked.interval),
        kinds: choices(&KINDS, query.get("kind").unwrap_or_default()),
        from: asked.date("from").unwrap_or_default().to_owned(),
        to: asked.date("to").unwrap_or_default().to_owned(),
        tz: query.get("tz").unwrap_or("UTC").to_owned(),
        zones: zones(),
        compares: asked.compares(),
        hidden: hidden(of, query),
        filters: filters(&asked, &called.filters),
        tiles,
        shown: asked.period.to_owned(),
        around: around(&asked, client.now(), &zone),
        series,
        apart_title: by_title.map_or("Value", |(_, title)| title),
        bys: bys(&asked),
        apart,
    }
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
    asked: &Asked<'_>,
    is_read: bool,
    apart: Option<&api::Breakdown>,
) -> AllCalled {
    // An owner is answered about any track, with what this owner has of it: nothing, of another's.
    let is_told = is_read && (asked.of == Of::Owner || client.caller.may_read_all());
    let id = crate::http::integer(asked.id).filter(|_| is_told);
    let of = match asked.of {
        Of::Owner => Named::Owner,
        Of::Track => Named::Track,
    };
    let rows = async {
        let Some((by, apart)) = named(asked.by).zip(apart) else {
            return Called::default();
        };
        let ids = apart.rows.iter().filter_map(row_id);
        client.names(by, ids.collect::<Vec<i64>>()).await
    };
    // By a filter an owner would hear what another's track is called.
    let may_hear = is_read && client.caller.may_read_all();
    let filtered = |parameter: &str| {
        let value = asked.query.get(parameter).filter(|_| may_hear)?;
        crate::http::integer(value)
    };
    let [track, owner, app] = ["track_id", "owner_id", "app_id"].map(filtered);
    let (own, rows, tracks, owners, apps) = tokio::join!(
        client.names(of, id),
        rows,
        client.names(Named::Track, track),
        client.names(Named::Owner, owner),
        client.names(Named::Application, app),
    );
    let found = [
        ("track_id", track, tracks),
        ("owner_id", owner, owners),
        ("app_id", app, apps),
    ];
    let named = found.into_iter().filter_map(|(parameter, id, called)| {
        let name = called.get(id?)?;
        Some((parameter, name.to_owned()))
    });
    AllCalled {
        own: id.and_then(|id| own.get(id).map(str::to_owned)),
        rows,
        filters: named.collect(),
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
    by: (Step, &TimeZone),
    tools: Tools,
) -> SeriesShown {
    SeriesShown {
        chart: Chart::of(&series.points, series.previous.as_deref(), by),
        from: From::of(&series.provenance),
        tools,
    }
}

fn apart_shown(asked: &Asked<'_>, apart: &api::Breakdown, called: &Called, tools: Tools) -> Apart {
    let more = |next: &str| asked.link(&[("cursor", Some(next))]);
    Apart {
        from: From::of(&apart.provenance),
        more: apart.cursor.as_deref().map(more),
        tools,
        rows: apart
            .rows
            .iter()
            .map(|row| apart_row(asked, row, called))
            .collect(),
    }
}

/// The names of all zones.
fn zones() -> Vec<String> {
    let known = jiff::tz::db().available();
    known.map(|name| name.to_string()).collect()
}

fn range(series: Option<&api::Series>, zone: &TimeZone) -> String {
    let Some(series) = series else {
        return String::new();
    };
    let first = series
        .points
        .first()
        .map(|point| Moment::of(&point.at, zone).text);
    let last = series
        .range
        .to
        .as_deref()
        .map(|to| Moment::of(to, zone).text);
    match (first, last) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => String::new(),
    }
}

/// What a form keeps of the page's address.
fn hidden(of: Of, query: &Query) -> Vec<(String, String)> {
    let kept = FILTERS.iter().chain(&["by", "date"]).filter_map(|name| {
        let value = query.get(name).filter(|_| *name != of.parameter())?;
        Some(((*name).to_owned(), value.to_owned()))
    });
    kept.collect()
}

fn filters(asked: &Asked<'_>, called: &[(&str, String)]) -> Vec<Filter> {
    let found = FILTERS.iter().filter_map(|name| {
        let asked_for = asked.query.get(name);
        let by_key = asked.owner.filter(|_| *name == "owner_id");
        let id = asked_for.or(by_key);
        let value = id.filter(|_| *name != asked.of.parameter())?;
        let known = called.iter().find(|(of, _)| of == name);
        let value = known.map_or(value, |(_, called)| called.as_str());
        let of = Of::ALL.into_iter().find(|of| of.parameter() == *name);
        let id = id.filter(|id| crate::http::integer(id).is_some());
        let page = |id: &str| match of {
            Some(of) => Some(of.page(id)),
            None => (*name == "app_id").then(|| format!("/applications/{id}")),
        };
        Some(Filter {
            page: id.and_then(page),
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
fn around(asked: &Asked<'_>, now: Timestamp, zone: &TimeZone) -> (Option<String>, Option<String>) {
    let step = match asked.period {
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
    let last = match asked.period {
        "month" => date.last_of_month(),
        "year" => date.last_of_year(),
        _ => date,
    };
    let before = date.checked_sub(step).ok();
    let after = date.checked_add(step).ok().filter(|_| last < today);
    (before.map(link), after.map(link))
}

fn bys(asked: &Asked<'_>) -> Vec<Choice> {
    let own = asked.of.name();
    let others = BYS.iter().filter(|(by, _)| *by != own);
    let others = others.map(|(by, title)| Choice {
        value: asked.link(&[("by", Some(by)), ("cursor", None)]),
        title: (*title).to_owned(),
        is_chosen: *by == asked.by,
    });
    others.collect()
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

fn apart_row(asked: &Asked<'_>, row: &api::Row, called: &Called) -> ApartRow {
    let (share, percent) = share(row.share);
    let value = row.key.as_ref().map(|key| match key {
        api::RowKey::Int(id) => id.to_string(),
        api::RowKey::Text(text) => text.clone(),
    });
    let shown = key(&value.clone().into());
    let value = value.filter(|value| !value.is_empty());
    let link = filter_of(asked.by)
        .zip(value)
        .map(|(filter, value)| asked.link(&[(filter, Some(&value)), ("cursor", None)]));
    ApartRow {
        key: match row_id(row).and_then(|id| called.get(id)) {
            Some(name) => name.to_owned(),
            None => shown,
        },
        link,
        count: number(row.count),
        share,
        percent,
        change: row.change.flatten().map(Change::of),
        source: row.source.name(),
    }
}
