//! The entity store: one implementation of every port of entities, on each database.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;

#[cfg(feature = "sql")]
use super::SqlOptions;
use super::admin::bounded;
use super::connect::{APPLICATIONS, lock_counters};
use super::connection::{Sql, SqlConnection, Value, ascending};
use super::database::{Database, OpenDatabase, sql_call};
use super::decode::Grouped;
use super::erasure_filter::{ErasedAthletes, ErasureFilter};
#[cfg(feature = "mysql")]
use super::mysql;
use super::outbox::{Touched, lock_athletes, tell};
#[cfg(feature = "postgres")]
use super::postgres;
use super::{apply, away, connect, erase, names, outbox, sqlite, user_query, versions};
#[cfg(feature = "sql")]
use super::{check, dump, server::Server};
use crate::Result;
use crate::canon::{
    Answered, Applied, Authorized, CanonErase, CanonRead, CanonWrite, FirstGroups, Notification,
    Revoked, RowsOf, Waiting,
};
use crate::erasures::Suppressions;
use crate::names::{Named, Names};
#[cfg(feature = "sql")]
use crate::namespace::Namespace;

const OUTBOX: &str = "reading the outbox";

/// The entities of an installation, on a server or in `canon.db`.
#[derive(Debug, Clone)]
pub struct EntityStore {
    pub(super) database: Arc<Database>,
    erasures: ErasureFilter,
}

impl EntityStore {
    fn new(database: Database) -> Self {
        Self {
            database: Arc::new(database),
            erasures: ErasureFilter::none(),
        }
    }

    /// The store of a data folder.
    pub(crate) async fn open_file(folder: &Path) -> Result<Self> {
        Database::file(folder, &sqlite::CANON).await.map(Self::new)
    }

    /// The same store without erased athletes: their rows are neither stored nor returned.
    pub(crate) fn without_erased(&self, suppressions: Suppressions) -> Self {
        Self {
            database: Arc::clone(&self.database),
            erasures: ErasureFilter::new(suppressions),
        }
    }
}

#[cfg(feature = "sql")]
impl EntityStore {
    /// The store on a server, which is connected when the first call needs it.
    pub(crate) fn on_server(options: &SqlOptions, namespace: &Namespace) -> Self {
        Self::new(Database::server(options, namespace))
    }

    /// Opens the store on a server. Creates nothing: a missing schema or one of another version is an error.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the server does not answer; [`crate::Error::Broken`] if it refuses the user or the
    /// schema is not the one of this version.
    pub async fn open(options: &SqlOptions, namespace: &Namespace) -> Result<Self> {
        let store = Self::on_server(options, namespace);
        store.database.open().await?;
        Ok(store)
    }

    /// Creates the schema or brings it to this version, and returns whether there was anything to do. Several processes may
    /// call it at once.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the server does not answer; [`crate::Error::Broken`] if it refuses, or if an applied
    /// migration differs from the one of this version.
    pub async fn migrate(options: &SqlOptions, namespace: &Namespace) -> Result<bool> {
        check::migrate(&Server::new(options, namespace)?).await
    }

    /// Recounts connected athletes where counters differ from the authorizations, and returns these applications. The schema
    /// must exist.
    ///
    /// # Errors
    /// As [`EntityStore::migrate`].
    pub async fn recount(options: &SqlOptions, namespace: &Namespace) -> Result<Vec<i64>> {
        check::recount(&Server::new(options, namespace)?).await
    }

    /// What is wrong with the server or the schema, in sentences; empty if nothing is.
    ///
    /// # Errors
    /// [`crate::Error::Broken`] for unusable options.
    pub async fn flaws(options: &SqlOptions, namespace: &Namespace) -> Result<Vec<String>> {
        check::flaws(&Server::new(options, namespace)?).await
    }
}

