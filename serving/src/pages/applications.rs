//! Applications: which there are, how much of their capacity is in use, and one of them with its history.

use askama::Template;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::api;
use super::ask::{Asker, path};
use super::chart::{Chart, Step};
use super::parts::{Choice, Frame, From, Here, Part, Tools, TroubleShown, about, choices};
use super::query::Query;
use super::shown::{Moment, key, number, percent};
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
pub(crate) struct ApplicationsPage {
    frame: Frame,
    search: String,
    owner: String,
    sorts: Vec<Choice>,
    parts: Vec<Choice>,
    page: Part<ListShown>,
}

about!(ApplicationsPage, page);

#[derive(Debug)]
struct ListShown {
    rows: Vec<Row>,
    more: Option<String>,
    from: From,
    tools: Tools,
}

#[derive(Debug)]
struct Row {
    id: i64,
    name: String,
    owner: String,
    connected: String,
    capacity: String,
    usage: Option<(String, String)>,
    is_full: bool,
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

fn row(of: &api::ApplicationShown) -> Row {
    Row {
        id: of.id,
        name: name(of),
        owner: key(&of.owner),
        connected: number(of.connected_athletes),
        capacity: number(of.athlete_capacity),
        usage: of
            .usage
            .map(|part| (format!("{:.4}", part.min(1.0)), percent(part))),
        is_full: is_full(of),
    }
}

pub(crate) async fn list(asker: &Asker, here: &Here, query: &Query) -> ApplicationsPage {
    let of = "/api/v1/applications";
    // A key of one owner has to say whose it asks for.
    let owner = query.get("owner").or_else(|| asker.caller.only_owner());
    let sort = query.get("sort").unwrap_or("usage");
    let parameters = [
        ("sort", Some(sort)),
        ("search", query.get("search")),
        ("owner", owner),
        ("usage_from", query.get("usage_from")),
    ];
    let mut with_cursor = parameters.to_vec();
    with_cursor.push(("cursor", query.get("cursor")));
    let page = asker
        .get::<api::Applications>(&path(of, &with_cursor))
        .await;
    let page = page.map_err(TroubleShown::of).map(|page| ListShown {
        rows: page.applications.iter().map(row).collect(),
        more: page
            .cursor
            .as_deref()
            .map(|next| query.with("/applications", &[("cursor", Some(next))])),
        from: From::of(&page.provenance),
        tools: here.tools(&path(of, &parameters), true, &asker.caller),
    });
    ApplicationsPage {
        frame: Frame::new("Applications", "applications", &asker.caller)
            .following("authorizations")
            .of_kind("application"),
        search: query.get("search").unwrap_or_default().to_owned(),
        owner: owner.unwrap_or_default().to_owned(),
        sorts: choices(&SORTS, sort),
        parts: choices(&PARTS, query.get("usage_from").unwrap_or_default()),
        page,
    }
}

#[derive(Debug, Template)]
#[template(path = "application.html")]
pub(crate) struct ApplicationPage {
    frame: Frame,
    id: String,
    shown: Part<Shown>,
    /// The first day that is asked for, and the one after the last.
    days: (String, String),
    history: Part<HistoryShown>,
    audit: Part<AuditShown>,
}

about!(ApplicationPage, shown);

#[derive(Debug)]
struct Shown {
    name: String,
    owner: String,
    connected: String,
    capacity: String,
    enforced: bool,
    usage: Option<String>,
    usage_text: String,
    is_full: bool,
    /// Whether more are connected than may be.
    is_over: bool,
    strategy: &'static str,
    counted_at: Option<Moment>,
    from: From,
    tools: Tools,
}

#[derive(Debug)]
struct HistoryShown {
    chart: Option<Chart>,
    from: From,
    tools: Tools,
}

#[derive(Debug)]
struct AuditShown {
    rows: Vec<AuditRow>,
    tools: Tools,
}

#[derive(Debug)]
struct AuditRow {
    at: Moment,
    by: String,
    changed: String,
    before: String,
    after: String,
    reason: String,
}

fn setting(of: &Value) -> String {
    match of {
        Value::Bool(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
        Value::Number(of) => of.as_i64().map_or_else(|| of.to_string(), number),
        other => other.to_string(),
    }
}

fn history_shown(history: &api::HistoryShown, tools: Tools) -> HistoryShown {
    let points = history.days.iter().map(|day| api::Point {
        at: format!("{}T00:00:00Z", day.date),
        count: i64::try_from(day.connected_athletes).unwrap_or(i64::MAX),
        source: history.provenance.source,
    });
    let points: Vec<api::Point> = points.collect();
    HistoryShown {
        chart: Chart::of(&points, None, (Step::Day, &TimeZone::UTC)),
        from: From::of(&history.provenance),
        tools,
    }
}

pub(crate) async fn page(asker: &Asker, here: &Here, id: &str, query: &Query) -> ApplicationPage {
    let of = format!("/api/v1/applications/{id}");
    let days = ["from", "to"].map(|name| (name, query.get(name)));
    let history_path = path(&format!("{of}/history"), &days);
    let audit_path = format!("{of}/audit");
    let (shown, history, audit) = tokio::join!(
        asker.get::<api::ApplicationShown>(&of),
        asker.get::<api::HistoryShown>(&history_path),
        asker.get::<api::Audit>(&audit_path),
    );
    let shown = shown.map_err(TroubleShown::of).map(|of_api| Shown {
        name: name(&of_api),
        owner: key(&of_api.owner),
        connected: number(of_api.connected_athletes),
        capacity: number(of_api.athlete_capacity),
        enforced: of_api.enforced,
        usage: of_api.usage.map(|part| format!("{:.4}", part.min(1.0))),
        usage_text: of_api.usage.map_or_else(|| "–".to_owned(), percent),
        is_full: is_full(&of_api),
        is_over: i64::try_from(of_api.connected_athletes)
            .is_ok_and(|connected| connected > of_api.athlete_capacity),
        strategy: match of_api.counting.strategy.as_str() {
            "recount" => "Anew, now and then",
            _ => "With each change, at once",
        },
        counted_at: of_api.counting.counted_at.as_deref().map(Moment::utc),
        from: From::of(&of_api.provenance),
        tools: here.tools(&of, false, &asker.caller),
    });
    let tools = here.tools(&history_path, true, &asker.caller);
    let history = history.map(|found| history_shown(&found, tools));
    let audit = audit.map_err(TroubleShown::of).map(|audit| {
        let rows = audit.entries.iter().map(|entry| {
            let shown = match entry.changed.as_str() {
                "owner" => owner_text,
                _ => setting,
            };
            AuditRow {
                at: Moment::utc(&entry.at),
                by: entry.by.clone(),
                changed: entry.changed.clone(),
                before: shown(&entry.before),
                after: shown(&entry.after),
                reason: entry.reason.clone().unwrap_or_default(),
            }
        });
        AuditShown {
            rows: rows.collect(),
            tools: here.tools(&audit_path, true, &asker.caller),
        }
    });
    let title = shown.as_ref().map(|shown| shown.name.clone());
    ApplicationPage {
        frame: Frame::new(
            title.unwrap_or_else(|_| format!("Application {id}")),
            "applications",
            &asker.caller,
        )
        .following("authorizations")
        .of_kind("application"),
        id: id.to_owned(),
        shown,
        days: days
            .map(|(_, day)| day.unwrap_or_default().to_owned())
            .into(),
        history: history.map_err(TroubleShown::of),
        audit,
    }
}
