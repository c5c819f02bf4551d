//! Who is let in where: by scopes, by route, by owner; and what becomes of keys that are over.

use std::sync::atomic::Ordering;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use schemas::entities::Application;
use serde_json::Value;
use stores::keys::Keys;
use tower::ServiceExt;

use super::*;
use crate::world::World;
use crate::world::boards::serving;
use crate::{Network, Serving, ServingOptions};

#[path = "browser_tests.rs"]
mod browsers;

const OUTSIDE: &str = "203.0.113.9:1234";
const HERE: &str = "127.0.0.1:1234";

fn options() -> ServingOptions {
    ServingOptions {
        whole_wait_ms: 0,
        keys_kept_ms: 0,
        stranger_requests_per_second_max: 0,
        ..ServingOptions::default()
    }
}

/// A service with an application of owner 1 and one of owner 2.
fn service(options: ServingOptions) -> (Serving, Arc<World>) {
    let (serving, world) = serving(options);
    for (id, owner) in [(7, Value::from(1)), (8, Value::from("2"))] {
        world.boards.lock().unwrap().applications.push(Application {
            id,
            name: "an app".to_owned(),
            owner,
            athlete_capacity: 5,
            version: 0,
        });
    }
    (serving, world)
}

fn asked(method: &str, uri: &str, key: Option<&str>, from: &str) -> Request<Body> {
    let peer: SocketAddr = from.parse().unwrap();
    let mut request = Request::builder()
        .method(method)
        .uri(uri)
        .header("host", "localhost")
        .extension(Peer(peer));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    request
        .body(Body::from("{\"athlete_capacity\": 9}"))
        .unwrap()
}

async fn answer(serving: &Serving, request: Request<Body>) -> (StatusCode, String) {
    let response = serving.router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn status(serving: &Serving, method: &str, uri: &str, key: Option<&str>) -> u16 {
    let (status, _) = answer(serving, asked(method, uri, key, OUTSIDE)).await;
    status.as_u16()
}

/// Every route that there is: those that are described, and those that are not.
fn routes(serving: &Serving) -> Vec<(String, String)> {
    let text = serving.openapi();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut routes = vec![(
        "get".to_owned(),
        "/api/v1/dead-letters/{id}/{place}".to_owned(),
    )];
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            routes.push((method.clone(), path.clone()));
        }
    }
    routes
}

#[tokio::test]
async fn the_description_says_what_needs_a_key() {
    let (serving, _) = service(options());
    let document: Value = serde_json::from_str(&serving.openapi()).unwrap();
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!(schemes["bearer"]["scheme"], "bearer", "{schemes}");
    assert_eq!(schemes["header"]["name"], X_API_KEY, "{schemes}");
    let mut without = Vec::new();
    for (method, path) in routes(&serving) {
        let operation = &document["paths"][&path][&method];
        match operation["security"].as_array() {
            Some(either) => assert_eq!(either.len(), 2, "{path}"),
            None if operation.is_object() => without.push(path),
            None => {}
        }
    }
    without.sort_unstable();
    let expected = [
        "/api/v1/applications/{id}/limit",
        "/livez",
        "/openapi.json",
        "/readyz",
    ];
    assert_eq!(without, expected);
}

/// One route stands in `routes` by hand: the description has all others but it.
#[test]
fn every_route_but_one_is_described() {
    let by_hand = include_str!("../mod.rs").matches(".route(").count();
    assert_eq!(
        by_hand, 1,
        "a route that is not described: add it to `routes`"
    );
}

