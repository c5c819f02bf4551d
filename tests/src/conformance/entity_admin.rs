//! Laws of the entity store: administration of applications.

use std::sync::Arc;

use schemas::entities::{Application, Entity};
use stores::admin::{
    ApplicationChange, ApplicationUsage, AuditContext, AuditEntry, AuditedChange, CapacityRequest,
    CapacityRequestFilter, CapacityRequestOutcome, DecisionOutcome, EntityAdmin, INGEST,
    RequestDecision, RequestState,
};
use stores::entities::AuthorizeOutcome;
use stores::notices::{ClaimedNotice, DeliveryOutcome, Notice};
use stores::{Result, Stores};
use tokio::task::JoinSet;

use super::entity_rows::{NOW_MS, application, apply, authorization};

const LIMIT: usize = 100;

fn audit_context(actor: &str, reason: Option<&str>) -> AuditContext {
    AuditContext {
        actor: actor.to_owned(),
        reason: reason.map(str::to_owned),
    }
}

fn capacity(before: i64, after: i64) -> AuditedChange {
    AuditedChange::Capacity { before, after }
}

fn enforcement(after: bool) -> AuditedChange {
    AuditedChange::Enforcement {
        before: !after,
        after,
    }
}

async fn changes(entities: &dyn EntityAdmin, id: i64) -> Result<Vec<(String, AuditedChange)>> {
    let entries = entities.audit_entries(id, None, LIMIT).await?;
    let summary = |entry: AuditEntry| (entry.actor, entry.changed);
    Ok(entries.into_iter().map(summary).collect())
}

/// Every change through the port is recorded in the audit log, including changes by ingested lines.
/// A change without effect is not recorded.
pub async fn changes_are_recorded(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let me = audit_context("cli:ann", Some("more \u{e9}\u{1f600} 'x'"));
    assert_eq!(
        entities
            .change_application(5, ApplicationChange::capacity(3), &me, 1)
            .await?,
        None
    );
    assert_eq!(changes(entities, 5).await?, []);
    let rows = [5, 6].map(|id| Entity::Application(application(id, 2)));
    apply(entities, &rows).await?;
    assert_eq!(
        changes(entities, 5).await?,
        [],
        "a first line changes nothing"
    );

    let usage = |athlete_capacity, is_enforced| ApplicationUsage {
        application: application(5, athlete_capacity),
        is_enforced,
        connected: Some(0),
    };
    let change = ApplicationChange {
        athlete_capacity: Some(3),
        is_enforced: Some(false),
    };
    for at_ms in [NOW_MS, NOW_MS + 1] {
        let changed = entities.change_application(5, change, &me, at_ms).await?;
        assert_eq!(changed, Some(usage(3, false)));
    }
    let unchanged = entities
        .change_application(5, ApplicationChange::default(), &me, NOW_MS)
        .await?;
    assert_eq!(unchanged, Some(usage(3, false)));
    let line = |capacity, version| {
        let row = application(5, capacity);
        [Entity::Application(Application { version, ..row })]
    };
    for (capacity, version) in [(7, 2), (8, 1), (7, 3), (9, 4)] {
        apply(entities, &line(capacity, version)).await?;
    }
    let context = audit_context("x", None);
    entities
        .change_application(5, ApplicationChange::enforced(true), &context, NOW_MS + 2)
        .await?;

    let change_by = |actor: &str, changed| (actor.to_owned(), changed);
    let expected = [
        change_by("x", enforcement(true)),
        change_by(INGEST, capacity(7, 9)),
        change_by(INGEST, capacity(3, 7)),
        change_by("cli:ann", enforcement(false)),
        change_by("cli:ann", capacity(2, 3)),
    ];
    assert_eq!(changes(entities, 5).await?, expected);
    assert_eq!(changes(entities, 6).await?, []);
    check_audit_pages(entities, &me).await
}

