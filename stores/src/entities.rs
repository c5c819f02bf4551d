//! The entity store port: the tables of entities, which are the system of record.
//!
//! A change and the notifications of the groups that it touches are committed together. The
//! notifications stay in an *outbox* until they are known to be in the log. So a crash between
//! commit and append loses no notification; it may repeat one.

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;

use crate::Result;
use crate::actor::INGEST;

/// The maximum number of notifications that one call returns. The outbox keeps the rest.
pub const NOTIFICATIONS_MAX: usize = 50_000;

/// A change of a group, as the outbox holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// The number in the outbox. Later notifications have larger numbers.
    pub id: i64,
    /// The source of the log, one of [`Source::LOGGED`].
    pub source: Source,
    /// The group.
    pub group: Group,
}

/// The pending notifications of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxStatus {
    /// The number of notifications.
    pub notifications: u64,
    /// The number of the newest notification; 0 if there is none.
    pub newest: i64,
}

/// The result of applying rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplyOutcome {
    /// The number of accepted rows. It includes rows that are older than the stored ones.
    pub accepted: u64,
    /// The rejected rows: index and reason.
    pub rejected: Vec<(usize, String)>,
    /// The number of rows that were dropped because they name an erased athlete.
    pub erased: u64,
    /// The notifications to append now, at most [`NOTIFICATIONS_MAX`].
    pub notifications: Vec<Notification>,
    /// True if the outbox holds more of them ([`EntityRead::pending_notifications`]).
    pub more_pending: bool,
}

/// The result of connecting an athlete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizeOutcome {
    /// The athlete is connected now.
    New {
        /// The id of the new authorization.
        id: i64,
        /// The notification to append.
        notification: Notification,
    },
    /// The athlete was connected already.
    AlreadyConnected,
    /// All capacity is used.
    CapacityReached {
        /// The number of connected athletes.
        connected: i64,
        /// The capacity.
        capacity: i64,
    },
    /// The application does not exist.
    UnknownApplication,
    /// The athlete is deleted.
    AthleteDeleted,
    /// The athlete is erased, permanently.
    AthleteErased,
}

/// The result of disconnecting an athlete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevokeOutcome {
    /// Disconnected. The notification is `None` if the athlete was not connected.
    Done(Option<Notification>),
    /// The application does not exist.
    UnknownApplication,
}

/// The rows of the leading groups of a request.
#[derive(Debug, Clone)]
pub struct FirstGroups {
    /// The rows, with the columns of [`schemas::entities::schema`].
    pub rows: RecordBatch,
    /// The number of groups that the rows cover, from the first one.
    pub groups: usize,
}

/// Rows of a query result: values as text, `None` for NULL.
pub type QueryRows = Vec<Vec<Option<String>>>;

/// The result of a query.
pub struct QueryResult {
    /// The column names.
    pub columns: Vec<String>,
    /// The rows, in batches.
    pub rows: BoxStream<'static, Result<QueryRows>>,
}

impl std::fmt::Debug for QueryResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("QueryResult");
        debug
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// The number of rows of a table that name an athlete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AthleteRowCount {
    /// The table.
    pub table: &'static str,
    /// The number of rows.
    pub rows: u64,
    /// True if the table is a view on an application's own table. Only the application can delete
    /// its rows.
    pub is_view: bool,
}

/// Reads the entity store.
#[async_trait]
pub trait EntityRead: std::fmt::Debug + Send + Sync {
    /// Reads the leading groups whose rows fit into `rows_max` together, in the order of `groups`,
    /// as of one moment. The columns are those of [`schemas::entities::schema`]. Deleted and hidden
    /// rows are included. The first group is returned at any size. Groups must be distinct.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for a source that has no groups.
    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups>;

    /// Reads all rows of some groups, in the order of the groups, like
    /// [`EntityRead::first_groups`].
    ///
    /// # Errors
    /// As [`EntityRead::first_groups`].
    async fn groups(&self, source: Source, groups: &[Group]) -> Result<RecordBatch> {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        let all = self.first_groups(source, &groups, usize::MAX).await?;
        Ok(all.rows)
    }

