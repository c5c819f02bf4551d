//! The page for people whose athlete is not let in: whether there is room, and what to do if not.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use html_escape::encode_text;
use jiff::Timestamp;
use stores::admin::Usage;

use super::usage_of;
use crate::http::Api;
use crate::http::boards::id;
use crate::http::layers::Page;
use crate::http::params::{Params, Path};
use crate::http::problem::{Problem, ProblemShape};

const PAGE: &str = include_str!("limit.html");

/// How many athletes are connected to an application, how many may be, and what to do when it is full: a
/// page to which an app may send somebody whom it can't connect.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/limit",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    responses(
        (status = 200, description = "The page", content_type = "text/html"),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "A store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn limit(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    Params::read(&uri, &[])?;
    let application = id("id", &application)?;
    let usage = usage_of(&api, application).await?;
    Ok(page(StatusCode::OK, &usage, api.ports.clock.now_ms()))
}

/// The page of an application. Connected athletes and capacity are those of the counter that decides.
pub(super) fn page(status: StatusCode, usage: &Usage, now_ms: i64) -> Response {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let capacity = usage.application.athlete_capacity;
    let connected = usage.connected.unwrap_or_default();
    let name = match usage.application.name.trim() {
        "" => format!("Application {}", usage.application.id),
        name => name.to_owned(),
    };
    let name = encode_text(&name).into_owned();
    let athletes = |count: i64| match count {
        1 => "1 athlete".to_owned(),
        count => format!("{} athletes", grouped(count)),
    };
    let are = if connected == 1 { "is" } else { "are" };
    let has_room = connected < capacity || !usage.is_enforced;
    let (title, state) = if usage.connected.is_none() {
        // Authorizations are a view of the app's own table: whoever it refuses it refuses by itself.
        let state = "Who may connect is decided elsewhere, and not counted here.";
        (name.clone(), state.to_owned())
    } else if !usage.is_enforced {
        let state = format!(
            "{} {are} connected. There is no limit at the moment.",
            athletes(connected)
        );
        (format!("{name} has room"), state)
    } else {
        let state = format!(
            "{} {are} connected, and {} may be.",
            athletes(connected),
            grouped(capacity)
        );
        let title = match has_room {
            true => format!("{name} has room"),
            false => format!("{name} can\u{2019}t connect more athletes"),
        };
        (title, state)
    };
    // A developer may have to ask for one more than are connected by lines.
    let wish = connected.max(capacity).saturating_mul(2).max(10);
    let counted = match usage.connected {
        Some(_) => format!("As of {}, by the counter that decides.", instant(now_ms)),
        None => String::new(),
    };
    let hidden = |is: bool| if is { "hidden" } else { "" };
    let text = filled(&[
        ("NONCE", &nonce),
        ("TITLE", &title),
        ("STATE", &state),
        ("NAME", &name),
        ("COUNTED", &counted),
        ("FULL", hidden(has_room)),
        ("ROOM", hidden(!has_room)),
        ("WISH", &wish.to_string()),
        ("ID", &usage.application.id.to_string()),
    ]);
    sealed((status, Html(text)).into_response(), &nonce)
}

/// The page with what it may do in a browser: use its own style.
fn sealed(mut response: Response, nonce: &str) -> Response {
    response.extensions_mut().insert(Page);
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    headers.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

/// The page with texts in the place of their names, which stand between two `@`. What is put in is not
/// looked at again.
fn filled(texts: &[(&str, &str)]) -> String {
    let pieces = PAGE.split('@').enumerate();
    let piece = |(index, piece): (usize, &'static str)| match index % 2 {
        0 => piece.to_owned(),
        _ => {
            let mut texts = texts.iter();
            let text = texts.find_map(|(name, text)| (*name == piece).then_some(*text));
            text.unwrap_or_default().to_owned()
        }
    };
    pieces.map(piece).collect()
}

/// A moment as people read it.
fn instant(at_ms: i64) -> String {
    let at = Timestamp::from_millisecond(at_ms).unwrap_or_default();
    at.strftime("%-d %b %Y, %H:%M:%S UTC").to_string()
}

/// A number with a comma between thousands.
fn grouped(count: i64) -> String {
    let digits = count.unsigned_abs().to_string();
    let (first, rest) = digits.split_at((digits.len() - 1) % 3 + 1);
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if count < 0 {
        text.push('-');
    }
    text.push_str(first);
    for thousands in rest.as_bytes().chunks(3) {
        text.push(',');
        text.extend(thousands.iter().copied().map(char::from));
    }
    text
}

/// Whether somebody would rather read a page than JSON: a browser says so.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    let weight = |wanted: &str| {
        let lines = headers.get_all(header::ACCEPT).iter();
        let ranges = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','));
        ranges
            .filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default();
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                let quality = quality.map_or(Some(1.0), |text| text.parse::<f32>().ok())?;
                kind.eq_ignore_ascii_case(wanted).then_some(quality)
            })
            .fold(0.0, f32::max)
    };
    let json = weight("application/json").max(weight("application/problem+json"));
    weight("text/html") > json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_get_pages() {
        let wants = |accept: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in accept {
                headers.append(header::ACCEPT, HeaderValue::from_static(line));
            }
            wants_page(&headers)
        };
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert!(wants(&[browser]));
        assert!(wants(&["application/json;q=0.5, Text/HTML; q=0.6"]));
        assert!(wants(&["application/json;q=0.5", "text/html"]));
        for json in [
            &[][..],
            &["*/*"],
            &["application/json"],
            &["application/json, text/html"],
            &["text/html;q=0"],
            &["text/html;q=much"],
            &["text/html;q=0.8, application/problem+json"],
        ] {
            assert!(!wants(json), "{json:?}");
        }
    }

    #[test]
    fn thousands_are_told_apart() {
        let shown = [0, 999, 1_000, 12_345_678, -1_234].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "12,345,678", "-1,234"]);
    }
}
