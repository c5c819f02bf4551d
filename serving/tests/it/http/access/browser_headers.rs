//! The headers `Host`, `Origin`, `Sec-Fetch-Site` and `X-Request-Id`.

use axum::body::Body;
use axum::http::{HeaderValue, Request};
use serving::ServingOptions;

use super::{
    APPLICATION, LOOPBACK, REMOTE, build_request_from, options, send_request, start_service,
};
use crate::requests::{parse_json, send};

/// Sets a header.
fn with_header(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    let value = HeaderValue::from_str(value).unwrap();
    request.headers_mut().insert(name, value);
    request
}

#[tokio::test]
async fn without_a_key_host_must_be_sent_once_and_be_local() {
    let (serving, stores) = start_service(options());
    let request_with_hosts = |uri: &str, hosts: &[&[u8]], key: Option<&str>| {
        let mut request = build_request_from(LOOPBACK, "GET", uri, key);
        request.headers_mut().remove("host");
        for host in hosts {
            let host = HeaderValue::from_bytes(host).unwrap();
            request.headers_mut().append("host", host);
        }
        request
    };
    let absolute = "http://localhost/api/v1/applications/7";
    let foreign = "http://evil.example.org/api/v1/applications/7";
    let cases: [(&str, &[&[u8]], bool); 9] = [
        (APPLICATION, &[b"localhost"], true),
        (absolute, &[b"localhost"], true),
        (absolute, &[], true),
        (APPLICATION, &[], false),
        (APPLICATION, &[b""], false),
        (APPLICATION, &[b"localhost", b"localhost"], false),
        (APPLICATION, &[b"localhost", b"evil.example.org"], false),
        (APPLICATION, &[b"evil.example.org\xff"], false),
        (foreign, &[b"localhost"], false),
    ];
    for (uri, hosts, is_accepted) in cases {
        let (status, body) = send_request(&serving, request_with_hosts(uri, hosts, None)).await;
        let expected = if is_accepted { 200 } else { 403 };
        assert_eq!(status, expected, "{uri} {hosts:?}: {body}");
    }
    // With a key the host does not matter.
    let key = stores.keys.create("read:*", None);
    let request = request_with_hosts(APPLICATION, &[], Some(key.reveal()));
    assert_eq!(send_request(&serving, request).await.0, 200);
}

#[tokio::test]
async fn without_a_key_refuses_host_names_of_other_sites() {
    let (serving, _) = start_service(ServingOptions {
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
        let request = build_request_from(LOOPBACK, "GET", APPLICATION, None);
        let (status, body) = send_request(&serving, with_header(request, "host", host)).await;
        assert_eq!(status == 200, is_accepted, "{host}: {status} {body}");
    }
}

#[tokio::test]
async fn refuses_writes_from_pages_of_other_origins() {
    let (serving, _) = start_service(ServingOptions {
        cors_origins: vec!["https://app.example.org".to_owned()],
        ..options()
    });
    for (origin, expected) in [
        (None, 200),
        (Some("http://localhost:8080"), 200),
        (Some("https://app.example.org"), 200),
        (Some("https://evil.example.org"), 403),
        (Some("http://localhost:8081"), 403),
        (Some("https://localhost:8080"), 403),
        (Some("null"), 403),
    ] {
        let request = build_request_from(LOOPBACK, "PATCH", APPLICATION, None);
        let mut request = with_header(request, "host", "localhost:8080");
        if let Some(origin) = origin {
            request = with_header(request, "origin", origin);
        }
        let (status, body) = send_request(&serving, request).await;
        assert_eq!(status, expected, "{origin:?}: {body}");
    }
}

#[tokio::test]
async fn refuses_cross_site_writes_without_an_origin() {
    let allowed = "https://app.example.org";
    let (serving, _) = start_service(ServingOptions {
        cors_origins: vec![allowed.to_owned()],
        ..options()
    });
    let same_origin = "http://localhost";
    for (method, site, origin, expected) in [
        ("PATCH", "cross-site", None, 403),
        ("PATCH", "cross-site", Some(same_origin), 403),
        ("PATCH", "cross-site", Some(allowed), 200),
        ("PATCH", "same-origin", Some(same_origin), 200),
        ("PATCH", "none", None, 200),
        ("GET", "cross-site", None, 200),
    ] {
        let request = build_request_from(LOOPBACK, method, APPLICATION, None);
        let mut request = with_header(request, "sec-fetch-site", site);
        if let Some(origin) = origin {
            request = with_header(request, "origin", origin);
        }
        let (status, body) = send_request(&serving, request).await;
        assert_eq!(status, expected, "{method} {site} {origin:?}: {body}");
    }
}

#[tokio::test]
async fn an_origin_includes_the_scheme() {
    let (serving, stores) = start_service(options());
    let admin = stores.keys.create("admin", None);
    for (scheme, origin, expected) in [
        ("https", "https://localhost", 200),
        ("https", "http://localhost", 403),
        ("http", "http://localhost", 200),
        // A proxy may terminate TLS without a header that says so.
        ("http", "https://localhost", 200),
        ("HTTPS, http", "http://localhost", 403),
    ] {
        let request = build_request_from(REMOTE, "PATCH", APPLICATION, Some(admin.reveal()));
        let request = with_header(request, "x-forwarded-proto", scheme);
        let (status, body) = send_request(&serving, with_header(request, "origin", origin)).await;
        assert_eq!(status, expected, "{scheme} {origin}: {body}");
    }
}

#[tokio::test]
async fn allows_cross_origin_reads_of_configured_origins_only() {
    let configured = "https://app.example.org";
    for origins in [vec![], vec![configured.to_owned()]] {
        let (serving, _) = start_service(ServingOptions {
            cors_origins: origins.clone(),
            ..options()
        });
        for origin in [configured, "https://evil.example.org"] {
            let request = build_request_from(LOOPBACK, "GET", "/livez", None);
            let (response, _) = send(&serving, with_header(request, "origin", origin)).await;
            let headers = response.headers();
            let is_allowed = headers.contains_key("access-control-allow-origin");
            let is_configured = origins.iter().any(|configured| configured == origin);
            assert_eq!(is_allowed, is_configured, "{origin}");
            let policy = headers["content-security-policy"].to_str().unwrap();
            assert!(policy.contains("default-src 'none'"), "{policy}");
        }
    }
}

#[tokio::test]
async fn replaces_request_ids_that_are_long_or_not_plain() {
    let (serving, _) = start_service(options());
    let longest = "a".repeat(128);
    let too_long = "a".repeat(129);
    let huge = "a".repeat(50_000);
    let cases: [(&[&str], bool); 8] = [
        (&["A-z_0.9"], true),
        (&[&longest], true),
        (&[&too_long], false),
        (&[&huge], false),
        (&[""], false),
        (&["a b"], false),
        (&["a\"b"], false),
        (&["a", "b"], false),
    ];
    for (sent_ids, is_used) in cases {
        let mut request = build_request_from(LOOPBACK, "GET", "/nowhere", None);
        for id in sent_ids {
            let headers = request.headers_mut();
            headers.append("x-request-id", id.parse().unwrap());
        }
        let (response, text) = send(&serving, request).await;
        let ids: Vec<_> = response.headers().get_all("x-request-id").iter().collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let id = ids[0].to_str().unwrap();
        assert_eq!(id == sent_ids[0], is_used, "{sent_ids:?}");
        assert!(is_used || uuid::Uuid::parse_str(id).is_ok(), "{id}");
        assert_eq!(parse_json(&text)["request_id"], id);
    }
}
