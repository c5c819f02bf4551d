//! Access by scope, route and owner; key expiry, limits, and requests without a key.

mod browser_headers;
mod client_address;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::future::join_all;
use schemas::entities::Application;
use serde_json::{Value, json};
use serving::{Peer, Serving, ServingOptions};
use stores::keys::{Keys, Token};
use tokio::time::sleep;

use crate::memory_stores::{MemoryStores, NOW_MS, boards};
use crate::requests::{get_json, no_wait_options, parse_json, send, send_unread};

/// The peer address of a remote client.
const REMOTE: &str = "203.0.113.9:1234";
/// The peer address of a client on this machine.
const LOOPBACK: &str = "127.0.0.1:1234";
const APPLICATION: &str = "/api/v1/applications/7";

/// Options without caching of keys and without a limit for unknown clients.
fn options() -> ServingOptions {
    ServingOptions {
        keys_kept_ms: 0,
        stranger_requests_per_second_max: 0,
        ..no_wait_options()
    }
}

/// Starts a service with application 7 of owner 1 and application 8 of owner 2.
fn start_service(options: ServingOptions) -> (Serving, Arc<MemoryStores>) {
    let (serving, stores) = boards::start_service(options);
    for (id, owner) in [(7, Value::from(1)), (8, Value::from("2"))] {
        stores.entities().applications.push(Application {
            id,
            name: "an app".to_owned(),
            owner,
            athlete_capacity: 5,
            version: 0,
        });
    }
    (serving, stores)
}

/// Builds a request of a client with a peer address. Its body changes a capacity.
fn build_request_from(peer: &str, method: &str, uri: &str, key: Option<&str>) -> Request<Body> {
    let peer: SocketAddr = peer.parse().unwrap();
    let mut request = Request::builder()
        .method(method)
        .uri(uri)
        .header("host", "localhost")
        .extension(Peer(peer));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let body = Body::from("{\"athlete_capacity\": 9}");
    request.body(body).unwrap()
}

/// Sends a request. Returns the status and the body.
async fn send_request(serving: &Serving, request: Request<Body>) -> (u16, String) {
    let (response, text) = send(serving, request).await;
    (response.status().as_u16(), text)
}

/// Returns the status of a remote client's request.
async fn send_from_remote(serving: &Serving, method: &str, uri: &str, key: Option<&str>) -> u16 {
    send_request(serving, build_request_from(REMOTE, method, uri, key))
        .await
        .0
}

/// Returns the status of a GET request from this machine without a key.
async fn get_from_loopback(serving: &Serving, uri: &str) -> u16 {
    send_request(serving, build_request_from(LOOPBACK, "GET", uri, None))
        .await
        .0
}

