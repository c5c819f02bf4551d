//! Daily numbers of connected athletes of an application.

use axum::http::StatusCode;
use schemas::entities::Application;
use schemas::key::KeyValue;
use serde_json::{Value, json};
use serving::{Serving, ServingOptions};
use stores::counts::{DayRow, RUNS_KEY, RunCount, day_from_date};

use crate::memory_stores::MemoryStores;
use crate::memory_stores::boards::{self, BOARD_EPOCH, TODAY};
use crate::requests::{get, get_json};

const HISTORY: &str = "/api/v1/applications/7/history";

/// A daily count that a run recorded.
struct RecordedDay {
    days_ago: i32,
    epoch: u64,
    count: u64,
}

/// Starts a service with application 7 and its daily counts.
fn start_service<const N: usize>(days: [RecordedDay; N]) -> Serving {
    let (serving, stores) = boards::start_service(ServingOptions::default());
    stores.entities().applications.push(Application {
        id: 7,
        name: "Pacer".to_owned(),
        owner: json!("o"),
        athlete_capacity: 10,
        version: 0,
    });
    let job = boards::find_board_job("applications");
    let key = job.key().encode_values(&[KeyValue::Int(7)]).unwrap();
    for day in days {
        add_day(&stores, RUNS_KEY, &RecordedDay { count: 0, ..day });
        add_day(&stores, &key, &day);
    }
    serving
}

fn add_day(stores: &MemoryStores, key: &[u8], recorded: &RecordedDay) {
    let day = day_from_date(TODAY) - recorded.days_ago;
    let row = DayRow {
        day,
        current: RunCount {
            epoch: recorded.epoch,
            count: recorded.count,
        },
        previous: None,
    };
    let mut day_counts = stores.day_counts.lock().unwrap();
    day_counts.insert((key.to_vec(), day), row);
}

/// Returns the date and count of each day.
fn list_counts(page: &Value) -> Vec<(String, u64)> {
    let days = page["days"].as_array().unwrap().iter();
    let date = |day: &Value| day["date"].as_str().unwrap().to_owned();
    days.map(|day| (date(day), day["connected_athletes"].as_u64().unwrap()))
        .collect()
}

fn to_counts(days: &[(&str, u64)]) -> Vec<(String, u64)> {
    days.iter()
        .map(|(date, count)| ((*date).to_owned(), *count))
        .collect()
}

/// Gaps repeat the day before. Unpublished runs and days after the newest run are left out.
#[tokio::test]
async fn fills_gaps_between_days() {
    let day = |days_ago, epoch, count| RecordedDay {
        days_ago,
        epoch,
        count,
    };
    let serving = start_service([
        day(5, BOARD_EPOCH - 1, 3),
        day(2, BOARD_EPOCH, 4),
        day(1, BOARD_EPOCH + 1, 9),
    ]);
    let (status, page) = get_json(&serving, HISTORY).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    let all = [
        ("2026-07-09", 3),
        ("2026-07-10", 3),
        ("2026-07-11", 3),
        ("2026-07-12", 4),
    ];
    assert_eq!(list_counts(&page), to_counts(&all));
    assert_eq!(page["application_id"], 7);
    assert_eq!(page["days"][1]["epoch"], BOARD_EPOCH - 1);
    assert_eq!(page["days"][3]["epoch"], BOARD_EPOCH);
    let provenance = &page["provenance"];
    assert_eq!(provenance["source"], "batch", "{provenance}");
    assert_eq!(provenance["complete"], true);
    assert_eq!(provenance["epoch"], BOARD_EPOCH);
    assert_eq!(provenance["position"], json!({"authorizations": [10]}));
    let uri = format!("{HISTORY}?from=2026-07-10&to=2026-07-12");
    let (_, page) = get_json(&serving, &uri).await;
    assert_eq!(list_counts(&page), to_counts(&all[1..3]));
    let uri = format!("{HISTORY}?from=0001-01-01&to=9999-12-31");
    assert_eq!(
        list_counts(&get_json(&serving, &uri).await.1),
        to_counts(&all)
    );
    for empty in [
        "from=2026-07-13",
        "to=2026-07-09",
        "from=9999-01-01&to=9999-12-31",
    ] {
        let (status, page) = get_json(&serving, &format!("{HISTORY}?{empty}")).await;
        assert_eq!(
            (status, list_counts(&page)),
            (StatusCode::OK, vec![]),
            "{empty}"
        );
    }
}

#[tokio::test]
async fn follows_the_pages_of_a_history() {
    let first = RecordedDay {
        days_ago: 8,
        epoch: BOARD_EPOCH - 1,
        count: 3,
    };
    let last = RecordedDay {
        days_ago: 2,
        epoch: BOARD_EPOCH,
        count: 4,
    };
    let serving = start_service([first, last]);
    let (_, whole) = get_json(&serving, HISTORY).await;
    assert_eq!(list_counts(&whole).len(), 7);
    for limit in [1, 2, 3, 7, 3660] {
        let mut next_uri = Some(format!("{HISTORY}?limit={limit}"));
        let mut listed = Vec::new();
        while let Some(uri) = next_uri {
            let (_, page) = get_json(&serving, &uri).await;
            let days = list_counts(&page);
            assert!(days.len() <= limit);
            listed.extend(days);
            let cursor = page["cursor"].as_str();
            next_uri = cursor.map(|cursor| format!("{HISTORY}?limit={limit}&cursor={cursor}"));
        }
        assert_eq!(listed, list_counts(&whole), "{limit}");
    }
    let (response, csv) = get(&serving, &format!("{HISTORY}?limit=3&format=csv")).await;
    assert!(response.headers().contains_key("link"));
    assert!(response.headers().contains_key("backstitch-provenance"));
    assert_eq!(
        csv,
        "date,connected_athletes,epoch\r\n2026-07-06,3,1\r\n2026-07-07,3,1\r\n2026-07-08,3,1\r\n"
    );
}

#[tokio::test]
async fn refuses_invalid_parameters() {
    let serving = start_service([]);
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
        let (status, problem) = get_json(&serving, &format!("{HISTORY}?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{query}: {detail}");
    }
    let (status, problem) = get_json(&serving, "/api/v1/applications/8/history").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(problem["type"], "/problems/unknown-application");
    let (status, page) = get_json(&serving, HISTORY).await;
    assert_eq!(
        (status, list_counts(&page)),
        (StatusCode::OK, vec![]),
        "{page}"
    );
}
