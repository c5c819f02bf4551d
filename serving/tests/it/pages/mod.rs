//! Web pages: complete HTML, escaped names, links, searches and errors.

mod boards;
mod plays;
mod runs;
mod sessions;
mod streams;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use schemas::entities::Application;
use serde_json::Value;
use serving::{Serving, ServingOptions};
use stores::names::NamedKind;

use self::sessions::sign_in;
use crate::memory_stores::{self, MemoryStores};
use crate::requests::{get, no_wait_options, send};

/// A name that would run a script if a page did not escape it.
const HOSTILE: &str = "<script>alert('x')</script>\" onload=\"";

/// Pages of each kind.
const PAGES: [&str; 14] = [
    "/",
    "/owners/1",
    "/owners/1?period=7d&interval=hour&tz=Europe/Berlin&compare=previous&by=country&country=DE",
    "/tracks/1?period=custom&from=2026-01-01&to=2026-02-01",
    "/segments/1",
    "/segments/1?board=gender:F&window=year&athlete=1&club_id=3",
    "/athletes/1",
    "/athletes/1?kind=crown",
    "/applications",
    "/applications/7",
    "/pipeline",
    "/pipeline/runs/plays/1",
    "/pipeline/dead-letters",
    "/pipeline/reconciliations",
];

/// Starts a service with two applications with a hostile name: one of owner 1, and one of a hostile
/// owner.
fn start_service() -> (Serving, Arc<MemoryStores>) {
    let (serving, stores) = memory_stores::boards::start_service(ServingOptions {
        keys_kept_ms: 0,
        stranger_requests_per_second_max: 0,
        ..no_wait_options()
    });
    for (id, owner) in [(7, Value::from(1)), (8, Value::from(HOSTILE))] {
        stores.entities().applications.push(Application {
            id,
            name: HOSTILE.to_owned(),
            owner,
            athlete_capacity: 5,
            version: 0,
        });
    }
    (serving, stores)
}

/// Requests a page in a session.
async fn get_in_session(serving: &Serving, uri: &str, cookie: &str) -> (Response<()>, String) {
    let request = Request::get(uri).header(header::COOKIE, cookie);
    send(serving, request.body(Body::empty()).unwrap()).await
}

