//! The entity store's ports for applications: usage, audit, capacity requests, notices and recounts.

use async_trait::async_trait;

use super::database::sql_call;
use super::entity_store::EntityStore;
use super::{admin, aged, notices, outbox, recounts};
use crate::Result;
use crate::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Decided, Decision, Requested, RequestsOf,
    Usage,
};
use crate::aged::{AgedCount, AgedRecords, Ageing};
use crate::notices::{Claimed, Notice, Notices, NoticesWaiting, Outcome};
use crate::recounts::{Countable, Recount, Recounts};

const RECOUNTS: &str = "reading how many athletes were counted";

/// A token that marks the records of one call, so that a retry after a lost answer recognizes its own commit.
fn call_token() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl EntityStore {
    /// Whether connected athletes are counted: not where authorizations are an application's own table.
    async fn counts_connected(&self) -> Result<bool> {
        Ok(!self.database.open().await?.is_view("authorizations"))
    }
}

fn with_count(mut usage: Usage, is_counted: bool) -> Usage {
    usage.connected = usage.connected.filter(|_| is_counted);
    usage
}

#[async_trait]
impl CanonAdmin for EntityStore {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<Usage>> {
        let doing = "reading applications";
        let call = sql_call!(connection => admin::usages(connection, after, limit));
        let found = self.database.read(doing, call).await?;
        let is_counted = self.counts_connected().await?;
        let usages = found.into_iter().map(|usage| with_count(usage, is_counted));
        Ok(usages.collect())
    }

    async fn usages_of(&self, ids: &[i64]) -> Result<Vec<Usage>> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(outbox::AT_ONCE) {
            let doing = "reading applications";
            let call = sql_call!(connection => admin::usages_of(connection, ids));
            found.extend(self.database.read(doing, call).await?);
        }
        let is_counted = self.counts_connected().await?;
        let usages = found.into_iter().map(|usage| with_count(usage, is_counted));
        Ok(usages.collect())
    }

    async fn change(
        &self,
        application_id: i64,
        change: Change,
        by: &By,
        now_ms: i64,
    ) -> Result<Option<Usage>> {
        if change.athlete_capacity.is_some() {
            self.database.open().await?.check_writable("applications")?;
        }
        let is_counted = self.counts_connected().await?;
        let doing = "changing an application";
        let token = &call_token();
        let call = sql_call!(connection => admin::change(connection, application_id, change, by, now_ms, token));
        let changed = self.database.write(doing, call).await?;
        Ok(changed.map(|usage| with_count(usage, is_counted)))
    }

    async fn audit(
        &self,
        application_id: i64,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>> {
        let doing = "reading what was changed of an application";
        let call = sql_call!(connection => admin::audit(connection, application_id, before, limit));
        self.database.read(doing, call).await
    }

    async fn request_capacity(
        &self,
        application_id: i64,
        athlete_capacity: i64,
        by: &By,
        now_ms: i64,
    ) -> Result<Requested> {
        let doing = "requesting a capacity";
        let (wanted, token) = ((application_id, athlete_capacity), &call_token());
        let call =
            sql_call!(connection => admin::request_capacity(connection, wanted, by, now_ms, token));
        self.database.write(doing, call).await
    }

    async fn capacity_requests(
        &self,
        of: RequestsOf,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CapacityRequest>> {
        let doing = "reading requests for capacity";
        let call = sql_call!(connection => admin::capacity_requests(connection, of, before, limit));
        self.database.read(doing, call).await
    }

    async fn decide(
        &self,
        request_id: i64,
        decision: Decision,
        by: &By,
        now_ms: i64,
    ) -> Result<Decided> {
        if let Decision::Grant(_) = decision {
            self.database.open().await?.check_writable("applications")?;
        }
        let is_counted = self.counts_connected().await?;
        let doing = "deciding a request for capacity";
        let token = &call_token();
        let call = sql_call!(connection => admin::decide(connection, (request_id, decision), by, now_ms, token));
        Ok(match self.database.write(doing, call).await? {
            Decided::Done { request, usage } => Decided::Done {
                request,
                usage: with_count(usage, is_counted),
            },
            other => other,
        })
    }
}

#[async_trait]
impl Notices for EntityStore {
    async fn notices(
        &self,
        application_id: Option<i64>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Notice>> {
        let doing = "reading notices of capacities";
        let call =
            sql_call!(connection => notices::notices(connection, application_id, before, limit));
        self.database.read(doing, call).await
    }

    async fn notices_waiting(&self, now_ms: i64) -> Result<NoticesWaiting> {
        let doing = "reading notices of capacities";
        let call = sql_call!(connection => notices::waiting(connection, now_ms));
        self.database.read(doing, call).await
    }

    async fn claim_notices(
        &self,
        now_ms: i64,
        until_ms: i64,
        limit: usize,
    ) -> Result<Vec<Claimed>> {
        let doing = "claiming notices of capacities";
        let call = sql_call!(connection => notices::claim(connection, now_ms, until_ms, limit));
        self.database.write(doing, call).await
    }

    async fn settle_notice(&self, claimed: &Claimed, outcome: &Outcome) -> Result<()> {
        let doing = "settling a notice of a capacity";
        let claim = (claimed.notice.id, claimed.until_ms);
        let call = sql_call!(connection => notices::settle(connection, claim, outcome));
        self.database.write(doing, call).await
    }
}

#[async_trait]
impl AgedRecords for EntityStore {
    async fn aged(&self, of: Ageing, before_ms: i64) -> Result<AgedCount> {
        let call = sql_call!(connection => aged::aged(connection, of, before_ms));
        self.database.read(aged::COUNTING, call).await
    }

    async fn forget_aged(&self, of: Ageing, before_ms: i64, limit: usize) -> Result<u64> {
        // More than that does not fit into one statement.
        let limit = limit.min(outbox::AT_ONCE);
        let call = sql_call!(connection => aged::forget(connection, of, before_ms, limit));
        self.database.write(aged::FORGETTING, call).await
    }
}

#[async_trait]
impl Recounts for EntityStore {
    async fn countables(&self, application_ids: &[i64]) -> Result<Vec<Countable>> {
        let ids = recounts::in_order(application_ids);
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(outbox::AT_ONCE) {
            let call = sql_call!(connection => recounts::countables(connection, ids));
            found.extend(self.database.read(RECOUNTS, call).await?);
        }
        Ok(found)
    }

    async fn countables_after(&self, after: Option<i64>, limit: usize) -> Result<Vec<Countable>> {
        let call = sql_call!(connection => recounts::countables_after(connection, after, limit));
        self.database.read(RECOUNTS, call).await
    }

    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        let ids = recounts::in_order(application_ids);
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(outbox::AT_ONCE) {
            let doing = "counting the athletes of applications anew";
            let drawing = sql_call!(connection => recounts::tickets(connection, ids));
            let tickets = &self.database.write(doing, drawing).await?;
            let counting = sql_call!(connection => recounts::recount(connection, tickets, now_ms));
            found.extend(self.database.read(doing, counting).await?);
        }
        Ok(found)
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()> {
        if recounts.is_empty() {
            return Ok(());
        }
        let doing = "recording the athletes of applications";
        let call = sql_call!(connection => recounts::record(connection, recounts));
        self.database.write(doing, call).await
    }
}
