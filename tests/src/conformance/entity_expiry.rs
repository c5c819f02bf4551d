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

fn context() -> AuditContext {
    AuditContext {
        actor: "me".to_owned(),
        reason: None,
    }
}

const fn count(total: u64, oldest_ms: Option<i64>, expired: u64, retained: u64) -> ExpiryCount {
    ExpiryCount {
        total,
        oldest_ms,
        expired,
        retained,
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
            .change_application(5, ApplicationChange::capacity(capacity), &context(), at_ms)
            .await?;
    }
    let expiry = entities
        .count_expired(ExpiringRecords::Audit, 2_000)
        .await?;
    assert_eq!(expiry, count(4, Some(1_000), 1, 0));
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
    let remaining = entities.audit_entries(5, None, LIMIT).await?;
    assert!(
        remaining.len() == 2 && remaining.iter().all(|entry| entry.at_ms == 3_000),
        "{remaining:?}"
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
            .map(|application| application.athlete_capacity),
        Some(6)
    );
    Ok(())
}

/// A capacity request is kept until it is decided, and then for the retention period.
pub async fn decided_requests_expire(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    apply(entities, &[Entity::Application(application(5, 2))]).await?;
    let outcome = entities.request_capacity(5, 10, &context(), 1_000).await?;
    let CapacityRequestOutcome::Created(request) = outcome else {
        panic!("it is the first: {outcome:?}");
    };
    let records = ExpiringRecords::CapacityRequests;
    assert_eq!(
        entities.count_expired(records, 5_000).await?,
        count(1, Some(1_000), 0, 1)
    );
    assert_eq!(
        entities.purge_expired(records, i64::MAX, LIMIT).await?,
        0,
        "it is open"
    );
    let decided = entities
        .decide_request(request.id, RequestDecision::Refuse, &context(), 4_000)
        .await?;
    assert!(
        matches!(decided, DecisionOutcome::Done { .. }),
        "{decided:?}"
    );
    assert_eq!(
        entities.purge_expired(records, 4_000, LIMIT).await?,
        0,
        "not old yet"
    );
    assert_eq!(
        entities.count_expired(records, 4_001).await?,
        count(1, Some(4_000), 1, 0)
    );
    assert_eq!(entities.purge_expired(records, 4_001, LIMIT).await?, 1);
    let remaining = entities
        .capacity_requests(CapacityRequestFilter::default(), None, LIMIT)
        .await?;
    assert_eq!(remaining, []);
    Ok(())
}

/// A notice is kept until it is delivered, and while the application has the same capacity:
/// otherwise it would be created again.
pub async fn delivered_notices_expire(ports: &Stores) -> Result<()> {
    let entities: &dyn EntityAdmin = &*ports.entities;
    apply(entities, &[Entity::Application(application(5, 1))]).await?;
    entities.authorize(5, 1, NOW_MS).await?;
    let records = ExpiringRecords::CapacityNotices;
    let expiry = entities.count_expired(records, i64::MAX).await?;
    assert_eq!(
        (expiry.total, expiry.expired, expiry.retained),
        (3, 0, 3),
        "they wait"
    );
    for claimed in entities.claim_notices(1_000, 2_000, LIMIT).await? {
        let delivered = DeliveryOutcome {
            topic_at_ms: Some(1_500),
            is_done: true,
            ..DeliveryOutcome::default()
        };
        entities.settle_notice(&claimed, &delivered).await?;
    }
    assert_eq!(
        entities.purge_expired(records, i64::MAX, LIMIT).await?,
        0,
        "of the capacity"
    );
    entities
        .change_application(5, ApplicationChange::capacity(50), &context(), NOW_MS)
        .await?;
    let expiry = entities.count_expired(records, i64::MAX).await?;
    assert_eq!((expiry.total, expiry.expired, expiry.retained), (3, 3, 0));
    assert_eq!(entities.count_expired(records, i64::MIN).await?.expired, 0);
    assert_eq!(entities.purge_expired(records, i64::MAX, LIMIT).await?, 3);
    assert_eq!(entities.notices(None, None, LIMIT).await?, []);
    Ok(())
}
