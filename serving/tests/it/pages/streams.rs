//! Streams of change events, which pages follow.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use futures::StreamExt;
use serving::ServingOptions;
use tokio::time::sleep;

use super::sessions::sign_in;
use super::start_service;
use crate::http::connections::RunningServer;
use crate::memory_stores::boards;
use crate::requests::{get, send_unread};

#[tokio::test]
async fn one_key_may_follow_a_share_of_the_streams() {
    let (serving, stores) = boards::start_service(ServingOptions {
        followers_max: 16,
        stranger_requests_per_second_max: 0,
        ..ServingOptions::default()
    });
    let keys = ["read:*", "admin"].map(|scopes| stores.keys.create(scopes, None));
    let mut streams = Vec::new();
    for key in &keys {
        for expected in [200, 200, 503] {
            let request = Request::get("/live?source=plays")
                .header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()))
                .body(Body::empty());
            let response = send_unread(&serving, request.unwrap()).await;
            assert_eq!(response.status(), expected);
            streams.push(response);
        }
    }
    // An unauthenticated stream is refused, not redirected.
    let (response, _) = get(&serving, "/live?source=plays").await;
    assert_eq!(response.status(), 401);
    // Closed streams release their permits.
    streams.clear();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let (cookie, _) = sign_in(&serving, keys[0].reveal(), "/").await.unwrap();
    let request = Request::get("/live?source=plays").header(header::COOKIE, &cookie);
    let response = send_unread(&serving, request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn streams_send_an_event_for_each_change() {
    let (serving, stores) = start_service();
    for source in ["nothing", "plays,nothing", "plays,", ","] {
        let (response, text) = get(&serving, &format!("/live?source={source}")).await;
        assert_eq!(response.status(), 400, "{text}");
    }
    let request = Request::get("/live?source=efforts,authorizations,efforts").body(Body::empty());
    let response = send_unread(&serving, request.unwrap()).await;
    let content_type = &response.headers()[header::CONTENT_TYPE];
    assert_eq!(content_type, "text/event-stream");
    let mut events = response.into_body().into_data_stream();
    // The service may check for the first time after the first change, so there are several.
    let changes = async {
        for _ in 0..12 {
            sleep(Duration::from_secs(5)).await;
            stores.boards().next_offset += 1;
        }
    };
    let change_event = async {
        loop {
            let event = events.next().await.unwrap().unwrap();
            let text = String::from_utf8(event.to_vec()).unwrap();
            if text.contains("event: moved") {
                return text;
            }
        }
    };
    let text = tokio::select! {
        text = change_event => text,
        () = changes => panic!("no event was sent"),
    };
    assert!(text.contains("data: efforts,authorizations"), "{text}");
    // Shutdown ends the stream.
    let server = RunningServer::start(serving).await;
    server.shutdown.cancel();
    assert!(events.next().await.is_none());
}
