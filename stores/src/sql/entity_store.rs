//! The entity store: implements the ports of entities on each database.

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
use super::connect::{SELECT_APPLICATIONS, lock_counters};
use super::connection::{IDS_PER_STATEMENT, Sql, SqlConnection, Value, sort_unique, to_sql_limit};
use super::database::{Database, OpenDatabase};
use super::decode::GroupedSource;
use super::erasure_filter::{ErasedAthletes, ErasureFilter};
#[cfg(feature = "mysql")]
use super::mysql;
use super::outbox::{RECHECK_SOURCE, TouchedGroups, enqueue_notifications, lock_athletes};
use super::pooled_connection::sql_call;
#[cfg(feature = "postgres")]
use super::postgres;
use super::{
    apply, connect, deleted_athletes, erase, names, outbox, sqlite, tables, user_query, versions,
};
#[cfg(feature = "sql")]
use super::{check, dump, server::Server};
use crate::Result;
use crate::entities::{
    ApplyOutcome, AthleteRowCount, AuthorizeOutcome, EntityErase, EntityRead, EntityWrite,
    FirstGroups, Notification, OutboxStatus, QueryResult, RevokeOutcome,
};
use crate::erasures::Suppressions;
use crate::names::{NamedKind, Names};
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

    /// Opens the store of a data folder.
    pub(crate) async fn open_file(folder: &Path) -> Result<Self> {
        Database::open_file(folder, &sqlite::ENTITIES)
            .await
            .map(Self::new)
    }

    /// The same store with a filter: it neither stores nor returns rows of erased athletes.
    pub(crate) fn without_erased(&self, suppressions: Suppressions) -> Self {
        Self {
            database: Arc::clone(&self.database),
            erasures: ErasureFilter::new(suppressions),
        }
    }
}

#[cfg(feature = "sql")]
impl EntityStore {
    /// The store on a server. The first call connects.
    pub(crate) fn on_server(options: &SqlOptions, namespace: &Namespace) -> Self {
        Self::new(Database::on_server(options, namespace))
    }

    /// Opens the store on a server. Creates nothing: a missing schema, or one of another version,
    /// is an error.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the server does not respond; [`crate::Error::Broken`] if it
    /// rejects the user or the schema has another version than this program.
    pub async fn open(options: &SqlOptions, namespace: &Namespace) -> Result<Self> {
        let store = Self::on_server(options, namespace);
        store.database.open().await?;
        Ok(store)
    }

    /// Creates or upgrades the schema, and returns whether anything changed. Several processes may
    /// call it at once.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if the server does not respond; [`crate::Error::Broken`] if it
    /// rejects a statement, or if an applied migration differs from the one of this program.
    pub async fn migrate(options: &SqlOptions, namespace: &Namespace) -> Result<bool> {
        check::migrate(&Server::new(options, namespace)?).await
    }

    /// Repairs counters of connected athletes that differ from the authorizations, and returns
    /// their applications. The schema must exist.
    ///
    /// # Errors
    /// As [`EntityStore::migrate`].
    pub async fn recount(options: &SqlOptions, namespace: &Namespace) -> Result<Vec<i64>> {
        check::recount(&Server::new(options, namespace)?).await
    }

    /// Diagnoses the server and the schema. Returns one sentence for each problem.
    ///
    /// # Errors
    /// [`crate::Error::Broken`] for invalid options.
    pub async fn diagnostics(options: &SqlOptions, namespace: &Namespace) -> Result<Vec<String>> {
        check::diagnose(&Server::new(options, namespace)?).await
    }
}