#[tokio::test]
async fn nobody_is_let_in_without_a_key_once_there_is_one() {
    let (serving, world) = service(options());
    assert_eq!(
        status(&serving, "GET", "/api/v1/applications", None).await,
        401
    );
    let (here, _) = answer(&serving, asked("GET", "/api/v1/applications", None, HERE)).await;
    assert_eq!(here, 200, "this machine is served while there is no key");
    world.keys.make("read:*", None);
    let document: Value = serde_json::from_str(&serving.openapi()).unwrap();
    for (method, path) in routes(&serving) {
        let operation = &document["paths"][&path][&method];
        let is_open = operation.is_object() && operation["security"].is_null();
        let uri = path
            .replace("{metric}", "plays")
            .replace("{source}", "plays")
            .replace("{name}", "segments")
            .replace("{id}", "7");
        let uri = uri.replace(['{', '}'], "1");
        let uri = uri
            .replace("1segment_id1", "1")
            .replace("1athlete_id1", "1");
        for from in [OUTSIDE, HERE] {
            for key in [None, Some("bsk_0123456789ab_x"), Some("nonsense")] {
                let method = method.to_ascii_uppercase();
                let (status, body) = answer(&serving, asked(&method, &uri, key, from)).await;
                assert_eq!(
                    status != 401,
                    is_open,
                    "{method} {uri} {key:?}: {status} {body}"
                );
                assert!(is_open || body.contains("/problems/no-key"), "{body}");
            }
        }
    }
}

/// By method and path, who is let in: R reads all, O reads owner 1, W writes, P writes plays, C writes authorizations, N reads
/// owner 3, A administers.
const LET_IN: [(&str, &str, &str); 36] = [
    ("GET", "/api/v1/stats/plays/total?owner_id=1", "ROA"),
    ("GET", "/api/v1/stats/plays/total?owner_id=01", "ROA"),
    (
        "GET",
        "/api/v1/stats/plays/total?owner_id=%31&track_id=2",
        "ROA",
    ),
    ("GET", "/api/v1/stats/plays/total?owner_id=2", "RA"),
    ("GET", "/api/v1/stats/plays/total?track_id=1", "RA"),
    (
        "GET",
        "/api/v1/stats/plays/total?owner_id=1&owner_id=2",
        "RA",
    ),
    (
        "GET",
        "/api/v1/stats/plays/total?owner_id=2&owner_id=1",
        "RA",
    ),
    ("GET", "/api/v1/stats/plays/total?owner_id", "RA"),
    ("HEAD", "/api/v1/stats/plays/total?owner_id=2", "RA"),
    ("GET", "/api/v1/explain?owner_id=1", "ROA"),
    ("GET", "/api/v1/explain?segment_id=1", "RA"),
    ("GET", "/api/v1/applications", "RA"),
    ("GET", "/api/v1/applications?owner=1", "ROA"),
    ("GET", "/api/v1/applications?owner=2", "RA"),
    ("GET", "/api/v1/applications/7", "ROA"),
    ("GET", "/api/v1/applications/07", "ROA"),
    ("GET", "/api/v1/applications/8", "RA"),
    ("GET", "/api/v1/applications/9", "RA"),
    ("GET", "/api/v1/applications/8/audit", "RA"),
    ("POST", "/api/v1/applications/7/capacity-requests", "OA"),
    ("PATCH", "/api/v1/applications/7", "A"),
    ("PATCH", "/api/v1/capacity-requests/1", "A"),
    ("POST", "/api/v1/dead-letters/replay?dry_run=true", "A"),
    (
        "POST",
        "/api/v1/reconciliations/approve?source=plays&number=1",
        "A",
    ),
    ("GET", "/api/v1/dead-letters", "RA"),
    ("GET", "/api/v1/reconciliations", "RA"),
    ("POST", "/api/v1/ingest/plays", "WPA"),
    ("POST", "/api/v1/ingest/%70lays", "WPA"),
    ("POST", "/api/v1/ingest/applications", "WA"),
    ("POST", "/api/v1/ingest/authorizations", "WCA"),
    ("POST", "/api/v1/applications/7/authorizations", "WCA"),
    ("DELETE", "/api/v1/applications/7/authorizations/1", "WCA"),
    ("GET", "/api/v1/boards/segments/1", "RA"),
    ("GET", "/api/v1/overview", "RA"),
    ("GET", "/metrics", "RA"),
    ("GET", "/livez", "ROWPCNA"),
];

