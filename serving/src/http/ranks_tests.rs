use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::world::World;
use crate::world::boards::{self, BoardTime};
use crate::{Serving, ServingOptions};

const RANKS: &str = "/api/v1/boards/segments/ranks";

fn best_of_period(period: i64, member: i64) -> BoardTime {
    BoardTime {
        member,
        time: 100 + member,
        period,
        gender: if member % 2 == 0 { "F" } else { "M" },
    }
}

/// Segment 1 has athletes 0 to 19, segment 2 athletes 10 to 29, and segment 3 none.
fn fixture() -> (Serving, Arc<World>) {
    let (serving, world) = boards::serving(ServingOptions::default());
    {
        let job = boards::job("segments");
        let mut boards = world.boards.lock().unwrap();
        for (segment, members) in [(1, 0..20), (2, 10..30)] {
            let rows =
                members.flat_map(|member| [0, 2013].map(|period| best_of_period(period, member)));
            boards.publish(&job, segment, &rows.collect::<Vec<_>>());
        }
        // One athlete was removed, one is faster now, and one is new.
        boards.set_state(&job, 1, 2, &[]);
        let fast = |period| BoardTime {
            time: 1,
            ..best_of_period(period, 15)
        };
        boards.set_state(&job, 1, 15, &[fast(0), fast(2013)]);
        boards.set_state(&job, 2, 0, &[best_of_period(0, 0)]);
    }
    (serving, world)
}

async fn post(serving: &Serving, query: &str, body: &Value) -> (StatusCode, String) {
    let request = Request::post(format!("{RANKS}{query}"));
    let request = request.body(Body::from(body.to_string())).unwrap();
    let response = serving.router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    (status, String::from_utf8(body.unwrap().into()).unwrap())
}

async fn rows(serving: &Serving, body: &Value) -> Vec<(i64, i64, i64, i64)> {
    let (status, text) = post(serving, "", body).await;
    assert_eq!(status, StatusCode::OK, "{body}: {text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["provenance"]["complete"], true);
    let rows = answer["rows"].as_array().unwrap().iter();
    let number = |row: &Value, name: &str| row[name].as_i64().unwrap();
    rows.map(|row| {
        assert!(
            row["effort_id"].is_i64() && row["elapsed_time"].is_i64(),
            "{row}"
        );
        let [segment, athlete] = ["segment_id", "athlete_id"].map(|name| number(row, name));
        (segment, athlete, number(row, "rank"), number(row, "total"))
    })
    .collect()
}

#[tokio::test]
async fn ranks_equal_those_of_the_boards() {
    let (serving, _world) = fixture();
    for (body, expected) in [
        (
            json!({"segments": [1], "athletes": [0, 19, 2, 15, 77]}),
            vec![(1, 15, 1, 19), (1, 0, 2, 19), (1, 19, 19, 19)],
        ),
        // In the order of the requested segments, each pair once.
        (
            json!({"keys": [2, 3, 1, 2], "athletes": [10, 0, 10, 10]}),
            vec![
                (2, 0, 1, 21),
                (2, 10, 2, 21),
                (1, 0, 2, 19),
                (1, 10, 11, 19),
            ],
        ),
        (
            json!({"segments": [2, 1], "athletes": [12], "window": "year", "date": "2013-05-06",
                   "board": "gender:F"}),
            vec![(2, 12, 2, 10), (1, 12, 6, 9)],
        ),
        (
            json!({"segments": [1], "athletes": [12], "window": "year", "date": "2012-05-06"}),
            vec![],
        ),
        (
            json!({"segments": [1], "athletes": [12, 13], "following": 12}),
            vec![(1, 12, 1, 1)],
        ),
    ] {
        assert_eq!(rows(&serving, &body).await, expected, "{body}");
    }
}

#[tokio::test]
async fn reads_many_segments_in_steps() {
    let (serving, world) = fixture();
    let segments: Vec<i64> = (1..=250).collect();
    let found = rows(&serving, &json!({"segments": segments, "athletes": [15]})).await;
    assert_eq!(found, [(1, 15, 1, 19), (2, 15, 7, 21)]);
    assert_eq!(world.boards.lock().unwrap().keys_per_read, [100, 100, 50]);
}

#[tokio::test]
async fn writes_ranks_as_csv() {
    let (serving, _world) = fixture();
    let body = json!({"segments": [1], "athletes": [0]});
    let (status, text) = post(&serving, "?format=csv", &body).await;
    assert_eq!(status, StatusCode::OK);
    let mut lines = text.lines();
    let names = "segment_id,rank,athlete_id,elapsed_time,effort_id,activity_id,started_at,total";
    assert_eq!(lines.next(), Some(names));
    assert_eq!(lines.next(), Some("1,2,0,100,0,0,1970-01-01T00:00:00Z,19"));
    assert_eq!(lines.next(), None);
}

#[tokio::test]
async fn refuses_invalid_requests_with_a_reason() {
    let (serving, _world) = fixture();
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
    let twice: Vec<i64> = ids(600).into_iter().chain(ids(600)).collect();
    let body = json!({"segments": [1], "athletes": twice});
    assert_eq!(rows(&serving, &body).await.len(), 19);
}
