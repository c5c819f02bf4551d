//! The part of the entity store that administers applications. Only capacities can be changed.

use async_trait::async_trait;
use schemas::entities::Application;
use stores::Result;
use stores::admin::{
    ApplicationChange, ApplicationUsage, AuditContext, AuditEntry, CapacityRequest,
    CapacityRequestFilter, CapacityRequestOutcome, DecisionOutcome, EntityAdmin, RequestDecision,
};
use stores::expiry::{ExpiringRecords, ExpiryCount, RecordExpiry};
use stores::names::{NamedKind, Names};
use stores::notices::{ClaimedNotice, DeliveryOutcome, Notice, Notices, PendingCount};
use stores::recounts::{CountedApplication, Recount, Recounts};

use super::{MemoryStores, fail_unsupported};

#[async_trait]
impl EntityAdmin for MemoryStores {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<ApplicationUsage>> {
        let entities = self.entities();
        let applications = entities.applications_after(after).take(limit);
        Ok(applications.map(build_usage).collect())
    }

    async fn usages_by_id(&self, ids: &[i64]) -> Result<Vec<ApplicationUsage>> {
        let entities = self.entities();
        let applications = entities.applications.iter();
        let applications = applications.filter(|application| ids.contains(&application.id));
        Ok(applications.map(build_usage).collect())
    }

    async fn change_application(
        &self,
        id: i64,
        change: ApplicationChange,
        _: &AuditContext,
        _: i64,
    ) -> Result<Option<ApplicationUsage>> {
        let mut entities = self.entities();
        let mut applications = entities.applications.iter_mut();
        let application = applications.find(|application| application.id == id);
        Ok(application.map(|application| {
            if let Some(capacity) = change.athlete_capacity {
                application.athlete_capacity = capacity;
            }
            build_usage(application)
        }))
    }

    async fn audit_entries(&self, _: i64, _: Option<i64>, _: usize) -> Result<Vec<AuditEntry>> {
        Ok(Vec::new())
    }

    async fn request_capacity(
        &self,
        _: i64,
        _: i64,
        _: &AuditContext,
        _: i64,
    ) -> Result<CapacityRequestOutcome> {
        fail_unsupported()
    }

    async fn capacity_requests(
        &self,
        _: CapacityRequestFilter,
        _: Option<i64>,
        _: usize,
    ) -> Result<Vec<CapacityRequest>> {
        Ok(Vec::new())
    }

    async fn decide_request(
        &self,
        _: i64,
        _: RequestDecision,
        _: &AuditContext,
        _: i64,
    ) -> Result<DecisionOutcome> {
        fail_unsupported()
    }
}

/// Builds the usage of an application, which has as many connected athletes as its id.
fn build_usage(application: &Application) -> ApplicationUsage {
    ApplicationUsage {
        application: application.clone(),
        is_enforced: true,
        connected: Some(application.id),
    }
}

#[async_trait]
impl Notices for MemoryStores {
    async fn notices(&self, _: Option<i64>, _: Option<i64>, _: usize) -> Result<Vec<Notice>> {
        Ok(Vec::new())
    }

    async fn pending_notices(&self, _: i64) -> Result<PendingCount> {
        Ok(PendingCount::default())
    }

    async fn claim_notices(&self, _: i64, _: i64, _: usize) -> Result<Vec<ClaimedNotice>> {
        Ok(Vec::new())
    }

    async fn settle_notice(&self, _: &ClaimedNotice, _: &DeliveryOutcome) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl RecordExpiry for MemoryStores {
    async fn count_expired(&self, _: ExpiringRecords, _: i64) -> Result<ExpiryCount> {
        Ok(ExpiryCount::default())
    }

    async fn purge_expired(&self, _: ExpiringRecords, _: i64, _: usize) -> Result<u64> {
        fail_unsupported()
    }
}

#[async_trait]
impl Names for MemoryStores {
    async fn read_names(&self, kind: NamedKind, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let entities = self.entities();
        let named = |id: &i64| Some((*id, entities.names.get(&(kind, *id))?.clone()));
        Ok(ids.iter().filter_map(named).collect())
    }

    async fn find_names(
        &self,
        kind: NamedKind,
        text: &str,
        limit: usize,
    ) -> Result<Vec<(i64, String)>> {
        let text = text.to_lowercase();
        let entities = self.entities();
        let matching = entities.names.iter().filter(|((stored_kind, _), name)| {
            *stored_kind == kind && name.to_lowercase().contains(&text)
        });
        let named = matching.map(|((_, id), name)| (*id, name.clone()));
        Ok(named.take(limit).collect())
    }

    async fn set_names(&self, _: NamedKind, _: &[(i64, Option<String>)]) -> Result<()> {
        fail_unsupported()
    }
}

#[async_trait]
impl Recounts for MemoryStores {
    async fn counted_applications(&self, ids: &[i64]) -> Result<Vec<CountedApplication>> {
        let entities = self.entities();
        let applications = entities.applications.iter();
        let applications = applications.filter(|application| ids.contains(&application.id));
        let counted = applications.map(|application| CountedApplication {
            application_id: application.id,
            athlete_capacity: application.athlete_capacity,
            recorded: entities.recounts.get(&application.id).copied(),
        });
        Ok(counted.collect())
    }

    async fn counted_applications_after(
        &self,
        _: Option<i64>,
        _: usize,
    ) -> Result<Vec<CountedApplication>> {
        fail_unsupported()
    }

    async fn recount(&self, _: &[i64], _: i64) -> Result<Vec<Recount>> {
        fail_unsupported()
    }

    async fn record_recounts(&self, _: &[Recount]) -> Result<()> {
        fail_unsupported()
    }
}
