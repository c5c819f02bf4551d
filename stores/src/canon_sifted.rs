//! The canonical store without athletes who were erased: what everybody but an erasure works with.
//!
//! Rows that come of such an athlete are not stored, and rows that are there all the same are not read: an app may
//! have written them by its own SQL, or its own tables may hold them. Of groups that are counted they are deleted,
//! where they are ours, so that no counter counts them. So whoever reads entities need know nothing of it.
//!
//! Readers go by the list as it is when they begin to read, and fail where it does not answer. Writers go by what they
//! know of it where it does not answer soon: what they write then is not read by anybody.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use schemas::entities::{self, Application, Entity, Group};
use schemas::source::Source;

use crate::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Decided, Decision, Requested, RequestsOf,
    Usage,
};
use crate::aged::{AgedCount, AgedRecords, Ageing};
use crate::canon::{
    Answered, Applied, Authorized, CanonErase, CanonRead, CanonWrite, FirstGroups, Notification,
    Revoked, Waiting,
};
use crate::erasures::{Suppressed, Suppressions};
use crate::names::{Named, Names};
use crate::notices::{Claimed, Notice, Notices, NoticesWaiting, Outcome};
use crate::recounts::{Countable, Recount, Recounts};
use crate::{Error, Result};

const MEMBER: &str = "athlete_id";

/// A canonical store without those who are suppressed.
#[derive(Debug)]
pub(crate) struct Sifted<T> {
    inner: Arc<T>,
    suppressions: Suppressions,
}

impl<T: CanonAdmin + CanonErase + 'static> Sifted<T> {
    /// The store as everybody sees it, and as an erasure does.
    pub(crate) fn both(
        inner: T,
        suppressions: Suppressions,
    ) -> (Arc<dyn CanonAdmin>, Arc<dyn CanonErase>) {
        let inner = Arc::new(inner);
        let sifted = Self {
            inner: Arc::clone(&inner),
            suppressions,
        };
        (Arc::new(sifted), inner)
    }

    async fn known(&self, athletes: Vec<i64>) -> Vec<i64> {
        let suppressed = self.suppressions.recent().await;
        let mut athletes = athletes;
        athletes.retain(|id| !suppressed.has_athlete(*id));
        athletes
    }
}

/// Rows without those of athletes who are suppressed, and the groups of these.
fn sifted(
    source: Source,
    rows: RecordBatch,
    suppressed: &Suppressed,
) -> Result<(RecordBatch, BTreeSet<Group>)> {
    let mut found = BTreeSet::new();
    if suppressed.newest_athlete() == 0 {
        return Ok((rows, found));
    }
    let column = |name: &str| {
        let column = rows.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        column.ok_or_else(|| Error::broken("leaving out who was erased", format!("no {name}")))
    };
    let (keys, members) = (column(entities::key_column(source))?, column(MEMBER)?);
    let mut kept = Vec::with_capacity(rows.num_rows());
    let mut last = None;
    for (key, member) in keys.values().iter().zip(members.values()) {
        // Rows of a member follow each other.
        let is_gone = match last {
            Some((same, is_gone)) if same == *member => is_gone,
            _ => suppressed.has_athlete(*member),
        };
        last = Some((*member, is_gone));
        kept.push(!is_gone);
        if is_gone {
            found.insert(Group {
                key: *key,
                member: *member,
            });
        }
    }
    if found.is_empty() {
        return Ok((rows, found));
    }
    let rows = filter_record_batch(&rows, &BooleanArray::from(kept));
    let rows = rows.map_err(|error| Error::broken("leaving out who was erased", error))?;
    Ok((rows, found))
}

/// Whether a row names somebody who is suppressed.
fn names(row: &Entity, suppressed: &Suppressed) -> bool {
    let has = |id: i64| suppressed.has_athlete(id);
    match row {
        Entity::Effort(row) => has(row.athlete_id),
        Entity::Athlete(row) => has(row.id),
        Entity::Membership(row) => has(row.athlete_id),
        Entity::Follow(row) => has(row.follower_id) || has(row.followed_id),
        Entity::Authorization(row) => has(row.athlete_id),
        Entity::Application(_) => false,
    }
}

#[async_trait]
impl<T: CanonAdmin + CanonErase + 'static> CanonRead for Sifted<T> {
    /// What somebody's own query gives: what it says of people is theirs to know.
    async fn ask(&self, query: &str, wait_ms: u64) -> Result<Answered> {
        self.inner.ask(query, wait_ms).await
    }

    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups> {
        let suppressed = self.suppressions.now().await?;
        let FirstGroups { rows, groups } =
            self.inner.first_groups(source, groups, rows_max).await?;
        let (rows, found) = sifted(source, rows, &suppressed)?;
        if !found.is_empty() {
            let found: Vec<Group> = found.into_iter().collect();
            if let Err(error) = self.inner.erase_groups(source, &found).await {
                tracing::warn!(%source, %error, "rows of somebody who was erased stay; nobody reads them");
            }
        }
        Ok(FirstGroups { rows, groups })
    }

    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let suppressed = self.suppressions.now().await?;
        let rows = self.inner.dump(source, keys, batch_rows).await?;
        if suppressed.newest_athlete() == 0 {
            return Ok(rows);
        }
        let rows = rows.map(move |batch| Ok(sifted(source, batch?, &suppressed)?.0));
        Ok(rows.boxed())
    }

    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>> {
        Ok(self.known(self.inner.club_members(club_id).await?).await)
    }

    async fn followed_by(&self, athlete_id: i64) -> Result<Vec<i64>> {
        if self.known(vec![athlete_id]).await.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.known(self.inner.followed_by(athlete_id).await?).await)
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        self.inner.application(id).await
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        self.inner.applications(after, limit).await
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        self.inner.versions(rows).await
    }

    async fn waiting(&self, source: Source) -> Result<Waiting> {
        self.inner.waiting(source).await
    }

    async fn pending(
        &self,
        source: Source,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<Notification>> {
        self.inner.pending(source, newest, limit).await
    }
}