    /// Reads all rows of a source, or those of some keys, as of one moment. Batches have at most
    /// `batch_rows` rows, the columns of [`schemas::entities::schema`], and the order of key,
    /// member and id. Tables are streamed, not loaded into memory.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for a source that has no groups.
    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>>;

    /// Runs a user's query in a read-only transaction, with a time limit. The result is streamed.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if the text is not a single query, writes, or exceeds the limit.
    async fn query(&self, query: &str, wait_ms: u64) -> Result<QueryResult>;

    /// The athletes in a club, in ascending order.
    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>>;

    /// The athletes that an athlete follows, in ascending order.
    async fn followed_athletes(&self, athlete_id: i64) -> Result<Vec<i64>>;

    /// The application with an id, if it exists.
    async fn application(&self, id: i64) -> Result<Option<Application>>;

    /// Applications in the order of their ids, after one of them, at most `limit`.
    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>>;

    /// For each row, the version of the stored row with its id, if there is one.
    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>>;

    /// The pending notifications for the log of a source.
    async fn outbox_status(&self, source: Source) -> Result<OutboxStatus>;

    /// Notifications for the log of a source that may not be in it yet, up to the number `newest`,
    /// oldest first, at most `limit`.
    async fn pending_notifications(
        &self,
        source: Source,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<Notification>>;
}

/// Changes the entity store. Each call is one transaction.
#[async_trait]
pub trait EntityWrite: EntityRead {
    /// Applies rows in order. A row that is older than the stored one changes nothing. A row that
    /// would move an effort or an authorization to another group is rejected. So is a row that the
    /// store can't hold, such as a text with U+0000 in PostgreSQL. Each touched group is notified
    /// once. A change of an athlete that is visible in views touches the groups of all efforts of
    /// that athlete.
    async fn apply(&self, rows: &[Entity], now_ms: i64) -> Result<ApplyOutcome> {
        self.apply_as(rows, INGEST, now_ms).await
    }

    /// Applies rows like [`EntityWrite::apply`]. Audit entries of changed applications name
    /// `actor`.
    async fn apply_as(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<ApplyOutcome>;

    /// Connects an athlete to an application, unless its capacity is enforced and reached. An
    /// athlete who is already connected needs no capacity. The limit applies to a counter of
    /// distinct connected athletes, which every change of authorizations maintains.
    async fn authorize(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<AuthorizeOutcome>;

    /// Revokes all of an athlete's authorizations of an application. The rows keep their versions,
    /// so a row that is ingested later replaces the revocation unless its version is older. A row
    /// written by [`EntityWrite::authorize`] has version 0.
    async fn revoke(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<RevokeOutcome>;

    /// Removes notifications from the outbox after they were appended to the log.
    async fn remove_notifications(&self, ids: &[i64]) -> Result<()>;
}

/// Erases an athlete from the entity store. This port includes the rows of suppressed athletes.
#[async_trait]
pub trait EntityErase: std::fmt::Debug + Send + Sync {
    /// Counts the rows that name an athlete, for each table that can name one. A table without a
    /// suitable index is scanned.
    async fn count_athlete_rows(&self, athlete_id: i64) -> Result<Vec<AthleteRowCount>>;

    /// Deletes rows of an athlete from one of the tables that this program owns, in one
    /// transaction, and notifies their groups. Returns how many rows it found, at most `limit`; 0
    /// when none is left. Authorizations come first and the athlete, who may be marked as deleted,
    /// comes last. So no counter rises in between.
    async fn erase_rows(&self, athlete_id: i64, limit: usize, now_ms: i64) -> Result<u64>;

    /// Notifies all groups of an athlete whose rows belong to an application's own table.
    async fn notify_groups_of(&self, athlete_id: i64, now_ms: i64) -> Result<()>;

    /// Deletes the rows of some groups from the tables that this program owns, without
    /// notifications: the caller is computing these groups.
    async fn erase_groups(&self, source: Source, groups: &[Group]) -> Result<()>;
}
