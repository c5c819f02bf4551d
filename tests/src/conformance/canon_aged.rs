//! The laws of the canonical port: letting go of old records.

use schemas::entities::Entity;
use stores::admin::{By, CanonAdmin, Change, Decided, Decision, Requested, RequestsOf};
use stores::aged::{AgedCount, Ageing};
use stores::notices::Outcome;
use stores::{Result, Stores};

use super::canon_rows::{NOW_MS, application, apply};

const LIMIT: usize = 100;

fn me() -> By {
    By {
        actor: "me".to_owned(),
        reason: None,
    }
}

const fn count(all: u64, oldest_ms: Option<i64>, aged: u64, needed: u64) -> AgedCount {
    AgedCount {
        all,
        oldest_ms,
        aged,
        needed,
    }
}

/// Records of changes go from the oldest on, at most so many at once, and never those of the moment or later.
pub async fn old_changes_go(ports: &Stores) -> Result<()> {
    let canon = &*ports.canon;
    assert_eq!(
        canon.aged(Ageing::Audit, i64::MAX).await?,
        AgedCount::default()
    );
    apply(canon, &[Entity::Application(application(5, 2))]).await?;
    for (capacity, at_ms) in [(3, 1_000), (4, 2_000), (5, 3_000), (6, 3_000)] {
        canon
            .change(5, Change::capacity(capacity), &me(), at_ms)
            .await?;
    }
    let found = canon.aged(Ageing::Audit, 2_000).await?;
    assert_eq!(found, count(4, Some(1_000), 1, 0));
    assert_eq!(canon.forget_aged(Ageing::Audit, 2_000, LIMIT).await?, 1);
    assert_eq!(canon.forget_aged(Ageing::Audit, 2_000, LIMIT).await?, 0);
    assert_eq!(
        canon.forget_aged(Ageing::Audit, 3_001, 1).await?,
        1,
        "the oldest"
    );
    let left = canon.audit(5, None, LIMIT).await?;
    assert!(
        left.len() == 2 && left.iter().all(|entry| entry.at_ms == 3_000),
        "{left:?}"
    );
    assert_eq!(
        canon.aged(Ageing::Audit, i64::MIN).await?,
        count(2, Some(3_000), 0, 0)
    );
    assert_eq!(
        canon
            .application(5)
            .await?
            .map(|found| found.athlete_capacity),
        Some(6)
    );
    Ok(())
}

/// A request stays until it is decided, and then as long as is said.
pub async fn decided_requests_go(ports: &Stores) -> Result<()> {
    let canon = &*ports.canon;
    apply(canon, &[Entity::Application(application(5, 2))]).await?;
    let asked = canon.request_capacity(5, 10, &me(), 1_000).await?;
    let Requested::New(request) = asked else {
        panic!("it is the first: {asked:?}");
    };
    let of = Ageing::CapacityRequests;
    assert_eq!(canon.aged(of, 5_000).await?, count(1, Some(1_000), 0, 1));
    assert_eq!(
        canon.forget_aged(of, i64::MAX, LIMIT).await?,
        0,
        "it is open"
    );
    let decided = canon
        .decide(request.id, Decision::Refuse, &me(), 4_000)
        .await?;
    assert!(matches!(decided, Decided::Done { .. }), "{decided:?}");
    assert_eq!(canon.forget_aged(of, 4_000, LIMIT).await?, 0, "not old yet");
    assert_eq!(canon.aged(of, 4_001).await?, count(1, Some(4_000), 1, 0));
    assert_eq!(canon.forget_aged(of, 4_001, LIMIT).await?, 1);
    let left = canon
        .capacity_requests(RequestsOf::default(), None, LIMIT)
        .await?;
    assert_eq!(left, []);
    Ok(())
}

/// A notice stays until it is delivered, and as long as the capacity is the one that it is of: else it would be made
/// once more.
pub async fn delivered_notices_go(ports: &Stores) -> Result<()> {
    let canon: &dyn CanonAdmin = &*ports.canon;
    apply(canon, &[Entity::Application(application(5, 1))]).await?;
    canon.authorize(5, 1, NOW_MS).await?;
    let of = Ageing::CapacityNotices;
    let found = canon.aged(of, i64::MAX).await?;
    assert_eq!(
        (found.all, found.aged, found.needed),
        (3, 0, 3),
        "they wait"
    );
    for claimed in canon.claim_notices(1_000, 2_000, LIMIT).await? {
        let done = Outcome {
            topic_at_ms: Some(1_500),
            is_done: true,
            ..Outcome::default()
        };
        canon.settle_notice(&claimed, &done).await?;
    }
    assert_eq!(
        canon.forget_aged(of, i64::MAX, LIMIT).await?,
        0,
        "of the capacity"
    );
    canon.change(5, Change::capacity(50), &me(), NOW_MS).await?;
    let found = canon.aged(of, i64::MAX).await?;
    assert_eq!((found.all, found.aged, found.needed), (3, 3, 0));
    assert_eq!(canon.aged(of, i64::MIN).await?.aged, 0);
    assert_eq!(canon.forget_aged(of, i64::MAX, LIMIT).await?, 3);
    assert_eq!(canon.notices(None, None, LIMIT).await?, []);
    Ok(())
}
