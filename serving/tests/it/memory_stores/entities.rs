//! The entity store: applications, clubs, names and recounts. Applied rows are not stored.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;
use stores::Result;
use stores::entities::{
    ApplyOutcome, AuthorizeOutcome, EntityRead, EntityWrite, FirstGroups, Notification,
    OutboxStatus, QueryResult, RevokeOutcome,
};
use stores::names::NamedKind;
use stores::recounts::RecordedCount;

use super::{MemoryStores, fail_unsupported};

/// Rows of the entity store.
#[derive(Debug, Default)]
pub(crate) struct EntityTables {
    /// In the order of their ids.
    pub(crate) applications: Vec<Application>,
    /// Members of every club, and the athletes that every athlete follows.
    pub(crate) club_members: Vec<i64>,
    pub(crate) names: BTreeMap<(NamedKind, i64), String>,
    /// The recorded recount of each application.
    pub(crate) recounts: BTreeMap<i64, RecordedCount>,
}

impl EntityTables {
    /// Returns applications in the order of their ids, from after an id.
    pub(super) fn applications_after(
        &self,
        after: Option<i64>,
    ) -> impl Iterator<Item = &Application> {
        let applications = self.applications.iter();
        applications.filter(move |application| after.is_none_or(|after| application.id > after))
    }
}

#[async_trait]
impl EntityRead for MemoryStores {
    async fn first_groups(&self, _: Source, _: &[Group], _: usize) -> Result<FirstGroups> {
        fail_unsupported()
    }

    async fn dump(
        &self,
        _: Source,
        _: Option<&[i64]>,
        _: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        fail_unsupported()
    }

    async fn query(&self, _: &str, _: u64) -> Result<QueryResult> {
        fail_unsupported()
    }

    async fn club_members(&self, _: i64) -> Result<Vec<i64>> {
        Ok(self.entities().club_members.clone())
    }

    async fn followed_athletes(&self, _: i64) -> Result<Vec<i64>> {
        Ok(self.entities().club_members.clone())
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        let entities = self.entities();
        let mut applications = entities.applications.iter();
        let application = applications.find(|application| application.id == id);
        Ok(application.cloned())
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        let entities = self.entities();
        let applications = entities.applications_after(after).take(limit);
        Ok(applications.cloned().collect())
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        Ok(vec![None; rows.len()])
    }

    async fn outbox_status(&self, _: Source) -> Result<OutboxStatus> {
        Ok(OutboxStatus::default())
    }

    async fn pending_notifications(
        &self,
        _: Source,
        _: i64,
        _: usize,
    ) -> Result<Vec<Notification>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl EntityWrite for MemoryStores {
    async fn apply_as(&self, rows: &[Entity], actor: &str, _: i64) -> Result<ApplyOutcome> {
        self.actors.lock().unwrap().push(actor.to_owned());
        Ok(ApplyOutcome {
            accepted: rows.len() as u64,
            ..ApplyOutcome::default()
        })
    }

    async fn authorize(&self, _: i64, _: i64, _: i64) -> Result<AuthorizeOutcome> {
        Ok(AuthorizeOutcome::UnknownApplication)
    }

    async fn revoke(&self, _: i64, _: i64, _: i64) -> Result<RevokeOutcome> {
        Ok(RevokeOutcome::UnknownApplication)
    }

    async fn remove_notifications(&self, _: &[i64]) -> Result<()> {
        Ok(())
    }
}
