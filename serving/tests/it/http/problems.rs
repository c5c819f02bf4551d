//! Problem documents: pages that explain their kinds, the parameter that they name. Redirects of
//! paths, and CSV by the header `Accept`.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::Value;

use super::{expect_problem, start_service};
use crate::requests::{build_request, get, no_wait_options, send};

const TOTAL: &str = "/api/v1/stats/plays/total?owner_id=1";

#[tokio::test]
async fn the_type_of_a_problem_leads_to_its_explanation() {
    let (serving, _) = start_service(no_wait_options());
    let (_, document) = get(&serving, "/openapi.json").await;
    let document: Value = serde_json::from_str(&document).unwrap();
    let parameters = &document["paths"]["/problems/{kind}"]["get"]["parameters"];
    let kinds = parameters[0]["schema"]["enum"].as_array().unwrap();
    assert!(kinds.len() > 30, "{kinds:?}");
    for kind in kinds {
        let uri = format!("/problems/{}", kind.as_str().unwrap());
        let (response, page) = get(&serving, &uri).await;
        assert_eq!(response.status(), StatusCode::OK, "{uri}");
        assert!(page.contains("HTTP status "), "{uri}: {page}");
    }
    let (_, problem) = expect_problem(&serving, Method::GET, "/api/v1/batch/runs/99").await;
    let (response, page) = get(&serving, problem["type"].as_str().unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(page.contains(problem["title"].as_str().unwrap()), "{page}");
    let (status, _) = expect_problem(&serving, Method::GET, "/problems/none").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn problems_name_the_parameter() {
    let (serving, _) = start_service(no_wait_options());
    for (uri, parameter) in [
        (format!("{TOTAL}&limit=1"), "limit"),
        (format!("{TOTAL}&owner_id=1"), "owner_id"),
        (format!("{TOTAL}&country=Germany"), "country"),
        (format!("{TOTAL}&tz=Mars/Olympus"), "tz"),
        (format!("{TOTAL}&period=decade"), "period"),
        (format!("{TOTAL}&from=2026-02-30"), "from"),
        (format!("{TOTAL}&compare=next"), "compare"),
        ("/api/v1/batch/runs?cursor=x".to_owned(), "cursor"),
        ("/api/v1/batch/runs?limit=0".to_owned(), "limit"),
        ("/api/v1/batch/runs?source=likes".to_owned(), "source"),
        ("/api/v1/boards/segments/1?board=tall".to_owned(), "board"),
        ("/api/v1/boards/segments/1?window=week".to_owned(), "window"),
        ("/api/v1/boards/segments/x".to_owned(), "segment_id"),
    ] {
        let (status, document) = expect_problem(&serving, Method::GET, &uri).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{uri}");
        assert_eq!(document["parameter"], parameter, "{uri}: {document}");
    }
    let (_, document) = expect_problem(&serving, Method::GET, "/nowhere").await;
    assert_eq!(document.get("parameter"), None);
}

#[tokio::test]
async fn redirects_paths_with_a_trailing_slash() {
    let (serving, _) = start_service(no_wait_options());
    for (uri, target) in [
        (
            "/api/v1/batch/runs/?limit=1&source=plays",
            "/api/v1/batch/runs?limit=1&source=plays",
        ),
        ("/pipeline/", "/pipeline"),
        ("/api/v1/ingest/plays//", "/api/v1/ingest/plays"),
    ] {
        for method in [Method::GET, Method::POST] {
            let request = build_request(method, uri, Body::empty());
            let (response, _) = send(&serving, request).await;
            assert_eq!(response.status(), StatusCode::PERMANENT_REDIRECT, "{uri}");
            assert_eq!(response.headers()["location"], target);
        }
    }
    // A redirect to another host is not possible.
    for uri in ["//example.com/", "/\\example.com/"] {
        let (status, _) = expect_problem(&serving, Method::GET, uri).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{uri}");
    }
}

#[tokio::test]
async fn answers_with_csv_if_the_client_prefers_it() {
    let (serving, _) = start_service(no_wait_options());
    let (_, expected) = get(&serving, &format!("{TOTAL}&format=csv")).await;
    for (accept, uri, is_csv) in [
        ("text/csv", TOTAL.to_owned(), true),
        ("text/csv, */*;q=0.1", TOTAL.to_owned(), true),
        ("text/csv;q=0.5, application/json", TOTAL.to_owned(), false),
        ("*/*", TOTAL.to_owned(), false),
        ("text/csv", format!("{TOTAL}&format=json"), false),
    ] {
        let request = Request::get(&uri).header("accept", accept);
        let (response, text) = send(&serving, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK, "{accept}: {text}");
        let vary = response.headers().get_all("vary").iter();
        let vary: Vec<&str> = vary.map(|value| value.to_str().unwrap()).collect();
        assert!(vary.contains(&"accept"), "{vary:?}");
        assert_eq!(text == expected, is_csv, "{accept}: {text}");
    }
    // Requests without CSV ignore the preference.
    let request = Request::get("/openapi.json").header("accept", "text/csv");
    let (response, _) = send(&serving, request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.headers()["content-type"], "application/json");
}
