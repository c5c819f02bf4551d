//! Applications: which there are, how much of their capacity is in use, and one of them with its history.

use askama::Template;
use axum::response::Response;
use jiff::tz::TimeZone;
use schemas::time::Interval;
use serde_json::Value;

use super::ask::{Answer, ApiClient, path};
use super::chart::Chart;
use super::parts::{Choice, Frame, From, Tools, answered, choices};
use super::plays::SeriesShown;
use super::query::Query;
use super::shown::{self, Moment, number};
use super::{Number, api, found};
use crate::http::owner_text;

const SORTS: [(&str, &str); 4] = [
    ("usage", "Most in use"),
    ("connected", "Most athletes"),
    ("name", "Name"),
    ("id", "Number"),
];
const PARTS: [(&str, &str); 4] = [
    ("", "any use"),
    ("0.8", "80 % in use"),
    ("0.9", "90 % in use"),
    ("1", "full"),
];

#[derive(Debug, Template)]
#[template(path = "applications.html")]
struct ApplicationsPage {
    frame: Frame,
    query: Query,
    owner: String,
    sorts: Vec<Choice>,
    parts: Vec<Choice>,
    page: Answer<api::Applications>,
    more: Option<String>,
    tools: Tools,
}

fn name(of: &api::ApplicationShown) -> String {
    match of.name.trim() {
        "" => format!("Application {}", of.id),
        name => name.to_owned(),
    }
}

fn is_full(of: &api::ApplicationShown) -> bool {
    let capacity = u64::try_from(of.athlete_capacity).unwrap_or_default();
    of.enforced && of.connected_athletes >= capacity
}

/// How much of a capacity is in use, for a meter.
fn meter(usage: f64) -> String {
    format!("{:.4}", usage.min(1.0))
}

pub(super) async fn list(client: ApiClient, query: Query) -> Response {
    let of = "/api/v1/applications";
    // A key of one owner has to say whose it asks for.
    let owner = query.get("owner").or_else(|| client.caller.only_owner());
    if owner.is_none() && !client.caller.may_read_all() {
        return found::own(&client, query).await;
    }
    let sort = query.get("sort").unwrap_or("usage");
    let parameters = [
        ("sort", Some(sort)),
        ("search", query.get("search")),
        ("owner", owner),
        ("usage_from", query.get("usage_from")),
    ];
    let mut with_cursor = parameters.to_vec();
    with_cursor.push(("cursor", query.get("cursor")));
    let page = client
        .get::<api::Applications>(&path(of, &with_cursor))
        .await;
    let next = page.as_ref().ok().and_then(|page| page.cursor.as_deref());
    let page = ApplicationsPage {
        frame: Frame::new("Applications", "applications", &client.caller)
            .following("authorizations")
            .of_kind("application"),
        owner: owner.unwrap_or_default().to_owned(),
        sorts: choices(&SORTS, sort),
        parts: choices(&PARTS, query.text("usage_from")),
        more: next.map(|next| query.at("/applications", next)),
        tools: client.tools(&path(of, &parameters), true),
        page,
        query,
    };
    answered(&page, page.page.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "application.html")]
struct ApplicationPage {
    frame: Frame,
    id: String,
    shown: Answer<api::ApplicationShown>,
    tools: Tools,
    query: Query,
    history: Answer<SeriesShown>,
    audit: Answer<api::Audit>,
    audit_tools: Tools,
}

/// Whether more athletes are connected than the capacity permits.
fn is_over(of: &api::ApplicationShown) -> bool {
    i64::try_from(of.connected_athletes).is_ok_and(|connected| connected > of.athlete_capacity)
}

/// How the connected athletes of an application are counted.
fn strategy(of: &api::ApplicationShown) -> &'static str {
    match of.counting.strategy.as_str() {
        "recount" => "Anew, now and then",
        _ => "With each change, at once",
    }
}

/// A setting of the audit log as text.
fn setting(changed: &str, value: &Value) -> String {
    match value {
        _ if changed == "owner" => owner_text(value),
        Value::Bool(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
        Value::Number(of) => of.as_i64().map_or_else(|| of.to_string(), number),
        other => other.to_string(),
    }
}

fn history_shown(history: &api::HistoryShown, tools: Tools) -> SeriesShown {
    let points = history.days.iter().map(|day| api::Point {
        at: format!("{}T00:00:00Z", day.date),
        count: i64::try_from(day.connected_athletes).unwrap_or(i64::MAX),
        source: history.provenance.source,
    });
    let points: Vec<api::Point> = points.collect();
    SeriesShown {
        chart: Chart::of(&points, None, (Interval::Day, &TimeZone::UTC)),
        from: From::of(&history.provenance),
        tools,
    }
}

pub(super) async fn page(client: ApiClient, Number(id): Number, query: Query) -> Response {
    let of = format!("/api/v1/applications/{id}");
    let days = ["from", "to"].map(|name| (name, query.get(name)));
    let history_path = path(&format!("{of}/history"), &days);
    let audit_path = format!("{of}/audit");
    let (shown, history, audit) = tokio::join!(
        client.get::<api::ApplicationShown>(&of),
        client.get::<api::HistoryShown>(&history_path),
        client.get::<api::Audit>(&audit_path),
    );
    let tools = client.tools(&history_path, true);
    let history = history.map(|found| history_shown(&found, tools));
    let title = shown.as_ref().map(name);
    let title = title.unwrap_or_else(|_| format!("Application {id}"));
    let page = ApplicationPage {
        frame: Frame::new(title, "applications", &client.caller)
            .following("authorizations")
            .of_kind("application"),
        id,
        shown,
        tools: client.tools(&of, false),
        query,
        history,
        audit_tools: client.tools(&audit_path, true),
        audit,
    };
    answered(&page, page.shown.as_ref().err())
}