#[async_trait]
impl CanonRead for EntityStore {
    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups> {
        let of = Grouped::of(source)?;
        let erased = self.erasures.now().await?;
        let call = sql_call!(connection => first_groups(connection, of, groups, rows_max));
        let found = self.database.read("reading groups of rows", call).await?;
        let (rows, hidden) = erased.hide(source, found.rows)?;
        if !hidden.is_empty()
            && let Err(error) = self.erase_groups(source, &hidden).await
        {
            tracing::warn!(%source, %error, "cannot delete rows of erased athletes; they stay hidden");
        }
        Ok(FirstGroups {
            rows,
            groups: found.groups,
        })
    }

    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let of = Grouped::of(source)?;
        let keys = keys.map(|keys| ascending(keys.iter().copied()));
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return Ok(stream::empty().boxed());
        }
        let erased = self.erasures.now().await?;
        let rows = match self.database.open().await? {
            #[cfg(feature = "sql")]
            OpenDatabase::Server(server) => dump::dump(server, of, keys, batch_rows).await?,
            OpenDatabase::File(db) => sqlite::dump::dump(db, of, keys, batch_rows).await?,
        };
        if erased.is_empty() {
            return Ok(rows);
        }
        Ok(rows
            .map(move |batch| Ok(erased.hide(source, batch?)?.0))
            .boxed())
    }

    /// Reads with a user's own query, whose result is not filtered.
    async fn ask(&self, query: &str, wait_ms: u64) -> Result<Answered> {
        user_query::ask(self.database.open().await?, query, wait_ms).await
    }

    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>> {
        let statement = "SELECT CAST(athlete_id AS SIGNED) FROM clubs
                         WHERE club_id = ? AND NOT is_deleted ORDER BY athlete_id";
        let doing = "reading the members of a club";
        self.athletes(doing, statement, club_id).await
    }

    async fn followed_by(&self, athlete_id: i64) -> Result<Vec<i64>> {
        if self.erasures.recent().await.has(athlete_id) {
            return Ok(Vec::new());
        }
        let statement = "SELECT CAST(followed_id AS SIGNED) FROM follows
                         WHERE follower_id = ? AND NOT is_deleted ORDER BY followed_id";
        let doing = "reading whom an athlete follows";
        self.athletes(doing, statement, athlete_id).await
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        let statement = format!("{APPLICATIONS} WHERE p.id = ?");
        let (doing, values) = ("reading an application", [Value::Int(id)]);
        let mut found = self.database.rows(doing, &statement, &values).await?;
        Ok(found.pop())
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        self.applications_after("reading applications", APPLICATIONS, after, limit)
            .await
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        let call = sql_call!(connection => versions::versions(connection, rows));
        self.database.read("reading versions", call).await
    }

    async fn waiting(&self, source: Source) -> Result<Waiting> {
        self.find_groups(source).await?;
        let statement = "SELECT count(*), max(id) FROM outbox WHERE source = ?";
        let values = [Value::Text(source.name())];
        let found = self.database.rows(OUTBOX, statement, &values).await?;
        let (notifications, newest): (i64, Option<i64>) =
            found.first().copied().unwrap_or_default();
        Ok(Waiting {
            notifications: notifications.unsigned_abs(),
            newest: newest.unwrap_or_default(),
        })
    }

    async fn pending(
        &self,
        source: Source,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<Notification>> {
        self.find_groups(source).await?;
        let statement = "SELECT id, source, group_key, member FROM outbox
                         WHERE source = ? AND id <= ? ORDER BY id LIMIT ?";
        let values = [
            Value::Text(source.name()),
            Value::Int(newest),
            Value::Int(bounded(limit)),
        ];
        self.database.rows(OUTBOX, statement, &values).await
    }
}

impl EntityStore {
    /// Resolves athletes in the outbox to their groups, and rechecks connections of athletes that changed. Needed on servers
    /// only: in a file, writers exclude each other.
    async fn find_groups(&self, source: Source) -> Result<()> {
        let database = self.database.open().await?;
        if matches!(database, OpenDatabase::File(_))
            || !matches!(source, Source::Efforts | Source::Authorizations)
        {
            return Ok(());
        }
        let newest = async |source: &'static str| -> Result<Option<i64>> {
            let statement = "SELECT max(id) FROM outbox WHERE source = ?";
            let values = [Value::Text(source)];
            let found = self.database.rows(OUTBOX, statement, &values).await?;
            Ok(found.first().copied().flatten())
        };
        let doing = "finding the groups of athletes";
        if let Some(newest) = newest(Source::Athletes.name()).await? {
            let mut from = Some(i64::MIN);
            while let Some(next) = from {
                let call = sql_call!(connection => outbox::find_groups(connection, (next, newest)));
                from = self.database.write(doing, call).await?;
            }
        }
        let of_view = database.is_view("authorizations");
        if of_view && source != Source::Authorizations {
            // A slow table of the application must not delay other sources.
            return Ok(());
        }
        if let Some(newest) = newest(away::SOURCE).await? {
            let mut from = Some(i64::MIN);
            while let Some(next) = from {
                let call =
                    sql_call!(connection => away::settle(connection, (next, newest), of_view));
                from = self.database.write(doing, call).await?;
            }
        }
        Ok(())
    }

    /// The athletes that a statement with one value finds, without erased ones.
    async fn athletes(&self, doing: &str, statement: &str, id: i64) -> Result<Vec<i64>> {
        let mut found: Vec<i64> = (self.database)
            .rows(doing, statement, &[Value::Int(id)])
            .await?;
        let erased = self.erasures.recent().await;
        found.retain(|id| !erased.has(*id));
        Ok(found)
    }
}