#[tokio::test]
async fn a_key_permits_what_its_scopes_say() {
    let (serving, world) = service(options());
    let key = |scopes: &str| world.keys.make(scopes, None).reveal().to_owned();
    let owner = key("read:owner:1");
    let keys = [
        ('R', key("read:*")),
        ('O', owner.clone()),
        ('W', key("ingest")),
        ('P', key("ingest:plays")),
        ('C', key("ingest:authorizations")),
        ('N', key("read:owner:3")),
        ('A', key("admin")),
    ];
    for (method, uri, let_in) in LET_IN {
        for (who, key) in &keys {
            let (status, body) = answer(&serving, asked(method, uri, Some(key), OUTSIDE)).await;
            let is_refused = status == 403;
            let told = format!("{method} {uri} {who}: {status} {body}");
            assert_eq!(is_refused, !let_in.contains(*who), "{told}");
            assert!(status != 401, "{told}");
            let says_why = method == "HEAD" || body.contains("/problems/not-permitted");
            assert!(!is_refused || says_why, "{told}");
        }
    }
    // What is nowhere is nowhere for everybody, and what is not served by a method says so.
    assert_eq!(status(&serving, "GET", "/nowhere", None).await, 404);
    assert_eq!(status(&serving, "PUT", "/livez", Some(&owner)).await, 405);
}

#[tokio::test]
async fn the_answer_of_an_owner_holds_nothing_of_another() {
    let (serving, world) = service(options());
    let key = world.keys.make("read:owner:1", None);
    let uri = "/api/v1/applications?owner=1";
    let (status, body) = answer(&serving, asked("GET", uri, Some(key.reveal()), OUTSIDE)).await;
    assert_eq!(status, 200, "{body}");
    let found: Value = serde_json::from_str(&body).unwrap();
    let ids: Vec<_> = found["applications"].as_array().unwrap().iter().collect();
    assert_eq!((ids.len(), &ids[0]["id"]), (1, &Value::from(7)), "{found}");
}

#[tokio::test]
async fn a_key_that_is_over_is_refused() {
    let (serving, world) = service(options());
    let now_ms = crate::world::NOW_MS;
    let uri = "/api/v1/applications/7";
    let expired = world.keys.make("read:*", Some(now_ms));
    let expires = world.keys.make("read:*", Some(now_ms + 1));
    let of = |token: &Token| token.reveal().to_owned();
    assert_eq!(status(&serving, "GET", uri, Some(&of(&expired))).await, 401);
    assert_eq!(status(&serving, "GET", uri, Some(&of(&expires))).await, 200);
    let revoked = world.keys.revoke_key(expires.id(), "me", now_ms).await;
    assert!(revoked.unwrap().is_some());
    let (status, body) = answer(&serving, asked("GET", uri, Some(expires.reveal()), OUTSIDE)).await;
    assert_eq!(status, 401);
    assert!(body.contains("taken back"), "{body}");
    assert!(!body.contains(expires.reveal()), "{body}");
    // The id alone, with another secret, is nothing.
    let other = world.keys.make("admin", None);
    let secret = expired.reveal().rsplit_once('_').unwrap().1;
    let forged = format!("bsk_{}_{secret}", other.id());
    let (status, body) = answer(&serving, asked("GET", uri, Some(&forged), OUTSIDE)).await;
    assert_eq!((status.as_u16(), body.contains("no such key")), (401, true));
}

#[tokio::test]
async fn keys_are_kept_for_a_while_and_longer_where_their_store_is_down() {
    let kept = ServingOptions {
        keys_kept_ms: 60_000,
        ..options()
    };
    for (options, reads) in [(kept, 1), (options(), 6)] {
        let (serving, world) = service(options);
        let key = world.keys.make("read:*", None).reveal().to_owned();
        let uri = "/api/v1/applications/7";
        for _ in 0..5 {
            assert_eq!(status(&serving, "GET", uri, Some(&key)).await, 200);
        }
        world.keys.is_down.store(true, Ordering::Relaxed);
        assert_eq!(status(&serving, "GET", uri, Some(&key)).await, 200);
        assert_eq!(
            world.keys.reads.load(Ordering::Relaxed).min(5),
            reads.min(5)
        );
        // One that was never seen can't be told from one that is wrong.
        let unseen = Token::draw();
        assert_eq!(
            status(&serving, "GET", uri, Some(unseen.reveal())).await,
            503
        );
    }
    let (serving, world) = service(options());
    world.keys.is_down.store(true, Ordering::Relaxed);
    let (status, _) = answer(&serving, asked("GET", "/livez", None, HERE)).await;
    assert_eq!(status, 200, "whether it lives depends on nothing");
    let (status, _) = answer(&serving, asked("GET", "/metrics", None, HERE)).await;
    assert_eq!(status, 503, "whether a key is needed is not known");
}