/// Requests a page like a browser, which accepts HTML.
async fn get_as_browser(serving: &Serving, uri: &str, cookie: &str) -> (Response<()>, String) {
    let request = Request::get(uri)
        .header(header::ACCEPT, "text/html,*/*;q=0.8")
        .header(header::COOKIE, cookie);
    send(serving, request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn every_page_is_complete_and_escapes_names() {
    let (serving, _) = start_service();
    for uri in PAGES {
        let (response, text) = get(&serving, uri).await;
        // No batch run exists yet.
        let expected = if uri.contains("/runs/") { 404 } else { 200 };
        assert_eq!(response.status(), expected, "{uri}: {text}");
        let headers = response.headers();
        assert_eq!(headers["content-type"], "text/html; charset=utf-8", "{uri}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("script-src 'self'"), "{uri}: {policy}");
        assert!(text.contains("<title>"), "{uri}: {text}");
        assert!(text.ends_with("</html>"), "{uri}: {text}");
        assert!(text.contains("<h1"), "{uri}");
        for hostile in [
            "<script>alert",
            "onload=\"",
            " style=\"",
            " onclick=",
            "javascript:",
        ] {
            assert!(!text.contains(hostile), "{uri}: {hostile}");
        }
        // All resources come from this service.
        for source in ["src=\"http", "href=\"http", "url(http"] {
            assert!(!text.contains(source), "{uri}: {source}");
        }
    }
    let (_, list) = get(&serving, "/applications?sort=id").await;
    assert!(
        list.contains("&#60;script&#62;") || list.contains("&lt;script&gt;"),
        "{list}"
    );
}

/// Returns all texts between two markers.
fn find_texts_between<'a>(page: &'a str, start: &str, end: &'a str) -> Vec<&'a str> {
    let texts = page.split(start).skip(1);
    texts.filter_map(|text| text.split(end).next()).collect()
}

/// Decodes the ampersands of a link in HTML.
fn decode_link(link: &str) -> String {
    link.replace("&#38;", "&").replace("&amp;", "&")
}

#[tokio::test]
async fn every_part_of_a_page_has_export_links() {
    let (serving, _) = start_service();
    let mut checked_links = 0;
    for page in PAGES {
        let (_, text) = get(&serving, page).await;
        let links = find_texts_between(&text, "<a href=\"/api/", "\" download>");
        let commands = find_texts_between(&text, "<pre><code>curl ", "</code>");
        assert_eq!(links.len(), commands.len(), "{page}");
        for (link, command) in links.iter().zip(commands) {
            let link = decode_link(&format!("/api/{link}"));
            let (response, csv) = get(&serving, &link).await;
            assert_eq!(response.status(), StatusCode::OK, "{page}: {link}: {csv}");
            let content_type = &response.headers()[header::CONTENT_TYPE];
            assert_eq!(content_type, "text/csv; charset=utf-8", "{page}: {link}");
            let path = link.split('?').next().unwrap();
            assert!(command.contains(path), "{page}: {link}: {command}");
            checked_links += 1;
        }
    }
    assert!(checked_links >= 20, "{checked_links}");
}

#[tokio::test]
async fn periods_link_to_previous_and_next_ones() {
    let (serving, _) = start_service();
    for (query, previous_date, next_date) in [
        (
            "period=month&date=2026-03-31",
            Some("2026-02-28"),
            Some("2026-04-30"),
        ),
        (
            "period=7d&date=2026-03-10",
            Some("2026-03-03"),
            Some("2026-03-17"),
        ),
        ("period=all", None, None),
        ("period=all&date=2026-03-31", None, None),
        ("period=month&date=2026-07-01", Some("2026-06-01"), None),
        ("from=2026-01-01&to=2026-02-01", None, None),
        ("period=year&date=2027-01-01", Some("2026-01-01"), None),
    ] {
        let (response, text) = get(&serving, &format!("/owners/1?{query}")).await;
        assert_eq!(response.status(), StatusCode::OK, "{query}");
        for (rel, date) in [("prev", previous_date), ("next", next_date)] {
            let has_link = text.contains(&format!("rel=\"{rel}\">"));
            assert_eq!(has_link, date.is_some(), "{query} {rel}");
            if let Some(date) = date {
                assert!(text.contains(&format!("date={date}")), "{query} {rel}");
            }
        }
    }
    // The current period has no next one.
    let (_, text) = get(&serving, "/owners/1?period=month").await;
    assert!(!text.contains("rel=\"next\">"), "{text}");
    let (_, text) = get(&serving, "/owners/1?period=month&date=2026-03-31").await;
    assert!(text.contains("on 2026-03-31"));
    let commands = find_texts_between(&text, "<pre><code>curl ", "</code>");
    let command = commands[0];
    assert!(command.contains("date=2026-03-31"), "{command}");
}

#[tokio::test]
async fn invalid_addresses_are_client_errors() {
    let (serving, _) = start_service();
    for (uri, status) in [
        ("/owners/x", 404),
        ("/owners/99999999999999999999", 404),
        ("/segments/%3Cscript%3E", 404),
        ("/applications/9", 404),
        ("/applications/7?from=soon", 200),
        ("/owners/1?tz=Mars", 400),
        ("/owners/1?period=decade&interval=century&by=colour", 400),
        ("/segments/1?board=age:1-2&window=week&date=soon", 400),
        ("/segments/1?offset=18446744073709551615", 400),
        ("/find?what=owner", 400),
        ("/find?what=%00&id=1", 400),
        ("/find?what=segment&id=a%00b", 400),
        ("/pipeline/runs/nothing/1", 400),
        ("/pipeline/runs/plays/9", 404),
        ("/pipeline/dead-letters?cursor=x", 400),
        ("/assets/style.css", 404),
        ("/nowhere", 404),
        ("/api/v1/nowhere", 404),
    ] {
        let (response, text) = get(&serving, uri).await;
        assert_eq!(response.status(), status, "{uri}: {text}");
        assert!(!text.contains("<script>"), "{uri}: {text}");
    }
    // A browser receives HTML.
    for (uri, status, expected_type) in [
        ("/nowhere", 404, "text/html"),
        ("/api/v1/nowhere", 404, "application/problem+json"),
        ("/owners/%FF", 400, "text/html"),
    ] {
        let (response, text) = get_as_browser(&serving, uri, "").await;
        assert_eq!(response.status(), status, "{text}");
        let content_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
        assert!(
            content_type.starts_with(expected_type),
            "{uri}: {content_type}"
        );
    }
    let (response, _) = get(&serving, "/find?what=segment&id=-7").await;
    assert_eq!(response.headers()[header::LOCATION], "/segments/-7");
}

fn set_names(stores: &MemoryStores, kind: NamedKind, names: &[(i64, &str)]) {
    let names = names
        .iter()
        .map(|(id, name)| ((kind, *id), (*name).to_owned()));
    stores.entities().names.extend(names);
}

#[tokio::test]
async fn search_finds_entities_by_name() {
    let (serving, stores) = start_service();
    set_names(
        &stores,
        NamedKind::Segment,
        &[(1, "Old Climb"), (2, "Long <i>Climb</i>"), (3, "Sprint")],
    );
    let (response, page) = get(&serving, "/find?what=segment&id=climb").await;
    assert_eq!(response.status(), 200, "{page}");
    let link = "<a href=\"/segments/1\">Old Climb</a>";
    assert!(page.contains(link), "{page}");
    let escaped_link = "<a href=\"/segments/2\">Long &#60;i&#62;";
    assert!(page.contains(escaped_link), "{page}");
    assert!(!page.contains("Sprint"), "{page}");
    for (search, target) in [
        ("segment&id=+sprint+", "/segments/3"),
        ("application&id=a%26b", "/applications?search=a%26b"),
    ] {
        let (response, _) = get(&serving, &format!("/find?what={search}")).await;
        assert_eq!(response.headers()[header::LOCATION], target);
    }
    set_names(
        &stores,
        NamedKind::Athlete,
        &[(1, "Ann Lee"), (2, "Bo Lee"), (3, "Cy")],
    );
    for (search, text) in [
        (
            "lee",
            "Enter the number of one of them: Ann Lee (1), Bo Lee (2).",
        ),
        ("nobody", "No athlete found"),
        ("cy", "athlete 3 is not on this board"),
    ] {
        let (response, page) = get(&serving, &format!("/segments/1?athlete={search}")).await;
        assert_eq!(response.status(), 200, "{page}");
        assert!(page.contains(text), "{search}: {page}");
    }
    let (response, page) = get(&serving, "/find?what=owner&id=nobody").await;
    assert_eq!(response.status(), 200, "{page}");
    assert!(page.contains("No name contains this text"), "{page}");
    // A search by name covers all owners.
    let key = stores.keys.create("read:owner:1", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (response, page) = get_in_session(&serving, "/find?what=segment&id=climb", &cookie).await;
    assert_eq!(response.status(), 400, "{page}");
    assert!(!page.contains("Old Climb"), "{page}");
}

#[tokio::test]
async fn an_unavailable_store_determines_the_status_of_a_page() {
    let (serving, stores) = start_service();
    stores.faults().is_view_store_down = true;
    for uri in ["/owners/2?period=7d", "/tracks/2?period=7d"] {
        let (response, page) = get(&serving, uri).await;
        assert_eq!(response.status(), 503, "{uri}: {page}");
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert!(page.contains("Try again"), "{uri}: {page}");
    }
}

#[tokio::test]
async fn an_invalid_parameter_is_reported_once() {
    let (serving, _) = start_service();
    for (uri, expected_alerts) in [
        ("/owners/1?tz=Mars", 1),
        ("/owners/1?by=colour", 1),
        ("/owners/1", 0),
    ] {
        let (_, page) = get(&serving, uri).await;
        let alert_count = page.matches("role=\"alert\"").count();
        assert_eq!(alert_count, expected_alerts, "{uri}: {page}");
        let has_numbers = page.contains("id=\"numbers\"");
        assert_eq!(has_numbers, !uri.contains("Mars"), "{uri}: {page}");
    }
}

#[tokio::test]
async fn filters_link_to_pages_of_entities() {
    let (serving, _) = start_service();
    let (_, page) = get(&serving, "/owners/1?track_id=7&country=DE").await;
    let filters = page.split_once("class=\"filters\"").expect("filters").1;
    let filters = filters.split_once("</ul>").expect("their end").0;
    assert!(filters.contains("href=\"/tracks/7\""), "{filters}");
    assert_eq!(filters.matches(">Open page<").count(), 1, "{filters}");
}

#[tokio::test]
async fn application_history_covers_the_selected_days() {
    let (serving, _) = start_service();
    let uri = "/applications/7?from=2026-01-05&to=2026-02-01";
    let (_, page) = get(&serving, uri).await;
    let input = "name=\"from\" value=\"2026-01-05\"";
    assert!(page.contains(input), "{page}");
    let api_path = "/api/v1/applications/7/history?from=2026-01-05&#38;to=2026-02-01";
    assert!(page.contains(api_path), "{page}");
}

#[tokio::test]
async fn an_unknown_application_links_to_all_applications() {
    let (serving, _) = start_service();
    let (response, page) = get(&serving, "/applications/999999").await;
    assert_eq!(response.status(), 404, "{page}");
    let text = "There is no application 999999. <a href=\"/applications\">All applications</a>";
    assert!(page.contains(text), "{page}");
}

#[tokio::test]
async fn assets_are_immutable() {
    let (serving, _) = start_service();
    let (_, page) = get(&serving, "/").await;
    let assets = page.split('"').filter(|part| part.starts_with("/assets/"));
    let assets: Vec<&str> = assets.collect();
    assert_eq!(assets.len(), 3, "{assets:?}");
    for asset in assets {
        let (response, text) = get(&serving, asset).await;
        assert_eq!(response.status(), 200, "{asset}");
        assert!(!text.is_empty(), "{asset}");
        let cache_control = response.headers()["cache-control"].to_str().unwrap();
        assert!(
            cache_control.contains("immutable"),
            "{asset}: {cache_control}"
        );
    }
}
