//! The client's address: that of the connection, or the one that a trusted proxy reports.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request, Version};
use serving::{Network, Serving, ServingOptions};

use super::{
    APPLICATION, LOOPBACK, REMOTE, build_request_from, get_from_loopback, options,
    send_from_remote, send_request, start_service,
};
use crate::requests::send_unread;

/// Headers that show that a proxy forwarded a request.
const PROXY_HEADERS: [&str; 12] = [
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

/// Options with which an address may have one request in flight. Loopback clients have no limit.
fn one_request_per_address(trusted_proxies: Vec<Network>) -> ServingOptions {
    ServingOptions {
        requests_max: 8,
        trusted_proxies,
        ..options()
    }
}

/// Builds a request from a peer that reports the addresses of clients and proxies.
fn build_forwarded_request(peer: &str, method: &str, uri: &str, addresses: &str) -> Request<Body> {
    let mut request = build_request_from(peer, method, uri, None);
    let value = HeaderValue::from_str(addresses).unwrap();
    request.headers_mut().insert("x-forwarded-for", value);
    request
}

/// Returns whether a request is refused while another one is in flight. With
/// [`one_request_per_address`] both come from one address then.
async fn have_one_address(serving: &Serving, first: Request<Body>, second: Request<Body>) -> bool {
    let unread = send_unread(serving, first).await;
    assert_ne!(unread.status(), 503);
    send_request(serving, second).await.0 == 503
}

#[tokio::test]
async fn believes_the_client_address_of_a_trusted_proxy() {
    let proxy: Network = "203.0.113.9".parse().unwrap();
    let network: Network = "203.0.113.0/24".parse().unwrap();
    for (trusted, addresses, client) in [
        (vec![proxy], "198.51.100.1", "198.51.100.1"),
        (vec![network], "198.51.100.1, 203.0.113.77", "198.51.100.1"),
        (vec![network], "198.51.100.1, 203.0.114.1", "203.0.114.1"),
        (
            vec![proxy],
            "192.0.2.1, 198.51.100.1, 203.0.113.9",
            "198.51.100.1",
        ),
        // An unknown client.
        (vec![proxy], "nobody", "0.0.0.0"),
        (vec![], "198.51.100.1", "203.0.113.9"),
    ] {
        let (serving, _) = start_service(one_request_per_address(trusted));
        let uri = "/openapi.json";
        let forwarded = || build_forwarded_request(REMOTE, "GET", uri, addresses);
        let from_client = build_request_from(&format!("{client}:1"), "GET", uri, None);
        let from_other = build_request_from("192.0.2.99:1", "GET", uri, None);
        let is_client = have_one_address(&serving, from_client, forwarded()).await;
        assert!(is_client, "{addresses}: not {client}");
        let is_other = have_one_address(&serving, from_other, forwarded()).await;
        assert!(!is_other, "{addresses}");
    }
}

#[tokio::test]
async fn a_loopback_address_in_a_header_is_not_believed() {
    for (proxy, peer) in [("203.0.113.9", REMOTE), ("127.0.0.1", LOOPBACK)] {
        let trusted = vec![proxy.parse().unwrap()];
        let (serving, _) = start_service(one_request_per_address(trusted));
        for addresses in [
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
                let request = build_forwarded_request(peer, method, uri, addresses);
                let (status, body) = send_request(&serving, request).await;
                assert_eq!(status, 401, "{addresses} {uri} from {peer}: {body}");
            }
            // Loopback clients have no limit, so a client must not pretend to be one.
            let request = || build_forwarded_request(peer, "GET", "/", addresses);
            let is_limited = have_one_address(&serving, request(), request()).await;
            assert!(is_limited, "{addresses} from {peer}");
        }
    }
}

#[tokio::test]
async fn without_a_key_refuses_proxied_requests() {
    let loopback: Network = "127.0.0.1".parse().unwrap();
    let remote: Network = "203.0.113.9".parse().unwrap();
    for trusted in [vec![], vec![remote], vec![loopback]] {
        for header in [None].into_iter().chain(PROXY_HEADERS.map(Some)) {
            // A trusted proxy forwards requests of others, even without a header that says so.
            let is_accepted = header.is_none() && trusted != [loopback];
            let (serving, _) = start_service(ServingOptions {
                trusted_proxies: trusted.clone(),
                ..options()
            });
            let mut request = build_request_from(LOOPBACK, "GET", APPLICATION, None);
            if let Some(header) = header {
                let name: HeaderName = header.parse().unwrap();
                let value = HeaderValue::from_static("127.0.0.1");
                request.headers_mut().insert(name, value);
            }
            let (status, body) = send_request(&serving, request).await;
            let expected = if is_accepted { 200 } else { 401 };
            assert_eq!(status, expected, "{trusted:?} {header:?}: {body}");
        }
    }
}

/// By default nginx forwards with HTTP/1.0 and the address of this service as `Host`.
#[tokio::test]
async fn without_a_key_refuses_http_1_0() {
    let (serving, stores) = start_service(options());
    let status_with = async |version, key: Option<&str>| {
        let mut request = build_request_from(LOOPBACK, "GET", APPLICATION, key);
        *request.version_mut() = version;
        send_request(&serving, request).await.0
    };
    assert_eq!(status_with(Version::HTTP_10, None).await, 401);
    assert_eq!(status_with(Version::HTTP_11, None).await, 200);
    let key = stores.keys.create("read:*", None);
    let key = Some(key.reveal());
    assert_eq!(status_with(Version::HTTP_10, key).await, 200);
}

#[tokio::test]
async fn until_a_key_exists_refuses_remote_requests() {
    let (serving, _) = start_service(options());
    for uri in [
        "/openapi.json",
        "/docs",
        "/signin",
        "/api/v1/applications/7/limit",
    ] {
        assert_eq!(
            send_from_remote(&serving, "GET", uri, None).await,
            401,
            "{uri}"
        );
        assert_eq!(get_from_loopback(&serving, uri).await, 200, "{uri}");
    }
    assert_eq!(send_from_remote(&serving, "GET", "/livez", None).await, 200);
}