/// Reads the audit log page by page and checks its oldest entry.
async fn check_audit_pages(entities: &dyn EntityAdmin, me: &AuditContext) -> Result<()> {
    let (mut entries, mut before) = (Vec::new(), None);
    loop {
        let page = entities.audit_entries(5, before, 2).await?;
        before = page.last().map(|entry| entry.id);
        if page.is_empty() {
            break;
        }
        entries.extend(page);
    }
    assert_eq!(entries, entities.audit_entries(5, None, LIMIT).await?);
    let oldest = entries.pop().expect("five");
    let expected = AuditEntry {
        id: oldest.id,
        application_id: 5,
        at_ms: NOW_MS,
        actor: me.actor.clone(),
        changed: capacity(2, 3),
        reason: me.reason.clone(),
        request_id: None,
    };
    assert_eq!(oldest, expected);
    Ok(())
}

/// The audit record of an ingested line names its sender, and the application's owner can read it.
pub async fn lines_are_recorded_with_their_sender(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let line = |owner: serde_json::Value, athlete_capacity, version| {
        let row = application(5, athlete_capacity);
        let row = Application {
            owner,
            version,
            ..row
        };
        [Entity::Application(row)]
    };
    let key = stores::admin::ingest_actor("Desk \u{e9} (key 0123456789ab)");
    assert_eq!(key, "ingest, Desk \u{e9} (key 0123456789ab)");
    let (ann, seven) = (serde_json::json!("ann\u{1f600}"), serde_json::json!(7));
    for (owner, capacity, version) in [
        (ann.clone(), 2, 1),
        (seven.clone(), 2, 2),
        (ann.clone(), 9, 1),
        (ann.clone(), 3, 3),
    ] {
        let rows = line(owner, capacity, version);
        entities.apply_as(&rows, &key, NOW_MS).await?;
    }
    let owner = |before: &serde_json::Value, after: &serde_json::Value| AuditedChange::Owner {
        before: before.clone(),
        after: after.clone(),
    };
    let expected = [
        (key.clone(), capacity(2, 3)),
        (key.clone(), owner(&seven, &ann)),
        (key.clone(), owner(&ann, &seven)),
    ];
    assert_eq!(changes(entities, 5).await?, expected);
    apply(entities, &line(seven.clone(), 3, 4)).await?;
    let newest = changes(entities, 5).await?.into_iter().next();
    assert_eq!(newest, Some((INGEST.to_owned(), owner(&ann, &seven))));
    Ok(())
}

/// While a capacity is not enforced, every athlete can connect. Once it is enforced again, no new
/// athlete can, and connected ones stay connected.
pub async fn enforcement_can_be_switched(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    apply(entities, &[Entity::Application(application(5, 0))]).await?;
    let full = |connected| AuthorizeOutcome::CapacityReached {
        connected,
        capacity: 0,
    };
    assert_eq!(entities.authorize(5, 1, NOW_MS).await?, full(0));
    let me = audit_context("me", None);
    let unenforced = entities
        .change_application(5, ApplicationChange::enforced(false), &me, NOW_MS)
        .await?;
    assert!(unenforced.is_some_and(|usage| !usage.is_enforced));
    for member in [1, 2] {
        let outcome = entities.authorize(5, member, NOW_MS).await?;
        assert!(
            matches!(outcome, AuthorizeOutcome::New { .. }),
            "{outcome:?}"
        );
    }
    entities
        .change_application(5, ApplicationChange::enforced(true), &me, NOW_MS)
        .await?;
    assert_eq!(
        entities.authorize(5, 2, NOW_MS).await?,
        AuthorizeOutcome::AlreadyConnected
    );
    assert_eq!(entities.authorize(5, 3, NOW_MS).await?, full(2));
    let rows = [3, 7].map(|id| Entity::Application(application(id, 4)));
    apply(entities, &rows).await?;
    apply(entities, &[Entity::Authorization(authorization(1, 7, 1))]).await?;
    let numbers = |usages: Vec<ApplicationUsage>| -> Vec<(i64, Option<i64>)> {
        let number = |usage: ApplicationUsage| (usage.application.id, usage.connected);
        usages.into_iter().map(number).collect()
    };
    let expected = [(3, Some(0)), (5, Some(2)), (7, Some(1))];
    assert_eq!(numbers(entities.usages(None, LIMIT).await?), expected);
    assert_eq!(numbers(entities.usages(Some(3), 1).await?), expected[1..2]);
    assert_eq!(numbers(entities.usages(Some(i64::MAX), 1).await?), []);
    let usages = entities.usages_by_id(&[7, 9, 3, 7]).await?;
    assert_eq!(numbers(usages), [expected[0], expected[2]]);
    assert_eq!(entities.usages_by_id(&[]).await?, []);
    Ok(())
}

