//! Checks of the headers `Host`, `Origin`, `Sec-Fetch-Site` and `X-Request-Id`.

use super::*;

#[tokio::test]
async fn without_a_key_host_must_be_sent_once_and_be_local() {
    let (serving, world) = service(options());
    let uri = "/api/v1/applications/7";
    let request_to = |uri: &str, hosts: &[&[u8]]| {
        let mut request = request_from("GET", uri, None, HERE);
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
        (uri, &[b"localhost"], true),
        (absolute, &[b"localhost"], true),
        (absolute, &[], true),
        (uri, &[], false),
        (uri, &[b""], false),
        (uri, &[b"localhost", b"localhost"], false),
        (uri, &[b"localhost", b"evil.example.org"], false),
        (uri, &[b"evil.example.org\xff"], false),
        (foreign, &[b"localhost"], false),
    ];
    for (uri, hosts, is_accepted) in &cases {
        let (status, body) = answer(&serving, request_to(uri, hosts)).await;
        let expected = if *is_accepted { 200 } else { 403 };
        assert_eq!(status, expected, "{uri} {hosts:?}: {body}");
    }
    // With a key the host does not matter.
    let key = world.keys.create("read:*", None);
    let mut request = request_to(uri, &[]);
    let sent = format!("Bearer {}", key.reveal()).parse().unwrap();
    request.headers_mut().insert("authorization", sent);
    assert_eq!(answer(&serving, request).await.0, 200);
}

#[tokio::test]
async fn refuses_cross_site_writes_without_an_origin() {
    let allowed = "https://app.example.org";
    let (serving, _) = service(ServingOptions {
        cors_origins: vec![allowed.to_owned()],
        ..options()
    });
    let own = "http://localhost";
    for (method, site, origin, expected) in [
        ("PATCH", "cross-site", None, 403),
        ("PATCH", "cross-site", Some(own), 403),
        ("PATCH", "cross-site", Some(allowed), 200),
        ("PATCH", "same-origin", Some(own), 200),
        ("PATCH", "none", None, 200),
        ("GET", "cross-site", None, 200),
    ] {
        let mut request = request_from(method, "/api/v1/applications/7", None, HERE);
        let headers = request.headers_mut();
        headers.insert("sec-fetch-site", site.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert("origin", origin.parse().unwrap());
        }
        let (status, body) = answer(&serving, request).await;
        assert_eq!(status, expected, "{method} {site} {origin:?}: {body}");
    }
}

#[tokio::test]
async fn an_origin_includes_the_scheme() {
    let (serving, world) = service(options());
    let admin = world.keys.create("admin", None);
    for (proto, origin, expected) in [
        ("https", "https://localhost", 200),
        ("https", "http://localhost", 403),
        ("http", "http://localhost", 200),
        // A proxy may terminate TLS without a header that says so.
        ("http", "https://localhost", 200),
        ("HTTPS, http", "http://localhost", 403),
    ] {
        let uri = "/api/v1/applications/7";
        let mut request = request_from("PATCH", uri, Some(admin.reveal()), OUTSIDE);
        let headers = request.headers_mut();
        headers.insert("x-forwarded-proto", proto.parse().unwrap());
        headers.insert("origin", origin.parse().unwrap());
        let (status, body) = answer(&serving, request).await;
        assert_eq!(status, expected, "{proto} {origin}: {body}");
    }
}

#[tokio::test]
async fn replaces_request_ids_that_are_long_or_not_plain() {
    let (serving, _) = service(options());
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
    for (ids, is_used) in cases {
        let mut request = request_from("GET", "/nowhere", None, HERE);
        for id in ids {
            let headers = request.headers_mut();
            headers.append("x-request-id", id.parse().unwrap());
        }
        let response = serving.router().oneshot(request).await.unwrap();
        let ids_back: Vec<_> = response.headers().get_all("x-request-id").iter().collect();
        assert_eq!(ids_back.len(), 1, "{ids_back:?}");
        let id = ids_back[0].to_str().unwrap().to_owned();
        assert_eq!(id == ids[0], is_used, "{ids:?}");
        assert!(is_used || uuid::Uuid::parse_str(&id).is_ok(), "{id}");
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let document: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(document["request_id"], id.as_str());
    }
}
