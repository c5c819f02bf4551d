//! The entity store's ports for applications: usage, audit log, capacity requests, notices and
//! recounts.

use async_trait::async_trait;

use super::admin::{SELECT_REQUESTS, SELECT_USAGES};
use super::connection::{FromSqlRow, IDS_PER_STATEMENT, Value, sort_unique, to_sql_limit};
use super::entity_store::EntityStore;
use super::notices::SELECT_NOTICES;
use super::pooled_connection::sql_call;
use super::recounts::SELECT_COUNTED_APPLICATIONS;
use super::{admin, expiry, notices, recounts};
use crate::Result;
use crate::admin::{
    ApplicationChange, ApplicationUsage, AuditContext, AuditEntry, CapacityRequest,
    CapacityRequestFilter, CapacityRequestOutcome, DecisionOutcome, EntityAdmin, RequestDecision,
};
use crate::expiry::{ExpiringRecords, ExpiryCount, RecordExpiry};
use crate::notices::{ClaimedNotice, DeliveryOutcome, Notice, Notices, PendingCount};
use crate::recounts::{CountedApplication, Recount, Recounts};

const APPLICATIONS: &str = "reading applications";
const RECOUNTS: &str = "reading recounts of connected athletes";

/// A random token that marks the records of one call, so that a retry after a lost response
/// recognizes its own commit.
fn new_call_token() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl EntityStore {
    /// Returns whether connected athletes are counted; false if an app replaced the table of
    /// authorizations.
    async fn counts_connected(&self) -> Result<bool> {
        Ok(!self.database.open().await?.is_view("authorizations"))
    }

    /// Runs a `select` on applications `p` for some ids.
    async fn fetch_applications_by_id<T: FromSqlRow>(
        &self,
        operation: &str,
        select: &str,
        ids: &[i64],
    ) -> Result<Vec<T>> {
        let statement = format!("{select} WHERE p.id IN ? ORDER BY p.id");
        let mut rows = Vec::with_capacity(ids.len());
        for ids in sort_unique(ids.iter().copied()).chunks(IDS_PER_STATEMENT) {
            let values = [Value::Ints(ids)];
            rows.extend(
                self.database
                    .fetch_all(operation, &statement, &values)
                    .await?,
            );
        }
        Ok(rows)
    }

    /// Runs a `select` on applications `p`, ordered by id, for the first `limit` ids after `after`.
    pub(super) async fn fetch_applications_after<T: FromSqlRow>(
        &self,
        operation: &str,
        select: &str,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<T>> {
        let Some(from) = after.map_or(Some(i64::MIN), |after| after.checked_add(1)) else {
            return Ok(Vec::new());
        };
        let statement = format!("{select} WHERE p.id >= ? ORDER BY p.id LIMIT ?");
        let values = [from, to_sql_limit(limit)].map(Value::Int);
        self.database
            .fetch_all(operation, &statement, &values)
            .await
    }

    /// Removes the numbers of connected athletes if they are not counted.
    async fn hide_uncounted_usages(
        &self,
        usages: Vec<ApplicationUsage>,
    ) -> Result<Vec<ApplicationUsage>> {
        let is_counted = self.counts_connected().await?;
        let usages = usages.into_iter();
        Ok(usages
            .map(|usage| hide_uncounted(usage, is_counted))
            .collect())
    }
}

fn hide_uncounted(mut usage: ApplicationUsage, is_counted: bool) -> ApplicationUsage {
    usage.connected = usage.connected.filter(|_| is_counted);
    usage
}

#[async_trait]
impl EntityAdmin for EntityStore {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<ApplicationUsage>> {
        let usages = self.fetch_applications_after(APPLICATIONS, SELECT_USAGES, after, limit);
        self.hide_uncounted_usages(usages.await?).await
    }

    async fn usages_by_id(&self, ids: &[i64]) -> Result<Vec<ApplicationUsage>> {
        let usages = self.fetch_applications_by_id(APPLICATIONS, SELECT_USAGES, ids);
        self.hide_uncounted_usages(usages.await?).await
    }

    async fn change_application(
        &self,
        application_id: i64,
        change: ApplicationChange,
        by: &AuditContext,
        now_ms: i64,
    ) -> Result<Option<ApplicationUsage>> {
        if change.athlete_capacity.is_some() {
            self.database.open().await?.check_writable("applications")?;
        }
        let is_counted = self.counts_connected().await?;
        let operation = "changing an application";
        let token = &new_call_token();
        let call = sql_call!(connection =>
            admin::change(connection, application_id, change, by, now_ms, token));
        let changed = self.database.write(operation, call).await?;
        Ok(changed.map(|usage| hide_uncounted(usage, is_counted)))
    }

    async fn audit_entries(
        &self,
        application_id: i64,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>> {
        let operation = "reading the audit log of an application";
        let statement =
            "SELECT id, application_id, at_ms, actor, action, value_before, value_after,
                reason, request_id, owner_before, owner_after
            FROM application_audit WHERE application_id = ? AND id < ? ORDER BY id DESC LIMIT ?";
        let before = before.unwrap_or(i64::MAX);
        let values = [application_id, before, to_sql_limit(limit)].map(Value::Int);
        self.database.fetch_all(operation, statement, &values).await
    }

    async fn request_capacity(
        &self,
        application_id: i64,
        athlete_capacity: i64,
        by: &AuditContext,
        now_ms: i64,
    ) -> Result<CapacityRequestOutcome> {
        let operation = "requesting a capacity";
        let (id, token) = (application_id, &new_call_token());
        let call = sql_call!(connection =>
            admin::request_capacity(connection, id, athlete_capacity, by, now_ms, token));
        self.database.write(operation, call).await
    }

    async fn capacity_requests(
        &self,
        filter: CapacityRequestFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CapacityRequest>> {
        let mut statement = format!("{SELECT_REQUESTS} WHERE id < ?");
        let mut values = vec![Value::Int(before.unwrap_or(i64::MAX))];
        if let Some(id) = filter.application_id {
            statement.push_str(" AND application_id = ?");
            values.push(Value::Int(id));
        }
        if let Some(state) = filter.state {
            statement.push_str(" AND state = ?");
            values.push(Value::Text(state.name()));
        }
        statement.push_str(" ORDER BY id DESC LIMIT ?");
        values.push(Value::Int(to_sql_limit(limit)));
        let operation = "reading capacity requests";
        self.database
            .fetch_all(operation, &statement, &values)
            .await
    }

    async fn decide_request(
        &self,
        request_id: i64,
        decision: RequestDecision,
        by: &AuditContext,
        now_ms: i64,
    ) -> Result<DecisionOutcome> {
        if let RequestDecision::Grant(_) = decision {
            self.database.open().await?.check_writable("applications")?;
        }
        let is_counted = self.counts_connected().await?;
        let operation = "deciding a capacity request";
        let token = &new_call_token();
        let call = sql_call!(connection =>
            admin::decide(connection, request_id, decision, by, now_ms, token));
        Ok(match self.database.write(operation, call).await? {
            DecisionOutcome::Done { request, usage } => DecisionOutcome::Done {
                request,
                usage: hide_uncounted(usage, is_counted),
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
        let mut statement = format!("{SELECT_NOTICES} WHERE n.id < ?");
        let mut values = vec![Value::Int(before.unwrap_or(i64::MAX))];
        if let Some(id) = application_id {
            statement.push_str(" AND n.application_id = ?");
            values.push(Value::Int(id));
        }
        statement.push_str(" ORDER BY n.id DESC LIMIT ?");
        values.push(Value::Int(to_sql_limit(limit)));
        (self.database)
            .fetch_all(notices::READING, &statement, &values)
            .await
    }

    async fn pending_notices(&self, now_ms: i64) -> Result<PendingCount> {
        let statement = "SELECT count(*),
                count(CASE WHEN next_try_ms <= ? AND claimed_until_ms <= ? THEN 1 END)
            FROM capacity_notices WHERE done = 0";
        let values = [Value::Int(now_ms); 2];
        let counts = self
            .database
            .fetch_all(notices::READING, statement, &values);
        let (all, due): (i64, i64) = counts.await?.first().copied().unwrap_or_default();
        Ok(PendingCount {
            all: all.unsigned_abs(),
            due: due.unsigned_abs(),
        })
    }

    async fn claim_notices(
        &self,
        now_ms: i64,
        until_ms: i64,
        limit: usize,
    ) -> Result<Vec<ClaimedNotice>> {
        let operation = "claiming capacity notices";
        let call = sql_call!(connection => notices::claim(connection, now_ms, until_ms, limit));
        self.database.write(operation, call).await
    }

    async fn settle_notice(
        &self,
        claimed: &ClaimedNotice,
        outcome: &DeliveryOutcome,
    ) -> Result<()> {
        let operation = "recording the delivery of a capacity notice";
        let (id, until_ms) = (claimed.notice.id, claimed.until_ms);
        let call =
            sql_call!(connection => notices::record_outcome(connection, id, until_ms, outcome));
        self.database.write(operation, call).await
    }
}

#[async_trait]
impl RecordExpiry for EntityStore {
    async fn count_expired(&self, kind: ExpiringRecords, before_ms: i64) -> Result<ExpiryCount> {
        let (statement, values) = (
            expiry::build_count_statement(kind),
            [Value::Int(before_ms); 2],
        );
        let counts = self
            .database
            .fetch_all(expiry::COUNTING, &statement, &values);
        let counts: Option<(i64, Option<i64>, i64, i64)> = counts.await?.pop();
        let (total, oldest_ms, expired, retained) = counts.unwrap_or_default();
        Ok(ExpiryCount {
            total: total.unsigned_abs(),
            oldest_ms,
            expired: expired.unsigned_abs(),
            retained: retained.unsigned_abs(),
        })
    }

    async fn purge_expired(
        &self,
        kind: ExpiringRecords,
        before_ms: i64,
        limit: usize,
    ) -> Result<u64> {
        // More ids do not fit into one statement.
        let limit = limit.min(IDS_PER_STATEMENT);
        let call = sql_call!(connection => expiry::delete(connection, kind, before_ms, limit));
        self.database.write(expiry::DELETING, call).await
    }
}

#[async_trait]
impl Recounts for EntityStore {
    async fn counted_applications(
        &self,
        application_ids: &[i64],
    ) -> Result<Vec<CountedApplication>> {
        self.fetch_applications_by_id(RECOUNTS, SELECT_COUNTED_APPLICATIONS, application_ids)
            .await
    }

    async fn counted_applications_after(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CountedApplication>> {
        self.fetch_applications_after(RECOUNTS, SELECT_COUNTED_APPLICATIONS, after, limit)
            .await
    }

    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        let ids = sort_unique(application_ids.iter().copied());
        let mut recounts = Vec::with_capacity(ids.len());
        for ids in ids.chunks(IDS_PER_STATEMENT) {
            let operation = "recounting the athletes of applications";
            let draw = sql_call!(connection => recounts::draw_tickets(connection, ids));
            let tickets = &self.database.write(operation, draw).await?;
            let count = sql_call!(connection => recounts::recount(connection, tickets, now_ms));
            recounts.extend(self.database.read(operation, count).await?);
        }
        Ok(recounts)
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()> {
        if recounts.is_empty() {
            return Ok(());
        }
        let operation = "recording recounts of applications";
        let call = sql_call!(connection => recounts::record(connection, recounts));
        self.database.write(operation, call).await
    }
}
