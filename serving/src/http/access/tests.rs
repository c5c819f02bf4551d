//! Access by scope, route and owner, key expiry, rate limits, and requests without a key.

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

fn request_from(method: &str, uri: &str, key: Option<&str>, from: &str) -> Request<Body> {
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
    let (status, _) = answer(serving, request_from(method, uri, key, OUTSIDE)).await;
    status.as_u16()
}

/// All routes, including the one that the OpenAPI document leaves out.
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
async fn the_openapi_document_says_which_routes_need_a_key() {
    let (serving, _) = service(options());
    let document: Value = serde_json::from_str(&serving.openapi()).unwrap();
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!(schemes["bearer"]["scheme"], "bearer", "{schemes}");
    assert_eq!(schemes["header"]["name"], X_API_KEY, "{schemes}");
    let mut without = Vec::new();
    for (method, path) in routes(&serving) {
        let operation = &document["paths"][&path][&method];
        match operation["security"].as_array() {
            Some(schemes) => assert_eq!(schemes.len(), 2, "{path}"),
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

/// `routes` lists one route by hand. The OpenAPI document must have all others.
#[test]
fn only_one_route_is_not_described() {
    let by_hand = include_str!("../mod.rs").matches(".route(").count();
    assert_eq!(
        by_hand, 1,
        "a route that is not described: add it to `routes`"
    );
}

#[tokio::test]
async fn requests_need_a_key_once_one_exists() {
    let (serving, world) = service(options());
    assert_eq!(
        status(&serving, "GET", "/api/v1/applications", None).await,
        401
    );
    let (here, _) = answer(
        &serving,
        request_from("GET", "/api/v1/applications", None, HERE),
    )
    .await;
    assert_eq!(
        here, 200,
        "loopback requests are accepted until a key exists"
    );
    world.keys.create("read:*", None);
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
                let (status, body) = answer(&serving, request_from(&method, &uri, key, from)).await;
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

/// The keys that are accepted, by method and path. R: `read:*`, O: owner 1, W: `ingest`, P:
/// `ingest:plays`, C: `ingest:authorizations`, N: owner 3, A: `admin`.
const ACCEPTED: [(&str, &str, &str); 36] = [
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
async fn a_key_permits_what_its_scopes_allow() {
    let (serving, world) = service(options());
    let key = |scopes: &str| world.keys.create(scopes, None).reveal().to_owned();
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
    for (method, uri, accepted) in ACCEPTED {
        for (who, key) in &keys {
            let (status, body) =
                answer(&serving, request_from(method, uri, Some(key), OUTSIDE)).await;
            let is_refused = status == 403;
            let context = format!("{method} {uri} {who}: {status} {body}");
            assert_eq!(is_refused, !accepted.contains(*who), "{context}");
            assert!(status != 401, "{context}");
            let has_problem = method == "HEAD" || body.contains("/problems/not-permitted");
            assert!(!is_refused || has_problem, "{context}");
        }
    }
    // Unknown paths and unsupported methods do not depend on the scope.
    assert_eq!(status(&serving, "GET", "/nowhere", None).await, 404);
    assert_eq!(status(&serving, "PUT", "/livez", Some(&owner)).await, 405);
}

#[tokio::test]
async fn an_owner_key_lists_only_its_own_applications() {
    let (serving, world) = service(options());
    let key = world.keys.create("read:owner:1", None);
    let uri = "/api/v1/applications?owner=1";
    let (status, body) = answer(
        &serving,
        request_from("GET", uri, Some(key.reveal()), OUTSIDE),
    )
    .await;
    assert_eq!(status, 200, "{body}");
    let found: Value = serde_json::from_str(&body).unwrap();
    let ids: Vec<_> = found["applications"].as_array().unwrap().iter().collect();
    assert_eq!((ids.len(), &ids[0]["id"]), (1, &Value::from(7)), "{found}");
}

#[tokio::test]
async fn refuses_expired_and_revoked_keys() {
    let (serving, world) = service(options());
    let now_ms = crate::world::NOW_MS;
    let uri = "/api/v1/applications/7";
    let expired = world.keys.create("read:*", Some(now_ms));
    let expires = world.keys.create("read:*", Some(now_ms + 1));
    let of = |token: &Token| token.reveal().to_owned();
    assert_eq!(status(&serving, "GET", uri, Some(&of(&expired))).await, 401);
    assert_eq!(status(&serving, "GET", uri, Some(&of(&expires))).await, 200);
    let revoked = world.keys.revoke_key(expires.id(), "me", now_ms).await;
    assert!(revoked.unwrap().is_some());
    let (status, body) = answer(
        &serving,
        request_from("GET", uri, Some(expires.reveal()), OUTSIDE),
    )
    .await;
    assert_eq!(status, 401);
    assert!(body.contains("was revoked"), "{body}");
    assert!(!body.contains(expires.reveal()), "{body}");
    // An id with another secret is refused.
    let other = world.keys.create("admin", None);
    let secret = expired.reveal().rsplit_once('_').unwrap().1;
    let forged = format!("bsk_{}_{secret}", other.id());
    let (status, body) = answer(&serving, request_from("GET", uri, Some(&forged), OUTSIDE)).await;
    assert_eq!((status.as_u16(), body.contains("no such key")), (401, true));
}

#[tokio::test]
async fn caches_keys_and_uses_stale_ones_while_the_store_is_down() {
    let caching = ServingOptions {
        keys_kept_ms: 60_000,
        ..options()
    };
    for (options, reads) in [(caching, 1), (options(), 6)] {
        let (serving, world) = service(options);
        let key = world.keys.create("read:*", None).reveal().to_owned();
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
        // An unknown key cannot be checked without the store.
        let unseen = Token::generate();
        assert_eq!(
            status(&serving, "GET", uri, Some(unseen.reveal())).await,
            503
        );
    }
    let (serving, world) = service(options());
    world.keys.is_down.store(true, Ordering::Relaxed);
    let (status, _) = answer(&serving, request_from("GET", "/livez", None, HERE)).await;
    assert_eq!(status, 200, "liveness does not depend on the key store");
    let (status, _) = answer(&serving, request_from("GET", "/metrics", None, HERE)).await;
    assert_eq!(status, 503, "it is unknown whether a key is required");
}

#[tokio::test]
async fn limits_the_rate_of_keys_and_addresses() {
    let (serving, world) = service(ServingOptions {
        key_requests_per_second_max: 2,
        stranger_requests_per_second_max: 2,
        keys_kept_ms: 60_000,
        ..options()
    });
    let keys = [0, 1].map(|_| world.keys.create("read:*", None).reveal().to_owned());
    let uri = "/api/v1/applications/7";
    // Even on a slow machine some requests arrive within one second.
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
    let statuses = until_refused(&|| Some(Token::generate().reveal().to_owned())).await;
    let (last, looked_up) = statuses.split_last().unwrap();
    assert_eq!((*last, looked_up.len()), (429, reads() - before));
    assert!(
        looked_up.iter().all(|status| *status == 401),
        "{statuses:?}"
    );
    let statuses = until_refused(&|| None).await;
    assert_eq!(statuses.last(), Some(&429));
    let (other, _) = answer(&serving, request_from("GET", uri, None, "203.0.113.10:1")).await;
    assert_eq!(other, 401, "another address has its own limit");
}

#[tokio::test]
async fn records_writes_of_administrators() {
    let (serving, world) = service(options());
    let admin = world.keys.create("admin", None);
    let uri = "/api/v1/applications/7";
    let key = Some(admin.reveal());
    assert_eq!(status(&serving, "GET", uri, key).await, 200);
    assert_eq!(status(&serving, "PATCH", uri, key).await, 200);
    let done = world.keys.actions.lock().unwrap().clone();
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(
        (done[0].action.as_str(), done[0].target.as_str()),
        ("http.patch", uri)
    );
    let name = format!("key with admin (key {})", admin.id());
    assert_eq!(done[0].actor, name);
}

#[tokio::test]
async fn records_the_name_of_an_ingesting_key() {
    let (serving, world) = service(options());
    let row = r#"{"id":7,"name":"Pacer","owner":42,"athlete_capacity":1000}"#;
    let ingest = |key: Option<&str>, from| {
        let uri = "/api/v1/ingest/applications";
        request_from("POST", uri, key, from).map(|_| Body::from(row))
    };
    let (status, body) = answer(&serving, ingest(None, HERE)).await;
    assert_eq!(status, 200, "{body}");
    let mut expected = vec!["ingest".to_owned()];
    for scope in ["ingest", "ingest:applications", "admin"] {
        let key = world.keys.create(scope, None);
        let (status, body) = answer(&serving, ingest(Some(key.reveal()), OUTSIDE)).await;
        assert_eq!(status, 200, "{body}");
        expected.push(format!("ingest, key with {scope} (key {})", key.id()));
    }
    assert_eq!(*world.actors.lock().unwrap(), expected);
    let plays = world.keys.create("ingest:plays", None);
    let (status, body) = answer(&serving, ingest(Some(plays.reveal()), OUTSIDE)).await;
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("ingest:SOURCE"), "{body}");
    assert_eq!(*world.actors.lock().unwrap(), expected);
}

#[tokio::test]
async fn refuses_the_reserved_actor_of_ingested_lines() {
    let (serving, _) = service(options());
    for (by, expected) in [
        ("ingest", 400),
        (" ingest ", 400),
        ("ingest, desk (key 0123456789ab)", 400),
        ("ingestion team", 200),
    ] {
        let body = serde_json::json!({"athlete_capacity": 9, "by": by}).to_string();
        let request = request_from("PATCH", "/api/v1/applications/7", None, HERE);
        let (status, body) = answer(&serving, request.map(|_| Body::from(body))).await;
        assert_eq!(status, expected, "{by}: {body}");
    }
}

/// Returns the client's address of a request with the header `X-Forwarded-For`.
fn client(serving: &Serving, forwarded_for: &str, from: &str) -> IpAddr {
    let mut request = request_from("GET", "/", None, from);
    let headers = request.headers_mut();
    headers.insert("x-forwarded-for", forwarded_for.parse().unwrap());
    client_ip(serving.api(), request.headers(), request.extensions()).unwrap()
}

#[tokio::test]
async fn believes_the_client_address_of_a_trusted_proxy() {
    let proxy: Network = "203.0.113.9".parse().unwrap();
    let net: Network = "203.0.113.0/24".parse().unwrap();
    for (trusted, forwarded_for, expected) in [
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
        let found = client(&serving, forwarded_for, OUTSIDE).to_string();
        assert_eq!(found, expected, "{forwarded_for}");
    }
}

/// Headers that show that a proxy forwarded a request.
const PROXY_HEADER_NAMES: [&str; 12] = [
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
async fn a_loopback_address_in_a_header_is_not_believed() {
    let proxies = ["203.0.113.9", "127.0.0.1"];
    for (proxy, from) in proxies.into_iter().zip([OUTSIDE, HERE]) {
        let (serving, _) = service(ServingOptions {
            trusted_proxies: vec![proxy.parse().unwrap()],
            ..options()
        });
        for forwarded_for in [
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
                let mut request = request_from(method, uri, None, from);
                let headers = request.headers_mut();
                headers.insert("x-forwarded-for", forwarded_for.parse().unwrap());
                let (status, body) = answer(&serving, request).await;
                assert_eq!(status, 401, "{forwarded_for} {uri} from {from}: {body}");
            }
            // Requests of this machine have no limits, so a client must not pretend to be it.
            assert!(
                !client(&serving, forwarded_for, from).is_loopback(),
                "{forwarded_for}"
            );
            let mut request = request_from("GET", "/", None, from);
            let headers = request.headers_mut();
            headers.insert("x-forwarded-for", forwarded_for.parse().unwrap());
            assert!(
                client_network(serving.api(), &request).is_some(),
                "{forwarded_for}"
            );
        }
    }
}

#[tokio::test]
async fn without_a_key_refuses_proxied_requests() {
    let here: Network = "127.0.0.1".parse().unwrap();
    let other: Network = "203.0.113.9".parse().unwrap();
    let all = PROXY_HEADER_NAMES.into_iter().map(Some);
    for trusted in [vec![], vec![other], vec![here]] {
        for header in std::iter::once(None).chain(all.clone()) {
            // A trusted proxy forwards requests of others, even without a header that says so.
            let is_accepted = header.is_none() && trusted != [here];
            let (serving, _) = service(ServingOptions {
                trusted_proxies: trusted.clone(),
                ..options()
            });
            let mut request = request_from("GET", "/api/v1/applications/7", None, HERE);
            if let Some(header) = header {
                let value = "127.0.0.1".parse().unwrap();
                let name: HeaderName = header.parse().unwrap();
                request.headers_mut().insert(name, value);
            }
            let (status, body) = answer(&serving, request).await;
            let expected = if is_accepted { 200 } else { 401 };
            assert_eq!(status, expected, "{trusted:?} {header:?}: {body}");
        }
    }
}

/// By default nginx forwards with HTTP/1.0 and the address of this service as `Host`.
#[tokio::test]
async fn without_a_key_refuses_http_1_0() {
    let (serving, world) = service(options());
    let by = async |version, key: Option<&str>| {
        let mut request = request_from("GET", "/api/v1/applications/7", key, HERE);
        *request.version_mut() = version;
        answer(&serving, request).await.0
    };
    assert_eq!(by(Version::HTTP_10, None).await, 401);
    assert_eq!(by(Version::HTTP_11, None).await, 200);
    let key = world.keys.create("read:*", None);
    assert_eq!(by(Version::HTTP_10, Some(key.reveal())).await, 200);
}

#[tokio::test]
async fn the_absence_of_keys_is_cached_for_a_second() {
    let (serving, world) = service(ServingOptions {
        keys_kept_ms: 600_000,
        ..options()
    });
    let uri = "/api/v1/applications/7";
    let here = async || {
        answer(&serving, request_from("GET", uri, None, HERE))
            .await
            .0
    };
    assert_eq!(here().await, 200);
    world.keys.create("read:*", None);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(here().await, 401);
}

#[tokio::test]
async fn a_hanging_key_store_does_not_block_known_keys() {
    let (serving, world) = service(ServingOptions {
        keys_kept_ms: 1_000,
        keys_kept_stale_ms: 600_000,
        ..options()
    });
    let uri = "/api/v1/applications/7";
    let from_here = |uri| request_from("GET", uri, None, HERE);
    assert_eq!(answer(&serving, from_here(uri)).await.0, 200);
    world.keys.hangs.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(answer(&serving, from_here(uri)).await.0, 200);
    }
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    // The same once a key exists.
    world.keys.hangs.store(false, Ordering::Relaxed);
    let key = world.keys.create("read:*", None);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let cached_key = Some(key.reveal());
    assert_eq!(status(&serving, "GET", uri, cached_key).await, 200);
    world.keys.hangs.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(status(&serving, "GET", uri, cached_key).await, 200);
    }
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    // The lookup of an unknown key has a short time limit.
    let begun = tokio::time::Instant::now();
    let other = Token::generate();
    let (refused, body) = answer(
        &serving,
        request_from("GET", uri, Some(other.reveal()), OUTSIDE),
    )
    .await;
    assert_eq!(refused, 503, "{body}");
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    let (live, _) = answer(&serving, request_from("GET", "/livez", None, OUTSIDE)).await;
    assert_eq!(live, 200);
}

#[tokio::test]
async fn limits_the_rate_of_revoked_keys() {
    let (serving, world) = service(ServingOptions {
        keys_kept_ms: 60_000,
        key_requests_per_second_max: 2,
        ..options()
    });
    let key = world.keys.create("read:*", None);
    let revoked = world.keys.revoke_key(key.id(), "me", 1).await;
    assert!(revoked.unwrap().is_some());
    // Concurrent requests: on a slow machine sequential ones would stay below the limit.
    let requests = (0..40).map(|_| status(&serving, "GET", "/api/v1/overview", Some(key.reveal())));
    let statuses = futures::future::join_all(requests).await;
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn refuses_writes_from_pages_of_other_origins() {
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
        let mut request = request_from("PATCH", "/api/v1/applications/7", None, HERE);
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
async fn without_a_key_refuses_host_names_of_other_sites() {
    let (serving, _) = service(ServingOptions {
        hosts: vec!["stats.example.org".to_owned()],
        ..options()
    });
    for (host, is_accepted) in [
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
        let mut request = request_from("GET", "/api/v1/applications/7", None, HERE);
        request.headers_mut().insert("host", host.parse().unwrap());
        let (status, body) = answer(&serving, request).await;
        assert_eq!(status == 200, is_accepted, "{host}: {status} {body}");
    }
}

#[tokio::test]
async fn allows_cross_origin_reads_of_configured_origins_only() {
    let configured = "https://app.example.org";
    for (origins, is_accepted) in [(vec![], false), (vec![configured.to_owned()], true)] {
        let (serving, _) = service(ServingOptions {
            cors_origins: origins,
            ..options()
        });
        for (origin, is_configured) in [(configured, true), ("https://evil.example.org", false)] {
            let mut request = request_from("GET", "/livez", None, HERE);
            request
                .headers_mut()
                .insert("origin", origin.parse().unwrap());
            let response = serving.router().oneshot(request).await.unwrap();
            let allowed = response.headers().get("access-control-allow-origin");
            assert_eq!(allowed.is_some(), is_accepted && is_configured, "{origin}");
            let policy = response.headers()["content-security-policy"]
                .to_str()
                .unwrap();
            assert!(policy.contains("default-src 'none'"), "{policy}");
        }
    }
}

#[tokio::test]
async fn refuses_requests_beyond_the_concurrency_limit() {
    let (serving, _) = service(options());
    let api = serving.api();
    let status = async |uri: &str| {
        let request = request_from("GET", uri, None, HERE);
        answer(&serving, request).await.0.as_u16()
    };
    let all: Vec<_> = (0..4_096)
        .map(|_| api.request_permits.acquire(None).unwrap())
        .collect();
    let uri = "/openapi.json";
    assert_eq!(status(uri).await, 503);
    // That the process lives is context however busy it is.
    assert_eq!(status("/livez").await, 200);
    drop(all);
    assert_eq!(status(uri).await, 200);
}

#[tokio::test]
async fn until_a_key_exists_refuses_remote_requests() {
    let (serving, _) = service(options());
    for uri in [
        "/openapi.json",
        "/docs",
        "/signin",
        "/api/v1/applications/7/limit",
    ] {
        assert_eq!(status(&serving, "GET", uri, None).await, 401, "{uri}");
        let here = answer(&serving, request_from("GET", uri, None, HERE)).await;
        assert_eq!(here.0.as_u16(), 200, "{uri}");
    }
    assert_eq!(status(&serving, "GET", "/livez", None).await, 200);
}
