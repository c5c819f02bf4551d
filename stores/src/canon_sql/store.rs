//! The store on a server: every port of entities, as calls of a connection.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;
use uuid::Uuid;

use super::connect::lock_counters;
use super::connection::{Link, Own};
use super::decode::Grouped;
use super::outbox::{Touched, lock_athletes, tell};
use super::server::{Purpose, Server, on};
use super::session::{Sql, Value};
use super::{
    SqlOptions, admin, aged, apply, away, check, connect, dump, erase, keys, names, notices,
    outbox, recounts, server_query, versions,
};
use crate::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Decided, Decision, Requested, RequestsOf,
    Usage,
};
use crate::aged::{AgedCount, AgedRecords, Ageing};
use crate::canon::{
    Answered, Applied, Authorized, CanonErase, CanonRead, CanonWrite, FirstGroups, Notification,
    Revoked, RowsOf, Waiting,
};
use crate::keys::{Action, ApiKey, KeptKey, Keys, Rotated};
#[cfg(feature = "mysql")]
use crate::mysql;
use crate::names::{Named, Names};
use crate::namespace::Namespace;
use crate::notices::{Claimed, Notice, Notices, NoticesWaiting, Outcome};
#[cfg(feature = "postgres")]
use crate::postgres;
use crate::recounts::{Countable, Recount, Recounts};
use crate::{Error, Result};

const OUTBOX: &str = "reading the outbox";
const RECOUNTS: &str = "reading how many athletes were counted";

/// Entities in a database.
#[derive(Debug)]
pub struct SqlCanon {
    server: Arc<Server>,
    /// Names that are views of an app's own tables.
    views: BTreeSet<String>,
}

impl SqlCanon {
    /// Opens the store. Nothing is made: a schema that is missing, or of another version, is an error
    /// that says so.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer; [`Error::Broken`] if it does not let us in
    /// or the schema is not the one of this version.
    pub async fn open(options: &SqlOptions, namespace: &Namespace) -> Result<Self> {
        let server = Server::new(options, namespace)?;
        let views = check::opened(&server).await?;
        Ok(Self {
            server: Arc::new(server),
            views,
        })
    }

    /// Makes the schema, or brings it to this version; answers whether there was anything to do.
    /// Several processes may do so at the same moment.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer; [`Error::Broken`] if it refuses, or if a
    /// migration that was applied is not the one that this version knows.
    pub async fn migrate(options: &SqlOptions, namespace: &Namespace) -> Result<bool> {
        check::migrate(&Server::new(options, namespace)?).await
    }

    /// Counts connected athletes anew where the counters are not what the authorizations give; answers
    /// the applications that it was done for. The schema must be there.
    ///
    /// # Errors
    /// As [`SqlCanon::migrate`].
    pub async fn recount(options: &SqlOptions, namespace: &Namespace) -> Result<Vec<i64>> {
        check::recount(&Server::new(options, namespace)?).await
    }

    /// What is wrong with the server or the schema, in sentences; nothing if all is well.
    ///
    /// # Errors
    /// [`Error::Broken`] for options that can't be used.
    pub async fn flaws(options: &SqlOptions, namespace: &Namespace) -> Result<Vec<String>> {
        check::flaws(&Server::new(options, namespace)?).await
    }

    /// Refuses to change what is an app's.
    fn ours(&self, table: &str) -> Result<()> {
        if !self.views.contains(table) {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "{table} is a view of an app's own tables ({}): change the rows there, and let the app tell of it",
            self.server.name()
        )))
    }
}