/// A developer requests capacity and an administrator decides once. The decision changes the
/// capacity and is recorded.
#[expect(clippy::too_many_lines, reason = "one scenario")]
pub async fn requests_are_decided(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let (dev, admin) = (
        audit_context("dev", Some("a launch")),
        audit_context("admin", Some("fine")),
    );
    let outcome = entities.request_capacity(5, 10, &dev, NOW_MS).await?;
    assert_eq!(outcome, CapacityRequestOutcome::UnknownApplication);
    let rows = [5, 6].map(|id| Entity::Application(application(id, 4)));
    apply(entities, &rows).await?;
    for requested in [4, 1] {
        let outcome = entities
            .request_capacity(5, requested, &dev, NOW_MS)
            .await?;
        let athlete_capacity = 4;
        assert_eq!(
            outcome,
            CapacityRequestOutcome::AlreadySufficient { athlete_capacity }
        );
    }
    let first = created_request(entities.request_capacity(5, 10, &dev, NOW_MS).await?);
    let expected = CapacityRequest {
        id: first.id,
        application_id: 5,
        athlete_capacity: 10,
        requested_by: dev.clone(),
        requested_at_ms: NOW_MS,
        state: RequestState::Open,
        decided_by: None,
        decided_at_ms: None,
        granted_capacity: None,
    };
    assert_eq!(first, expected);
    let repeated = entities.request_capacity(5, 99, &dev, NOW_MS).await?;
    assert_eq!(repeated, CapacityRequestOutcome::AlreadyOpen(first.clone()));
    let other_request = created_request(
        entities
            .request_capacity(6, 8, &audit_context("o", None), 1)
            .await?,
    );

    let refused = decided_request(
        entities
            .decide_request(first.id, RequestDecision::Refuse, &admin, 2)
            .await?,
    );
    let expected = CapacityRequest {
        state: RequestState::Refused,
        decided_by: Some(admin.clone()),
        decided_at_ms: Some(2),
        ..first
    };
    assert_eq!(refused, (expected.clone(), 4));
    let late = entities.decide_request(expected.id, RequestDecision::Grant(None), &admin, 3);
    assert_eq!(
        late.await?,
        DecisionOutcome::AlreadyDecided(expected.clone())
    );
    let unknown = entities
        .decide_request(i64::MAX, RequestDecision::Refuse, &admin, 3)
        .await?;
    assert_eq!(unknown, DecisionOutcome::Unknown);

    let second = created_request(entities.request_capacity(5, 10, &dev, NOW_MS).await?);
    assert!(second.id > expected.id);
    let lowering = entities.decide_request(second.id, RequestDecision::Grant(Some(3)), &admin, 3);
    let athlete_capacity = 4;
    assert_eq!(
        lowering.await?,
        DecisionOutcome::WouldLower { athlete_capacity }
    );
    let granted = RequestDecision::Grant(Some(7));
    let (granted, capacity_after) = decided_request(
        entities
            .decide_request(second.id, granted, &admin, 4)
            .await?,
    );
    assert_eq!((granted.granted_capacity, capacity_after), (Some(7), 7));
    // A decision does not lower a capacity that was raised in the meantime.
    let third = created_request(entities.request_capacity(5, 8, &dev, NOW_MS).await?);
    let me = audit_context("me", None);
    entities
        .change_application(5, ApplicationChange::capacity(20), &me, NOW_MS)
        .await?;
    let (raised, capacity_after) = decided_request(
        entities
            .decide_request(third.id, RequestDecision::Grant(None), &me, 5)
            .await?,
    );
    assert_eq!((raised.granted_capacity, capacity_after), (Some(20), 20));
    let audit = entities.audit_entries(5, None, LIMIT).await?;
    let audit: Vec<_> = audit
        .into_iter()
        .map(|e| (e.changed, e.request_id))
        .collect();
    let expected_audit = [(capacity(7, 20), None), (capacity(4, 7), Some(second.id))];
    assert_eq!(audit, expected_audit);

    let list_ids = async |application_id, state, before| {
        let filter = CapacityRequestFilter {
            application_id,
            state,
        };
        let requests = entities.capacity_requests(filter, before, LIMIT).await?;
        Result::Ok(
            requests
                .iter()
                .map(|request| request.id)
                .collect::<Vec<_>>(),
        )
    };
    let all_ids = [third.id, second.id, other_request.id, expected.id];
    assert_eq!(list_ids(None, None, None).await?, all_ids);
    assert_eq!(list_ids(None, None, Some(second.id)).await?, all_ids[2..]);
    assert_eq!(list_ids(Some(6), None, None).await?, [other_request.id]);
    assert_eq!(
        list_ids(None, Some(RequestState::Open), None).await?,
        [other_request.id]
    );
    assert_eq!(
        list_ids(Some(5), Some(RequestState::Refused), None).await?,
        [expected.id]
    );
    Ok(())
}

