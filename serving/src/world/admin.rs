//! In-memory administration of applications: capacities can be changed, the rest is not supported.

use async_trait::async_trait;
use schemas::entities::Application;
use stores::admin::{
    ApplicationChange, ApplicationUsage, AuditContext, AuditEntry, CapacityRequest,
    CapacityRequestFilter, CapacityRequestOutcome, DecisionOutcome, EntityAdmin, RequestDecision,
};
use stores::expiry::{ExpiringRecords, ExpiryCount, RecordExpiry};
use stores::names::{NamedKind, Names};
use stores::notices::{ClaimedNotice, DeliveryOutcome, Notice, Notices, PendingCount};
use stores::recounts::{CountedApplication, Recount, Recounts};
use stores::{Error, Result};

use super::World;

fn usage(application: &Application) -> ApplicationUsage {
    ApplicationUsage {
        application: application.clone(),
        is_enforced: true,
        connected: Some(application.id),
    }
}

#[async_trait]
impl EntityAdmin for World {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<ApplicationUsage>> {
        let boards = self.boards.lock().unwrap();
        let later = boards
            .applications
            .iter()
            .filter(|application| after.is_none_or(|after| application.id > after));
        Ok(later.take(limit).map(usage).collect())
    }

    async fn usages_by_id(&self, ids: &[i64]) -> Result<Vec<ApplicationUsage>> {
        let boards = self.boards.lock().unwrap();
        let applications = boards.applications.iter();
        let found = applications.filter(|application| ids.contains(&application.id));
        Ok(found.map(usage).collect())
    }

    async fn change_application(
        &self,
        id: i64,
        change: ApplicationChange,
        _: &AuditContext,
        _: i64,
    ) -> Result<Option<ApplicationUsage>> {
        let mut boards = self.boards.lock().unwrap();
        let mut applications = boards.applications.iter_mut();
        let found = applications.find(|application| application.id == id);
        Ok(found.map(|application| {
            if let Some(capacity) = change.athlete_capacity {
                application.athlete_capacity = capacity;
            }
            usage(application)
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
        Err(Error::Refused("not used by the serving layer".to_owned()))
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
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }
}

#[async_trait]
impl Notices for World {
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
impl RecordExpiry for World {
    async fn count_expired(&self, _: ExpiringRecords, _: i64) -> Result<ExpiryCount> {
        Ok(ExpiryCount::default())
    }

    async fn purge_expired(&self, _: ExpiringRecords, _: i64, _: usize) -> Result<u64> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }
}

#[async_trait]
impl Names for World {
    async fn names(&self, kind: NamedKind, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let boards = self.boards.lock().unwrap();
        let name = |id: &i64| Some((*id, boards.names.get(&(kind, *id))?.clone()));
        Ok(ids.iter().filter_map(name).collect())
    }

    async fn find_names(
        &self,
        kind: NamedKind,
        text: &str,
        limit: usize,
    ) -> Result<Vec<(i64, String)>> {
        let boards = self.boards.lock().unwrap();
        let names_of_kind = boards
            .names
            .iter()
            .filter(|((stored_kind, _), _)| *stored_kind == kind);
        let has = |name: &str| name.to_lowercase().contains(&text.to_lowercase());
        let found = names_of_kind.filter(|(_, name)| has(name));
        let found = found.map(|((_, id), name)| (*id, name.clone()));
        Ok(found.take(limit).collect())
    }

    async fn set_names(&self, _: NamedKind, _: &[(i64, Option<String>)]) -> Result<()> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }
}

#[async_trait]
impl Recounts for World {
    async fn counted_applications(&self, ids: &[i64]) -> Result<Vec<CountedApplication>> {
        let boards = self.boards.lock().unwrap();
        let applications = boards.applications.iter();
        let found = applications.filter(|application| ids.contains(&application.id));
        let countable = |application: &Application| CountedApplication {
            application_id: application.id,
            athlete_capacity: application.athlete_capacity,
            recorded: boards.recounted.get(&application.id).copied(),
        };
        Ok(found.map(countable).collect())
    }

    async fn counted_applications_after(
        &self,
        _: Option<i64>,
        _: usize,
    ) -> Result<Vec<CountedApplication>> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn recount(&self, _: &[i64], _: i64) -> Result<Vec<Recount>> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn record_recounts(&self, _: &[Recount]) -> Result<()> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }
}
