//! Signing in, and the data that pages show to the owner of a key.

use axum::body::Body;
use axum::http::{HeaderName, Request, StatusCode, header};
use serving::Serving;
use stores::keys::{Keys, Token};
use stores::names::NamedKind;

use super::{PAGES, get_as_browser, get_in_session, set_names, start_service};
use crate::requests::{get, send};

/// Signs in with a key. Returns the cookie and the redirect target, or the page with the error.
pub(super) async fn sign_in(
    serving: &Serving,
    key: &str,
    next: &str,
) -> Result<(String, String), String> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("key", key).append_pair("next", next);
    let request = Request::post("/signin")
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(form.finish()))
        .unwrap();
    let (response, text) = send(serving, request).await;
    let header_text = |name: HeaderName| {
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    match header_text(header::SET_COOKIE) {
        Some(cookie) => {
            assert!(cookie.contains("HttpOnly"), "{cookie}");
            assert!(cookie.contains("SameSite=Lax"), "{cookie}");
            let cookie = cookie.split(';').next().unwrap().to_owned();
            Ok((cookie, header_text(header::LOCATION).unwrap()))
        }
        None => Err(text),
    }
}

#[tokio::test]
async fn unauthenticated_readers_are_redirected_to_sign_in_and_back() {
    let (serving, stores) = start_service();
    let key = stores.keys.create("read:*", None);
    for uri in PAGES {
        let (response, _) = get(&serving, uri).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER, "{uri}");
        let target = response.headers()[header::LOCATION].to_str().unwrap();
        assert!(target.starts_with("/signin?next=%2F"), "{uri}: {target}");
    }
    let (response, page) = get(&serving, "/signin?next=/owners/1").await;
    assert_eq!(response.status(), 200);
    assert!(page.contains("value=\"/owners/1\""), "{page}");
    let (cookie, target) = sign_in(&serving, key.reveal(), "/owners/1").await.unwrap();
    assert_eq!(target, "/owners/1");
    assert!(!cookie.contains(key.reveal()), "{cookie}");
    let (response, page) = get_in_session(&serving, "/owners/1", &cookie).await;
    assert_eq!(response.status(), 200, "{page}");
    assert!(page.contains(key.id()) && !page.contains(key.reveal()));
    let unknown = Token::generate();
    for invalid in ["bsk_", "nonsense", unknown.reveal()] {
        let page = sign_in(&serving, invalid, "/").await.unwrap_err();
        assert!(page.contains("does not exist"), "{page}");
    }
    // Revoking the key ends the session.
    let revoked = stores.keys.revoke_key(key.id(), "me", 1).await;
    assert!(revoked.unwrap().is_some());
    let (response, _) = get_in_session(&serving, "/owners/1", &cookie).await;
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn owners_see_only_their_own_data() {
    let (serving, stores) = start_service();
    let key = stores.keys.create("read:owner:1", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (_, owner) = get_in_session(&serving, "/owners/1", &cookie).await;
    assert!(!owner.contains("Not permitted"), "{owner}");
    // Of a track, an owner sees only their own plays.
    let (_, track) = get_in_session(&serving, "/tracks/1", &cookie).await;
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
        let (response, text) = get_in_session(&serving, uri, &cookie).await;
        assert_eq!(response.status(), 403, "{uri}");
        assert!(text.contains("Not permitted"), "{uri}: {text}");
        let detail = "Your key shows owner 1 only. <a href=\"/owners/1\">Open</a>";
        assert!(text.contains(detail), "{uri}: {text}");
        assert!(!text.contains(" class=\"big\">1"), "{uri}: {text}");
    }
    let (response, text) = get_in_session(&serving, "/", &cookie).await;
    assert_eq!(response.headers()[header::LOCATION], "/owners/1");
    assert!(!text.contains("all-plays"), "{text}");
    let (_, list) = get_in_session(&serving, "/applications", &cookie).await;
    assert!(list.contains("/applications/7"), "{list}");
    assert!(!list.contains("/applications/8"), "{list}");
    // A key that reads everything.
    let key = stores.keys.create("read:*", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (_, overview) = get_in_session(&serving, "/", &cookie).await;
    assert!(overview.contains("all-plays"), "{overview}");
}

#[tokio::test]
async fn keys_for_several_owners_see_a_list_of_owners() {
    let (serving, stores) = start_service();
    set_names(&stores, NamedKind::Owner, &[(2, "Bo"), (3, "Cy")]);
    let scopes = "read:owner:1,read:owner:2,read:owner:Ann";
    let key = stores.keys.create(scopes, None);
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
        assert!(!page.contains("Cy"), "{page}");
        assert!(!page.contains("/owners/3"), "{page}");
    }
    let (response, page) = get_as_browser(&serving, "/owners/3", &cookie).await;
    assert_eq!(response.status(), 403, "{page}");
    let detail = "Your key shows owners 1, 2, Ann only. <a href=\"/\">Open</a>";
    assert!(page.contains(detail), "{page}");
    let (_, page) = get_as_browser(&serving, "/find?what=application&id=Pacer", &cookie).await;
    assert!(page.is_empty(), "redirects to applications: {page}");
    let (_, page) = get_as_browser(&serving, "/applications?search=Pacer", &cookie).await;
    let link = "/applications?owner=2&#38;search=Pacer\"";
    assert!(page.contains(link), "{page}");
    let (response, list) = get_as_browser(&serving, "/applications?owner=1", &cookie).await;
    assert_eq!(response.status(), 200, "{list}");
    assert!(list.contains("/applications/7"), "{list}");
    // A page that the key may not read offers to sign out.
    let writer = stores.keys.create("ingest", None);
    let (cookie, _) = sign_in(&serving, writer.reveal(), "/").await.unwrap();
    let (response, page) = get_as_browser(&serving, "/", &cookie).await;
    assert_eq!(response.status(), 403);
    assert!(page.contains("the scope read:* is required"), "{page}");
    assert!(page.contains("action=\"/signout\""), "{page}");
    let (response, document) = get_in_session(&serving, "/", &cookie).await;
    assert_eq!(response.status(), 403);
    assert!(document.starts_with('{'), "{document}");
}