/// One of many concurrent requests is created; one of many concurrent decisions succeeds.
pub async fn concurrent_requests_and_decisions_apply_once(
    ports: &Stores,
    other_ports: &Stores,
) -> Result<()> {
    const TASKS: i64 = 24;
    let entity_stores = [
        Arc::clone(&ports.entities),
        Arc::clone(&other_ports.entities),
    ];
    apply(&*ports.entities, &[Entity::Application(application(5, 1))]).await?;
    let mut requesting = JoinSet::new();
    for task in 0..TASKS {
        let entities = Arc::clone(&entity_stores[usize::from(task % 2 == 0)]);
        requesting.spawn(async move {
            let me = audit_context(&format!("dev {task}"), None);
            entities.request_capacity(5, 10 + task, &me, NOW_MS).await
        });
    }
    let (mut new, mut open) = (Vec::new(), Vec::new());
    while let Some(outcome) = requesting.join_next().await {
        match outcome.expect("it ends")? {
            CapacityRequestOutcome::Created(request) => new.push(request),
            CapacityRequestOutcome::AlreadyOpen(request) => open.push(request),
            outcome => panic!("{outcome:?}"),
        }
    }
    let [request] = &new[..] else {
        panic!("one request: {new:?}");
    };
    assert!(open.iter().all(|existing| existing == request), "{open:?}");

    let mut deciding = JoinSet::new();
    for task in 0..TASKS {
        let entities = Arc::clone(&entity_stores[usize::from(task % 2 == 0)]);
        let (id, me) = (request.id, audit_context(&format!("admin {task}"), None));
        deciding.spawn(async move {
            let decision = match task % 3 {
                0 => RequestDecision::Refuse,
                _ => RequestDecision::Grant(Some(100 + task)),
            };
            entities.decide_request(id, decision, &me, NOW_MS).await
        });
    }
    let (mut decided, mut late) = (Vec::new(), Vec::new());
    while let Some(outcome) = deciding.join_next().await {
        match outcome.expect("it ends")? {
            DecisionOutcome::Done { request, usage } => decided.push((request, usage)),
            DecisionOutcome::AlreadyDecided(request) => late.push(request),
            DecisionOutcome::WouldLower { .. } | DecisionOutcome::Unknown => {
                panic!("the request exists and raises the capacity")
            }
        }
    }
    let [(request, usage)] = &decided[..] else {
        panic!("one decision: {decided:?}");
    };
    assert!(late.iter().all(|existing| existing == request), "{late:?}");
    let expected = request.granted_capacity.unwrap_or(1);
    assert_eq!(usage.application.athlete_capacity, expected);
    let stored = ports
        .entities
        .application(5)
        .await?
        .expect("an application");
    assert_eq!(stored.athlete_capacity, expected);
    let recorded = ports.entities.audit_entries(5, None, LIMIT).await?.len();
    assert_eq!(recorded, usize::from(request.granted_capacity.is_some()));
    Ok(())
}

