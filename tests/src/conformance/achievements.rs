//! Laws of the achievements port.

use schemas::achievement::{AchievementKey, AchievementKind, NotificationPosition, OutboxMessage};
use schemas::source::Source;
use serde_json::Map;
use stores::achievements::{AchievementCursor, AchievementOwner};
use stores::live::PartitionId;
use stores::{Result, Stores};

/// 2024-12-31T23:59:58Z: the achievements cross the end of a year.
const FIRST_MS: i64 = 1_735_689_598_000;

fn message(n: i64, member: i64, activity: Option<i64>) -> OutboxMessage {
    let kind = AchievementKind::ALL[usize::try_from(n).expect("a number") % 4];
    OutboxMessage {
        // Within one timestamp the order of ids differs from the order of time.
        id: format!("{:032x}", (n * 7) % 100),
        key: 3,
        at_ms: FIRST_MS + n / 3 * 1000,
        position: NotificationPosition {
            source: Source::Efforts,
            partition: 1,
            offset: n,
        },
        achievement: Some(AchievementKey {
            kind,
            member,
            activity,
        }),
        message: Map::from_iter([("n".to_owned(), n.into())]),
    }
}

/// Achievements are returned as written, newest first, page by page. Writing them again changes
/// nothing.
pub async fn achievements_are_listed_newest_first(ports: &Stores) -> Result<()> {
    let store = &*ports.achievements;
    let mut messages: Vec<OutboxMessage> = (0..20).map(|n| message(n, 7, Some(5))).collect();
    messages.push(message(20, 7, None));
    let mut written = messages.clone();
    written.push(message(21, 8, Some(5)));
    // A board change is no achievement.
    written.push(OutboxMessage {
        achievement: None,
        ..message(22, 7, Some(5))
    });
    store.write(&written[5..]).await?;
    store.write(&written).await?;
    messages.sort_by_key(|message| std::cmp::Reverse(AchievementCursor::from_message(message)));
    let member = AchievementOwner::Member(7);
    assert_eq!(store.achievements(member, None, None, 100).await?, messages);
    for limit in [1, 4, 20, 21] {
        let mut listed: Vec<OutboxMessage> = Vec::new();
        loop {
            let before = listed.last().map(AchievementCursor::from_message);
            let page = store
                .achievements(member, None, before.as_ref(), limit)
                .await?;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        assert_eq!(listed, messages, "{limit} at a time");
    }
    let is_top = |message: &&OutboxMessage| {
        message
            .achievement
            .is_some_and(|a| a.kind == AchievementKind::TopTen)
    };
    let tops: Vec<OutboxMessage> = messages.iter().filter(is_top).cloned().collect();
    let kind = Some(AchievementKind::TopTen);
    assert_eq!(store.achievements(member, kind, None, 100).await?, tops);
    assert_eq!(store.achievements(member, kind, None, 2).await?, tops[..2]);
    let of_activity = store
        .achievements(AchievementOwner::Activity(5), None, None, 100)
        .await?;
    assert_eq!(of_activity.len(), 21);
    assert!(
        of_activity.is_sorted_by_key(|message| std::cmp::Reverse(AchievementCursor::from_message(
            message
        )))
    );
    for nobody in [AchievementOwner::Member(9), AchievementOwner::Activity(7)] {
        assert_eq!(store.achievements(nobody, None, None, 9).await?, []);
    }
    Ok(())
}

/// Each partition keeps its own last published position; the latest write wins.
pub async fn published_positions_are_stored(ports: &Stores) -> Result<()> {
    let store = &*ports.achievements;
    let state_id = |source, partition| PartitionId { source, partition };
    let first_id = state_id(Source::Efforts, 0);
    assert_eq!(store.published_end(first_id).await?, None);
    for end in [5, 9, 0] {
        store.record_published_end(first_id, end).await?;
        assert_eq!(store.published_end(first_id).await?, Some(end));
    }
    for other_id in [
        state_id(Source::Efforts, 1),
        state_id(Source::Authorizations, 0),
    ] {
        assert_eq!(store.published_end(other_id).await?, None);
    }
    Ok(())
}

/// Erasing an athlete deletes the athlete's achievements and removes the athlete's name where
/// others lost a crown. It is idempotent, and other achievements stay.
pub async fn an_athlete_is_erased(ports: &Stores) -> Result<()> {
    let store = &*ports.achievements;
    let taken_by = |n: i64, member: i64, taken_by_id: i64| {
        let mut message = message(n, member, Some(5));
        message
            .message
            .insert("taken_by".to_owned(), taken_by_id.into());
        message
    };
    let messages = [
        message(1, 7, Some(5)),
        message(9, 7, None),
        taken_by(2, 8, 7),
        taken_by(3, 8, 9),
    ];
    store.write(&messages).await?;
    assert!(store.count_naming(7).await? >= 3 && store.count_naming(10).await? == 0);
    for _ in 0..2 {
        store.erase(7).await?;
        assert_eq!(store.count_naming(7).await?, 0);
    }
    let (member, activity) = (AchievementOwner::Member(7), AchievementOwner::Activity(5));
    assert_eq!(store.achievements(member, None, None, 100).await?, []);
    let remaining = store.achievements(activity, None, None, 100).await?;
    let mut expected = vec![messages[2].clone().without_taker(), messages[3].clone()];
    expected.sort_by_key(|message| std::cmp::Reverse(AchievementCursor::from_message(message)));
    assert_eq!(remaining, expected);
    assert_eq!(
        store
            .achievements(AchievementOwner::Member(8), None, None, 100)
            .await?,
        expected
    );
    Ok(())
}