#[tokio::test]
async fn who_asks_too_often_waits() {
    let (serving, world) = service(ServingOptions {
        key_requests_per_second_max: 2,
        stranger_requests_per_second_max: 2,
        keys_kept_ms: 60_000,
        ..options()
    });
    let keys = [0, 1].map(|_| world.keys.make("read:*", None).reveal().to_owned());
    let uri = "/api/v1/applications/7";
    // However slow the machine is, some requests come within one second.
    let until_refused = async |key: &dyn Fn() -> Option<String>| {
        let mut statuses = Vec::new();
        while statuses.last() != Some(&429) && statuses.len() < 1_000 {
            statuses.push(status(&serving, "GET", uri, key().as_deref()).await);
        }
        statuses
    };
    for key in &keys {
        let statuses = until_refused(&|| Some(key.clone())).await;
        assert_eq!(statuses[..4], [200; 4], "each key has its own limit");
        assert_eq!(statuses.last(), Some(&429));
    }
    let reads = || world.keys.reads.load(Ordering::Relaxed);
    let before = reads();
    let statuses = until_refused(&|| Some(Token::draw().reveal().to_owned())).await;
    let (last, looked_up) = statuses.split_last().unwrap();
    assert_eq!((*last, looked_up.len()), (429, reads() - before));
    assert!(
        looked_up.iter().all(|status| *status == 401),
        "{statuses:?}"
    );
    let statuses = until_refused(&|| None).await;
    assert_eq!(statuses.last(), Some(&429));
    let (other, _) = answer(&serving, asked("GET", uri, None, "203.0.113.10:1")).await;
    assert_eq!(other, 401, "another address has its own limit");
}

#[tokio::test]
async fn what_administrators_ask_for_is_recorded_before_it_is_done() {
    let (serving, world) = service(options());
    let admin = world.keys.make("admin", None);
    let uri = "/api/v1/applications/7";
    let key = Some(admin.reveal());
    assert_eq!(status(&serving, "GET", uri, key).await, 200);
    assert_eq!(status(&serving, "PATCH", uri, key).await, 200);
    let done = world.keys.done.lock().unwrap().clone();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(
        (done[0].action.as_str(), done[0].target.as_str()),
        ("http.patch", uri)
    );
    let name = format!("of admin (key {})", admin.id());
    assert_eq!(done[0].actor, name);
}

#[tokio::test]
async fn what_a_key_ingests_is_recorded_with_its_name() {
    let (serving, world) = service(options());
    let row = r#"{"id":7,"name":"Pacer","owner":42,"athlete_capacity":1000}"#;
    let ingest = |key: Option<&str>, from| {
        let uri = "/api/v1/ingest/applications";
        asked("POST", uri, key, from).map(|_| Body::from(row))
    };
    let (status, body) = answer(&serving, ingest(None, HERE)).await;
    assert_eq!(status, 200, "{body}");
    let mut expected = vec!["ingest".to_owned()];
    for scope in ["ingest", "ingest:applications", "admin"] {
        let key = world.keys.make(scope, None);
        let (status, body) = answer(&serving, ingest(Some(key.reveal()), OUTSIDE)).await;
        assert_eq!(status, 200, "{body}");
        expected.push(format!("ingest, of {scope} (key {})", key.id()));
    }
    assert_eq!(*world.actors.lock().unwrap(), expected);
    let plays = world.keys.make("ingest:plays", None);
    let (status, body) = answer(&serving, ingest(Some(plays.reveal()), OUTSIDE)).await;
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("ingest: and the source's name"), "{body}");
    assert_eq!(*world.actors.lock().unwrap(), expected);
}

