//! Model of application administration, on plain lists.

use std::collections::{BTreeMap, BTreeSet};

use schemas::entities::Application;
use stores::Result;
use stores::admin::{
    ApplicationChange, AuditContext, AuditedChange, CapacityRequest, CapacityRequestFilter,
    CapacityRequestOutcome, DecisionOutcome, EntityAdmin, INGEST, RequestDecision, RequestState,
};
use stores::notices::{Notice, THRESHOLDS_PERCENT};

/// More than any list of one history holds.
const LIMIT: usize = 1_000;

/// The expected results of application administration.
#[derive(Debug, Default)]
pub(super) struct AdminModel {
    /// Applications whose capacity is not enforced.
    unlimited: BTreeSet<i64>,
    /// By application, oldest first: the actor, the change and the request that caused it.
    changes: BTreeMap<i64, Vec<(String, AuditedChange, Option<i64>)>>,
    /// All requests in order.
    requests: Vec<CapacityRequest>,
    /// Notices by application.
    notices_by_application: BTreeMap<i64, NoticeState>,
}

/// The notices of an application so far.
#[derive(Debug, Default)]
struct NoticeState {
    /// The number of the last one.
    last_id: i64,
    /// The thresholds of the current capacity.
    thresholds: BTreeSet<i64>,
}

/// An application before or after a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct ApplicationState {
    /// Its capacity, if known.
    pub(super) capacity: Option<i64>,
    /// The number of connected athletes.
    pub(super) connected: usize,
}

/// Returns the thresholds that this many athletes reach.
fn reached_thresholds(capacity: i64, connected: usize) -> BTreeSet<i64> {
    let connected = connected as i64;
    let is_reached = |threshold: &i64| {
        connected > 0
            && (capacity > 0 || *threshold == 100)
            && connected * 100 >= capacity * threshold
    };
    THRESHOLDS_PERCENT.into_iter().filter(is_reached).collect()
}

fn audit_context(name: &str) -> AuditContext {
    AuditContext {
        actor: name.to_owned(),
        reason: Some("why".to_owned()),
    }
}

impl AdminModel {
    pub(super) fn is_enforced(&self, id: i64) -> bool {
        !self.unlimited.contains(&id)
    }

    fn record_change(
        &mut self,
        id: i64,
        actor: &str,
        changed: AuditedChange,
        request: Option<i64>,
    ) {
        let changes = self.changes.entry(id).or_default();
        changes.push((actor.to_owned(), changed, request));
    }

    /// Records that a line may have changed an application.
    pub(super) fn record_line(&mut self, before: &Application, after: &Application) {
        if after.owner != before.owner {
            let changed = AuditedChange::Owner {
                before: before.owner.clone(),
                after: after.owner.clone(),
            };
            self.record_change(after.id, INGEST, changed, None);
        }
        if after.athlete_capacity != before.athlete_capacity {
            let changed = AuditedChange::Capacity {
                before: before.athlete_capacity,
                after: after.athlete_capacity,
            };
            self.record_change(after.id, INGEST, changed, None);
        }
    }

    /// Changes the capacity or its enforcement. `capacity` is the previous one if the application
    /// exists; returns the new one.
    pub(super) async fn change(
        &mut self,
        entities: &dyn EntityAdmin,
        id: i64,
        change: ApplicationChange,
        capacity: Option<i64>,
        now_ms: i64,
    ) -> Result<Option<i64>> {
        let usage = entities
            .change_application(id, change, &audit_context("admin"), now_ms)
            .await?;
        let Some(before) = capacity else {
            assert_eq!(usage, None, "{id} is not known");
            return Ok(None);
        };
        let after = change.athlete_capacity.unwrap_or(before);
        if after != before {
            let changed = AuditedChange::Capacity { before, after };
            self.record_change(id, "admin", changed, None);
        }
        let was_enforced = self.is_enforced(id);
        let is_enforced = change.is_enforced.unwrap_or(was_enforced);
        if is_enforced != was_enforced {
            let changed = AuditedChange::Enforcement {
                before: was_enforced,
                after: is_enforced,
            };
            self.record_change(id, "admin", changed, None);
        }
        if is_enforced {
            self.unlimited.remove(&id);
        } else {
            self.unlimited.insert(id);
        }
        let usage = usage.expect("it is known");
        let numbers = (usage.application.athlete_capacity, usage.is_enforced);
        assert_eq!(numbers, (after, is_enforced), "{id}");
        Ok(Some(after))
    }