#[async_trait]
impl EntityRead for EntityStore {
    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups> {
        let grouped = GroupedSource::for_source(source)?;
        let erased = self.erasures.current().await?;
        let call = sql_call!(connection => first_groups(connection, grouped, groups, rows_max));
        let first_groups = self.database.read("reading groups of rows", call).await?;
        let (rows, hidden) = erased.hide(source, first_groups.rows)?;
        if !hidden.is_empty()
            && let Err(error) = self.erase_groups(source, &hidden).await
        {
            tracing::warn!(%source, %error, "cannot delete rows of erased athletes; they remain hidden");
        }
        Ok(FirstGroups {
            rows,
            groups: first_groups.groups,
        })
    }

    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let grouped = GroupedSource::for_source(source)?;
        let keys = keys.map(|keys| sort_unique(keys.iter().copied()));
        if keys.as_ref().is_some_and(Vec::is_empty) {
            return Ok(stream::empty().boxed());
        }
        let erased = self.erasures.current().await?;
        let rows = match self.database.open().await? {
            #[cfg(feature = "sql")]
            OpenDatabase::Server(server) => dump::dump(server, grouped, keys, batch_rows).await?,
            OpenDatabase::File(db) => sqlite::dump::dump(db, grouped, keys, batch_rows).await?,
        };
        if erased.is_empty() {
            return Ok(rows);
        }
        Ok(rows
            .map(move |batch| Ok(erased.hide(source, batch?)?.0))
            .boxed())
    }

    /// Runs a user's query. Its result may include rows of erased athletes.
    async fn query(&self, query: &str, wait_ms: u64) -> Result<QueryResult> {
        user_query::run(self.database.open().await?, query, wait_ms).await
    }

    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>> {
        let statement = "SELECT CAST(athlete_id AS SIGNED) FROM clubs
                         WHERE club_id = ? AND NOT is_deleted ORDER BY athlete_id";
        let operation = "reading the members of a club";
        self.fetch_athletes(operation, statement, club_id).await
    }

    async fn followed_athletes(&self, athlete_id: i64) -> Result<Vec<i64>> {
        if self.erasures.recent().await.contains(athlete_id) {
            return Ok(Vec::new());
        }
        let statement = "SELECT CAST(followed_id AS SIGNED) FROM follows
                         WHERE follower_id = ? AND NOT is_deleted ORDER BY followed_id";
        let operation = "reading the athletes that an athlete follows";
        self.fetch_athletes(operation, statement, athlete_id).await
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        let statement = format!("{SELECT_APPLICATIONS} WHERE p.id = ?");
        let (operation, values) = ("reading an application", [Value::Int(id)]);
        let mut applications = self
            .database
            .fetch_all(operation, &statement, &values)
            .await?;
        Ok(applications.pop())
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        self.fetch_applications_after("reading applications", SELECT_APPLICATIONS, after, limit)
            .await
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        let call = sql_call!(connection => versions::fetch_versions(connection, rows));
        self.database.read("reading versions", call).await
    }

    async fn outbox_status(&self, source: Source) -> Result<OutboxStatus> {
        self.resolve_outbox_athletes(source).await?;
        let statement = "SELECT count(*), max(id) FROM outbox WHERE source = ?";
        let values = [Value::Text(source.name())];
        let statuses = self.database.fetch_all(OUTBOX, statement, &values).await?;
        let (notifications, newest): (i64, Option<i64>) =
            statuses.first().copied().unwrap_or_default();
        Ok(OutboxStatus {
            notifications: notifications.unsigned_abs(),
            newest: newest.unwrap_or_default(),
        })
    }

    async fn pending_notifications(
        &self,
        source: Source,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<Notification>> {
        self.resolve_outbox_athletes(source).await?;
        let statement = "SELECT id, source, group_key, member FROM outbox
                         WHERE source = ? AND id <= ? ORDER BY id LIMIT ?";
        let values = [
            Value::Text(source.name()),
            Value::Int(newest),
            Value::Int(to_sql_limit(limit)),
        ];
        self.database.fetch_all(OUTBOX, statement, &values).await
    }
}

impl EntityStore {
    /// Replaces athletes in the outbox by their groups, and rechecks connections of changed
    /// athletes. Does nothing for a file, where writers exclude each other.
    async fn resolve_outbox_athletes(&self, source: Source) -> Result<()> {
        let database = self.database.open().await?;
        if matches!(database, OpenDatabase::File(_))
            || !matches!(source, Source::Efforts | Source::Authorizations)
        {
            return Ok(());
        }
        let find_newest_id = async |source: &'static str| -> Result<Option<i64>> {
            let statement = "SELECT max(id) FROM outbox WHERE source = ?";
            let values = [Value::Text(source)];
            let ids = self.database.fetch_all(OUTBOX, statement, &values).await?;
            Ok(ids.first().copied().flatten())
        };
        let operation = "finding the groups of athletes";
        if let Some(newest_id) = find_newest_id(Source::Athletes.name()).await? {
            let mut next_id = Some(i64::MIN);
            while let Some(from) = next_id {
                let call =
                    sql_call!(connection => outbox::resolve_athletes(connection, from, newest_id));
                next_id = self.database.write(operation, call).await?;
            }
        }
        let is_view = database.is_view("authorizations");
        if is_view && source != Source::Authorizations {
            // A slow table of the app must not delay other sources.
            return Ok(());
        }
        if let Some(newest_id) = find_newest_id(RECHECK_SOURCE).await? {
            let mut next_id = Some(i64::MIN);
            while let Some(from) = next_id {
                let call = sql_call!(connection =>
                    deleted_athletes::recheck(connection, from, newest_id, is_view));
                next_id = self.database.write(operation, call).await?;
            }
        }
        Ok(())
    }

    /// Returns the athletes that a statement with one parameter selects, without erased ones.
    async fn fetch_athletes(&self, operation: &str, statement: &str, id: i64) -> Result<Vec<i64>> {
        let mut athletes: Vec<i64> = (self.database)
            .fetch_all(operation, statement, &[Value::Int(id)])
            .await?;
        let erased = self.erasures.recent().await;
        athletes.retain(|id| !erased.contains(*id));
        Ok(athletes)
    }
}