async fn get_openapi(serving: &Serving) -> Value {
    let (status, document) = get_json(serving, "/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    document
}

/// Returns the method and path of all routes, including the one that the OpenAPI document leaves
/// out.
fn list_routes(document: &Value) -> Vec<(String, String)> {
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
    let (serving, _) = start_service(options());
    let document = get_openapi(&serving).await;
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!(schemes["bearer"]["scheme"], "bearer", "{schemes}");
    assert_eq!(schemes["header"]["name"], "x-api-key", "{schemes}");
    let mut open_paths = Vec::new();
    for (method, path) in list_routes(&document) {
        let operation = &document["paths"][&path][&method];
        match operation["security"].as_array() {
            Some(schemes) => assert_eq!(schemes.len(), 2, "{path}"),
            None if operation.is_object() => open_paths.push(path),
            None => {}
        }
    }
    open_paths.sort_unstable();
    let expected = [
        "/api/v1/applications/{id}/limit",
        "/livez",
        "/openapi.json",
        "/problems/{kind}",
        "/readyz",
    ];
    assert_eq!(open_paths, expected);
}

/// [`list_routes`] lists one route by hand. The OpenAPI document must have all others.
#[test]
fn only_one_route_is_not_described() {
    let source = include_str!("../../../../src/http/mod.rs");
    let undescribed_count = source.matches(".route(").count();
    assert_eq!(
        undescribed_count, 1,
        "a route that is not described: add it to `list_routes`"
    );
}

#[tokio::test]
async fn requests_need_a_key_once_one_exists() {
    let (serving, stores) = start_service(options());
    let uri = "/api/v1/applications";
    assert_eq!(send_from_remote(&serving, "GET", uri, None).await, 401);
    // Until a key exists, loopback requests are accepted.
    assert_eq!(get_from_loopback(&serving, uri).await, 200);
    stores.keys.create("read:*", None);
    let document = get_openapi(&serving).await;
    for (method, path) in list_routes(&document) {
        let operation = &document["paths"][&path][&method];
        let is_open = operation.is_object() && operation["security"].is_null();
        let method = method.to_ascii_uppercase();
        let uri = path
            .replace("{metric}", "plays")
            .replace("{source}", "plays")
            .replace("{name}", "segments")
            .replace("{id}", "7")
            .replace("{segment_id}", "1")
            .replace("{athlete_id}", "1")
            .replace(['{', '}'], "1");
        for peer in [REMOTE, LOOPBACK] {
            for key in [None, Some("bsk_0123456789ab_x"), Some("nonsense")] {
                let request = build_request_from(peer, &method, &uri, key);
                let (status, body) = send_request(&serving, request).await;
                let context = format!("{method} {uri} {key:?}: {status} {body}");
                assert_eq!(status != 401, is_open, "{context}");
                assert!(is_open || body.contains("/problems/no-key"), "{context}");
            }
        }
    }
}

/// Method, path, and the letters of the keys that are accepted. R: `read:*`, O: owner 1, W:
/// `ingest`, P: `ingest:plays`, C: `ingest:authorizations`, N: owner 3, A: `admin`.
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
    let (serving, stores) = start_service(options());
    let key = |scopes: &str| stores.keys.create(scopes, None).reveal().to_owned();
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
        for (letter, key) in &keys {
            let request = build_request_from(REMOTE, method, uri, Some(key));
            let (status, body) = send_request(&serving, request).await;
            let is_refused = status == 403;
            let context = format!("{method} {uri} {letter}: {status} {body}");
            assert_eq!(is_refused, !accepted.contains(*letter), "{context}");
            assert!(status != 401, "{context}");
            let has_problem = method == "HEAD" || body.contains("/problems/not-permitted");
            assert!(!is_refused || has_problem, "{context}");
        }
    }
    // Unknown paths and unsupported methods do not depend on the scope.
    assert_eq!(
        send_from_remote(&serving, "GET", "/nowhere", None).await,
        404
    );
    assert_eq!(
        send_from_remote(&serving, "PUT", "/livez", Some(&owner)).await,
        405
    );
}

#[tokio::test]
async fn an_owner_key_lists_only_its_own_applications() {
    let (serving, stores) = start_service(options());
    let key = stores.keys.create("read:owner:1", None);
    let uri = "/api/v1/applications?owner=1";
    let request = build_request_from(REMOTE, "GET", uri, Some(key.reveal()));
    let (status, body) = send_request(&serving, request).await;
    assert_eq!(status, 200, "{body}");
    let page = parse_json(&body);
    assert_eq!(page["applications"].as_array().unwrap().len(), 1, "{body}");
    assert_eq!(page["applications"][0]["id"], 7, "{body}");
}

