//! The laws of the port of achievements.

use schemas::achievement::{Achieved, Kind, Position, Told};
use schemas::source::Source;
use serde_json::Map;
use stores::achievements::{Mark, Of};
use stores::live::SlotId;
use stores::{Result, Stores};

/// 2024-12-31T23:59:58Z: the achievements cross the end of a year.
const FIRST_MS: i64 = 1_735_689_598_000;

fn told(n: i64, member: i64, activity: Option<i64>) -> Told {
    let kind = Kind::ALL[usize::try_from(n).expect("a number") % 4];
    Told {
        // Of one moment the order of ids is another than that of time.
        id: format!("{:032x}", (n * 7) % 100),
        key: 3,
        at_ms: FIRST_MS + n / 3 * 1000,
        position: Position {
            source: Source::Efforts,
            partition: 1,
            offset: n,
        },
        achieved: Some(Achieved {
            kind,
            member,
            activity,
        }),
        message: Map::from_iter([("n".to_owned(), n.into())]),
    }
}

/// Achievements come back as they were written, newest first, page by page; writing them again
/// changes nothing.
pub async fn achievements_come_newest_first(ports: &Stores) -> Result<()> {
    let store = &*ports.achievements;
    let mut all: Vec<Told> = (0..20).map(|n| told(n, 7, Some(5))).collect();
    all.push(told(20, 7, None));
    let mut written = all.clone();
    written.push(told(21, 8, Some(5)));
    // A change of boards is none.
    written.push(Told {
        achieved: None,
        ..told(22, 7, Some(5))
    });
    store.write(&written[5..]).await?;
    store.write(&written).await?;
    all.sort_by_key(|told| std::cmp::Reverse(Mark::of(told)));
    let member = Of::Member(7);
    assert_eq!(store.achievements(member, None, None, 100).await?, all);
    for limit in [1, 4, 20, 21] {
        let mut found: Vec<Told> = Vec::new();
        loop {
            let before = found.last().map(Mark::of);
            let page = store
                .achievements(member, None, before.as_ref(), limit)
                .await?;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, all, "{limit} at a time");
    }
    let is_top = |told: &&Told| told.achieved.is_some_and(|a| a.kind == Kind::TopTen);
    let tops: Vec<Told> = all.iter().filter(is_top).cloned().collect();
    let kind = Some(Kind::TopTen);
    assert_eq!(store.achievements(member, kind, None, 100).await?, tops);
    assert_eq!(store.achievements(member, kind, None, 2).await?, tops[..2]);
    let of_activity = store.achievements(Of::Activity(5), None, None, 100).await?;
    assert_eq!(of_activity.len(), 21);
    assert!(of_activity.is_sorted_by_key(|told| std::cmp::Reverse(Mark::of(told))));
    for nobody in [Of::Member(9), Of::Activity(7)] {
        assert_eq!(store.achievements(nobody, None, None, 9).await?, []);
    }
    Ok(())
}

/// What was noted last stands, for each partition of its own.
pub async fn how_far_was_told_is_noted(ports: &Stores) -> Result<()> {
    let store = &*ports.achievements;
    let slot = |source, partition| SlotId { source, partition };
    let one = slot(Source::Efforts, 0);
    assert_eq!(store.told_through(one).await?, None);
    for through in [5, 9, 0] {
        store.note_told(one, through).await?;
        assert_eq!(store.told_through(one).await?, Some(through));
    }
    for other in [slot(Source::Efforts, 1), slot(Source::Authorizations, 0)] {
        assert_eq!(store.told_through(other).await?, None);
    }
    Ok(())
}

/// An athlete's own achievements go; those of others that name the athlete as who took a crown name nobody. It may be done
/// again, and what was written of nobody stays.
pub async fn an_athlete_is_erased(ports: &Stores) -> Result<()> {
    let store = &*ports.achievements;
    let taken_by = |n: i64, member: i64, by: i64| {
        let mut told = told(n, member, Some(5));
        told.message.insert("taken_by".to_owned(), by.into());
        told
    };
    let all = [
        told(1, 7, Some(5)),
        told(9, 7, None),
        taken_by(2, 8, 7),
        taken_by(3, 8, 9),
    ];
    store.write(&all).await?;
    assert!(store.naming(7).await? >= 3 && store.naming(10).await? == 0);
    for _ in 0..2 {
        store.erase(7).await?;
        assert_eq!(store.naming(7).await?, 0);
    }
    let (member, activity) = (Of::Member(7), Of::Activity(5));
    assert_eq!(store.achievements(member, None, None, 100).await?, []);
    let left = store.achievements(activity, None, None, 100).await?;
    let mut expected = vec![all[2].clone().taken_by_nobody(), all[3].clone()];
    expected.sort_by_key(|told| std::cmp::Reverse(Mark::of(told)));
    assert_eq!(left, expected);
    assert_eq!(
        store.achievements(Of::Member(8), None, None, 100).await?,
        expected
    );
    Ok(())
}