/// Returns the thresholds of an application's notices, oldest first.
async fn read_thresholds(entities: &dyn EntityAdmin, id: i64) -> Result<Vec<i64>> {
    let notices = entities.notices(Some(id), None, LIMIT).await?;
    let thresholds = notices.iter().map(|notice| notice.threshold).rev();
    Ok(thresholds.collect())
}

/// A threshold is recorded once while the capacity stays the same, however it is reached.
pub async fn thresholds_are_recorded_once(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let read_notices = async || {
        let notices = entities.notices(Some(5), None, LIMIT).await?;
        let shown = |notice: &Notice| (notice.threshold, notice.connected, notice.athlete_capacity);
        let mut shown: Vec<_> = notices.iter().map(shown).collect();
        shown.reverse();
        Result::Ok(shown)
    };
    let rows = [(5, 10), (6, 0), (7, 1)];
    let rows = rows.map(|(id, capacity)| Entity::Application(application(id, capacity)));
    apply(entities, &rows).await?;
    for member in 1..=7 {
        entities.authorize(5, member, NOW_MS).await?;
    }
    assert_eq!(read_notices().await?, []);
    entities.authorize(5, 8, NOW_MS).await?;
    let mut expected = vec![(80, 8, 10)];
    assert_eq!(read_notices().await?, expected);
    // An athlete disconnects and connects again.
    entities.revoke(5, 8, NOW_MS).await?;
    entities.authorize(5, 8, NOW_MS).await?;
    assert_eq!(read_notices().await?, expected);
    // Ingested lines exceed the capacity in one step.
    let lines: Vec<Entity> = (9..=12)
        .map(|member| Entity::Authorization(authorization(member, 5, member)))
        .collect();
    apply(entities, &lines).await?;
    let notices = read_notices().await?;
    let thresholds: Vec<i64> = notices.iter().map(|notice| notice.0).collect();
    assert_eq!(thresholds, [80, 90, 100]);
    expected = read_notices().await?;
    // A higher capacity starts new thresholds; those already reached are recorded at once.
    let me = audit_context("me", None);
    let change = async |change| entities.change_application(5, change, &me, NOW_MS).await;
    change(ApplicationChange::capacity(15)).await?;
    expected.push((80, 12, 15));
    assert_eq!(read_notices().await?, expected);
    change(ApplicationChange::capacity(15)).await?;
    change(ApplicationChange::enforced(false)).await?;
    assert_eq!(read_notices().await?, expected);
    change(ApplicationChange::capacity(1)).await?;
    expected.extend([80, 90, 100].map(|threshold| (threshold, 12, 1)));
    assert_eq!(read_notices().await?, expected);
    // An earlier capacity that is set again counts as new, including by an ingested line.
    let line = Application {
        version: 9,
        ..application(5, 15)
    };
    apply(entities, &[Entity::Application(line)]).await?;
    expected.push((80, 12, 15));
    assert_eq!(read_notices().await?, expected);
    // With a capacity of 0, the first athlete that an ingested line connects reaches every
    // threshold.
    let lines =
        [(21, 6), (22, 7)].map(|(id, app)| Entity::Authorization(authorization(id, app, 1)));
    apply(entities, &lines).await?;
    assert_eq!(read_thresholds(entities, 6).await?, [100]);
    assert_eq!(read_thresholds(entities, 7).await?, [80, 90, 100]);
    let all_notices = entities.notices(None, None, LIMIT).await?;
    assert_eq!(all_notices.len(), expected.len() + 4);
    assert_eq!(
        entities.notices(None, Some(all_notices[1].id), 2).await?,
        all_notices[2..4]
    );
    Ok(())
}