#[async_trait]
impl CanonRead for SqlCanon {
    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups> {
        let of = Grouped::of(source)?;
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        self.server
            .read(
                "reading groups of rows",
                on!(link => first_groups(link, of, groups, rows_max)),
            )
            .await
    }

    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let of = Grouped::of(source)?;
        let is_view = self.views.contains(of.table());
        dump::dump(Arc::clone(&self.server), of, is_view, keys, batch_rows).await
    }

    async fn ask(&self, query: &str, wait_ms: u64) -> Result<Answered> {
        server_query::ask(Arc::clone(&self.server), query, wait_ms).await
    }

    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>> {
        let statement =
            "SELECT CAST(athlete_id AS SIGNED) FROM clubs WHERE club_id = ? AND NOT is_deleted
                         ORDER BY athlete_id";
        let doing = "reading the members of a club";
        self.ids(doing, statement, club_id).await
    }

    async fn followed_by(&self, athlete_id: i64) -> Result<Vec<i64>> {
        let statement = "SELECT CAST(followed_id AS SIGNED) FROM follows WHERE follower_id = ? AND NOT is_deleted
                         ORDER BY followed_id";
        let doing = "reading whom an athlete follows";
        self.ids(doing, statement, athlete_id).await
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        self.server
            .read(
                "reading an application",
                on!(link => connect::application(link, id)),
            )
            .await
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        self.server
            .read(
                "reading applications",
                on!(link => connect::applications(link, after, limit)),
            )
            .await
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        self.server
            .read(
                "reading versions",
                on!(link => versions::versions(link, rows)),
            )
            .await
    }

    async fn waiting(&self, source: Source) -> Result<Waiting> {
        self.find_groups(source).await?;
        self.server
            .read(OUTBOX, on!(link => outbox::waiting(link, source)))
            .await
    }

    async fn pending(
        &self,
        source: Source,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<Notification>> {
        self.find_groups(source).await?;
        self.server
            .read(
                OUTBOX,
                on!(link => outbox::pending(link, source, newest, limit)),
            )
            .await
    }
}

impl SqlCanon {
    /// Before notifications are read: puts groups in the place of athletes, of all who wait now, and
    /// before those of authorizations looks at connections that met a change of their athletes.
    async fn find_groups(&self, source: Source) -> Result<()> {
        if !matches!(source, Source::Efforts | Source::Authorizations) {
            return Ok(());
        }
        let newest = async |source: &'static str| {
            let call = on!(link => outbox::newest_named(link, source));
            self.server.read(OUTBOX, call).await
        };
        let doing = "finding the groups of athletes";
        if let Some(newest) = newest(Source::Athletes.name()).await? {
            let mut from = Some(i64::MIN);
            while let Some(next) = from {
                let call = on!(link => outbox::find_groups(link, (next, newest)));
                from = self.server.write(doing, call).await?;
            }
        }
        let of_view = self.views.contains("authorizations");
        if of_view && source != Source::Authorizations {
            // How long an app's own table takes is not to stop others.
            return Ok(());
        }
        if let Some(newest) = newest(away::SOURCE).await? {
            let mut from = Some(i64::MIN);
            while let Some(next) = from {
                let call = on!(link => away::settle(link, (next, newest), of_view));
                from = self.server.write(doing, call).await?;
            }
        }
        Ok(())
    }

    async fn ids(&self, doing: &str, statement: &str, id: i64) -> Result<Vec<i64>> {
        self.server
            .read(doing, on!(link => ids(link, statement, id)))
            .await
    }
}

#[async_trait]
impl Names for SqlCanon {
    async fn names(&self, of: Named, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let call = on!(link => names::names(link, of, ids));
        self.server.read(names::READING, call).await
    }

    async fn find(&self, of: Named, text: &str, limit: usize) -> Result<Vec<(i64, String)>> {
        let call = on!(link => names::find(link, of, text, limit));
        self.server.read(names::READING, call).await
    }

    async fn set_names(&self, of: Named, names: &[(i64, Option<String>)]) -> Result<()> {
        names::given(of)?;
        self.ours(names::TABLE)?;
        let call = on!(link => names::set(link, of, names));
        self.server.write(names::CHANGING, call).await
    }
}

