//! The entity store's ports for applications: usage, audit, capacity requests, notices and recounts.

use async_trait::async_trait;

use super::admin::{REQUESTS, USAGES, bounded};
use super::connection::{FromSqlRow, Value, ascending};
use super::database::sql_call;
use super::entity_store::EntityStore;
use super::notices::NOTICES;
use super::recounts::COUNTABLES;
use super::{admin, aged, notices, outbox, recounts};
use crate::Result;
use crate::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Decided, Decision, Requested, RequestsOf,
    Usage,
};
use crate::aged::{AgedCount, AgedRecords, Ageing};
use crate::notices::{Claimed, Notice, Notices, NoticesWaiting, Outcome};
use crate::recounts::{Countable, Recount, Recounts};

const APPLICATIONS: &str = "reading applications";
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

    /// Reads what `select` selects of applications `p`, by their ids.
    async fn applications_of<T: FromSqlRow>(
        &self,
        doing: &str,
        select: &str,
        ids: &[i64],
    ) -> Result<Vec<T>> {
        let statement = format!("{select} WHERE p.id IN ? ORDER BY p.id");
        let mut found = Vec::with_capacity(ids.len());
        for ids in ascending(ids.iter().copied()).chunks(outbox::AT_ONCE) {
            let values = [Value::Ints(ids)];
            found.extend(self.database.rows(doing, &statement, &values).await?);
        }
        Ok(found)
    }

    /// Reads what `select` selects of applications `p` in the order of their ids, after one of them, at most `limit`.
    pub(super) async fn applications_after<T: FromSqlRow>(
        &self,
        doing: &str,
        select: &str,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<T>> {
        let Some(from) = after.map_or(Some(i64::MIN), |after| after.checked_add(1)) else {
            return Ok(Vec::new());
        };
        let statement = format!("{select} WHERE p.id >= ? ORDER BY p.id LIMIT ?");
        let values = [from, bounded(limit)].map(Value::Int);
        self.database.rows(doing, &statement, &values).await
    }

    async fn with_counts(&self, usages: Vec<Usage>) -> Result<Vec<Usage>> {
        let is_counted = self.counts_connected().await?;
        let usages = usages.into_iter();
        Ok(usages.map(|usage| with_count(usage, is_counted)).collect())
    }
}

fn with_count(mut usage: Usage, is_counted: bool) -> Usage {
    usage.connected = usage.connected.filter(|_| is_counted);
    usage
}

#[async_trait]
impl CanonAdmin for EntityStore {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<Usage>> {
        let found = self.applications_after(APPLICATIONS, USAGES, after, limit);
        self.with_counts(found.await?).await
    }

    async fn usages_of(&self, ids: &[i64]) -> Result<Vec<Usage>> {
        let found = self.applications_of(APPLICATIONS, USAGES, ids);
        self.with_counts(found.await?).await
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
        let statement =
            "SELECT id, application_id, at_ms, actor, action, value_before, value_after,
                reason, request_id, owner_before, owner_after
            FROM application_audit WHERE application_id = ? AND id < ? ORDER BY id DESC LIMIT ?";
        let before = before.unwrap_or(i64::MAX);
        let values = [application_id, before, bounded(limit)].map(Value::Int);
        self.database.rows(doing, statement, &values).await
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
        let mut statement = format!("{REQUESTS} WHERE id < ?");
        let mut values = vec![Value::Int(before.unwrap_or(i64::MAX))];
        if let Some(id) = of.application_id {
            statement.push_str(" AND application_id = ?");
            values.push(Value::Int(id));
        }
        if let Some(state) = of.state {
            statement.push_str(" AND state = ?");
            values.push(Value::Text(state.name()));
        }
        statement.push_str(" ORDER BY id DESC LIMIT ?");
        values.push(Value::Int(bounded(limit)));
        let doing = "reading requests for capacity";
        self.database.rows(doing, &statement, &values).await
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
        let mut statement = format!("{NOTICES} WHERE n.id < ?");
        let mut values = vec![Value::Int(before.unwrap_or(i64::MAX))];
        if let Some(id) = application_id {
            statement.push_str(" AND n.application_id = ?");
            values.push(Value::Int(id));
        }
        statement.push_str(" ORDER BY n.id DESC LIMIT ?");
        values.push(Value::Int(bounded(limit)));
        (self.database)
            .rows(notices::READING, &statement, &values)
            .await
    }

    async fn notices_waiting(&self, now_ms: i64) -> Result<NoticesWaiting> {
        let statement = "SELECT count(*),
                count(CASE WHEN next_try_ms <= ? AND claimed_until_ms <= ? THEN 1 END)
            FROM capacity_notices WHERE done = 0";
        let values = [Value::Int(now_ms); 2];
        let found = self.database.rows(notices::READING, statement, &values);
        let (all, due): (i64, i64) = found.await?.first().copied().unwrap_or_default();
        Ok(NoticesWaiting {
            all: all.unsigned_abs(),
            due: due.unsigned_abs(),
        })
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
        let (statement, values) = (aged::counting(of), [Value::Int(before_ms); 2]);
        let found = self.database.rows(aged::COUNTING, &statement, &values);
        let counts: Option<(i64, Option<i64>, i64, i64)> = found.await?.pop();
        let (all, oldest_ms, aged, needed) = counts.unwrap_or_default();
        Ok(AgedCount {
            all: all.unsigned_abs(),
            oldest_ms,
            aged: aged.unsigned_abs(),
            needed: needed.unsigned_abs(),
        })
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
        self.applications_of(RECOUNTS, COUNTABLES, application_ids)
            .await
    }

    async fn countables_after(&self, after: Option<i64>, limit: usize) -> Result<Vec<Countable>> {
        self.applications_after(RECOUNTS, COUNTABLES, after, limit)
            .await
    }

    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        let ids = ascending(application_ids.iter().copied());
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
