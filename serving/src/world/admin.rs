//! Looking after the applications of the world: capacities can be set, and nothing else.

use async_trait::async_trait;
use schemas::entities::Application;
use stores::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Decided, Decision, Requested, RequestsOf,
    Usage,
};
use stores::aged::{AgedCount, AgedRecords, Ageing};
use stores::names::{Named, Names};
use stores::notices::{Claimed, Notice, Notices, NoticesWaiting, Outcome};
use stores::recounts::{Countable, Recount, Recounts};
use stores::{Error, Result};

use super::World;

fn usage(application: &Application) -> Usage {
    Usage {
        application: application.clone(),
        is_enforced: true,
        connected: Some(application.id),
    }
}

#[async_trait]
impl CanonAdmin for World {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<Usage>> {
        let boards = self.boards.lock().unwrap();
        let later = boards
            .applications
            .iter()
            .filter(|application| after.is_none_or(|after| application.id > after));
        Ok(later.take(limit).map(usage).collect())
    }

    async fn usages_of(&self, ids: &[i64]) -> Result<Vec<Usage>> {
        let boards = self.boards.lock().unwrap();
        let applications = boards.applications.iter();
        let found = applications.filter(|application| ids.contains(&application.id));
        Ok(found.map(usage).collect())
    }

    async fn change(&self, id: i64, change: Change, _: &By, _: i64) -> Result<Option<Usage>> {
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

    async fn audit(&self, _: i64, _: Option<i64>, _: usize) -> Result<Vec<AuditEntry>> {
        Ok(Vec::new())
    }

    async fn request_capacity(&self, _: i64, _: i64, _: &By, _: i64) -> Result<Requested> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn capacity_requests(
        &self,
        _: RequestsOf,
        _: Option<i64>,
        _: usize,
    ) -> Result<Vec<CapacityRequest>> {
        Ok(Vec::new())
    }

    async fn decide(&self, _: i64, _: Decision, _: &By, _: i64) -> Result<Decided> {
        Err(Error::Refused("not for serving".to_owned()))
    }
}

#[async_trait]
impl Notices for World {
    async fn notices(&self, _: Option<i64>, _: Option<i64>, _: usize) -> Result<Vec<Notice>> {
        Ok(Vec::new())
    }

    async fn notices_waiting(&self, _: i64) -> Result<NoticesWaiting> {
        Ok(NoticesWaiting::default())
    }

    async fn claim_notices(&self, _: i64, _: i64, _: usize) -> Result<Vec<Claimed>> {
        Ok(Vec::new())
    }

    async fn settle_notice(&self, _: &Claimed, _: &Outcome) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl AgedRecords for World {
    async fn aged(&self, _: Ageing, _: i64) -> Result<AgedCount> {
        Ok(AgedCount::default())
    }

    async fn forget_aged(&self, _: Ageing, _: i64, _: usize) -> Result<u64> {
        Err(Error::Refused("not for serving".to_owned()))
    }
}

#[async_trait]
impl Names for World {
    async fn names(&self, of: Named, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let boards = self.boards.lock().unwrap();
        let name = |id: &i64| Some((*id, boards.names.get(&(of, *id))?.clone()));
        Ok(ids.iter().filter_map(name).collect())
    }

    async fn find(&self, of: Named, text: &str, limit: usize) -> Result<Vec<(i64, String)>> {
        let boards = self.boards.lock().unwrap();
        let of_kind = boards.names.iter().filter(|((kind, _), _)| *kind == of);
        let has = |name: &str| name.to_lowercase().contains(&text.to_lowercase());
        let found = of_kind.filter(|(_, name)| has(name));
        let found = found.map(|((_, id), name)| (*id, name.clone()));
        Ok(found.take(limit).collect())
    }

    async fn set_names(&self, _: Named, _: &[(i64, Option<String>)]) -> Result<()> {
        Err(Error::Refused("not for serving".to_owned()))
    }
}

#[async_trait]
impl Recounts for World {
    async fn countables(&self, ids: &[i64]) -> Result<Vec<Countable>> {
        let boards = self.boards.lock().unwrap();
        let applications = boards.applications.iter();
        let found = applications.filter(|application| ids.contains(&application.id));
        let countable = |application: &Application| Countable {
            application_id: application.id,
            athlete_capacity: application.athlete_capacity,
            recounted: boards.recounted.get(&application.id).copied(),
        };
        Ok(found.map(countable).collect())
    }

    async fn countables_after(&self, _: Option<i64>, _: usize) -> Result<Vec<Countable>> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn recount(&self, _: &[i64], _: i64) -> Result<Vec<Recount>> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn record_recounts(&self, _: &[Recount]) -> Result<()> {
        Err(Error::Refused("not for serving".to_owned()))
    }
}