#[async_trait]
impl Names for EntityStore {
    async fn read_names(&self, kind: NamedKind, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let call = sql_call!(connection => names::fetch_names(connection, kind, ids));
        let mut names = self.database.read(names::READING, call).await?;
        if kind == NamedKind::Athlete && !names.is_empty() {
            let erased = self.erasures.current().await?;
            names.retain(|(id, _)| !erased.contains(*id));
        }
        Ok(names)
    }

    async fn find_names(
        &self,
        kind: NamedKind,
        text: &str,
        limit: usize,
    ) -> Result<Vec<(i64, String)>> {
        let erased = match kind {
            NamedKind::Athlete => self.erasures.current().await?,
            _ => ErasedAthletes::none(),
        };
        let mut rows_max = limit;
        loop {
            let call = sql_call!(connection => names::find_names(connection, kind, text, rows_max));
            let mut names = self.database.read(names::READING, call).await?;
            let is_all = names.len() < rows_max;
            names.retain(|(id, _)| !erased.contains(*id));
            if is_all || names.len() >= limit {
                names.truncate(limit);
                return Ok(names);
            }
            // Erased athletes were removed, so other names may fit.
            rows_max = rows_max.saturating_mul(2);
        }
    }

    async fn set_names(&self, kind: NamedKind, names: &[(i64, Option<String>)]) -> Result<()> {
        names::check_settable(kind)?;
        self.database.open().await?.check_writable(names::TABLE)?;
        let call = sql_call!(connection => names::set_names(connection, kind, names));
        self.database.write(names::CHANGING, call).await
    }
}