#[async_trait]
impl<T: CanonAdmin + CanonErase + 'static> Names for Sifted<T> {
    async fn names(&self, of: Named, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let mut found = self.inner.names(of, ids).await?;
        if of == Named::Athlete && !found.is_empty() {
            let suppressed = self.suppressions.now().await?;
            found.retain(|(id, _)| !suppressed.has_athlete(*id));
        }
        Ok(found)
    }

    async fn find(&self, of: Named, text: &str, limit: usize) -> Result<Vec<(i64, String)>> {
        if of != Named::Athlete {
            return self.inner.find(of, text, limit).await;
        }
        let suppressed = self.suppressions.now().await?;
        let mut asked = limit;
        loop {
            let mut found = self.inner.find(of, text, asked).await?;
            let is_all = found.len() < asked;
            found.retain(|(id, _)| !suppressed.has_athlete(*id));
            if is_all || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
            // Those who are left out leave room for others.
            asked = asked.saturating_mul(2);
        }
    }

    async fn set_names(&self, of: Named, names: &[(i64, Option<String>)]) -> Result<()> {
        self.inner.set_names(of, names).await
    }
}

#[async_trait]
impl<T: CanonAdmin + CanonErase + 'static> CanonWrite for Sifted<T> {
    async fn apply_by(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<Applied> {
        let suppressed = self.suppressions.recent().await;
        let is_kept = |row: &Entity| !names(row, &suppressed);
        if suppressed.newest_athlete() == 0 || rows.iter().all(is_kept) {
            return self.inner.apply_by(rows, actor, now_ms).await;
        }
        let kept = rows.iter().enumerate().filter(|(_, row)| is_kept(row));
        let (places, kept): (Vec<usize>, Vec<Entity>) =
            kept.map(|(place, row)| (place, row.clone())).unzip();
        let mut applied = self.inner.apply_by(&kept, actor, now_ms).await?;
        for (place, _) in &mut applied.rejected {
            *place = places.get(*place).copied().unwrap_or(*place);
        }
        applied.erased = (rows.len() - kept.len()) as u64;
        Ok(applied)
    }

    async fn authorize(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<Authorized> {
        if self.suppressions.recent().await.has_athlete(athlete_id) {
            return Ok(match self.inner.application(application_id).await? {
                Some(_) => Authorized::AthleteErased,
                None => Authorized::UnknownApplication,
            });
        }
        self.inner
            .authorize(application_id, athlete_id, now_ms)
            .await
    }

    async fn revoke(&self, application_id: i64, athlete_id: i64, now_ms: i64) -> Result<Revoked> {
        self.inner.revoke(application_id, athlete_id, now_ms).await
    }

    async fn notified(&self, ids: &[i64]) -> Result<()> {
        self.inner.notified(ids).await
    }
}

/// Hands every call of a port on: what it is about names no athlete.
macro_rules! hand_on {
    ($port:ident { $(async fn $call:ident($($name:ident: $kind:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl<T: CanonAdmin + CanonErase + 'static> $port for Sifted<T> {
            $(
                async fn $call(&self, $($name: $kind),*) -> $answer {
                    self.inner.$call($($name),*).await
                }
            )*
        }
    };
}

hand_on! { CanonAdmin {
    async fn usages(after: Option<i64>, limit: usize) -> Result<Vec<Usage>>;
    async fn usages_of(ids: &[i64]) -> Result<Vec<Usage>>;
    async fn change(application_id: i64, change: Change, by: &By, now_ms: i64) -> Result<Option<Usage>>;
    async fn audit(application_id: i64, before: Option<i64>, limit: usize) -> Result<Vec<AuditEntry>>;
    async fn request_capacity(application_id: i64, athlete_capacity: i64, by: &By, now_ms: i64) -> Result<Requested>;
    async fn capacity_requests(of: RequestsOf, before: Option<i64>, limit: usize) -> Result<Vec<CapacityRequest>>;
    async fn decide(request_id: i64, decision: Decision, by: &By, now_ms: i64) -> Result<Decided>;
} }

hand_on! { AgedRecords {
    async fn aged(of: Ageing, before_ms: i64) -> Result<AgedCount>;
    async fn forget_aged(of: Ageing, before_ms: i64, limit: usize) -> Result<u64>;
} }

hand_on! { Recounts {
    async fn countables(application_ids: &[i64]) -> Result<Vec<Countable>>;
    async fn countables_after(after: Option<i64>, limit: usize) -> Result<Vec<Countable>>;
    async fn recount(application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>>;
    async fn record_recounts(recounts: &[Recount]) -> Result<()>;
} }

hand_on! { Notices {
    async fn notices(application_id: Option<i64>, before: Option<i64>, limit: usize) -> Result<Vec<Notice>>;
    async fn notices_waiting(now_ms: i64) -> Result<NoticesWaiting>;
    async fn claim_notices(now_ms: i64, until_ms: i64, limit: usize) -> Result<Vec<Claimed>>;
    async fn settle_notice(claimed: &Claimed, outcome: &Outcome) -> Result<()>;
} }