    /// Requests more capacity as a developer.
    pub(super) async fn request_capacity(
        &mut self,
        entities: &dyn EntityAdmin,
        id: i64,
        requested: i64,
        capacity: Option<i64>,
        now_ms: i64,
    ) -> Result<()> {
        let outcome = entities
            .request_capacity(id, requested, &audit_context("developer"), now_ms)
            .await?;
        let is_open = |request: &&CapacityRequest| {
            request.application_id == id && request.state == RequestState::Open
        };
        let open = self.requests.iter().find(is_open);
        let expected = match capacity {
            None => CapacityRequestOutcome::UnknownApplication,
            Some(athlete_capacity) if requested <= athlete_capacity => {
                CapacityRequestOutcome::AlreadySufficient { athlete_capacity }
            }
            Some(_) => match open {
                Some(open) => CapacityRequestOutcome::AlreadyOpen(open.clone()),
                None => {
                    let CapacityRequestOutcome::Created(request) = outcome else {
                        panic!("{id} may request {requested}: {outcome:?}");
                    };
                    let expected = CapacityRequest {
                        id: request.id,
                        application_id: id,
                        athlete_capacity: requested,
                        requested_by: audit_context("developer"),
                        requested_at_ms: now_ms,
                        state: RequestState::Open,
                        decided_by: None,
                        decided_at_ms: None,
                        granted_capacity: None,
                    };
                    assert_eq!(request, expected);
                    let last = self.requests.last().map(|last| last.id);
                    assert!(last < Some(request.id), "numbers increase");
                    self.requests.push(request);
                    return Ok(());
                }
            },
        };
        assert_eq!(outcome, expected, "{id} requests {requested}");
        Ok(())
    }

    /// Decides one of the requests, if any, as an administrator. Returns the application and its
    /// capacity afterwards.
    pub(super) async fn decide(
        &mut self,
        entities: &dyn EntityAdmin,
        nth: usize,
        decision: RequestDecision,
        capacity_of: impl Fn(i64) -> Option<i64> + Send,
        now_ms: i64,
    ) -> Result<Option<(i64, i64)>> {
        let Some(nth) = nth.checked_rem(self.requests.len()) else {
            return Ok(None);
        };
        let request = self.requests[nth].clone();
        let admin = audit_context("admin");
        let outcome = entities
            .decide_request(request.id, decision, &admin, now_ms)
            .await?;
        if request.state != RequestState::Open {
            assert_eq!(outcome, DecisionOutcome::AlreadyDecided(request));
            return Ok(None);
        }
        let id = request.application_id;
        let before = capacity_of(id).expect("the application exists");
        let (state, after) = match decision {
            RequestDecision::Grant(Some(granted)) if granted < before => {
                let athlete_capacity = before;
                assert_eq!(outcome, DecisionOutcome::WouldLower { athlete_capacity });
                return Ok(None);
            }
            RequestDecision::Refuse => (RequestState::Refused, None),
            RequestDecision::Grant(granted) => {
                let granted = granted.unwrap_or(request.athlete_capacity);
                (RequestState::Granted, Some(granted.max(before)))
            }
        };
        let expected = CapacityRequest {
            state,
            decided_by: Some(admin),
            decided_at_ms: Some(now_ms),
            granted_capacity: after,
            ..request
        };
        let DecisionOutcome::Done { request, usage } = outcome else {
            panic!("{expected:?} is open: {outcome:?}");
        };
        assert_eq!(request, expected);
        let after = after.unwrap_or(before);
        assert_eq!(usage.application.athlete_capacity, after);
        self.requests[nth] = expected;
        if after != before {
            let changed = AuditedChange::Capacity { before, after };
            self.record_change(id, "admin", changed, Some(request.id));
        }
        Ok(Some((id, after)))
    }

