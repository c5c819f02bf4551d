//! Tests of the pages: complete HTML, escaping of names, and permissions.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use futures::StreamExt;
use schemas::entities::Application;
use serde_json::Value;
use stores::keys::Keys;
use stores::names::NamedKind;
use tower::ServiceExt;

use crate::world::World;
use crate::world::boards::{self, BoardTime, serving};
use crate::{Serving, ServingOptions};

const HOSTILE: &str = "<script>alert('x')</script>\" onload=\"";

/// Representative pages of each kind.
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

fn service() -> (Serving, Arc<World>) {
    let (serving, world) = serving(ServingOptions {
        whole_wait_ms: 0,
        keys_kept_ms: 0,
        stranger_requests_per_second_max: 0,
        ..ServingOptions::default()
    });
    for (id, owner) in [(7, Value::from(1)), (8, Value::from(HOSTILE))] {
        world.boards.lock().unwrap().applications.push(Application {
            id,
            name: HOSTILE.to_owned(),
            owner,
            athlete_capacity: 5,
            version: 0,
        });
    }
    (serving, world)
}

async fn send(serving: &Serving, request: Request<Body>) -> (Response<()>, String) {
    let response = serving.router().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    (Response::from_parts(parts, ()), text)
}

async fn get(serving: &Serving, uri: &str, cookie: Option<&str>) -> (Response<()>, String) {
    let mut request = Request::get(uri);
    if let Some(cookie) = cookie {
        request = request.header(header::COOKIE, cookie);
    }
    send(serving, request.body(Body::empty()).unwrap()).await
}

/// Requests a page like a browser.
async fn get_as_browser(serving: &Serving, uri: &str, cookie: &str) -> (Response<()>, String) {
    let request = Request::get(uri)
        .header(header::ACCEPT, "text/html,*/*;q=0.8")
        .header(header::COOKIE, cookie);
    send(serving, request.body(Body::empty()).unwrap()).await
}

/// Signs in with a key; returns the cookie and the redirect target, or the page with the error.
async fn sign_in(serving: &Serving, key: &str, next: &str) -> Result<(String, String), String> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("key", key).append_pair("next", next);
    let request = Request::post("/signin")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(form.finish()))
        .unwrap();
    let (response, text) = send(serving, request).await;
    let value = |name: header::HeaderName| {
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    match value(header::SET_COOKIE) {
        Some(cookie) => {
            assert!(
                cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
                "{cookie}"
            );
            let cookie = cookie.split(';').next().unwrap().to_owned();
            Ok((cookie, value(header::LOCATION).unwrap()))
        }
        None => Err(text),
    }
}