#[async_trait]
impl Names for EntityStore {
    async fn names(&self, of: Named, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let call = sql_call!(connection => names::names(connection, of, ids));
        let mut found = self.database.read(names::READING, call).await?;
        if of == Named::Athlete && !found.is_empty() {
            let erased = self.erasures.now().await?;
            found.retain(|(id, _)| !erased.has(*id));
        }
        Ok(found)
    }

    async fn find(&self, of: Named, text: &str, limit: usize) -> Result<Vec<(i64, String)>> {
        let erased = match of {
            Named::Athlete => self.erasures.now().await?,
            _ => ErasedAthletes::none(),
        };
        let mut wanted = limit;
        loop {
            let call = sql_call!(connection => names::find(connection, of, text, wanted));
            let mut found = self.database.read(names::READING, call).await?;
            let is_all = found.len() < wanted;
            found.retain(|(id, _)| !erased.has(*id));
            if is_all || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
            // ErasedAthletes athletes leave room for others.
            wanted = wanted.saturating_mul(2);
        }
    }

    async fn set_names(&self, of: Named, names: &[(i64, Option<String>)]) -> Result<()> {
        names::given(of)?;
        self.database.open().await?.check_writable(names::TABLE)?;
        let call = sql_call!(connection => names::set(connection, of, names));
        self.database.write(names::CHANGING, call).await
    }
}

