//! The pages of applications: the list with their use of capacity, and one application with its
//! history.

use askama::Template;
use axum::response::Response;
use jiff::tz::TimeZone;
use schemas::time::Interval;
use serde_json::Value;

use super::api_error::ApiResult;
use super::chart::Chart;
use super::client::ApiClient;
use super::components::{
    Choice, ExportLinks, PageContext, ProvenanceLabel, build_choices, render_page,
};
use super::extractors::Number;
use super::formatting::{Moment, format_key, format_number, format_percent};
use super::plays::SeriesPart;
use super::query::{Query, path_with_query};
use super::{api, search};
use crate::http::format_scope_owner;

const SORTS: [(&str, &str); 4] = [
    ("usage", "Most in use"),
    ("connected", "Most athletes"),
    ("name", "Name"),
    ("id", "Number"),
];
const USAGE_FILTERS: [(&str, &str); 4] = [
    ("", "any use"),
    ("0.8", "80 % in use"),
    ("0.9", "90 % in use"),
    ("1", "full"),
];

#[derive(Debug, Template)]
#[template(path = "applications.html")]
struct ApplicationsPage {
    context: PageContext,
    query: Query,
    owner: String,
    sorts: Vec<Choice>,
    usage_filters: Vec<Choice>,
    page: ApiResult<api::ApplicationsPage>,
    more: Option<String>,
    export: ExportLinks,
}

fn display_name(application: &api::ApplicationResponse) -> String {
    match application.name.trim() {
        "" => format!("Application {}", application.id),
        name => name.to_owned(),
    }
}

fn is_full(application: &api::ApplicationResponse) -> bool {
    let capacity = u64::try_from(application.athlete_capacity).unwrap_or_default();
    application.enforced && application.connected_athletes >= capacity
}

/// Formats a capacity's use as the value of a meter.
fn format_meter(usage: f64) -> String {
    format!("{:.4}", usage.min(1.0))
}

pub(super) async fn list(client: ApiClient, query: Query) -> Response {
    let api_path = "/api/v1/applications";
    // A key that may read a single owner has to name it.
    let owner = query.get("owner").or_else(|| client.caller.only_owner());
    if owner.is_none() && !client.caller.may_read_all() {
        return search::list_permitted_owners(&client, query).await;
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
        .get::<api::ApplicationsPage>(&path_with_query(api_path, &with_cursor))
        .await;
    let next_cursor = page.as_ref().ok().and_then(|page| page.cursor.as_deref());
    let page = ApplicationsPage {
        context: PageContext::new("Applications", "applications", &client.caller)
            .follow("authorizations")
            .with_kind("application"),
        owner: owner.unwrap_or_default().to_owned(),
        sorts: build_choices(&SORTS, sort),
        usage_filters: build_choices(&USAGE_FILTERS, query.get_or_empty("usage_from")),
        more: next_cursor.map(|cursor| query.next_page_url("/applications", cursor)),
        export: client.export_links(&path_with_query(api_path, &parameters), true),
        page,
        query,
    };
    render_page(&page, page.page.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "application.html")]
struct ApplicationPage {
    context: PageContext,
    id: String,
    application: ApiResult<api::ApplicationResponse>,
    export: ExportLinks,
    query: Query,
    history: ApiResult<SeriesPart>,
    audit: ApiResult<api::Audit>,
    audit_export: ExportLinks,
}

/// True if more athletes are connected than the capacity permits.
fn exceeds_capacity(application: &api::ApplicationResponse) -> bool {
    i64::try_from(application.connected_athletes)
        .is_ok_and(|connected| connected > application.athlete_capacity)
}

/// Describes how the connected athletes are counted.
fn describe_counting(application: &api::ApplicationResponse) -> &'static str {
    match application.counting.strategy.as_str() {
        "recount" => "Recounted periodically",
        _ => "Updated with each change",
    }
}

/// Formats a value in the audit log.
fn format_audit_value(changed: &str, value: &Value) -> String {
    match value {
        _ if changed == "owner" => format_scope_owner(value),
        Value::Bool(is_on) => if *is_on { "on" } else { "off" }.to_owned(),
        Value::Number(n) => n.as_i64().map_or_else(|| n.to_string(), format_number),
        other => other.to_string(),
    }
}

fn build_history_part(history: &api::ApplicationHistory, export: ExportLinks) -> SeriesPart {
    let points = history.days.iter().map(|day| api::Point {
        at: format!("{}T00:00:00Z", day.date),
        count: i64::try_from(day.connected_athletes).unwrap_or(i64::MAX),
        source: history.provenance.source,
    });
    let points: Vec<api::Point> = points.collect();
    SeriesPart {
        chart: Chart::new(&points, None, Interval::Day, &TimeZone::UTC),
        provenance: ProvenanceLabel::new(&history.provenance),
        export,
    }
}

pub(super) async fn page(client: ApiClient, Number(id): Number, query: Query) -> Response {
    let api_path = format!("/api/v1/applications/{id}");
    let days = ["from", "to"].map(|name| (name, query.get(name)));
    let history_path = path_with_query(&format!("{api_path}/history"), &days);
    let audit_path = format!("{api_path}/audit");
    let (application, history, audit) = tokio::join!(
        client.get::<api::ApplicationResponse>(&api_path),
        client.get::<api::ApplicationHistory>(&history_path),
        client.get::<api::Audit>(&audit_path),
    );
    let export = client.export_links(&history_path, true);
    let history = history.map(|history| build_history_part(&history, export));
    let application = application.map_err(|error| match error.status {
        404 => {
            let detail = format!("There is no application {id}.");
            error.explain(detail, "/applications", "All applications")
        }
        _ => error,
    });
    let title = application.as_ref().map(display_name);
    let title = title.unwrap_or_else(|_| format!("Application {id}"));
    let page = ApplicationPage {
        context: PageContext::new(title, "applications", &client.caller)
            .follow("authorizations")
            .with_kind("application"),
        id,
        application,
        export: client.export_links(&api_path, false),
        query,
        history,
        audit_export: client.export_links(&audit_path, true),
        audit,
    };
    render_page(&page, page.application.as_ref().err())
}