#[tokio::test]
async fn every_page_is_complete_and_escapes_names() {
    let (serving, _) = service();
    for uri in PAGES {
        let (response, text) = get(&serving, uri, None).await;
        // No batch run exists yet.
        let expected = if uri.contains("/runs/") { 404 } else { 200 };
        assert_eq!(response.status(), expected, "{uri}: {text}");
        let headers = response.headers();
        assert_eq!(headers["content-type"], "text/html; charset=utf-8", "{uri}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("script-src 'self'"), "{uri}: {policy}");
        assert!(
            text.contains("<title>") && text.ends_with("</html>"),
            "{uri}: {text}"
        );
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
    let (_, list) = get(&serving, "/applications?sort=id", None).await;
    assert!(
        list.contains("&#60;script&#62;") || list.contains("&lt;script&gt;"),
        "{list}"
    );
}

/// All texts between two markers.
fn between<'a>(text: &'a str, before: &str, after: &'a str) -> Vec<&'a str> {
    let found = text.split(before).skip(1);
    found.filter_map(|rest| rest.split(after).next()).collect()
}

#[tokio::test]
async fn every_part_of_a_page_has_export_links() {
    let (serving, _) = service();
    let mut links_checked = 0;
    for page in PAGES {
        let (_, text) = get(&serving, page, None).await;
        let links = between(&text, "<a href=\"/api/", "\" download>");
        let commands = between(&text, "<pre><code>curl ", "</code>");
        assert_eq!(links.len(), commands.len(), "{page}");
        for (link, command) in links.iter().zip(commands) {
            let link = format!("/api/{link}")
                .replace("&#38;", "&")
                .replace("&amp;", "&");
            let (response, csv) = get(&serving, &link, None).await;
            assert_eq!(response.status(), StatusCode::OK, "{page}: {link}: {csv}");
            let kind = &response.headers()[header::CONTENT_TYPE];
            assert_eq!(kind, "text/csv; charset=utf-8", "{page}: {link}");
            let path = link.split('?').next().unwrap();
            assert!(command.contains(path), "{page}: {link}: {command}");
            links_checked += 1;
        }
    }
    assert!(links_checked >= 20, "{links_checked}");
}

#[tokio::test]
async fn periods_link_to_previous_and_next_ones() {
    let (serving, _) = service();
    for (query, before, after) in [
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
        let (response, text) = get(&serving, &format!("/owners/1?{query}"), None).await;
        assert_eq!(response.status(), StatusCode::OK, "{query}");
        for (rel, date) in [("prev", before), ("next", after)] {
            let target = text.contains(&format!("rel=\"{rel}\">"));
            assert_eq!(target, date.is_some(), "{query} {rel}");
            let date = date.map(|date| format!("date={date}"));
            assert!(
                date.is_none_or(|date| text.contains(&date)),
                "{query} {rel}"
            );
        }
    }
    let (_, text) = get(&serving, "/owners/1?period=month", None).await;
    assert!(
        !text.contains("rel=\"next\">"),
        "the current period has no next one"
    );
    let (_, text) = get(&serving, "/owners/1?period=month&date=2026-03-31", None).await;
    assert!(text.contains("on 2026-03-31"));
    let command = between(&text, "<pre><code>curl ", "</code>");
    assert!(command[0].contains("date=2026-03-31"), "{}", command[0]);
}

#[tokio::test]
async fn invalid_addresses_are_client_errors() {
    let (serving, _) = service();
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
        let (response, text) = get(&serving, uri, None).await;
        assert_eq!(response.status(), status, "{uri}: {text}");
        assert!(!text.contains("<script>"), "{uri}: {text}");
    }
    // A browser receives HTML.
    for (uri, status, kind) in [
        ("/nowhere", 404, "text/html"),
        ("/api/v1/nowhere", 404, "application/problem+json"),
        ("/owners/%FF", 400, "text/html"),
    ] {
        let (response, text) = get_as_browser(&serving, uri, "").await;
        assert_eq!(response.status(), status, "{text}");
        let found = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
        assert!(found.starts_with(kind), "{uri}: {found}");
    }
    let (response, _) = get(&serving, "/find?what=segment&id=-7", None).await;
    assert_eq!(response.headers()[header::LOCATION], "/segments/-7");
}

/// Sets names.
fn set_names(world: &World, kind: NamedKind, names: &[(i64, &str)]) {
    let names = names
        .iter()
        .map(|(id, name)| ((kind, *id), (*name).to_owned()));
    world.boards.lock().unwrap().names.extend(names);
}

#[tokio::test]
async fn search_finds_entities_by_name() {
    let (serving, world) = service();
    set_names(
        &world,
        NamedKind::Segment,
        &[(1, "Old Climb"), (2, "Long <i>Climb</i>"), (3, "Sprint")],
    );
    let (response, page) = get(&serving, "/find?what=segment&id=climb", None).await;
    assert_eq!(response.status(), 200, "{page}");
    assert!(
        page.contains("<a href=\"/segments/1\">Old Climb</a>"),
        "{page}"
    );
    assert!(
        page.contains("<a href=\"/segments/2\">Long &#60;i&#62;"),
        "{page}"
    );
    assert!(!page.contains("Sprint"), "{page}");
    for (search, target) in [
        ("segment&id=+sprint+", "/segments/3"),
        ("application&id=a%26b", "/applications?search=a%26b"),
    ] {
        let (response, _) = get(&serving, &format!("/find?what={search}"), None).await;
        assert_eq!(response.headers()[header::LOCATION], target);
    }
    set_names(
        &world,
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
        let (response, page) = get(&serving, &format!("/segments/1?athlete={search}"), None).await;
        assert_eq!(response.status(), 200, "{page}");
        assert!(page.contains(text), "{search}: {page}");
    }
    let (response, page) = get(&serving, "/find?what=owner&id=nobody", None).await;
    assert_eq!(response.status(), 200, "{page}");
    assert!(page.contains("No name contains this text"), "{page}");
    // A search by name covers all owners.
    let key = world.keys.create("read:owner:1", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (response, page) = get(&serving, "/find?what=segment&id=climb", Some(&cookie)).await;
    assert_eq!(response.status(), 400, "{page}");
    assert!(!page.contains("Old Climb"), "{page}");
}

#[tokio::test]
async fn an_unavailable_store_determines_the_status_of_a_page() {
    let (serving, world) = service();
    *world.is_down.lock().unwrap() = true;
    for uri in ["/owners/2?period=7d", "/tracks/2?period=7d"] {
        let (response, page) = get(&serving, uri, None).await;
        assert_eq!(response.status(), 503, "{uri}: {page}");
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert!(page.contains("Try again"), "{uri}: {page}");
    }
}

#[tokio::test]
async fn an_invalid_parameter_is_reported_once() {
    let (serving, _) = service();
    for (uri, times) in [
        ("/owners/1?tz=Mars", 1),
        ("/owners/1?by=colour", 1),
        ("/owners/1", 0),
    ] {
        let (_, page) = get(&serving, uri, None).await;
        assert_eq!(
            page.matches("role=\"alert\"").count(),
            times,
            "{uri}: {page}"
        );
        let is_whole = page.contains("id=\"numbers\"");
        assert_eq!(is_whole, !uri.contains("Mars"), "{uri}: {page}");
    }
}

#[tokio::test]
async fn filters_link_to_pages_of_entities() {
    let (serving, _) = service();
    let (_, page) = get(&serving, "/owners/1?track_id=7&country=DE", None).await;
    let filters = page.split_once("class=\"filters\"").expect("filters").1;
    let filters = filters.split_once("</ul>").expect("their end").0;
    assert!(filters.contains("href=\"/tracks/7\""), "{filters}");
    assert_eq!(filters.matches(">Open page<").count(), 1, "{filters}");
}

#[tokio::test]
async fn application_history_covers_the_selected_days() {
    let (serving, _) = service();
    let (_, page) = get(
        &serving,
        "/applications/7?from=2026-01-05&to=2026-02-01",
        None,
    )
    .await;
    assert!(
        page.contains("name=\"from\" value=\"2026-01-05\""),
        "{page}"
    );
    let api_path = "/api/v1/applications/7/history?from=2026-01-05&#38;to=2026-02-01";
    assert!(page.contains(api_path), "{page}");
}

#[tokio::test]
async fn assets_are_immutable() {
    let (serving, _) = service();
    let (_, page) = get(&serving, "/", None).await;
    let assets = page.split('"').filter(|part| part.starts_with("/assets/"));
    let mut count = 0;
    for asset in assets {
        let (response, text) = get(&serving, asset, None).await;
        assert_eq!(response.status(), 200, "{asset}");
        let cache_control = response.headers()["cache-control"].to_str().unwrap();
        assert!(
            cache_control.contains("immutable") && !text.is_empty(),
            "{asset}: {cache_control}"
        );
        count += 1;
    }
    assert_eq!(count, 3);
}

#[tokio::test]
async fn unauthenticated_readers_are_redirected_to_sign_in_and_back() {
    let (serving, world) = service();
    let key = world.keys.create("read:*", None);
    for uri in PAGES {
        let (response, _) = get(&serving, uri, None).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER, "{uri}");
        let target = response.headers()[header::LOCATION].to_str().unwrap();
        assert!(target.starts_with("/signin?next=%2F"), "{uri}: {target}");
    }
    let (response, page) = get(&serving, "/signin?next=/owners/1", None).await;
    assert_eq!(response.status(), 200);
    assert!(page.contains("value=\"/owners/1\""), "{page}");
    let (cookie, target) = sign_in(&serving, key.reveal(), "/owners/1").await.unwrap();
    assert_eq!(target, "/owners/1");
    assert!(!cookie.contains(key.reveal()), "{cookie}");
    let (response, page) = get(&serving, "/owners/1", Some(&cookie)).await;
    assert_eq!(response.status(), 200, "{page}");
    assert!(page.contains(key.id()) && !page.contains(key.reveal()));
    for wrong in ["bsk_", "nonsense", unknown_key().as_str()] {
        let text = sign_in(&serving, wrong, "/")
            .await
            .expect_err("an invalid key");
        assert!(text.contains("does not exist"), "{text}");
    }
    // Revoking the key ends the session.
    let revoked = world.keys.revoke_key(key.id(), "me", 1).await;
    assert!(revoked.unwrap().is_some());
    let (response, _) = get(&serving, "/owners/1", Some(&cookie)).await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
}

/// A well-formed key that does not exist.
fn unknown_key() -> String {
    stores::keys::Token::generate().reveal().to_owned()
}

#[tokio::test]
async fn owners_see_only_their_own_data() {
    let (serving, world) = service();
    let key = world.keys.create("read:owner:1", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (_, own) = get(&serving, "/owners/1", Some(&cookie)).await;
    assert!(!own.contains("Not permitted"), "{own}");
    // Of a track, an owner sees only their own plays.
    let (_, track) = get(&serving, "/tracks/1", Some(&cookie)).await;
    assert!(!track.contains("Not permitted"), "{track}");
    assert!(track.contains("owner_id=1&#38;"), "{track}");
    assert!(track.contains("owner: 1 (required by your key)"), "{track}");
    for uri in [
        "/owners/2",
        "/tracks/1?owner_id=2",
        "/segments/1",
        "/athletes/1",
        "/applications/8",
        "/pipeline",
    ] {
        let (response, text) = get(&serving, uri, Some(&cookie)).await;
        assert_eq!(response.status(), 403, "{uri}");
        assert!(text.contains("Not permitted"), "{uri}: {text}");
        assert!(!text.contains(" class=\"big\">1"), "{uri}: {text}");
    }
    let (target, first) = get(&serving, "/", Some(&cookie)).await;
    assert_eq!(target.headers()[header::LOCATION], "/owners/1");
    assert!(!first.contains("all-plays"), "{first}");
    let all = world.keys.create("read:*", None);
    let (cookie_of_all, _) = sign_in(&serving, all.reveal(), "/").await.unwrap();
    let (_, first) = get(&serving, "/", Some(&cookie_of_all)).await;
    assert!(first.contains("all-plays"), "{first}");
    let (_, list) = get(&serving, "/applications", Some(&cookie)).await;
    assert!(
        list.contains("/applications/7") && !list.contains("/applications/8"),
        "{list}"
    );
}

#[tokio::test]
async fn keys_for_several_owners_see_a_list_of_owners() {
    let (serving, world) = service();
    set_names(&world, NamedKind::Owner, &[(2, "Bo"), (3, "Cy")]);
    let scopes = "read:owner:1,read:owner:2,read:owner:Ann";
    let key = world.keys.create(scopes, None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    for uri in ["/", "/applications"] {
        let (response, page) = get_as_browser(&serving, uri, &cookie).await;
        assert_eq!(response.status(), 200, "{page}");
        for link in [
            "/owners/1\"",
            "/owners/2\" aria-label=\"Plays of Bo\"",
            "/applications?owner=1\"",
            "/applications?owner=Ann\"",
        ] {
            assert!(page.contains(link), "{uri}: {link}: {page}");
        }
        assert!(
            !page.contains("Cy") && !page.contains("/owners/3"),
            "{page}"
        );
    }
    let (_, page) = get_as_browser(&serving, "/find?what=application&id=Pacer", &cookie).await;
    assert!(page.is_empty(), "redirects to applications: {page}");
    let (_, page) = get_as_browser(&serving, "/applications?search=Pacer", &cookie).await;
    assert!(
        page.contains("/applications?owner=2&#38;search=Pacer\""),
        "{page}"
    );
    let (response, list) = get_as_browser(&serving, "/applications?owner=1", &cookie).await;
    assert_eq!(response.status(), 200, "{list}");
    assert!(list.contains("/applications/7"), "{list}");
    // A page that the key may not read offers to sign out.
    let writer = world.keys.create("ingest", None);
    let (cookie, _) = sign_in(&serving, writer.reveal(), "/").await.unwrap();
    let (response, page) = get_as_browser(&serving, "/", &cookie).await;
    assert_eq!(response.status(), 403);
    assert!(page.contains("the scope read:* is required"), "{page}");
    assert!(page.contains("action=\"/signout\""), "{page}");
    let (response, document) = get(&serving, "/", Some(&cookie)).await;
    assert_eq!(response.status(), 403);
    assert!(document.starts_with('{'), "{document}");
}

#[tokio::test]
async fn a_board_shows_rank_changes() {
    let (serving, world) = service();
    let job = boards::job("segments");
    let best = |member: i64| BoardTime {
        member,
        time: 100 + member,
        period: 0,
        gender: "F",
    };
    let rows = |members: &[i64]| {
        members
            .iter()
            .map(|member| best(*member))
            .collect::<Vec<_>>()
    };
    world.boards.lock().unwrap().publish(&job, 1, &rows(&[2]));
    let (_, page) = get(&serving, "/segments/1?athlete=2", None).await;
    assert!(!page.contains("Change since 2"), "{page}");
    let (serving, world) = service();
    let yesterday = jiff::civil::date(2026, 7, 13);
    {
        let mut boards = world.boards.lock().unwrap();
        boards.publish_on(yesterday, &job, 1, &rows(&[2, 3]));
        boards.set_state(&job, 1, 1, &rows(&[1]));
    }
    for uri in [
        "/segments/1",
        "/segments/1?athlete=1",
        "/segments/1?athlete=3",
    ] {
        let (_, page) = get(&serving, uri, None).await;
        assert!(page.contains("Change since 2026-07-13"), "{page}");
        assert!(
            page.contains("data-label=\"Since 2026-07-13\">new<"),
            "{page}"
        );
        assert!(
            page.contains("<span class=\"visually-hidden\">down</span> 1"),
            "{page}"
        );
    }
    let (_, page) = get(&serving, "/segments/1?athlete=1", None).await;
    assert!(page.contains("<dd class=\"big\">new</dd>"), "{page}");
}

#[tokio::test]
async fn names_are_shown_to_permitted_readers() {
    let (serving, world) = service();
    let kinds = [
        NamedKind::Owner,
        NamedKind::Track,
        NamedKind::Segment,
        NamedKind::Athlete,
    ];
    for of in kinds {
        for id in [1, 2] {
            set_names(&world, of, &[(id, &format!("{of} <i>{id}</i>"))]);
        }
    }
    let shown = |of: NamedKind, id: i64| format!("{of} &#60;i&#62;{id}&#60;/i&#62;");
    for of in kinds {
        let (_, page) = get(&serving, &format!("/{of}s/1"), None).await;
        let (heading, rest) = page.split_once("</h1>").expect("a heading");
        assert!(heading.ends_with(&shown(of, 1)), "{heading}");
        assert!(
            rest.contains(&format!("{of} 1")),
            "also shows the number: {rest}"
        );
    }
    let key = world.keys.create("read:owner:1", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (_, own) = get(&serving, "/owners/1", Some(&cookie)).await;
    assert!(own.contains(&shown(NamedKind::Owner, 1)), "{own}");
    for (of, id) in [
        (NamedKind::Owner, 2),
        (NamedKind::Track, 1),
        (NamedKind::Segment, 1),
        (NamedKind::Athlete, 1),
    ] {
        let (_, page) = get(&serving, &format!("/{of}s/{id}"), Some(&cookie)).await;
        assert!(!page.contains(&shown(of, id)), "{page}");
    }
}

#[tokio::test]
async fn sessions_may_write_only_from_pages_of_the_service() {
    let (serving, world) = service();
    let key = world.keys.create("admin", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    for (origin, expected) in [
        (None, 403),
        (Some("http://evil.example.org"), 403),
        (Some("http://here"), 200),
    ] {
        let mut request = Request::patch("/api/v1/applications/7")
            .header(header::HOST, "here")
            .header(header::COOKIE, &cookie);
        if let Some(origin) = origin {
            request = request.header(header::ORIGIN, origin);
        }
        let request = request
            .body(Body::from("{\"athlete_capacity\": 9}"))
            .unwrap();
        let (response, text) = send(&serving, request).await;
        assert_eq!(response.status(), expected, "{origin:?}: {text}");
    }
}

#[tokio::test]
async fn one_key_may_follow_a_share_of_the_streams() {
    let (serving, world) = serving(ServingOptions {
        followers_max: 16,
        stranger_requests_per_second_max: 0,
        ..ServingOptions::default()
    });
    let keys = [
        world.keys.create("read:*", None),
        world.keys.create("admin", None),
    ];
    let mut following = Vec::new();
    for key in &keys {
        for expected in [200, 200, 503] {
            let request = Request::get("/live?source=plays")
                .header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()))
                .body(Body::empty())
                .unwrap();
            let response = serving.router().oneshot(request).await.unwrap();
            assert_eq!(response.status(), expected);
            following.push(response);
        }
    }
    // An unauthenticated stream is refused, not redirected.
    let (response, _) = get(&serving, "/live?source=plays", None).await;
    assert_eq!(response.status(), 401);
    // Closed streams release their permits.
    following.clear();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let (cookie, _) = sign_in(&serving, keys[0].reveal(), "/").await.unwrap();
    let request = Request::get("/live?source=plays").header(header::COOKIE, &cookie);
    let request = request.body(Body::empty()).unwrap();
    let response = serving.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn streams_send_an_event_for_each_change() {
    let (serving, world) = service();
    for source in ["nothing", "plays,nothing", "plays,", ","] {
        let (response, text) = get(&serving, &format!("/live?source={source}"), None).await;
        assert_eq!(response.status(), 400, "{text}");
    }
    let request = Request::get("/live?source=efforts,authorizations,efforts")
        .body(Body::empty())
        .unwrap();
    let response = serving.router().oneshot(request).await.unwrap();
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "text/event-stream"
    );
    let mut events = response.into_body().into_data_stream();
    // The first check may run after the first change.
    let moving = async {
        for _ in 0..12 {
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            world.boards.lock().unwrap().next_offset += 1;
        }
    };
    let text = async {
        loop {
            let event = events.next().await.unwrap().unwrap();
            let text = String::from_utf8(event.to_vec()).unwrap();
            if text.contains("event: moved") {
                return text;
            }
        }
    };
    let text = tokio::select! {
        text = text => text,
        () = moving => panic!("no event was sent"),
    };
    assert!(text.contains("data: efforts,authorizations"), "{text}");
    // Shutdown ends the stream.
    serving.api().shutdown.cancel();
    assert!(events.next().await.is_none());
}

/// The next page continues after the last row even if ranks changed; the previous one jumps to an
/// offset.
#[tokio::test]
async fn the_next_page_of_a_board_continues_after_the_last_row() {
    let (serving, world) = service();
    let job = boards::job("segments");
    let row = |member: i64| BoardTime {
        member,
        time: 1_000 + member,
        period: 0,
        gender: "F",
    };
    {
        let mut boards = world.boards.lock().unwrap();
        boards.publish(&job, 1, &(0..120).map(row).collect::<Vec<_>>());
    }
    let link = |text: &str, rel: &str| {
        let found = text.split("<a class=\"button\" href=\"");
        let found = found.filter(|rest| rest.split('>').next().unwrap().contains(rel));
        let links = found.map(|rest| rest.split('"').next().unwrap());
        links
            .map(|link| link.replace("&#38;", "&").replace("&amp;", "&"))
            .next()
    };
    let shows = |text: &str, athlete: i64| {
        ["\"", "&"]
            .iter()
            .any(|end| text.contains(&format!("athlete={athlete}{end}")))
    };
    let (_, first) = get(&serving, "/segments/1", None).await;
    assert!(shows(&first, 49) && !shows(&first, 50), "{first}");
    assert_eq!(link(&first, "prev"), None);
    let next = link(&first, "next").unwrap();
    // Two athletes move to the top.
    {
        let mut boards = world.boards.lock().unwrap();
        for member in [118, 119] {
            boards.set_state(
                &job,
                1,
                member,
                &[BoardTime {
                    time: 1,
                    ..row(member)
                }],
            );
        }
    }
    let (_, second) = get(&serving, &next, None).await;
    assert!(
        !shows(&second, 49) && shows(&second, 50) && shows(&second, 99),
        "{second}"
    );
    assert_eq!(
        link(&second, "prev").as_deref(),
        Some("/segments/1?offset=2")
    );
    let (_, third) = get(&serving, &link(&second, "next").unwrap(), None).await;
    assert!(
        !shows(&third, 99) && shows(&third, 100) && shows(&third, 117),
        "{third}"
    );
    assert_eq!(link(&third, "next"), None);
    let (_, year) = get(&serving, "/segments/1?window=year&offset=7", None).await;
    assert_eq!(link(&year, "next"), None, "{year}");
}