/// A notice is claimed by one process at a time, until it is settled or the claim expires.
#[expect(clippy::too_many_lines, reason = "one scenario")]
pub async fn notices_are_claimed_once(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let rows: Vec<Entity> = (1..=30)
        .flat_map(|id| {
            let connected = Entity::Authorization(authorization(id, id, 1));
            [Entity::Application(application(id, 1)), connected]
        })
        .collect();
    apply(&*ports.entities, &rows).await?;
    let pending = other_ports.entities.pending_notices(i64::MAX).await?;
    assert_eq!((pending.all, pending.due), (90, 90));
    let entity_stores = [
        Arc::clone(&ports.entities),
        Arc::clone(&other_ports.entities),
    ];
    let mut claiming = JoinSet::new();
    for task in 0..16 {
        let entities = Arc::clone(&entity_stores[task % 2]);
        claiming.spawn(async move { entities.claim_notices(1_000, 2_000, 8).await });
    }
    let mut ids = Vec::new();
    while let Some(claimed) = claiming.join_next().await {
        let claimed = claimed.expect("it ends")?;
        ids.extend(claimed.iter().map(|claimed| claimed.notice.id));
    }
    loop {
        let claimed = ports.entities.claim_notices(1_000, 2_000, 8).await?;
        if claimed.is_empty() {
            break;
        }
        ids.extend(claimed.iter().map(|claimed| claimed.notice.id));
    }
    ids.sort_unstable();
    let claim_count = ids.len();
    ids.dedup();
    assert_eq!((claim_count, ids.len()), (90, 90), "each once");
    assert_eq!(ports.entities.claim_notices(1_999, 3_000, 8).await?, []);
    let due = async |now_ms: i64| -> Result<(u64, u64)> {
        let pending = ports.entities.pending_notices(now_ms).await?;
        Ok((pending.all, pending.due))
    };
    assert_eq!(due(1_999).await?, (90, 0));
    assert_eq!(due(2_000).await?, (90, 90));
    let reclaimed = ports.entities.claim_notices(2_000, 3_000, 1).await?;
    let [claimed] = &reclaimed[..] else {
        panic!("the claim has ended: {reclaimed:?}");
    };
    assert_eq!((claimed.notice.id, claimed.is_enforced), (ids[0], true));
    assert_eq!(claimed.name, application(1, 1).name);
    let retry = DeliveryOutcome {
        topic_at_ms: Some(1),
        tries: 1,
        last_error: Some("no".to_owned()),
        next_try_ms: 5_000,
        ..DeliveryOutcome::default()
    };
    // A process that has lost its claim cannot settle the notice.
    let expired_claim = ClaimedNotice {
        until_ms: claimed.until_ms - 1,
        ..claimed.clone()
    };
    ports.entities.settle_notice(&expired_claim, &retry).await?;
    assert_eq!(
        ports
            .entities
            .notices(None, None, 100)
            .await?
            .last()
            .map(|last| last.tries),
        Some(0)
    );
    ports.entities.settle_notice(claimed, &retry).await?;
    assert_eq!(due(4_999).await?, (90, 89));
    assert_eq!(due(5_000).await?, (90, 90));
    let claim_first = async |now_ms: i64| {
        let claimed = other_ports
            .entities
            .claim_notices(now_ms, now_ms, 100)
            .await?;
        let is_first = |claimed: &ClaimedNotice| claimed.notice.id == ids[0];
        // Notices that were never attempted come first.
        assert!(!claimed.first().is_some_and(is_first));
        Result::Ok(claimed.into_iter().find(is_first))
    };
    assert_eq!(claim_first(4_999).await?, None);
    let claimed = claim_first(5_000).await?.expect("a notice");
    let due = claimed.notice.clone();
    let summary = (
        due.id,
        due.topic_at_ms,
        due.tries,
        due.last_error.as_deref(),
    );
    assert_eq!(summary, (ids[0], Some(1), 1, Some("no")));
    let delivered = DeliveryOutcome {
        webhook_at_ms: Some(7),
        is_done: true,
        ..retry
    };
    ports.entities.settle_notice(&claimed, &delivered).await?;
    assert_eq!(ports.entities.pending_notices(0).await?.all, 89);
    assert_eq!(claim_first(9_000).await?, None);
    Ok(())
}

fn created_request(outcome: CapacityRequestOutcome) -> CapacityRequest {
    match outcome {
        CapacityRequestOutcome::Created(request) => request,
        other => panic!("{other:?}"),
    }
}

/// Returns the request and the capacity of its application.
fn decided_request(outcome: DecisionOutcome) -> (CapacityRequest, i64) {
    match outcome {
        DecisionOutcome::Done { request, usage } => (request, usage.application.athlete_capacity),
        other => panic!("{other:?}"),
    }
}
