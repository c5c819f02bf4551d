//! Series without a start or an end: they cover only their own events.

use batch::RunRequest;
use serde_json::{Value, json};
use tests::plays;
use tests::world::{Served, World};

fn play(id: &str, country: &str, listener: i64, at: &str) -> String {
    let fields = json!({"track_id": 7, "owner_id": 7, "listener_id": listener, "country": country, "at": at});
    plays::play(id, fields)
}

async fn fetch_points(served: &Served, path: &str) -> Vec<(String, i64)> {
    let answer = served
        .client
        .fetch_json(&format!("/api/v1/stats/plays/{path}"))
        .await;
    let points = answer["points"].as_array();
    let point = |point: &Value| {
        let time = point["at"].as_str().expect("a time").to_owned();
        (time, point["count"].as_i64().expect("a count"))
    };
    let points = points.unwrap_or_else(|| panic!("{path}: {answer}"));
    points.iter().map(point).collect()
}

async fn check_series(served: &Served) {
    let points_on = |at: &str, count| vec![(at.to_owned(), count)];
    for owner_filter in ["owner_id=7", "track_id=7", "owner_id=7&track_id=7"] {
        // The same with two filters that only the detail view has both of.
        for filter in ["country=DE", "listener_id=1", "country=DE&listener_id=1"] {
            let filters = format!("{owner_filter}&{filter}");
            assert_eq!(
                fetch_points(served, &format!("series?{filters}")).await,
                points_on("2026-03-01T00:00:00Z", 1)
            );
            assert_eq!(
                fetch_points(
                    served,
                    &format!("series?{filters}&interval=month&tz=Asia/Kolkata")
                )
                .await,
                points_on("2026-02-28T18:30:00Z", 1)
            );
            assert_eq!(
                fetch_points(served, &format!("uniques/series?{filters}&interval=day")).await,
                points_on("2026-03-01T00:00:00Z", 1)
            );
        }
        let nothing = format!("series?{owner_filter}&country=FR");
        assert_eq!(fetch_points(served, &nothing).await, []);
    }
}

/// Events with clocks that are wrong by a century neither appear in the chart of others nor make it
/// fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_out_events_do_not_extend_a_series() {
    let world = World::new().await;
    let served = world.serve().await;
    let lines = [
        play("a", "DE", 1, "2026-03-01T00:20:00Z"),
        play("b", "US", 2, "1900-01-01T00:00:00Z"),
        play("c", "US", 2, "2200-01-01T00:00:00Z"),
    ];
    world.ingest(&lines).await;
    world.catch_up().await;
    check_series(&served).await;
    world.run(&RunRequest::default()).await.expect("a run");
    check_series(&served).await;
    served.end().await;
}
