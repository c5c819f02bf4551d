//! Applications: lists, capacities, and recounts.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use jobs::Catalog;
use jobs::counting::{CountingClasses, CountingSection};
use schemas::entities::Application;
use serde_json::{Value, json};
use serving::Serving;
use stores::recounts::RecordedCount;

use crate::memory_stores::MemoryStores;
use crate::memory_stores::boards::{self, EntryValues};
use crate::requests::{
    build_request, get, get_json, no_wait_options, parse_json, parse_next_link, send,
};

const LIST: &str = "/api/v1/applications";

/// Starts a service with the applications 1 to `count`. Each has as many connected athletes as its
/// id, of which the last one is a live entry.
fn start_service(count: i64) -> (Serving, Arc<MemoryStores>) {
    start_service_with(count, Catalog::built_in().unwrap())
}

fn start_service_with(count: i64, catalog: Catalog) -> (Serving, Arc<MemoryStores>) {
    let (serving, stores) = boards::start_service_with(catalog, no_wait_options());
    let job = boards::find_board_job("applications");
    let entry = |member| EntryValues {
        member,
        elapsed_time_s: 0,
        period: 0,
        gender: "",
    };
    for id in 1..=count {
        stores.entities().applications.push(Application {
            id,
            name: format!("app {id}"),
            owner: json!("o"),
            athlete_capacity: 10,
            version: 0,
        });
        let mut boards = stores.boards();
        boards.publish(&job, id, &(1..id).map(entry).collect::<Vec<_>>());
        boards.set_live_entry(&job, id, id, &[entry(id)]);
    }
    (serving, stores)
}

async fn send_json(
    serving: &Serving,
    method: Method,
    uri: &str,
    body: &str,
) -> (StatusCode, Value) {
    let request = build_request(method, uri, body.to_owned());
    let (response, text) = send(serving, request).await;
    (response.status(), parse_json(&text))
}

/// Returns the id and the number of connected athletes of each application.
fn list_counts(page: &Value) -> Vec<(i64, i64)> {
    let applications = page["applications"].as_array().unwrap().iter();
    let int = |application: &Value, name: &str| application[name].as_i64().unwrap();
    applications
        .map(|application| {
            (
                int(application, "id"),
                int(application, "connected_athletes"),
            )
        })
        .collect()
}

#[tokio::test]
async fn follows_the_pages_of_the_list() {
    let (serving, _) = start_service(7);
    let all: Vec<(i64, i64)> = (1..=7).map(|id| (id, id)).collect();
    let (mut listed, mut next_uri) = (Vec::new(), Some(format!("{LIST}?limit=2")));
    while let Some(uri) = next_uri {
        let (response, text) = get(&serving, &uri).await;
        next_uri = parse_next_link(response.headers());
        listed.extend(list_counts(&parse_json(&text)));
    }
    assert_eq!(listed, all, "links");
    let (_, mut page) = get_json(&serving, &format!("{LIST}?limit=3")).await;
    let mut listed = list_counts(&page);
    while let Some(cursor) = page["cursor"].as_str() {
        let uri = format!("{LIST}?limit=3&cursor={cursor}");
        page = get_json(&serving, &uri).await.1;
        listed.extend(list_counts(&page));
    }
    assert_eq!(listed, all, "cursors");
}

/// A long list is read in steps, which bounds the live states in memory. Its provenance has the
/// position of the first step.
#[tokio::test]
async fn reads_a_long_list_in_steps() {
    let (serving, stores) = start_service(300);
    stores.boards().offset_step = 5;
    let (status, page) = get_json(&serving, &format!("{LIST}?limit=1000")).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert_eq!(
        list_counts(&page),
        (1..=300).map(|id| (id, id)).collect::<Vec<_>>()
    );
    assert_eq!(
        stores.read_counts().keys_of_live_entries,
        [64, 64, 64, 64, 44]
    );
    let position = |response: &Value| response["provenance"]["position"]["authorizations"].clone();
    assert_eq!(position(&page), json!([10]));
    assert_eq!(position(&page["applications"][0]), json!([10]));
    assert_eq!(position(&page["applications"][299]), json!([30]));
    assert_eq!(page["provenance"]["source"], "merged");
}

