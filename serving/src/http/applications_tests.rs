use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use jobs::Catalog;
use jobs::counting::{Counting, CountingSection};
use schemas::entities::Application;
use serde_json::{Value, json};
use stores::recounts::RecordedCount;
use tower::ServiceExt;

use crate::laws::get;
use crate::world::World;
use crate::world::boards::{self, BoardTime};
use crate::{Serving, ServingOptions};

const LIST: &str = "/api/v1/applications";

/// Applications from 1 to `count`. Each has as many athletes as its id, of which the last one is
/// live.
fn applications(count: i64) -> (Serving, Arc<World>) {
    applications_with(count, Catalog::built_in().unwrap())
}

fn applications_with(count: i64, catalog: Catalog) -> (Serving, Arc<World>) {
    let options = ServingOptions {
        whole_wait_ms: 0,
        ..ServingOptions::default()
    };
    let (serving, world) = boards::serving_with(catalog, options);
    let job = boards::job("applications");
    let best = |member| BoardTime {
        member,
        time: 0,
        period: 0,
        gender: "",
    };
    {
        let mut boards = world.boards.lock().unwrap();
        for id in 1..=count {
            boards.applications.push(Application {
                id,
                name: format!("app {id}"),
                owner: json!("o"),
                athlete_capacity: 10,
                version: 0,
            });
            boards.publish(&job, id, &(1..id).map(best).collect::<Vec<_>>());
            boards.set_state(&job, id, id, &[best(id)]);
        }
    }
    (serving, world)
}

async fn send(serving: &Serving, method: Method, uri: &str, body: &str) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(uri);
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = serving.router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn counts(page: &Value) -> Vec<(i64, i64)> {
    let shown = page["applications"].as_array().unwrap().iter();
    let number = |shown: &Value, name: &str| shown[name].as_i64().unwrap();
    shown
        .map(|shown| (number(shown, "id"), number(shown, "connected_athletes")))
        .collect()
}

#[tokio::test]
async fn follows_the_pages_of_the_list() {
    let (serving, _) = applications(7);
    let all: Vec<(i64, i64)> = (1..=7).map(|id| (id, id)).collect();
    let (mut found, mut uri) = (Vec::new(), Some(format!("{LIST}?limit=2")));
    while let Some(next) = uri {
        let request = Request::get(&next).body(Body::empty()).unwrap();
        let response = serving.router().oneshot(request).await.unwrap();
        uri = response.headers().get("link").map(|link| {
            let link = link.to_str().unwrap().strip_prefix('<').unwrap();
            link.strip_suffix(">; rel=\"next\"").unwrap().to_owned()
        });
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        found.extend(counts(&serde_json::from_slice(&body).unwrap()));
    }
    assert_eq!(found, all, "links");
    let (_, mut page) = get(&serving, &format!("{LIST}?limit=3")).await;
    let mut found = counts(&page);
    while let Some(cursor) = page["cursor"].as_str() {
        page = get(&serving, &format!("{LIST}?limit=3&cursor={cursor}"))
            .await
            .1;
        found.extend(counts(&page));
    }
    assert_eq!(found, all, "cursors");
}

/// A long list is read in steps, which bounds the live states in memory. Its provenance has the
/// position of the first step.
#[tokio::test]
async fn reads_a_long_list_in_steps() {
    let (serving, world) = applications(300);
    world.boards.lock().unwrap().offset_step = 5;
    let (status, page) = get(&serving, &format!("{LIST}?limit=1000")).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert_eq!(
        counts(&page),
        (1..=300).map(|id| (id, id)).collect::<Vec<_>>()
    );
    assert_eq!(
        world.boards.lock().unwrap().keys_per_read,
        [64, 64, 64, 64, 44]
    );
    let position = |shown: &Value| shown["provenance"]["position"]["authorizations"].clone();
    assert_eq!(position(&page), json!([10]));
    assert_eq!(position(&page["applications"][0]), json!([10]));
    assert_eq!(position(&page["applications"][299]), json!([30]));
    assert_eq!(page["provenance"]["source"], "merged");
}

