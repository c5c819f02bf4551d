//! Ranks of several athletes on several boards.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use serving::{Serving, ServingOptions};

use crate::memory_stores::MemoryStores;
use crate::memory_stores::boards::{self, EntryValues};
use crate::requests::{build_request, parse_json, send};

const RANKS: &str = "/api/v1/boards/segments/ranks";

/// Starts a service with athletes 0 to 19 on segment 1, and athletes 10 to 29 on segment 2. Their
/// entries count for all time and for 2013, and those with a larger id are slower.
fn start_service() -> (Serving, Arc<MemoryStores>) {
    let entry = |period, member| EntryValues {
        member,
        elapsed_time_s: 100 + member,
        period,
        gender: if member % 2 == 0 { "F" } else { "M" },
    };
    let (serving, stores) = boards::start_service(ServingOptions::default());
    let job = boards::find_board_job("segments");
    {
        let mut boards = stores.boards();
        for (segment, members) in [(1, 0..20), (2, 10..30)] {
            let entries = members.flat_map(|member| [0, 2013].map(|period| entry(period, member)));
            boards.publish(&job, segment, &entries.collect::<Vec<_>>());
        }
        // Athlete 2 was removed, athlete 15 is the fastest now, and athlete 0 is new on segment 2.
        boards.set_live_entry(&job, 1, 2, &[]);
        let fastest = |period| EntryValues {
            elapsed_time_s: 1,
            ..entry(period, 15)
        };
        boards.set_live_entry(&job, 1, 15, &[fastest(0), fastest(2013)]);
        boards.set_live_entry(&job, 2, 0, &[entry(0, 0)]);
    }
    (serving, stores)
}

async fn post(serving: &Serving, query: &str, body: &Value) -> (StatusCode, String) {
    let uri = format!("{RANKS}{query}");
    let (response, text) = send(serving, build_request(Method::POST, &uri, body.to_string())).await;
    (response.status(), text)
}

/// Returns segment, athlete, rank and total of each row.
async fn request_ranks(serving: &Serving, body: &Value) -> Vec<[i64; 4]> {
    let (status, text) = post(serving, "", body).await;
    assert_eq!(status, StatusCode::OK, "{body}: {text}");
    let response = parse_json(&text);
    assert_eq!(response["provenance"]["complete"], true);
    let rows = response["rows"].as_array().unwrap().iter();
    rows.map(|row| {
        assert!(row["effort_id"].is_i64(), "{row}");
        assert!(row["elapsed_time"].is_i64(), "{row}");
        let names = ["segment_id", "athlete_id", "rank", "total"];
        names.map(|name| row[name].as_i64().unwrap())
    })
    .collect()
}

#[tokio::test]
async fn ranks_equal_those_of_the_boards() {
    let (serving, _) = start_service();
    for (body, expected) in [
        (
            json!({"segments": [1], "athletes": [0, 19, 2, 15, 77]}),
            vec![[1, 15, 1, 19], [1, 0, 2, 19], [1, 19, 19, 19]],
        ),
        // In the order of the requested segments, each pair once.
        (
            json!({"keys": [2, 3, 1, 2], "athletes": [10, 0, 10, 10]}),
            vec![
                [2, 0, 1, 21],
                [2, 10, 2, 21],
                [1, 0, 2, 19],
                [1, 10, 11, 19],
            ],
        ),
        (
            json!({"segments": [2, 1], "athletes": [12], "window": "year", "date": "2013-05-06",
                   "board": "gender:F"}),
            vec![[2, 12, 2, 10], [1, 12, 6, 9]],
        ),
        (
            json!({"segments": [1], "athletes": [12], "window": "year", "date": "2012-05-06"}),
            vec![],
        ),
        (
            json!({"segments": [1], "athletes": [12, 13], "following": 12}),
            vec![[1, 12, 1, 1]],
        ),
    ] {
        assert_eq!(request_ranks(&serving, &body).await, expected, "{body}");
    }
}

#[tokio::test]
async fn reads_many_segments_in_steps() {
    let (serving, stores) = start_service();
    let segments: Vec<i64> = (1..=250).collect();
    let body = json!({"segments": segments, "athletes": [15]});
    assert_eq!(
        request_ranks(&serving, &body).await,
        [[1, 15, 1, 19], [2, 15, 7, 21]]
    );
    assert_eq!(stores.read_counts().keys_of_live_entries, [100, 100, 50]);
}

#[tokio::test]
async fn writes_ranks_as_csv() {
    let (serving, _) = start_service();
    let body = json!({"segments": [1], "athletes": [0]});
    let (status, csv) = post(&serving, "?format=csv", &body).await;
    assert_eq!(status, StatusCode::OK);
    let mut lines = csv.lines();
    let names = "segment_id,rank,athlete_id,elapsed_time,effort_id,activity_id,started_at,total";
    assert_eq!(lines.next(), Some(names));
    assert_eq!(lines.next(), Some("1,2,0,100,0,0,1970-01-01T00:00:00Z,19"));
    assert_eq!(lines.next(), None);
}

#[tokio::test]
async fn refuses_invalid_requests_with_a_reason() {
    let (serving, _) = start_service();
    let ids = |count: i64| (0..count).collect::<Vec<_>>();
    for (body, words) in [
        (json!([1]), "not a JSON object"),
        (json!({"segments": [1]}), "athletes"),
        (
            json!({"segments": [1], "athletes": []}),
            "athletes: the list has 0 ids",
        ),
        (
            json!({"segments": ids(1_001), "athletes": [1]}),
            "send 1 to 1000",
        ),
        (
            json!({"segments": [1], "athletes": ids(1_001)}),
            "send 1 to 1000",
        ),
        (
            json!({"segments": ids(101), "athletes": ids(100)}),
            "10100 pairs",
        ),
        (
            json!({"segments": [1], "athletes": ["1"]}),
            "athletes[0] must be an integer",
        ),
        (
            json!({"segments": [1], "athletes": [1], "athlete": 2}),
            "the field athlete is unknown",
        ),
        (
            json!({"segments": [1], "athletes": [1], "board": "all"}),
            "overall",
        ),
        (
            json!({"segments": [1], "athletes": [1], "window": "week"}),
            "month",
        ),
        (
            json!({"segments": [1], "athletes": [1], "date": "2013"}),
            "2026-11-21",
        ),
    ] {
        let (status, text) = post(&serving, "", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
        assert!(text.contains(words), "{text} without {words}");
    }
    let body = json!({"segments": [1], "athletes": [1]});
    let (status, _) = post(&serving, "?limit=5", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    // Duplicates are answered once.
    let repeated: Vec<i64> = ids(600).into_iter().chain(ids(600)).collect();
    let body = json!({"segments": [1], "athletes": repeated});
    assert_eq!(request_ranks(&serving, &body).await.len(), 19);
}