#[tokio::test]
async fn names_are_shown_to_permitted_readers() {
    let (serving, stores) = start_service();
    let kinds = [
        NamedKind::Owner,
        NamedKind::Track,
        NamedKind::Segment,
        NamedKind::Athlete,
    ];
    for kind in kinds {
        for id in [1, 2] {
            set_names(&stores, kind, &[(id, &format!("{kind} <i>{id}</i>"))]);
        }
    }
    let escaped_name = |kind: NamedKind, id: i64| format!("{kind} &#60;i&#62;{id}&#60;/i&#62;");
    for kind in kinds {
        let (_, page) = get(&serving, &format!("/{kind}s/1")).await;
        let (heading, content) = page.split_once("</h1>").expect("a heading");
        assert!(heading.ends_with(&escaped_name(kind, 1)), "{heading}");
        // The page also shows the number.
        assert!(content.contains(&format!("{kind} 1")), "{content}");
    }
    let key = stores.keys.create("read:owner:1", None);
    let (cookie, _) = sign_in(&serving, key.reveal(), "/").await.unwrap();
    let (_, page) = get_in_session(&serving, "/owners/1", &cookie).await;
    assert!(page.contains(&escaped_name(NamedKind::Owner, 1)), "{page}");
    for (kind, id) in [
        (NamedKind::Owner, 2),
        (NamedKind::Track, 1),
        (NamedKind::Segment, 1),
        (NamedKind::Athlete, 1),
    ] {
        let (_, page) = get_in_session(&serving, &format!("/{kind}s/{id}"), &cookie).await;
        assert!(!page.contains(&escaped_name(kind, id)), "{page}");
    }
}

#[tokio::test]
async fn sessions_may_write_only_from_pages_of_the_service() {
    let (serving, stores) = start_service();
    let key = stores.keys.create("admin", None);
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
        let body = Body::from("{\"athlete_capacity\": 9}");
        let (response, text) = send(&serving, request.body(body).unwrap()).await;
        assert_eq!(response.status(), expected, "{origin:?}: {text}");
    }
}