#[tokio::test]
async fn nobody_may_claim_to_be_a_line() {
    let (serving, _) = service(options());
    for (by, expected) in [
        ("ingest", 400),
        (" ingest ", 400),
        ("ingest, desk (key 0123456789ab)", 400),
        ("ingestion team", 200),
    ] {
        let body = serde_json::json!({"athlete_capacity": 9, "by": by}).to_string();
        let request = asked("PATCH", "/api/v1/applications/7", None, HERE);
        let (status, body) = answer(&serving, request.map(|_| Body::from(body))).await;
        assert_eq!(status, expected, "{by}: {body}");
    }
}

/// The client's address by the header `X-Forwarded-For` of a request from a peer.
fn client(serving: &Serving, said: &str, from: &str) -> IpAddr {
    let mut request = asked("GET", "/", None, from);
    let headers = request.headers_mut();
    headers.insert("x-forwarded-for", said.parse().unwrap());
    peer(serving.api(), request.headers(), request.extensions()).unwrap()
}

#[tokio::test]
async fn a_proxy_that_is_trusted_says_who_is_asking() {
    let proxy: Network = "203.0.113.9".parse().unwrap();
    let net: Network = "203.0.113.0/24".parse().unwrap();
    for (trusted, said, expected) in [
        (vec![proxy], "198.51.100.1", "198.51.100.1"),
        (vec![net], "198.51.100.1, 203.0.113.77", "198.51.100.1"),
        (vec![net], "198.51.100.1, 203.0.114.1", "203.0.114.1"),
        (
            vec![proxy],
            "192.0.2.1, 198.51.100.1, 203.0.113.9",
            "198.51.100.1",
        ),
        (vec![proxy], "nobody", "0.0.0.0"),
        (vec![], "198.51.100.1", "203.0.113.9"),
    ] {
        let (serving, _) = service(ServingOptions {
            trusted_proxies: trusted,
            ..options()
        });
        let found = client(&serving, said, OUTSIDE).to_string();
        assert_eq!(found, expected, "{said}");
    }
}

/// The headers that say of a request that a proxy passed it on.
const FROM_PROXIES: [&str; 12] = [
    "Forwarded",
    "Via",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Port",
    "X-Forwarded-Proto",
    "X-Real-IP",
    "X-Client-IP",
    "X-Original-Forwarded-For",
    "CF-Connecting-IP",
    "Fastly-Client-IP",
    "True-Client-IP",
];

#[tokio::test]
async fn an_address_in_a_header_is_never_this_machine() {
    let proxies = ["203.0.113.9", "127.0.0.1"];
    for (proxy, from) in proxies.into_iter().zip([OUTSIDE, HERE]) {
        let (serving, _) = service(ServingOptions {
            trusted_proxies: vec![proxy.parse().unwrap()],
            ..options()
        });
        for said in [
            "127.0.0.2",
            "::1",
            "[::1]:80",
            "::ffff:127.0.0.3",
            "198.51.100.1, 127.0.0.2",
        ] {
            for (method, uri) in [
                ("POST", "/api/v1/ingest/plays"),
                ("GET", "/api/v1/dead-letters"),
            ] {
                let mut request = asked(method, uri, None, from);
                let headers = request.headers_mut();
                headers.insert("x-forwarded-for", said.parse().unwrap());
                let (status, body) = answer(&serving, request).await;
                assert_eq!(status, 401, "{said} {uri} from {from}: {body}");
            }
            // This machine has no share of the requests at once, and no limit; a stranger must not claim to be it.
            assert!(!client(&serving, said, from).is_loopback(), "{said}");
            let mut request = asked("GET", "/", None, from);
            let headers = request.headers_mut();
            headers.insert("x-forwarded-for", said.parse().unwrap());
            assert!(asking(serving.api(), &request).is_some(), "{said}");
        }
    }
}