#[tokio::test]
async fn refuses_expired_and_revoked_keys() {
    let (serving, stores) = start_service(options());
    let expired = stores.keys.create("read:*", Some(NOW_MS));
    let valid = stores.keys.create("read:*", Some(NOW_MS + 1));
    let status = async |key: &Token| {
        let key = Some(key.reveal());
        send_from_remote(&serving, "GET", APPLICATION, key).await
    };
    assert_eq!(status(&expired).await, 401);
    assert_eq!(status(&valid).await, 200);
    let revoked = stores.keys.revoke_key(valid.id(), "me", NOW_MS).await;
    assert!(revoked.unwrap().is_some());
    let request = build_request_from(REMOTE, "GET", APPLICATION, Some(valid.reveal()));
    let (status, body) = send_request(&serving, request).await;
    assert_eq!(status, 401);
    assert!(body.contains("was revoked"), "{body}");
    assert!(!body.contains(valid.reveal()), "{body}");
    // An id with another secret is refused.
    let other = stores.keys.create("admin", None);
    let secret = expired.reveal().rsplit_once('_').unwrap().1;
    let forged = format!("bsk_{}_{secret}", other.id());
    let request = build_request_from(REMOTE, "GET", APPLICATION, Some(&forged));
    let (status, body) = send_request(&serving, request).await;
    assert_eq!(status, 401);
    assert!(body.contains("no such key"), "{body}");
}

#[tokio::test]
async fn caches_keys_and_uses_stale_ones_while_the_store_is_down() {
    let caching = ServingOptions {
        keys_kept_ms: 60_000,
        ..options()
    };
    for (options, expected_lookups) in [(caching, 1), (options(), 5)] {
        let (serving, stores) = start_service(options);
        let key = stores.keys.create("read:*", None);
        let key = Some(key.reveal());
        for _ in 0..5 {
            assert_eq!(
                send_from_remote(&serving, "GET", APPLICATION, key).await,
                200
            );
        }
        let lookups = stores.keys.lookups.load(Ordering::Relaxed);
        assert_eq!(lookups, expected_lookups);
        stores.keys.is_down.store(true, Ordering::Relaxed);
        assert_eq!(
            send_from_remote(&serving, "GET", APPLICATION, key).await,
            200
        );
        // An unknown key cannot be checked without the store.
        let unknown = Token::generate();
        let unknown = Some(unknown.reveal());
        assert_eq!(
            send_from_remote(&serving, "GET", APPLICATION, unknown).await,
            503
        );
    }
    let (serving, stores) = start_service(options());
    stores.keys.is_down.store(true, Ordering::Relaxed);
    // Liveness does not depend on the key store.
    assert_eq!(get_from_loopback(&serving, "/livez").await, 200);
    // It is unknown whether a key is required.
    assert_eq!(get_from_loopback(&serving, "/metrics").await, 503);
}

#[tokio::test]
async fn limits_the_rate_of_keys_and_addresses() {
    let (serving, stores) = start_service(ServingOptions {
        key_requests_per_second_max: 2,
        stranger_requests_per_second_max: 2,
        keys_kept_ms: 60_000,
        ..options()
    });
    // Even on a slow machine some requests arrive within one second.
    let statuses_until_limited = async |next_key: &dyn Fn() -> Option<Token>| {
        let mut statuses = Vec::new();
        while statuses.last() != Some(&429) && statuses.len() < 1_000 {
            let key = next_key();
            let key = key.as_ref().map(Token::reveal);
            statuses.push(send_from_remote(&serving, "GET", APPLICATION, key).await);
        }
        statuses
    };
    for _ in 0..2 {
        let key = stores.keys.create("read:*", None);
        let statuses = statuses_until_limited(&|| Some(key.clone())).await;
        assert_eq!(statuses[..4], [200; 4], "each key has its own limit");
        assert_eq!(statuses.last(), Some(&429));
    }
    let lookups = || stores.keys.lookups.load(Ordering::Relaxed);
    let earlier_lookups = lookups();
    let statuses = statuses_until_limited(&|| Some(Token::generate())).await;
    let (last, looked_up) = statuses.split_last().unwrap();
    assert_eq!(*last, 429);
    assert_eq!(looked_up.len(), lookups() - earlier_lookups);
    let are_unknown = looked_up.iter().all(|status| *status == 401);
    assert!(are_unknown, "{statuses:?}");
    let statuses = statuses_until_limited(&|| None).await;
    assert_eq!(statuses.last(), Some(&429));
    let request = build_request_from("203.0.113.10:1", "GET", APPLICATION, None);
    let (status, _) = send_request(&serving, request).await;
    assert_eq!(status, 401, "another address has its own limit");
}

