//! The page for people that an application cannot connect. It shows whether capacity is available,
//! and how to get more.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use jiff::Timestamp;
use stores::admin::ApplicationUsage;

use super::entity_store::find_usage;
use crate::http::Api;
use crate::http::boards::parse_id;
use crate::http::params::{Params, Path};
use crate::http::problem::{Problem, ProblemShape};
use crate::pages::{format_number, render};

/// Data of the page.
#[derive(Debug, Template)]
#[template(path = "limit.html")]
struct LimitPage<'a> {
    nonce: &'a str,
    name: &'a str,
    usage: &'a ApplicationUsage,
    capacity: i64,
    connected: i64,
    has_room: bool,
    now: String,
}

impl LimitPage<'_> {
    fn title(&self) -> String {
        let name = self.name;
        match (self.usage.connected, self.has_room) {
            (None, _) => name.to_owned(),
            (Some(_), true) => format!("{name} has room"),
            (Some(_), false) => format!("{name} can\u{2019}t connect more athletes"),
        }
    }
}

fn format_athletes(count: i64) -> String {
    match count {
        1 => "1 athlete".to_owned(),
        count => format!("{} athletes", format_number(count)),
    }
}

/// A page for people that an application cannot connect.
///
/// It has the application's connected athletes and capacity, and what to do when the capacity is
/// reached. Applications may redirect people to it.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/limit",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    responses(
        (status = 200, description = "The page", content_type = "text/html"),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "A store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_limit_page(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    Params::parse(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let usage = find_usage(&api, application_id).await?;
    Ok(render_page(
        StatusCode::OK,
        &usage,
        api.ports.clock.now_ms(),
    ))
}

/// Renders the page. It shows the numbers that decide whether an athlete may connect.
pub(super) fn render_page(status: StatusCode, usage: &ApplicationUsage, now_ms: i64) -> Response {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let capacity = usage.application.athlete_capacity;
    let connected = usage.connected.unwrap_or_default();
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let name = match usage.application.name.trim() {
        "" => &format!("Application {}", usage.application.id),
        name => name,
    };
    let page = LimitPage {
        nonce: &nonce,
        name,
        usage,
        capacity,
        connected,
        has_room: connected < capacity || !usage.is_enforced,
        now: format_instant(now_ms),
    };
    let mut response = render(status, &page);
    let headers = response.headers_mut();
    // The page may use only its own style.
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    let no_referrer = HeaderValue::from_static("no-referrer");
    headers.insert(header::REFERRER_POLICY, no_referrer);
    response
}

/// Formats a time for people.
fn format_instant(at_ms: i64) -> String {
    let timestamp = Timestamp::from_millisecond(at_ms).unwrap_or_default();
    timestamp.strftime("%-d %b %Y, %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_thousands() {
        let shown = [0_i64, 999, 1_000, 12_345_678, -1_234].map(format_number);
        assert_eq!(shown, ["0", "999", "1,000", "12,345,678", "\u{2212}1,234"]);
    }
}
