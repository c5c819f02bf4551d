//! Achievements of athletes and activities: published ones, and those in the outbox.

use axum::http::StatusCode;
use schemas::achievement::{AchievementKey, AchievementKind, NotificationPosition, OutboxMessage};
use schemas::source::Source;
use serde_json::{Value, json};
use serving::{Serving, ServingOptions};

use crate::memory_stores::boards;
use crate::requests::get_json;

/// Builds the message of an achievement of activity 5. Its id is `n`, which grows with time.
fn build_message(n: i64, kind: AchievementKind, member: i64) -> OutboxMessage {
    let id = format!("{n:02}");
    let message = json!({"id": id, "kind": kind.name(), "board": "overall",
        "athlete_id": member, "rank": null, "elapsed_time": n, "activity_id": 5});
    OutboxMessage {
        id,
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

/// Starts a service with achievements 0 to 11 of athlete 7, and achievement 50 of athlete 8.
/// Achievements 0 to 7 and 50 are published. Achievements 6 to 11 are in the outbox.
fn start_service() -> Serving {
    let (serving, stores) = boards::start_service(ServingOptions::default());
    let kind = |n: i64| AchievementKind::ALL[usize::try_from(n).unwrap() % 4];
    let messages: Vec<OutboxMessage> = (0..12).map(|n| build_message(n, kind(n), 7)).collect();
    let other_athlete = build_message(50, AchievementKind::Crown, 8);
    let no_achievement = OutboxMessage {
        achievement: None,
        ..build_message(60, AchievementKind::Crown, 7)
    };
    let mut achievements = stores.achievements.lock().unwrap();
    achievements.published = [&messages[..8], &[other_athlete]].concat();
    achievements.unpublished = [&messages[6..], &[no_achievement]].concat();
    drop(achievements);
    serving
}

fn list_ids(page: &Value) -> Vec<&str> {
    let achievements = page["achievements"].as_array().unwrap().iter();
    achievements
        .map(|achievement| achievement["id"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn lists_published_and_unpublished_achievements_newest_first() {
    let serving = start_service();
    let path = "/api/v1/athletes/7/achievements";
    let (status, page) = get_json(&serving, path).await;
    assert_eq!(status, StatusCode::OK);
    let all = [
        "11", "10", "09", "08", "07", "06", "05", "04", "03", "02", "01", "00",
    ];
    assert_eq!(list_ids(&page), all);
    assert_eq!(page["cursor"], Value::Null);
    assert_eq!(page["provenance"]["source"], "realtime");
    assert_eq!(page["provenance"]["complete"], true);
    assert_eq!(page["provenance"]["position"]["efforts"], json!([10]));
    let mut read_ids: Vec<String> = Vec::new();
    let mut uri = format!("{path}?limit=5");
    loop {
        let (_, page) = get_json(&serving, &uri).await;
        read_ids.extend(list_ids(&page).into_iter().map(str::to_owned));
        let Some(cursor) = page["cursor"].as_str() else {
            break;
        };
        uri = format!("{path}?limit=5&cursor={cursor}");
    }
    assert_eq!(read_ids, all);
    let (_, page) = get_json(&serving, &format!("{path}?kind=top_ten")).await;
    assert_eq!(list_ids(&page), ["10", "06", "02"]);
    let (_, page) = get_json(&serving, "/api/v1/activities/5/achievements?kind=crown").await;
    assert_eq!(list_ids(&page), ["50", "08", "04", "00"]);
    for unknown in ["athletes/9", "activities/6"] {
        let (status, page) = get_json(&serving, &format!("/api/v1/{unknown}/achievements")).await;
        assert_eq!((status, list_ids(&page).len()), (StatusCode::OK, 0));
    }
}

#[tokio::test]
async fn refuses_invalid_parameters() {
    let serving = start_service();
    for (path, words) in [
        (
            "athletes/7/achievements?kind=kom",
            "crown, crown_lost, top_ten, personal_record",
        ),
        ("athletes/x/achievements", "athlete_id"),
        ("activities/1.5/achievements", "64-bit"),
        ("athletes/7/achievements?limit=0", "1000"),
        ("athletes/7/achievements?offset=1", "offset"),
        ("athletes/7/achievements?cursor=WzFd", "cursor"),
    ] {
        let (status, problem) = get_json(&serving, &format!("/api/v1/{path}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{path}: {detail}");
    }
}