    /// Compares the notices of a step. A store may apply the rows of one step in any order, so up
    /// to `peak` athletes may be connected in between.
    pub(super) async fn check_notices(
        &mut self,
        entities: &dyn EntityAdmin,
        id: i64,
        before: ApplicationState,
        after: ApplicationState,
        peak: usize,
    ) -> Result<()> {
        let state = self.notices_by_application.entry(id).or_default();
        let mut notices = entities.notices(Some(id), None, LIMIT).await?;
        notices.retain(|notice| notice.id > state.last_id);
        notices.reverse();
        state.last_id = notices.last().map_or(state.last_id, |notice| notice.id);
        let is_same = before.capacity == after.capacity;
        let thresholds_of = |capacity: i64| -> Vec<i64> {
            let matching = |notice: &&Notice| notice.athlete_capacity == capacity;
            let matching = notices.iter().filter(matching);
            matching.map(|notice| notice.threshold).collect()
        };
        let mut matched_count = 0;
        if let Some(capacity) = before.capacity {
            let new = thresholds_of(capacity);
            matched_count += new.len();
            let mut allowed = reached_thresholds(capacity, peak);
            allowed.retain(|threshold| !state.thresholds.contains(threshold));
            for threshold in new {
                assert!(
                    allowed.remove(&threshold),
                    "{id}: {threshold} in {notices:?}"
                );
                state.thresholds.insert(threshold);
            }
            let required = reached_thresholds(capacity, after.connected);
            let is_noted = required.is_subset(&state.thresholds);
            assert!(is_noted || !is_same, "{id}: {required:?} in {notices:?}");
        }
        if let (Some(capacity), false) = (after.capacity, is_same) {
            let new = thresholds_of(capacity);
            matched_count += new.len();
            state.thresholds = new.iter().copied().collect();
            let required = reached_thresholds(capacity, after.connected);
            assert_eq!(state.thresholds, required, "{id}: {notices:?}");
            assert_eq!(new.len(), required.len(), "{id}: each once: {notices:?}");
        }
        assert_eq!(
            matched_count,
            notices.len(),
            "{id}: {before:?} {after:?} {notices:?}"
        );
        Ok(())
    }

    /// Compares all records of an application.
    pub(super) async fn compare(
        &self,
        entities: &dyn EntityAdmin,
        id: i64,
        state: ApplicationState,
    ) -> Result<()> {
        let usage = entities.usages_by_id(&[id]).await?.pop();
        let usage = usage.map(|usage| {
            let capacity = usage.application.athlete_capacity;
            (capacity, usage.is_enforced, usage.connected)
        });
        let connected = Some(state.connected as i64);
        let expected = (state.capacity).map(|capacity| (capacity, self.is_enforced(id), connected));
        assert_eq!(usage, expected, "{id}");
        let entries = entities
            .audit_entries(id, None, LIMIT)
            .await?
            .into_iter()
            .rev();
        let entries = entries.map(|entry| (entry.actor, entry.changed, entry.request_id));
        let expected = self.changes.get(&id).cloned().unwrap_or_default();
        assert_eq!(entries.collect::<Vec<_>>(), expected, "{id}");
        let filter = CapacityRequestFilter {
            application_id: Some(id),
            state: None,
        };
        let mut requests = entities.capacity_requests(filter, None, LIMIT).await?;
        requests.reverse();
        let mut expected = self.requests.clone();
        expected.retain(|request| request.application_id == id);
        assert_eq!(requests, expected, "{id}");
        Ok(())
    }
}