/// A response of 503 means that nothing has changed.
#[tokio::test]
async fn makes_no_change_if_the_response_cannot_be_read() {
    let (serving, stores) = start_service(1);
    let uri = format!("{LIST}/1");
    stores.faults().lacks_board_state = true;
    let change = "{\"athlete_capacity\": 5}";
    let (status, document) = send_json(&serving, Method::PATCH, &uri, change).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{document}");
    let capacity = || stores.entities().applications[0].athlete_capacity;
    assert_eq!(capacity(), 10);
    stores.faults().lacks_board_state = false;
    let (status, application) = send_json(&serving, Method::PATCH, &uri, change).await;
    assert_eq!(status, StatusCode::OK, "{application}");
    assert_eq!(capacity(), 5);
    assert_eq!(application["athlete_capacity"], 5);
    assert_eq!(application["connected_athletes"], 1);
}

#[tokio::test]
async fn refuses_bodies_with_unknown_fields() {
    let (serving, stores) = start_service(1);
    let (application, authorizations) = (format!("{LIST}/1"), format!("{LIST}/1/authorizations"));
    let blanks = " ".repeat(20_000);
    for (method, uri, body, status) in [
        (Method::PATCH, &application, "[5]", 400),
        (Method::PATCH, &application, "5", 400),
        (Method::PATCH, &application, "", 400),
        (
            Method::PATCH,
            &application,
            "{\"athlete_capacity\": 5, \"x\": 1}",
            400,
        ),
        (Method::PATCH, &application, &blanks, 413),
        (Method::POST, &authorizations, "[5]", 400),
        (Method::POST, &authorizations, "{}", 400),
        (
            Method::POST,
            &authorizations,
            "{\"athlete_id\": 5, \"x\": 1}",
            400,
        ),
        (Method::POST, &authorizations, &blanks, 413),
        (
            Method::PATCH,
            &application,
            " \n{\"athlete_capacity\": 7}",
            200,
        ),
    ] {
        let (actual, document) = send_json(&serving, method, uri, body).await;
        assert_eq!(actual.as_u16(), status, "{body}: {document}");
        let capacity = stores.entities().applications[0].athlete_capacity;
        assert_eq!(capacity, if status == 200 { 7 } else { 10 });
    }
}

/// For a class that recounts, the response has the recount and its time, or else the board's count.
#[tokio::test]
async fn shows_recounts() {
    let section = CountingSection {
        class: "some".to_owned(),
        strategy: "recount".to_owned(),
        applications: vec![2, 3],
        large_size: Some(0),
        events_per_athlete_per_day: Some(1.0),
        recounts_per_day: Some(1),
        ..CountingSection::default()
    };
    let counting = CountingClasses::parse(&[section]).unwrap();
    let catalog = Catalog::built_in().unwrap().with_counting(&counting);
    let (serving, stores) = start_service_with(3, catalog);
    let recorded = RecordedCount {
        connected: 70,
        counted_at_ms: 1_500,
    };
    // Application 1 was recounted before it moved to a class that increments.
    let recounts = [(1, recorded), (2, recorded)];
    stores.entities().recounts.extend(recounts);
    let (status, page) = get_json(&serving, LIST).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert_eq!(list_counts(&page), [(1, 1), (2, 70), (3, 3)]);
    let application = |id: usize| &page["applications"][id - 1];
    assert_eq!(
        application(1)["counting"],
        json!({"strategy": "increments"})
    );
    let recount =
        json!({"strategy": "recount", "class": "some", "counted_at": "1970-01-01T00:00:01.5Z"});
    assert_eq!(application(2)["counting"], recount);
    let provenance = json!({"source": "canonical", "as_of": "1970-01-01T00:00:01.5Z", "epoch": 0,
        "complete": false, "position": {}});
    assert_eq!(application(2)["provenance"], provenance);
    let not_recounted = json!({"strategy": "increments", "class": "some"});
    assert_eq!(application(3)["counting"], not_recounted);
    assert_eq!(application(3)["provenance"]["complete"], true);
    assert_eq!(page["provenance"]["complete"], false);

    // A recount does not need live state.
    stores.faults().lacks_board_state = true;
    let (status, recounted) = get_json(&serving, &format!("{LIST}/2")).await;
    assert_eq!((status, &recounted), (StatusCode::OK, application(2)));
    let (status, _) = get_json(&serving, &format!("{LIST}/1")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}