#[tokio::test]
async fn headers_have_the_state_of_the_rate_limit() {
    let (serving, stores) = start_service(ServingOptions {
        key_requests_per_second_max: 2,
        ..options()
    });
    let key = stores.keys.create("read:*", None);
    let send_with_key = async || {
        let request = build_request_from(REMOTE, "GET", APPLICATION, Some(key.reveal()));
        let (response, _) = send(&serving, request).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("ratelimit-policy"), "\"default\";q=4;w=2");
        (response.status().as_u16(), header("ratelimit"))
    };
    assert_eq!(
        send_with_key().await,
        (200, "\"default\";r=3;t=1".to_owned())
    );
    // Even on a slow machine some requests arrive within one second.
    for _ in 0..1_000 {
        let (status, state) = send_with_key().await;
        if status == 429 {
            assert_eq!(state, "\"default\";r=0;t=2");
            return;
        }
    }
    panic!("no request exceeded the limit");
}

#[tokio::test]
async fn a_wrong_key_is_refused_even_before_a_key_exists() {
    let (serving, stores) = start_service(options());
    for key in ["bsk_0123456789ab_x", "nonsense"] {
        let request = build_request_from(LOOPBACK, "GET", APPLICATION, Some(key));
        let (status, body) = send_request(&serving, request).await;
        assert_eq!(status, 401, "{key}: {body}");
        assert!(body.contains("/problems/no-key"), "{key}: {body}");
    }
    assert_eq!(get_from_loopback(&serving, APPLICATION).await, 200);
    let key = stores.keys.create("read:*", None);
    let request = build_request_from(LOOPBACK, "GET", APPLICATION, Some(key.reveal()));
    assert_eq!(send_request(&serving, request).await.0, 200);
}

#[tokio::test]
async fn records_writes_of_administrators() {
    let (serving, stores) = start_service(options());
    let admin = stores.keys.create("admin", None);
    let key = Some(admin.reveal());
    for method in ["GET", "PATCH"] {
        assert_eq!(
            send_from_remote(&serving, method, APPLICATION, key).await,
            200
        );
    }
    let actions = stores.keys.actions.lock().unwrap().clone();
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert_eq!(actions[0].action, "http.patch");
    assert_eq!(actions[0].target, APPLICATION);
    let actor = format!("key with admin (key {})", admin.id());
    assert_eq!(actions[0].actor, actor);
}

#[tokio::test]
async fn records_the_name_of_an_ingesting_key() {
    let (serving, stores) = start_service(options());
    let row = r#"{"id":7,"name":"Pacer","owner":42,"athlete_capacity":1000}"#;
    let ingest = async |peer: &str, key: Option<&str>| {
        let request = build_request_from(peer, "POST", "/api/v1/ingest/applications", key);
        send_request(&serving, request.map(|_| Body::from(row))).await
    };
    let (status, body) = ingest(LOOPBACK, None).await;
    assert_eq!(status, 200, "{body}");
    let mut expected_actors = vec!["ingest".to_owned()];
    for scope in ["ingest", "ingest:applications", "admin"] {
        let key = stores.keys.create(scope, None);
        let (status, body) = ingest(REMOTE, Some(key.reveal())).await;
        assert_eq!(status, 200, "{body}");
        expected_actors.push(format!("ingest, key with {scope} (key {})", key.id()));
    }
    assert_eq!(*stores.actors.lock().unwrap(), expected_actors);
    let plays_only = stores.keys.create("ingest:plays", None);
    let (status, body) = ingest(REMOTE, Some(plays_only.reveal())).await;
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("ingest:SOURCE"), "{body}");
    assert_eq!(*stores.actors.lock().unwrap(), expected_actors);
}

