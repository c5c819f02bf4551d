use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use schemas::entities::Application;
use schemas::key::KeyValue;
use serde_json::{Value, json};
use stores::counts::{Day, DayRow, RUNS_KEY, RunCount, day_of_date};
use tower::ServiceExt;

use crate::laws::get;
use crate::world::World;
use crate::world::boards::{self, EPOCH, TODAY};
use crate::{Serving, ServingOptions};

const HISTORY: &str = "/api/v1/applications/7/history";

/// An application with rows of earlier days: `(days ago, run, count)`.
fn with_days(rows: &[(i32, u64, u64)]) -> (Serving, Arc<World>) {
    let (serving, world) = boards::serving(ServingOptions::default());
    {
        let mut boards = world.boards.lock().unwrap();
        boards.applications.push(Application {
            id: 7,
            name: "Pacer".to_owned(),
            owner: json!("o"),
            athlete_capacity: 10,
            version: 0,
        });
    }
    let job = boards::job("applications");
    let key = job.key().encode_values(&[KeyValue::Int(7)]).unwrap();
    for (ago, epoch, count) in rows {
        put(&world, &key, *ago, *epoch, *count);
        put(&world, RUNS_KEY, *ago, *epoch, 0);
    }
    (serving, world)
}

fn put(world: &World, key: &[u8], ago: i32, epoch: u64, count: u64) {
    let day = today() - ago;
    let row = DayRow {
        day,
        now: RunCount { epoch, count },
        before: None,
    };
    let mut boards = world.boards.lock().unwrap();
    boards.days.insert((key.to_vec(), day), row);
}

fn today() -> Day {
    day_of_date(TODAY)
}

fn counts(page: &Value) -> Vec<(String, u64)> {
    let days = page["days"].as_array().unwrap().iter();
    let text = |day: &Value| day["date"].as_str().unwrap().to_owned();
    days.map(|day| (text(day), day["connected_athletes"].as_u64().unwrap()))
        .collect()
}

fn expected(days: &[(&str, u64)]) -> Vec<(String, u64)> {
    days.iter().map(|(d, n)| ((*d).to_owned(), *n)).collect()
}

/// Gaps repeat the day before. Unpublished runs and days after the newest run are left out.
#[tokio::test]
async fn fills_gaps_between_days() {
    let (serving, _) = with_days(&[(5, EPOCH - 1, 3), (2, EPOCH, 4), (1, EPOCH + 1, 9)]);
    let (status, page) = get(&serving, HISTORY).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let all = [
        ("2026-07-09", 3),
        ("2026-07-10", 3),
        ("2026-07-11", 3),
        ("2026-07-12", 4),
    ];
    assert_eq!(counts(&page), expected(&all));
    assert_eq!(page["application_id"], 7);
    assert_eq!(page["days"][1]["epoch"], EPOCH - 1);
    assert_eq!(page["days"][3]["epoch"], EPOCH);
    let provenance = &page["provenance"];
    assert_eq!(provenance["source"], "batch", "{provenance}");
    assert_eq!(provenance["complete"], true);
    assert_eq!(provenance["epoch"], EPOCH);
    assert_eq!(provenance["position"], json!({"authorizations": [10]}));
    let uri = format!("{HISTORY}?from=2026-07-10&to=2026-07-12");
    let (_, page) = get(&serving, &uri).await;
    assert_eq!(counts(&page), expected(&all[1..3]));
    let uri = format!("{HISTORY}?from=0001-01-01&to=9999-12-31");
    assert_eq!(counts(&get(&serving, &uri).await.1), expected(&all));
    for empty in [
        "from=2026-07-13",
        "to=2026-07-09",
        "from=9999-01-01&to=9999-12-31",
    ] {
        let (status, page) = get(&serving, &format!("{HISTORY}?{empty}")).await;
        assert_eq!((status, counts(&page)), (StatusCode::OK, vec![]), "{empty}");
    }
}

#[tokio::test]
async fn follows_the_pages_of_a_history() {
    let (serving, _) = with_days(&[(8, EPOCH - 1, 3), (2, EPOCH, 4)]);
    let (_, whole) = get(&serving, HISTORY).await;
    assert_eq!(counts(&whole).len(), 7);
    for limit in [1, 2, 3, 7, 3660] {
        let mut uri = Some(format!("{HISTORY}?limit={limit}"));
        let mut found = Vec::new();
        while let Some(next) = uri {
            let (_, page) = get(&serving, &next).await;
            let days = counts(&page);
            assert!(days.len() <= limit);
            found.extend(days);
            let cursor = page["cursor"].as_str();
            uri = cursor.map(|cursor| format!("{HISTORY}?limit={limit}&cursor={cursor}"));
        }
        assert_eq!(found, counts(&whole), "{limit}");
    }
    let request = Request::get(format!("{HISTORY}?limit=3&format=csv"));
    let request = request.body(Body::empty()).unwrap();
    let response = serving.router().oneshot(request).await.unwrap();
    assert!(response.headers().contains_key("link"));
    assert!(response.headers().contains_key("backstitch-provenance"));
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(
        String::from_utf8(body.to_vec()).unwrap(),
        "date,connected_athletes,epoch\r\n2026-07-06,3,1\r\n2026-07-07,3,1\r\n2026-07-08,3,1\r\n"
    );
}

#[tokio::test]
async fn refuses_invalid_parameters() {
    let (serving, _) = with_days(&[]);
    for (query, words) in [
        ("from=yesterday", "from=\"yesterday\" is not a date"),
        ("to=2026-02-30", "to=\"2026-02-30\" is not a date"),
        ("from=2026-07-10T00:00:00Z", "is not a date such as"),
        (
            "from=2026-07-10&to=2026-07-10",
            "is not before to=2026-07-10",
        ),
        ("from=2026-07-15", "defaults to tomorrow"),
        ("limit=3661", "from 1 to 3660"),
        ("limit=0", "from 1 to 3660"),
        ("cursor=x", "cursor"),
        ("format=xml", "json or csv"),
        ("days=3", "from, to, limit"),
    ] {
        let (status, problem) = get(&serving, &format!("{HISTORY}?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{query}: {detail}");
    }
    let (status, problem) = get(&serving, "/api/v1/applications/8/history").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(problem["type"], "/problems/unknown-application");
    let (status, page) = get(&serving, HISTORY).await;
    assert_eq!((status, counts(&page)), (StatusCode::OK, vec![]), "{page}");
}