#[async_trait]
impl CanonWrite for EntityStore {
    async fn apply_by(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<Applied> {
        let erased = self.erasures.recent().await;
        let (indexes, kept) = erased.kept(rows);
        if kept.is_empty() {
            return Ok(Applied {
                erased: rows.len() as u64,
                ..Applied::default()
            });
        }
        let database = self.database.open().await?;
        for row in &*kept {
            database.check_writable(versions::table(row).0)?;
            // An athlete's row says this too, and is applied as a whole or not at all.
            if matches!(row, Entity::Athlete(_)) {
                database.check_writable("disqualified")?;
            }
        }
        let kept = &*kept;
        let call = sql_call!(connection => apply::apply(connection, kept, actor, now_ms));
        let mut applied = self.database.write("applying rows", call).await?;
        if let Some(indexes) = indexes {
            for (index, _) in &mut applied.rejected {
                *index = indexes.get(*index).copied().unwrap_or(*index);
            }
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
        if self.erasures.recent().await.has(athlete_id) {
            return Ok(match self.application(application_id).await? {
                Some(_) => Authorized::AthleteErased,
                None => Authorized::UnknownApplication,
            });
        }
        self.database
            .open()
            .await?
            .check_writable("authorizations")?;
        let pair = Group {
            key: application_id,
            member: athlete_id,
        };
        let id = connect::random_id();
        let call = sql_call!(connection => connect::authorize(connection, pair, id, now_ms));
        self.database.write("connecting an athlete", call).await
    }

    async fn revoke(&self, application_id: i64, athlete_id: i64, now_ms: i64) -> Result<Revoked> {
        self.database
            .open()
            .await?
            .check_writable("authorizations")?;
        let pair = Group {
            key: application_id,
            member: athlete_id,
        };
        let is_retry = &AtomicBool::new(false);
        let created_max_us = || match is_retry.swap(true, Ordering::Relaxed) {
            false => i64::MAX,
            true => now_ms.saturating_mul(connect::US_PER_MS),
        };
        let call =
            sql_call!(connection => connect::revoke(connection, pair, created_max_us(), now_ms));
        self.database.write("disconnecting an athlete", call).await
    }

    async fn notified(&self, ids: &[i64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let call = sql_call!(connection => outbox::notified(connection, ids));
        self.database.write("emptying the outbox", call).await
    }
}

#[async_trait]
impl CanonErase for EntityStore {
    async fn rows_of(&self, athlete_id: i64) -> Result<Vec<RowsOf>> {
        let database = self.database.open().await?;
        let mut own = database.connect(erase::FINDING).await?;
        let connection = &mut own.borrow();
        let mut found = Vec::new();
        for table in erase::tables(connection.dialect())
            .iter()
            .chain([&erase::OUTBOX])
        {
            let are_apps = database.is_view(table.name);
            let counted = erase::count(connection, *table, athlete_id, are_apps).await;
            found.push(counted.map_err(|error| database.fault(erase::FINDING, error))?);
        }
        Ok(found)
    }

    async fn erase_rows(&self, athlete_id: i64, limit: usize, now_ms: i64) -> Result<u64> {
        let database = self.database.open().await?;
        let mut own = database.connect(erase::FINDING).await?;
        let connection = &mut own.borrow();
        let limit = limit.min(outbox::AT_ONCE);
        for table in erase::tables(connection.dialect()) {
            if database.is_view(table.name) {
                continue;
            }
            let rows = erase::find(connection, *table, athlete_id, limit).await;
            let rows = &rows.map_err(|error| database.fault(erase::FINDING, error))?;
            if rows.is_empty() {
                continue;
            }
            let of = (*table, athlete_id);
            let call = sql_call!(connection => erase_some(connection, of, rows, Some(now_ms)));
            self.database.write(erase::ERASING, call).await?;
            return Ok(rows.len() as u64);
        }
        Ok(0)
    }

    async fn tell_of(&self, athlete_id: i64, now_ms: i64) -> Result<()> {
        let database = self.database.open().await?;
        let (efforts, authorizations) = (
            database.is_view("efforts"),
            database.is_view("authorizations"),
        );
        if !efforts && !authorizations {
            return Ok(());
        }
        let call = sql_call!(connection => async {
            if efforts {
                let touched = Touched {
                    athletes: vec![athlete_id],
                    ..Touched::default()
                };
                tell(connection, touched, now_ms).await?;
            }
            if authorizations {
                away::look_again(connection, athlete_id, now_ms).await?;
            }
            Ok(())
        });
        self.database.write(erase::ERASING, call).await
    }

    async fn erase_groups(&self, source: Source, groups: &[Group]) -> Result<()> {
        let of = Grouped::of(source)?;
        if self.database.open().await?.is_view(of.table()) {
            return Ok(());
        }
        let table = match source {
            Source::Authorizations => erase::AUTHORIZATIONS,
            _ => erase::EFFORTS,
        };
        let statement = erase::finding_of_group(table);
        for group in groups {
            let values = [group.key, group.member].map(Value::Int);
            let rows = self.database.rows(erase::FINDING, &statement, &values);
            let rows: &Vec<(i64, i64)> = &rows.await?;
            for rows in rows.chunks(outbox::AT_ONCE) {
                let of = (table, group.member);
                let call = sql_call!(connection => erase_some(connection, of, rows, None));
                self.database.write(erase::ERASING, call).await?;
            }
        }
        Ok(())
    }
}

/// Deletes the given rows of an athlete, and enqueues notifications for their groups if `told_at_ms` is set. Call it within a
/// transaction that writes.
async fn erase_some(
    connection: &mut SqlConnection<'_>,
    (table, athlete_id): (erase::AthleteTable, i64),
    rows: &[(i64, i64)],
    told_at_ms: Option<i64>,
) -> Sql<()> {
    let keys = erase::keys(rows);
    if table == erase::AUTHORIZATIONS || table == erase::CONNECTIONS {
        lock_counters(connection, keys.iter().copied()).await?;
    }
    if table == erase::ATHLETES || table == erase::DISQUALIFIED {
        lock_athletes(connection, std::iter::once(athlete_id), true).await?;
    }
    erase::delete(connection, table, athlete_id, rows).await?;
    if table == erase::AUTHORIZATIONS {
        // On MySQL pairs stay when they are parted.
        let pairs: Vec<(i64, i64)> = keys.iter().map(|key| (*key, *key)).collect();
        erase::delete(connection, erase::CONNECTIONS, athlete_id, &pairs).await?;
    }
    let Some(now_ms) = told_at_ms else {
        return Ok(());
    };
    let groups = || {
        let member = athlete_id;
        keys.iter().map(|key| Group { key: *key, member }).collect()
    };
    let mut touched = Touched::default();
    match table {
        erase::AUTHORIZATIONS => touched.authorizations = groups(),
        erase::EFFORTS => touched.efforts = groups(),
        erase::ATHLETES | erase::DISQUALIFIED => touched.athletes = vec![athlete_id],
        _ => {}
    }
    tell(connection, touched, now_ms).await.map(drop)
}

async fn first_groups(
    connection: &mut SqlConnection<'_>,
    of: Grouped,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => {
            postgres::first_groups(connection, of, groups, rows_max).await
        }
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(connection) => {
            mysql::first_groups(connection, of, groups, rows_max).await
        }
        SqlConnection::Sqlite(connection) => {
            sqlite::groups::first_groups(connection, of, groups, rows_max).await
        }
    }
}
