//! The canonical port: the tables of entities, which are the truth about them.
//!
//! A change and the notifications of the groups that it touches are committed together: the
//! notifications wait in an *outbox* until they are known to be in the log. So a crash between the
//! commit and the notification loses none, and one may come more than once.

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;

use crate::Result;
use crate::admin::INGEST;

/// A call that changes rows answers no more notifications than this: the rest waits in the outbox.
pub const NOTIFICATIONS_MAX: usize = 50_000;

/// That a group changed, as the outbox holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// Its number in the outbox; it rises.
    pub id: i64,
    /// The source whose log it goes to: one of [`Source::LOGGED`].
    pub source: Source,
    /// The group.
    pub group: Group,
}

/// What waits in the outbox for the log of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many notifications.
    pub notifications: u64,
    /// The newest one's number; 0 if there is none.
    pub newest: i64,
}

/// What became of some rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Rows that were taken, those among them that were older than what is stored.
    pub accepted: u64,
    /// Rows that were not taken: by index, with the reason.
    pub rejected: Vec<(usize, String)>,
    /// Rows that were left out: they are of athletes who were erased.
    pub erased: u64,
    /// What is to be told now: at most [`NOTIFICATIONS_MAX`].
    pub notifications: Vec<Notification>,
    /// Whether there is more to tell: that waits in the outbox ([`CanonRead::pending`]).
    pub more_pending: bool,
}

/// What became of an athlete's wish to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorized {
    /// It is done: the id of the new authorization, and what is to be told.
    New {
        /// The id.
        id: i64,
        /// What is to be told now.
        notification: Notification,
    },
    /// The athlete was connected already.
    Already,
    /// There is no room.
    Full {
        /// How many different athletes are connected.
        connected: i64,
        /// How many may be.
        capacity: i64,
    },
    /// There is no such application.
    UnknownApplication,
    /// The athlete was deleted, and has not come back.
    AthleteDeleted,
    /// The athlete was erased, and does not come back.
    AthleteErased,
}

/// What became of an athlete's wish to disconnect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// It is done, and this is to be told; nothing if the athlete was not connected.
    Done(Option<Notification>),
    /// There is no such application.
    UnknownApplication,
}

/// All rows of the first of some groups.
#[derive(Debug, Clone)]
pub struct FirstGroups {
    /// The rows, with the columns of [`schemas::entities::schema`].
    pub rows: RecordBatch,
    /// Of how many of the groups they are, from the first one on.
    pub groups: usize,
}

/// Rows of an answer: values as texts, nothing where there is none.
pub type AnsweredRows = Vec<Vec<Option<String>>>;

/// What a query gives.
pub struct Answered {
    /// The names of its columns.
    pub columns: Vec<String>,
    /// Its rows, some at a time.
    pub rows: BoxStream<'static, Result<AnsweredRows>>,
}

impl std::fmt::Debug for Answered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Answered");
        shown
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// How many rows of a table name an athlete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsOf {
    /// The table.
    pub table: &'static str,
    /// How many rows.
    pub rows: u64,
    /// Whether they are an app's own, of which the table is a view: nobody deletes them but the app.
    pub are_apps: bool,
}

/// Reading the canonical store.
#[async_trait]
pub trait CanonRead: std::fmt::Debug + Send + Sync {
    /// All rows of as many of some groups as have at most `rows_max` rows together, in the order in
    /// which the groups are given, as of one moment, with the columns of
    /// [`schemas::entities::schema`]. Deleted rows and hidden ones are among them. The first group is
    /// answered whatever its size. No group may be given twice.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for a source that has no groups.
    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups>;

    /// All rows of some groups, in the order of the groups; as [`CanonRead::first_groups`].
    ///
    /// # Errors
    /// As [`CanonRead::first_groups`].
    async fn groups(&self, source: Source, groups: &[Group]) -> Result<RecordBatch> {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        let all = self.first_groups(source, &groups, usize::MAX).await?;
        Ok(all.rows)
    }