/// A response of 503 means that nothing has changed.
#[tokio::test]
async fn makes_no_change_if_the_response_cannot_be_read() {
    let (serving, world) = applications(1);
    let uri = format!("{LIST}/1");
    world.boards.lock().unwrap().lacks_states = true;
    let change = "{\"athlete_capacity\": 5}";
    let (status, document) = send(&serving, Method::PATCH, &uri, change).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{document}");
    let capacity = |world: &World| world.boards.lock().unwrap().applications[0].athlete_capacity;
    assert_eq!(capacity(&world), 10);
    world.boards.lock().unwrap().lacks_states = false;
    let (status, shown) = send(&serving, Method::PATCH, &uri, change).await;
    assert_eq!(status, StatusCode::OK, "{shown}");
    assert_eq!(
        (capacity(&world), &shown["athlete_capacity"]),
        (5, &json!(5))
    );
    assert_eq!(shown["connected_athletes"], 1);
}

#[tokio::test]
async fn refuses_bodies_with_unknown_fields() {
    let (serving, world) = applications(1);
    let (patch, post) = (format!("{LIST}/1"), format!("{LIST}/1/authorizations"));
    let long = " ".repeat(20_000);
    for (method, uri, body, status) in [
        (Method::PATCH, &patch, "[5]", 400),
        (Method::PATCH, &patch, "5", 400),
        (Method::PATCH, &patch, "", 400),
        (
            Method::PATCH,
            &patch,
            "{\"athlete_capacity\": 5, \"x\": 1}",
            400,
        ),
        (Method::PATCH, &patch, &long, 413),
        (Method::POST, &post, "[5]", 400),
        (Method::POST, &post, "{}", 400),
        (Method::POST, &post, "{\"athlete_id\": 5, \"x\": 1}", 400),
        (Method::POST, &post, &long, 413),
        (Method::PATCH, &patch, " \n{\"athlete_capacity\": 7}", 200),
    ] {
        let (got, document) = send(&serving, method, uri, body).await;
        assert_eq!(got.as_u16(), status, "{body}: {document}");
        let capacity = world.boards.lock().unwrap().applications[0].athlete_capacity;
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
    let counting = Counting::parse(&[section]).unwrap();
    let catalog = Catalog::built_in().unwrap().with_counting(&counting);
    let (serving, world) = applications_with(3, catalog);
    let counted = RecordedCount {
        connected: 70,
        counted_at_ms: 1_500,
    };
    {
        let recounted = &mut world.boards.lock().unwrap().recounted;
        // Application 1 was recounted before it moved to a class that increments.
        recounted.extend([(1, counted), (2, counted)]);
    }
    let (status, page) = get(&serving, LIST).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    assert_eq!(counts(&page), [(1, 1), (2, 70), (3, 3)]);
    let shown = |index: usize| page["applications"][index].clone();
    assert_eq!(shown(0)["counting"], json!({"strategy": "increments"}));
    let recount =
        json!({"strategy": "recount", "class": "some", "counted_at": "1970-01-01T00:00:01.5Z"});
    assert_eq!(shown(1)["counting"], recount);
    let provenance = json!({"source": "canonical", "as_of": "1970-01-01T00:00:01.5Z", "epoch": 0,
        "complete": false, "position": {}});
    assert_eq!(shown(1)["provenance"], provenance);
    let none = json!({"strategy": "increments", "class": "some"});
    assert_eq!(shown(2)["counting"], none);
    assert_eq!(shown(2)["provenance"]["complete"], true);
    assert_eq!(page["provenance"]["complete"], false);

    // A recount does not need live state.
    world.boards.lock().unwrap().lacks_states = true;
    let (status, one) = get(&serving, &format!("{LIST}/2")).await;
    assert_eq!((status, &one), (StatusCode::OK, &shown(1)));
    let (status, _) = get(&serving, &format!("{LIST}/1")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}