#[tokio::test]
async fn refuses_the_reserved_actor_of_ingested_lines() {
    let (serving, _) = start_service(options());
    for (actor, expected) in [
        ("ingest", 400),
        (" ingest ", 400),
        ("ingest, desk (key 0123456789ab)", 400),
        ("ingestion team", 200),
    ] {
        let change = json!({"athlete_capacity": 9, "by": actor}).to_string();
        let request = build_request_from(LOOPBACK, "PATCH", APPLICATION, None);
        let (status, body) = send_request(&serving, request.map(|_| Body::from(change))).await;
        assert_eq!(status, expected, "{actor}: {body}");
    }
}

#[tokio::test]
async fn the_absence_of_keys_is_cached_for_a_second() {
    let (serving, stores) = start_service(ServingOptions {
        keys_kept_ms: 600_000,
        ..options()
    });
    assert_eq!(get_from_loopback(&serving, APPLICATION).await, 200);
    stores.keys.create("read:*", None);
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(get_from_loopback(&serving, APPLICATION).await, 401);
}

#[tokio::test]
async fn a_hanging_key_store_does_not_block_known_keys() {
    let (serving, stores) = start_service(ServingOptions {
        keys_kept_ms: 1_000,
        keys_kept_stale_ms: 600_000,
        ..options()
    });
    // Longer than keys are cached.
    let wait_for_expiry = async || sleep(Duration::from_millis(1_100)).await;
    assert_eq!(get_from_loopback(&serving, APPLICATION).await, 200);
    stores.keys.hangs.store(true, Ordering::Relaxed);
    wait_for_expiry().await;
    let started = Instant::now();
    for _ in 0..5 {
        assert_eq!(get_from_loopback(&serving, APPLICATION).await, 200);
    }
    assert!(started.elapsed().as_secs() < 3, "{:?}", started.elapsed());
    // The same once a key exists.
    stores.keys.hangs.store(false, Ordering::Relaxed);
    let key = stores.keys.create("read:*", None);
    let key = Some(key.reveal());
    wait_for_expiry().await;
    assert_eq!(
        send_from_remote(&serving, "GET", APPLICATION, key).await,
        200
    );
    stores.keys.hangs.store(true, Ordering::Relaxed);
    wait_for_expiry().await;
    let started = Instant::now();
    for _ in 0..5 {
        assert_eq!(
            send_from_remote(&serving, "GET", APPLICATION, key).await,
            200
        );
    }
    assert!(started.elapsed().as_secs() < 3, "{:?}", started.elapsed());
    // The lookup of an unknown key has a short time limit.
    let started = Instant::now();
    let unknown = Token::generate();
    let unknown = Some(unknown.reveal());
    assert_eq!(
        send_from_remote(&serving, "GET", APPLICATION, unknown).await,
        503
    );
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    assert_eq!(send_from_remote(&serving, "GET", "/livez", None).await, 200);
}

#[tokio::test]
async fn limits_the_rate_of_revoked_keys() {
    let (serving, stores) = start_service(ServingOptions {
        keys_kept_ms: 60_000,
        key_requests_per_second_max: 2,
        ..options()
    });
    let key = stores.keys.create("read:*", None);
    let revoked = stores.keys.revoke_key(key.id(), "me", 1).await;
    assert!(revoked.unwrap().is_some());
    // Concurrent requests: on a slow machine sequential ones would stay below the limit.
    let key = Some(key.reveal());
    let requests = (0..40).map(|_| send_from_remote(&serving, "GET", "/api/v1/overview", key));
    let statuses = join_all(requests).await;
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn refuses_requests_beyond_the_concurrency_limit() {
    let (serving, _) = start_service(ServingOptions {
        requests_max: 4,
        ..options()
    });
    let uri = "/openapi.json";
    let requests = (0..4).map(|_| build_request_from(LOOPBACK, "GET", uri, None));
    let unread = join_all(requests.map(|request| send_unread(&serving, request))).await;
    assert_eq!(get_from_loopback(&serving, uri).await, 503);
    // Liveness does not depend on the load.
    assert_eq!(get_from_loopback(&serving, "/livez").await, 200);
    drop(unread);
    assert_eq!(get_from_loopback(&serving, uri).await, 200);
}
