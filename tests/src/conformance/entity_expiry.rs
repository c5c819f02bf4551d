//! Laws of the entity store: expiry of old records.

use schemas::entities::Entity;
use stores::admin::{
    ApplicationChange, AuditContext, CapacityRequestFilter, CapacityRequestOutcome,
    DecisionOutcome, EntityAdmin, RequestDecision,
};
use stores::expiry::{ExpiringRecords, ExpiryCount};
use stores::notices::DeliveryOutcome;
use stores::{Result, Stores};

use super::entity_rows::{NOW_MS, application, apply};

const LIMIT: usize = 100;

fn me() -> AuditContext {
    AuditContext {
        actor: "me".to_owned(),
        reason: None,
    }
}

const fn count(all: u64, oldest_ms: Option<i64>, aged: u64, needed: u64) -> ExpiryCount {
    ExpiryCount {
        total: all,
        oldest_ms,
        expired: aged,
        retained: needed,
    }
}

/// Expired audit records are deleted oldest first, at most `LIMIT` in one call, and never those at
/// or after the cutoff.
pub async fn old_audit_records_expire(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    assert_eq!(
        entities
            .count_expired(ExpiringRecords::Audit, i64::MAX)
            .await?,
        ExpiryCount::default()
    );
    apply(entities, &[Entity::Application(application(5, 2))]).await?;
    for (capacity, at_ms) in [(3, 1_000), (4, 2_000), (5, 3_000), (6, 3_000)] {
        entities
            .change_application(5, ApplicationChange::capacity(capacity), &me(), at_ms)
            .await?;
    }
    let found = entities
        .count_expired(ExpiringRecords::Audit, 2_000)
        .await?;
    assert_eq!(found, count(4, Some(1_000), 1, 0));
    assert_eq!(
        entities
            .purge_expired(ExpiringRecords::Audit, 2_000, LIMIT)
            .await?,
        1
    );
    assert_eq!(
        entities
            .purge_expired(ExpiringRecords::Audit, 2_000, LIMIT)
            .await?,
        0
    );
    assert_eq!(
        entities
            .purge_expired(ExpiringRecords::Audit, 3_001, 1)
            .await?,
        1,
        "the oldest"
    );
    let left = entities.audit_entries(5, None, LIMIT).await?;
    assert!(
        left.len() == 2 && left.iter().all(|entry| entry.at_ms == 3_000),
        "{left:?}"
    );
    assert_eq!(
        entities
            .count_expired(ExpiringRecords::Audit, i64::MIN)
            .await?,
        count(2, Some(3_000), 0, 0)
    );
    assert_eq!(
        entities
            .application(5)
            .await?
            .map(|found| found.athlete_capacity),
        Some(6)
    );
    Ok(())
}

/// A capacity request is kept until it is decided, and then for the retention period.
pub async fn decided_requests_expire(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    apply(entities, &[Entity::Application(application(5, 2))]).await?;
    let asked = entities.request_capacity(5, 10, &me(), 1_000).await?;
    let CapacityRequestOutcome::Created(request) = asked else {
        panic!("it is the first: {asked:?}");
    };
    let of = ExpiringRecords::CapacityRequests;
    assert_eq!(
        entities.count_expired(of, 5_000).await?,
        count(1, Some(1_000), 0, 1)
    );
    assert_eq!(
        entities.purge_expired(of, i64::MAX, LIMIT).await?,
        0,
        "it is open"
    );
    let decided = entities
        .decide_request(request.id, RequestDecision::Refuse, &me(), 4_000)
        .await?;
    assert!(
        matches!(decided, DecisionOutcome::Done { .. }),
        "{decided:?}"
    );
    assert_eq!(
        entities.purge_expired(of, 4_000, LIMIT).await?,
        0,
        "not old yet"
    );
    assert_eq!(
        entities.count_expired(of, 4_001).await?,
        count(1, Some(4_000), 1, 0)
    );
    assert_eq!(entities.purge_expired(of, 4_001, LIMIT).await?, 1);
    let left = entities
        .capacity_requests(CapacityRequestFilter::default(), None, LIMIT)
        .await?;
    assert_eq!(left, []);
    Ok(())
}

/// A notice is kept until it is delivered, and while the application has the same capacity:
/// otherwise it would be created again.
pub async fn delivered_notices_expire(ports: &Stores) -> Result<()> {
    let entities: &dyn EntityAdmin = &*ports.entities;
    apply(entities, &[Entity::Application(application(5, 1))]).await?;
    entities.authorize(5, 1, NOW_MS).await?;
    let of = ExpiringRecords::CapacityNotices;
    let found = entities.count_expired(of, i64::MAX).await?;
    assert_eq!(
        (found.total, found.expired, found.retained),
        (3, 0, 3),
        "they wait"
    );
    for claimed in entities.claim_notices(1_000, 2_000, LIMIT).await? {
        let done = DeliveryOutcome {
            topic_at_ms: Some(1_500),
            is_done: true,
            ..DeliveryOutcome::default()
        };
        entities.settle_notice(&claimed, &done).await?;
    }
    assert_eq!(
        entities.purge_expired(of, i64::MAX, LIMIT).await?,
        0,
        "of the capacity"
    );
    entities
        .change_application(5, ApplicationChange::capacity(50), &me(), NOW_MS)
        .await?;
    let found = entities.count_expired(of, i64::MAX).await?;
    assert_eq!((found.total, found.expired, found.retained), (3, 3, 0));
    assert_eq!(entities.count_expired(of, i64::MIN).await?.expired, 0);
    assert_eq!(entities.purge_expired(of, i64::MAX, LIMIT).await?, 3);
    assert_eq!(entities.notices(None, None, LIMIT).await?, []);
    Ok(())
}
