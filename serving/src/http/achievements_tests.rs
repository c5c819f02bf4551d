use axum::http::StatusCode;
use schemas::achievement::{AchievementKey, AchievementKind, NotificationPosition, OutboxMessage};
use schemas::source::Source;
use serde_json::{Value, json};

use crate::laws::get;
use crate::world::boards;
use crate::{Serving, ServingOptions};

fn message(n: i64, kind: AchievementKind, member: i64) -> OutboxMessage {
    let message = json!({"id": format!("{n:02}"), "kind": kind.name(), "board": "overall",
        "athlete_id": member, "rank": null, "elapsed_time": n, "activity_id": 5});
    OutboxMessage {
        id: format!("{n:02}"),
        key: 1,
        at_ms: n / 2,
        position: NotificationPosition {
            source: Source::Efforts,
            partition: 0,
            offset: n,
        },
        achievement: Some(AchievementKey {
            kind,
            member,
            activity: Some(5),
        }),
        message: message.as_object().unwrap().clone(),
    }
}

/// Twelve achievements of athlete 7 and one of another. Some are published, some not, two are both.
fn serving() -> Serving {
    let (serving, world) = boards::serving(ServingOptions::default());
    let mut boards = world.boards.lock().unwrap();
    let kind = |n: i64| AchievementKind::ALL[usize::try_from(n).unwrap() % 4];
    let all: Vec<OutboxMessage> = (0..12).map(|n| message(n, kind(n), 7)).collect();
    boards.published = all[..8].to_vec();
    boards
        .published
        .push(message(50, AchievementKind::Crown, 8));
    boards.unpublished = all[6..].to_vec();
    boards.unpublished.push(OutboxMessage {
        achievement: None,
        ..message(60, AchievementKind::Crown, 7)
    });
    drop(boards);
    serving
}

fn ids(page: &Value) -> Vec<&str> {
    let achievements = page["achievements"].as_array().unwrap().iter();
    achievements.map(|a| a["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn lists_published_and_unpublished_achievements_newest_first() {
    let serving = serving();
    let path = "/api/v1/athletes/7/achievements";
    let (status, page) = get(&serving, path).await;
    assert_eq!(status, StatusCode::OK);
    let all = [
        "11", "10", "09", "08", "07", "06", "05", "04", "03", "02", "01", "00",
    ];
    assert_eq!(ids(&page), all);
    assert_eq!(page["cursor"], Value::Null);
    assert_eq!(page["provenance"]["source"], "realtime");
    assert_eq!(page["provenance"]["complete"], true);
    assert_eq!(page["provenance"]["position"]["efforts"], json!([10]));
    let mut found: Vec<String> = Vec::new();
    let mut uri = format!("{path}?limit=5");
    loop {
        let (_, page) = get(&serving, &uri).await;
        found.extend(ids(&page).into_iter().map(str::to_owned));
        let Some(cursor) = page["cursor"].as_str() else {
            break;
        };
        uri = format!("{path}?limit=5&cursor={cursor}");
    }
    assert_eq!(found, all);
    let (_, page) = get(&serving, &format!("{path}?kind=top_ten")).await;
    assert_eq!(ids(&page), ["10", "06", "02"]);
    let (_, page) = get(&serving, "/api/v1/activities/5/achievements?kind=crown").await;
    assert_eq!(ids(&page), ["50", "08", "04", "00"]);
    for unknown in ["athletes/9", "activities/6"] {
        let (status, page) = get(&serving, &format!("/api/v1/{unknown}/achievements")).await;
        assert_eq!((status, ids(&page).len()), (StatusCode::OK, 0));
    }
}

#[tokio::test]
async fn refuses_invalid_parameters() {
    let serving = serving();
    for (uri, word) in [
        (
            "athletes/7/achievements?kind=kom",
            "crown, crown_lost, top_ten, personal_record",
        ),
        ("athletes/x/achievements", "athlete_id"),
        ("activities/1.5/achievements", "64-bit"),
        ("athletes/7/achievements?limit=0", "1,000"),
        ("athletes/7/achievements?offset=1", "offset"),
        ("athletes/7/achievements?cursor=WzFd", "cursor"),
    ] {
        let (status, problem) = get(&serving, &format!("/api/v1/{uri}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{uri}");
        let detail = problem["detail"].as_str().unwrap().replace("1000", "1,000");
        assert!(detail.contains(word), "{uri}: {detail}");
    }
}