#[tokio::test]
async fn without_a_key_nothing_is_served_that_came_through_a_proxy() {
    let here: Network = "127.0.0.1".parse().unwrap();
    let elsewhere: Network = "203.0.113.9".parse().unwrap();
    let all = FROM_PROXIES.into_iter().map(Some);
    for trusted in [vec![], vec![elsewhere], vec![here]] {
        for header in std::iter::once(None).chain(all.clone()) {
            // A proxy that is trusted asks for others, also where it does not say so.
            let is_let_in = header.is_none() && trusted != [here];
            let (serving, _) = service(ServingOptions {
                trusted_proxies: trusted.clone(),
                ..options()
            });
            let mut request = asked("GET", "/api/v1/applications/7", None, HERE);
            if let Some(header) = header {
                let value = "127.0.0.1".parse().unwrap();
                let name: HeaderName = header.parse().unwrap();
                request.headers_mut().insert(name, value);
            }
            let (status, body) = answer(&serving, request).await;
            let expected = if is_let_in { 200 } else { 401 };
            assert_eq!(status, expected, "{trusted:?} {header:?}: {body}");
        }
    }
}

/// nginx forwards so unless it is configured otherwise, with the address of this service as `Host`.
#[tokio::test]
async fn without_a_key_requests_by_http_1_0_are_refused() {
    let (serving, world) = service(options());
    let by = async |version, key: Option<&str>| {
        let mut request = asked("GET", "/api/v1/applications/7", key, HERE);
        *request.version_mut() = version;
        answer(&serving, request).await.0
    };
    assert_eq!(by(Version::HTTP_10, None).await, 401);
    assert_eq!(by(Version::HTTP_11, None).await, 200);
    let key = world.keys.make("read:*", None);
    assert_eq!(by(Version::HTTP_10, Some(key.reveal())).await, 200);
}

#[tokio::test]
async fn that_there_is_no_key_is_believed_for_a_second() {
    let (serving, world) = service(ServingOptions {
        keys_kept_ms: 600_000,
        ..options()
    });
    let uri = "/api/v1/applications/7";
    let here = async || answer(&serving, asked("GET", uri, None, HERE)).await.0;
    assert_eq!(here().await, 200);
    world.keys.make("read:*", None);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(here().await, 401);
}

#[tokio::test]
async fn a_store_of_keys_that_hangs_stops_nobody_who_is_known() {
    let (serving, world) = service(ServingOptions {
        keys_kept_ms: 1_000,
        keys_kept_stale_ms: 600_000,
        ..options()
    });
    let uri = "/api/v1/applications/7";
    let of_here = |uri| asked("GET", uri, None, HERE);
    assert_eq!(answer(&serving, of_here(uri)).await.0, 200);
    world.keys.hangs.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(answer(&serving, of_here(uri)).await.0, 200);
    }
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    // From when there is a key on.
    world.keys.hangs.store(false, Ordering::Relaxed);
    let key = world.keys.make("read:*", None);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let known = Some(key.reveal());
    assert_eq!(status(&serving, "GET", uri, known).await, 200);
    world.keys.hangs.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(status(&serving, "GET", uri, known).await, 200);
    }
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    // One that may be made up is not waited for long.
    let begun = tokio::time::Instant::now();
    let other = Token::draw();
    let (refused, body) = answer(&serving, asked("GET", uri, Some(other.reveal()), OUTSIDE)).await;
    assert_eq!(refused, 503, "{body}");
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    let (live, _) = answer(&serving, asked("GET", "/livez", None, OUTSIDE)).await;
    assert_eq!(live, 200);
}

#[tokio::test]
async fn a_key_that_is_over_has_a_limit_too() {
    let (serving, world) = service(ServingOptions {
        keys_kept_ms: 60_000,
        key_requests_per_second_max: 2,
        ..options()
    });
    let key = world.keys.make("read:*", None);
    let revoked = world.keys.revoke_key(key.id(), "me", 1).await;
    assert!(revoked.unwrap().is_some());
    // All at once: on a slow machine one after the other is no more than is let through.
    let asked = (0..40).map(|_| status(&serving, "GET", "/api/v1/overview", Some(key.reveal())));
    let said = futures::future::join_all(asked).await;
    assert!(said.contains(&429), "{said:?}");
}