#[async_trait]
impl CanonWrite for SqlCanon {
    async fn apply_by(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<Applied> {
        if rows.is_empty() {
            return Ok(Applied::default());
        }
        if !self.views.is_empty() {
            for row in rows {
                self.ours(versions::table(row).0)?;
                // A row says this too, and is taken whole or not at all.
                if matches!(row, Entity::Athlete(_)) {
                    self.ours("disqualified")?;
                }
            }
        }
        self.server
            .write(
                "applying rows",
                on!(link => apply::apply(link, rows, actor, now_ms)),
            )
            .await
    }

    async fn authorize(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<Authorized> {
        self.ours("authorizations")?;
        let pair = Group {
            key: application_id,
            member: athlete_id,
        };
        self.server
            .write(
                "connecting an athlete",
                on!(link => connect::authorize(link, pair, now_ms)),
            )
            .await
    }

    async fn revoke(&self, application_id: i64, athlete_id: i64, now_ms: i64) -> Result<Revoked> {
        self.ours("authorizations")?;
        let pair = Group {
            key: application_id,
            member: athlete_id,
        };
        self.server
            .write(
                "disconnecting an athlete",
                on!(link => connect::revoke(link, pair, now_ms)),
            )
            .await
    }

    async fn notified(&self, ids: &[i64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.server
            .write(
                "emptying the outbox",
                on!(link => outbox::notified(link, ids)),
            )
            .await
    }
}

/// The tables of which rows may name an athlete, in the order in which they are emptied.
const OF_ATHLETES: [erase::Place; 7] = [
    erase::AUTHORIZATIONS,
    erase::EFFORTS,
    erase::CLUBS,
    erase::FOLLOWS,
    erase::DISQUALIFIED,
    erase::ATHLETES,
    erase::CONNECTIONS,
];

#[async_trait]
impl CanonErase for SqlCanon {
    async fn rows_of(&self, athlete_id: i64) -> Result<Vec<RowsOf>> {
        let mut own = self.own().await?;
        let mut found = Vec::new();
        for place in OF_ATHLETES.into_iter().chain([erase::OUTBOX]) {
            let are_apps = self.views.contains(place.table);
            let link = &mut own.link();
            let counted = erase::count(link, place, athlete_id, are_apps).await;
            found.push(counted.map_err(|error| self.server.fault(erase::FINDING, &error))?);
        }
        Ok(found)
    }

    async fn erase_rows(&self, athlete_id: i64, limit: usize, now_ms: i64) -> Result<u64> {
        let mut own = self.own().await?;
        let limit = limit.min(outbox::AT_ONCE);
        for place in OF_ATHLETES {
            if self.views.contains(place.table) {
                continue;
            }
            let rows = erase::find(&mut own.link(), place, athlete_id, limit).await;
            let rows = &rows.map_err(|error| self.server.fault(erase::FINDING, &error))?;
            if rows.is_empty() {
                continue;
            }
            let call = on!(link => erase_some(link, (place, athlete_id), rows, Some(now_ms)));
            self.server.write(erase::ERASING, call).await?;
            return Ok(rows.len() as u64);
        }
        Ok(0)
    }

    async fn tell_of(&self, athlete_id: i64, now_ms: i64) -> Result<()> {
        let (efforts, authorizations) = (
            self.views.contains("efforts"),
            self.views.contains("authorizations"),
        );
        let call = on!(link => async {
            if efforts {
                let touched = Touched {
                    athletes: vec![athlete_id],
                    ..Touched::default()
                };
                tell(link, touched, now_ms).await?;
            }
            if authorizations {
                away::look_again(link, athlete_id, now_ms).await?;
            }
            Ok(())
        });
        self.server.write(erase::ERASING, call).await
    }

    async fn erase_groups(&self, source: Source, groups: &[Group]) -> Result<()> {
        let of = Grouped::of(source)?;
        if self.views.contains(of.table()) {
            return Ok(());
        }
        let place = match source {
            Source::Authorizations => erase::AUTHORIZATIONS,
            _ => erase::EFFORTS,
        };
        for group in groups {
            let call = on!(link => erase::of_group(link, place, group.member, group.key));
            let rows = &self.server.read(erase::FINDING, call).await?;
            for rows in rows.chunks(outbox::AT_ONCE) {
                let what = (place, group.member);
                let call = on!(link => erase_some(link, what, rows, None));
                self.server.write(erase::ERASING, call).await?;
            }
        }
        Ok(())
    }
}

/// Deletes rows of an athlete that were found, and tells of their groups if a moment is given. Call it within a
/// transaction that writes.
async fn erase_some(
    link: &mut Link<'_>,
    (place, athlete_id): (erase::Place, i64),
    rows: &[(i64, i64)],
    told_at_ms: Option<i64>,
) -> Sql<()> {
    let keys = erase::keys(rows);
    if place == erase::AUTHORIZATIONS || place == erase::CONNECTIONS {
        lock_counters(link, keys.iter().copied()).await?;
    }
    if place == erase::ATHLETES || place == erase::DISQUALIFIED {
        lock_athletes(link, std::iter::once(athlete_id), true).await?;
    }
    erase::delete(link, place, athlete_id, rows).await?;
    if place == erase::AUTHORIZATIONS {
        // On MySQL pairs stay when they are parted.
        let pairs: Vec<(i64, i64)> = keys.iter().map(|key| (*key, *key)).collect();
        erase::delete(link, erase::CONNECTIONS, athlete_id, &pairs).await?;
    }
    let Some(now_ms) = told_at_ms else {
        return Ok(());
    };
    let groups = || {
        let member = athlete_id;
        keys.iter().map(|key| Group { key: *key, member }).collect()
    };
    let mut touched = Touched::default();
    match place {
        erase::AUTHORIZATIONS => touched.authorizations = groups(),
        erase::EFFORTS => touched.efforts = groups(),
        erase::ATHLETES | erase::DISQUALIFIED => touched.athletes = vec![athlete_id],
        _ => {}
    }
    tell(link, touched, now_ms).await.map(drop)
}

impl SqlCanon {
    /// A connection whose statements may take long.
    async fn own(&self) -> Result<Own> {
        let connecting = || self.server.connect(Purpose::Dump);
        self.server.tried(erase::FINDING, connecting).await
    }
}

#[async_trait]
impl CanonAdmin for SqlCanon {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<Usage>> {
        let doing = "reading applications";
        let call = on!(link => admin::usages(link, after, limit));
        let found = self.server.read(doing, call).await?;
        Ok(found.into_iter().map(|usage| self.counted(usage)).collect())
    }

    async fn usages_of(&self, ids: &[i64]) -> Result<Vec<Usage>> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(outbox::AT_ONCE) {
            let doing = "reading applications";
            let call = on!(link => admin::usages_of(link, ids));
            found.extend(self.server.read(doing, call).await?);
        }
        Ok(found.into_iter().map(|usage| self.counted(usage)).collect())
    }

    async fn change(
        &self,
        application_id: i64,
        change: Change,
        by: &By,
        now_ms: i64,
    ) -> Result<Option<Usage>> {
        if change.athlete_capacity.is_some() {
            self.ours("applications")?;
        }
        let doing = "changing an application";
        let call = on!(link => admin::change(link, application_id, change, by, now_ms));
        let changed = self.server.write(doing, call).await?;
        Ok(changed.map(|usage| self.counted(usage)))
    }

    async fn audit(
        &self,
        application_id: i64,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>> {
        let doing = "reading what was changed of an application";
        let call = on!(link => admin::audit(link, application_id, before, limit));
        self.server.read(doing, call).await
    }

    async fn request_capacity(
        &self,
        application_id: i64,
        athlete_capacity: i64,
        by: &By,
        now_ms: i64,
    ) -> Result<Requested> {
        let doing = "asking for a capacity";
        let asked = (application_id, athlete_capacity);
        let call = on!(link => admin::request_capacity(link, asked.0, asked.1, by, now_ms));
        self.server.write(doing, call).await
    }

    async fn capacity_requests(
        &self,
        of: RequestsOf,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CapacityRequest>> {
        let doing = "reading requests for capacity";
        let call = on!(link => admin::capacity_requests(link, of, before, limit));
        self.server.read(doing, call).await
    }

    async fn decide(
        &self,
        request_id: i64,
        decision: Decision,
        by: &By,
        now_ms: i64,
    ) -> Result<Decided> {
        if let Decision::Grant(_) = decision {
            self.ours("applications")?;
        }
        let doing = "deciding a request for capacity";
        let call = on!(link => admin::decide(link, request_id, decision, by, now_ms));
        Ok(match self.server.write(doing, call).await? {
            Decided::Done { request, usage } => Decided::Done {
                request,
                usage: self.counted(usage),
            },
            other => other,
        })
    }
}

#[async_trait]
impl Notices for SqlCanon {
    async fn notices(
        &self,
        application_id: Option<i64>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Notice>> {
        let doing = "reading notices of capacities";
        let call = on!(link => notices::notices(link, application_id, before, limit));
        self.server.read(doing, call).await
    }

    async fn notices_waiting(&self, now_ms: i64) -> Result<NoticesWaiting> {
        let doing = "reading notices of capacities";
        let call = on!(link => notices::waiting(link, now_ms));
        self.server.read(doing, call).await
    }

    async fn claim_notices(
        &self,
        now_ms: i64,
        until_ms: i64,
        limit: usize,
    ) -> Result<Vec<Claimed>> {
        let doing = "claiming notices of capacities";
        let call = on!(link => notices::claim(link, now_ms, until_ms, limit));
        self.server.write(doing, call).await
    }

    async fn settle_notice(&self, claimed: &Claimed, outcome: &Outcome) -> Result<()> {
        let doing = "settling a notice of a capacity";
        let claim = (claimed.notice.id, claimed.until_ms);
        let call = on!(link => notices::settle(link, claim, outcome));
        self.server.write(doing, call).await
    }
}

#[async_trait]
impl AgedRecords for SqlCanon {
    async fn aged(&self, of: Ageing, before_ms: i64) -> Result<AgedCount> {
        let call = on!(link => aged::aged(link, of, before_ms));
        self.server.read(aged::COUNTING, call).await
    }

    async fn forget_aged(&self, of: Ageing, before_ms: i64, limit: usize) -> Result<u64> {
        // More than that does not fit into one statement.
        let limit = limit.min(outbox::AT_ONCE);
        let call = on!(link => aged::forget(link, of, before_ms, limit));
        self.server.write(aged::FORGETTING, call).await
    }
}

#[async_trait]
impl Recounts for SqlCanon {
    async fn countables(&self, application_ids: &[i64]) -> Result<Vec<Countable>> {
        let ids = recounts::in_order(application_ids);
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(outbox::AT_ONCE) {
            let call = on!(link => recounts::countables(link, ids));
            found.extend(self.server.read(RECOUNTS, call).await?);
        }
        Ok(found)
    }

    async fn countables_after(&self, after: Option<i64>, limit: usize) -> Result<Vec<Countable>> {
        let call = on!(link => recounts::countables_after(link, after, limit));
        self.server.read(RECOUNTS, call).await
    }

    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        let ids = recounts::in_order(application_ids);
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(outbox::AT_ONCE) {
            let doing = "counting the athletes of applications anew";
            let drawing = on!(link => recounts::tickets(link, ids));
            let tickets = &self.server.write(doing, drawing).await?;
            let counting = on!(link => recounts::recount(link, tickets, now_ms));
            found.extend(self.server.read(doing, counting).await?);
        }
        Ok(found)
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()> {
        if recounts.is_empty() {
            return Ok(());
        }
        let doing = "recording the athletes of applications";
        let call = on!(link => recounts::record(link, recounts));
        self.server.write(doing, call).await
    }
}

impl SqlCanon {
    /// Nobody counts the athletes of an app's own authorizations.
    fn counted(&self, mut usage: Usage) -> Usage {
        if self.views.contains("authorizations") {
            usage.connected = None;
        }
        usage
    }
}

#[async_trait]
impl Keys for SqlCanon {
    async fn any_key(&self) -> Result<bool> {
        self.server
            .read(keys::READING, on!(link => keys::any(link)))
            .await
    }

    async fn key(&self, id: &str) -> Result<Option<KeptKey>> {
        self.server
            .read(keys::READING, on!(link => keys::key(link, id)))
            .await
    }

    async fn keys(&self, before: Option<&str>, limit: usize) -> Result<Vec<ApiKey>> {
        let call = on!(link => keys::keys(link, before, limit));
        self.server.read(keys::READING, call).await
    }

    async fn add_key(&self, key: &KeptKey) -> Result<()> {
        self.server
            .write(keys::CHANGING, on!(link => keys::add(link, key)))
            .await
    }

    async fn rotate_key(&self, id: &str, until_ms: i64, by: &KeptKey) -> Result<Rotated> {
        let call = on!(link => keys::rotate(link, id, until_ms, by));
        self.server.write(keys::CHANGING, call).await
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        let call = on!(link => keys::revoke(link, id, by, now_ms));
        self.server.write(keys::CHANGING, call).await
    }

    async fn key_used(&self, id: &str, at_ms: i64) -> Result<()> {
        self.server
            .write(keys::CHANGING, on!(link => keys::used(link, id, at_ms)))
            .await
    }

    async fn record_action(&self, action: &Action) -> Result<()> {
        let id = &Uuid::new_v4().to_string();
        self.server
            .write(
                keys::CHANGING,
                on!(link => keys::record_once(link, id, action)),
            )
            .await
    }

    async fn actions(&self, before: Option<i64>, limit: usize) -> Result<Vec<Action>> {
        let call = on!(link => keys::actions(link, before, limit));
        self.server.read(keys::ACTIONS, call).await
    }
}

async fn first_groups(
    link: &mut Link<'_>,
    of: Grouped,
    groups: &[Group],
    rows_max: i64,
) -> Sql<FirstGroups> {
    match link {
        #[cfg(feature = "postgres")]
        Link::Postgres(link) => postgres::first_groups(link, of, groups, rows_max).await,
        #[cfg(feature = "mysql")]
        Link::MySql(link) => mysql::first_groups(link, of, groups, rows_max).await,
    }
}

async fn ids(link: &mut Link<'_>, statement: &str, id: i64) -> Sql<Vec<i64>> {
    let rows: Vec<(i64,)> = link.rows(statement, &[Value::Int(id)]).await?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}