    /// All rows of a source, or those of some keys, as of one moment: batches of at most
    /// `batch_rows` rows with the columns of [`schemas::entities::schema`], in the order of key,
    /// member and id. No table is held in memory.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for a source that has no groups.
    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>>;

    /// What a query that somebody else wrote gives, read in a transaction that can't write, within so many
    /// milliseconds. No answer is held in memory.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for what is no single query, writes, or takes longer.
    async fn ask(&self, query: &str, wait_ms: u64) -> Result<Answered>;

    /// The athletes in a club, ascending.
    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>>;

    /// Whom an athlete follows, ascending.
    async fn followed_by(&self, athlete_id: i64) -> Result<Vec<i64>>;

    /// Applications by id, each where it is known.
    async fn application(&self, id: i64) -> Result<Option<Application>>;

    /// Applications in the order of their ids, after one of them, at most `limit`.
    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>>;

    /// The version of the stored row with the id of each of some rows, where there is one.
    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>>;

    /// What waits in the outbox for the log of a source.
    async fn waiting(&self, source: Source) -> Result<Waiting>;

    /// Notifications for the log of a source that are not known to be in it, up to the number
    /// `newest`, oldest first, at most `limit`.
    async fn pending(&self, source: Source, newest: i64, limit: usize)
    -> Result<Vec<Notification>>;
}

/// Changing the canonical store. Each call is one transaction.
#[async_trait]
pub trait CanonWrite: CanonRead {
    /// Applies rows in their order: a row whose version is older than the stored one changes
    /// nothing, one that would move an effort or an authorization to another group is rejected.
    /// A row that the store can't hold is rejected too, such as a text with the sign U+0000 in
    /// PostgreSQL. Each touched group is told of once. A change of an athlete that views can see touches the
    /// groups of all efforts of that athlete.
    async fn apply(&self, rows: &[Entity], now_ms: i64) -> Result<Applied> {
        self.apply_by(rows, INGEST, now_ms).await
    }

    /// Applies rows as [`CanonWrite::apply`] does; records of what they change of applications name `actor`.
    async fn apply_by(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<Applied>;

    /// Connects an athlete to an application, if there is room, if its capacity is not enforced, or if the
    /// athlete is connected already.
    /// What is counted is a counter of different connected athletes, which every way of changing
    /// authorizations keeps.
    async fn authorize(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<Authorized>;

    /// Takes back all of an athlete's authorizations of an application. The rows stay, with their
    /// versions: a line that is applied later decides again. A row made by [`CanonWrite::authorize`]
    /// has version 0.
    async fn revoke(&self, application_id: i64, athlete_id: i64, now_ms: i64) -> Result<Revoked>;

    /// Takes notifications out of the outbox: they are in the log.
    async fn notified(&self, ids: &[i64]) -> Result<()>;
}

/// Taking an athlete out of the canonical store. Whoever looks here sees all rows, also of those who are
/// suppressed.
#[async_trait]
pub trait CanonErase: std::fmt::Debug + Send + Sync {
    /// How many rows name an athlete, by table: every table that may is among the answers. All of a table is
    /// read where no index leads to them.
    async fn rows_of(&self, athlete_id: i64) -> Result<Vec<RowsOf>>;

    /// Deletes rows of an athlete from one of the tables that are ours, in one transaction, and tells of the
    /// groups that they are of; answers how many rows it found, at most `limit`: 0 once there are none.
    /// Authorizations come first, and the athlete last, who may be deleted: so no counter rises meanwhile.
    async fn erase_rows(&self, athlete_id: i64, limit: usize, now_ms: i64) -> Result<u64>;

    /// Tells of all groups of an athlete whose rows are an app's own; of others nothing is told.
    async fn tell_of(&self, athlete_id: i64, now_ms: i64) -> Result<()>;

    /// Deletes the rows of some groups where they are ours, and tells nobody: whoever asks for it is counting
    /// these groups just now.
    async fn erase_groups(&self, source: Source, groups: &[Group]) -> Result<()>;
}