#[tokio::test]
async fn pages_of_others_write_nothing() {
    let (serving, _) = service(ServingOptions {
        cors_origins: vec!["https://app.example.org".to_owned()],
        ..options()
    });
    for (origin, host, expected) in [
        (None, "localhost:8080", 200),
        (Some("http://localhost:8080"), "localhost:8080", 200),
        (Some("https://app.example.org"), "localhost:8080", 200),
        (Some("https://evil.example.org"), "localhost:8080", 403),
        (Some("http://localhost:8081"), "localhost:8080", 403),
        (Some("https://localhost:8080"), "localhost:8080", 403),
        (Some("null"), "localhost:8080", 403),
    ] {
        let mut request = asked("PATCH", "/api/v1/applications/7", None, HERE);
        let headers = request.headers_mut();
        headers.insert("host", host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert("origin", origin.parse().unwrap());
        }
        let (status, body) = answer(&serving, request).await;
        assert_eq!(status, expected, "{origin:?}: {body}");
    }
}

#[tokio::test]
async fn a_name_that_was_made_to_lead_here_is_not_served_without_a_key() {
    let (serving, _) = service(ServingOptions {
        hosts: vec!["stats.example.org".to_owned()],
        ..options()
    });
    for (host, is_let_in) in [
        ("localhost", true),
        ("LOCALHOST:8080", true),
        ("127.0.0.1:8080", true),
        ("127.8.0.1", true),
        ("[::1]:8080", true),
        ("stats.example.org", true),
        ("evil.example.org:8080", false),
        ("127.0.0.1.evil.example.org", false),
        ("10.0.0.1", false),
        ("a@localhost:b", false),
    ] {
        let mut request = asked("GET", "/api/v1/applications/7", None, HERE);
        request.headers_mut().insert("host", host.parse().unwrap());
        let (status, body) = answer(&serving, request).await;
        assert_eq!(status == 200, is_let_in, "{host}: {status} {body}");
    }
}

#[tokio::test]
async fn other_origins_read_nothing_unless_they_are_named() {
    let named = "https://app.example.org";
    for (origins, is_let_in) in [(vec![], false), (vec![named.to_owned()], true)] {
        let (serving, _) = service(ServingOptions {
            cors_origins: origins,
            ..options()
        });
        for (origin, is_named) in [(named, true), ("https://evil.example.org", false)] {
            let mut request = asked("GET", "/livez", None, HERE);
            request
                .headers_mut()
                .insert("origin", origin.parse().unwrap());
            let response = serving.router().oneshot(request).await.unwrap();
            let allowed = response.headers().get("access-control-allow-origin");
            assert_eq!(allowed.is_some(), is_let_in && is_named, "{origin}");
            let policy = response.headers()["content-security-policy"]
                .to_str()
                .unwrap();
            assert!(policy.contains("default-src 'none'"), "{policy}");
        }
    }
}

#[tokio::test]
async fn more_at_once_than_may_be_are_asked_to_come_again() {
    let (serving, _) = service(options());
    let api = serving.api();
    let status = async |uri: &str| {
        let asked = asked("GET", uri, None, HERE);
        answer(&serving, asked).await.0.as_u16()
    };
    let all: Vec<_> = (0..4_096)
        .map(|_| api.requests.take(None).unwrap())
        .collect();
    let uri = "/openapi.json";
    assert_eq!(status(uri).await, 503);
    // That the process lives is told however busy it is.
    assert_eq!(status("/livez").await, 200);
    drop(all);
    assert_eq!(status(uri).await, 200);
}

#[tokio::test]
async fn while_there_is_no_key_others_are_served_nothing() {
    let (serving, _) = service(options());
    for uri in [
        "/openapi.json",
        "/docs",
        "/signin",
        "/api/v1/applications/7/limit",
    ] {
        assert_eq!(status(&serving, "GET", uri, None).await, 401, "{uri}");
        let here = answer(&serving, asked("GET", uri, None, HERE)).await;
        assert_eq!(here.0.as_u16(), 200, "{uri}");
    }
    assert_eq!(status(&serving, "GET", "/livez", None).await, 200);
}