#[async_trait]
impl EntityWrite for EntityStore {
    async fn apply_as(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<ApplyOutcome> {
        let erased = self.erasures.recent().await;
        let (indexes, remaining) = erased.without_erased(rows);
        if remaining.is_empty() {
            return Ok(ApplyOutcome {
                erased: rows.len() as u64,
                ..ApplyOutcome::default()
            });
        }
        let database = self.database.open().await?;
        for row in &*remaining {
            database.check_writable(tables::find_table(row).name)?;
            // An athlete's row also changes the table of disqualified athletes, and is applied as a
            // whole.
            if matches!(row, Entity::Athlete(_)) {
                database.check_writable("disqualified")?;
            }
        }
        let remaining = &*remaining;
        let call = sql_call!(connection => apply::apply(connection, remaining, actor, now_ms));
        let mut applied = self.database.write("applying rows", call).await?;
        if let Some(indexes) = indexes {
            for (index, _) in &mut applied.rejected {
                *index = indexes.get(*index).copied().unwrap_or(*index);
            }
        }
        applied.erased = (rows.len() - remaining.len()) as u64;
        Ok(applied)
    }

    async fn authorize(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<AuthorizeOutcome> {
        if self.erasures.recent().await.contains(athlete_id) {
            return Ok(match self.application(application_id).await? {
                Some(_) => AuthorizeOutcome::AthleteErased,
                None => AuthorizeOutcome::UnknownApplication,
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
        let id = connect::generate_id();
        let call = sql_call!(connection => connect::authorize(connection, pair, id, now_ms));
        self.database.write("connecting an athlete", call).await
    }

    async fn revoke(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<RevokeOutcome> {
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

    async fn remove_notifications(&self, ids: &[i64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let call = sql_call!(connection => deleted_athletes::remove_notifications(connection, ids));
        let operation = "deleting notifications from the outbox";
        self.database.write(operation, call).await
    }
}

#[async_trait]
impl EntityErase for EntityStore {
    async fn count_athlete_rows(&self, athlete_id: i64) -> Result<Vec<AthleteRowCount>> {
        let database = self.database.open().await?;
        let mut dedicated = database.connect(erase::FINDING).await?;
        let connection = &mut dedicated.borrow();
        let mut counts = Vec::new();
        for table in erase::tables(connection.dialect())
            .iter()
            .chain([&erase::OUTBOX])
        {
            let is_view = database.is_view(table.name);
            let count = erase::count(connection, *table, athlete_id, is_view).await;
            counts.push(count.map_err(|error| database.classify_error(erase::FINDING, error))?);
        }
        Ok(counts)
    }

    async fn erase_rows(&self, athlete_id: i64, limit: usize, now_ms: i64) -> Result<u64> {
        let database = self.database.open().await?;
        let mut dedicated = database.connect(erase::FINDING).await?;
        let connection = &mut dedicated.borrow();
        let limit = limit.min(IDS_PER_STATEMENT);
        for table in erase::tables(connection.dialect()) {
            if database.is_view(table.name) {
                continue;
            }
            let rows = erase::find(connection, *table, athlete_id, limit).await;
            let rows = &rows.map_err(|error| database.classify_error(erase::FINDING, error))?;
            if rows.is_empty() {
                continue;
            }
            let (table, notify_at_ms) = (*table, Some(now_ms));
            let call = sql_call!(connection =>
                erase_chunk(connection, table, athlete_id, rows, notify_at_ms));
            self.database.write(erase::ERASING, call).await?;
            return Ok(rows.len() as u64);
        }
        Ok(0)
    }

    async fn notify_groups_of(&self, athlete_id: i64, now_ms: i64) -> Result<()> {
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
                let touched = TouchedGroups {
                    athletes: vec![athlete_id],
                    ..TouchedGroups::default()
                };
                enqueue_notifications(connection, touched, now_ms).await?;
            }
            if authorizations {
                deleted_athletes::enqueue_recheck(connection, athlete_id, now_ms).await?;
            }
            Ok(())
        });
        self.database.write(erase::ERASING, call).await
    }

    async fn erase_groups(&self, source: Source, groups: &[Group]) -> Result<()> {
        let grouped = GroupedSource::for_source(source)?;
        if self.database.open().await?.is_view(grouped.table()) {
            return Ok(());
        }
        let table = match source {
            Source::Authorizations => erase::AUTHORIZATIONS,
            _ => erase::EFFORTS,
        };
        let statement = erase::build_group_rows_statement(table);
        for group in groups {
            let values = [group.key, group.member].map(Value::Int);
            let rows = self.database.fetch_all(erase::FINDING, &statement, &values);
            let rows: &Vec<(i64, i64)> = &rows.await?;
            for rows in rows.chunks(IDS_PER_STATEMENT) {
                let athlete_id = group.member;
                let call = sql_call!(connection =>
                    erase_chunk(connection, table, athlete_id, rows, None));
                self.database.write(erase::ERASING, call).await?;
            }
        }
        Ok(())
    }
}

/// Deletes some rows of an athlete, and enqueues notifications for their groups if `notify_at_ms`
/// is set. Call it within a write transaction.
async fn erase_chunk(
    connection: &mut SqlConnection<'_>,
    table: erase::AthleteTable,
    athlete_id: i64,
    rows: &[(i64, i64)],
    notify_at_ms: Option<i64>,
) -> Sql<()> {
    let keys = erase::collect_keys(rows);
    if table == erase::AUTHORIZATIONS || table == erase::CONNECTIONS {
        lock_counters(connection, keys.iter().copied()).await?;
    }
    if table == erase::ATHLETES || table == erase::DISQUALIFIED {
        lock_athletes(connection, std::iter::once(athlete_id), true).await?;
    }
    erase::delete(connection, table, athlete_id, rows).await?;
    if table == erase::AUTHORIZATIONS {
        // On MySQL, triggers do not delete pairs without authorizations.
        let pairs: Vec<(i64, i64)> = keys.iter().map(|key| (*key, *key)).collect();
        erase::delete(connection, erase::CONNECTIONS, athlete_id, &pairs).await?;
    }
    let Some(now_ms) = notify_at_ms else {
        return Ok(());
    };
    let groups = || {
        let member = athlete_id;
        keys.iter().map(|key| Group { key: *key, member }).collect()
    };
    let mut touched = TouchedGroups::default();
    match table {
        erase::AUTHORIZATIONS => touched.authorizations = groups(),
        erase::EFFORTS => touched.efforts = groups(),
        erase::ATHLETES | erase::DISQUALIFIED => touched.athletes = vec![athlete_id],
        _ => {}
    }
    enqueue_notifications(connection, touched, now_ms)
        .await
        .map(drop)
}

async fn first_groups(
    connection: &mut SqlConnection<'_>,
    source: GroupedSource,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    match connection {
        #[cfg(feature = "postgres")]
        SqlConnection::Postgres(connection) => {
            postgres::first_groups(connection, source, groups, rows_max).await
        }
        #[cfg(feature = "mysql")]
        SqlConnection::MySql(connection) => {
            mysql::first_groups(connection, source, groups, rows_max).await
        }
        SqlConnection::Sqlite(connection) => {
            sqlite::groups::first_groups(connection, source, groups, rows_max).await
        }
    }
}
