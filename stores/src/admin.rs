//! The port of those who look after applications: how many athletes may connect, whether that is
//! enforced, who changed it and when, and what developers ask for.
//!
//! Each call that changes something is one transaction, decided while the counter of the application
//! is held by which athletes connect ([`crate::canon::CanonWrite::authorize`]): so changes and connecting
//! have one order, and a change is never without its record. What an app changes by SQL of its own is
//! recorded by nobody but the app.

use async_trait::async_trait;
use schemas::entities::Application;
use serde_json::Value;

use crate::Result;
use crate::aged::AgedRecords;
use crate::canon::CanonWrite;
use crate::names::Names;
use crate::notices::Notices;
use crate::recounts::Recounts;

/// The most bytes that a text may have which somebody gives: a reason, an answer, who it is.
pub const TEXT_BYTES_MAX: usize = 1024;

/// The actor of changes that ingested lines of applications make; with a key `ingest, NAME (key ID)`.
pub const INGEST: &str = "ingest";

/// The actor of changes that lines make which were sent with a key, as records name it.
#[must_use]
pub fn ingested_by(key: &str) -> String {
    format!("{INGEST}, {key}")
}

/// Whether a name is reserved for changes by ingested lines.
#[must_use]
pub fn is_reserved(actor: &str) -> bool {
    let rest = actor.trim().strip_prefix(INGEST);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
}

/// An application, and how much of its capacity is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The application.
    pub application: Application,
    /// Whether no more athletes are let in than its capacity says.
    pub is_enforced: bool,
    /// Different athletes that are connected, by the counter which capacities are held by; nothing where
    /// authorizations are a view of an app's own table, which nobody counts.
    pub connected: Option<i64>,
}

/// Who changes something, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct By {
    /// Who: at most [`TEXT_BYTES_MAX`] bytes.
    pub actor: String,
    /// Why, if that is said: at most as many.
    pub reason: Option<String>,
}

/// What is to be changed of an application; the rest stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// How many athletes may be connected, from 0 on.
    pub athlete_capacity: Option<i64>,
    /// Whether that is enforced.
    pub is_enforced: Option<bool>,
}

impl Change {
    /// A change of the capacity alone.
    #[must_use]
    pub const fn capacity(athlete_capacity: i64) -> Self {
        Self {
            athlete_capacity: Some(athlete_capacity),
            is_enforced: None,
        }
    }

    /// A change of the enforcement alone.
    #[must_use]
    pub const fn enforced(is_enforced: bool) -> Self {
        Self {
            athlete_capacity: None,
            is_enforced: Some(is_enforced),
        }
    }
}

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// The capacity.
    Capacity {
        /// What it was.
        before: i64,
        /// What it became.
        after: i64,
    },
    /// Whether the capacity is enforced.
    Enforcement {
        /// Whether it was.
        before: bool,
        /// Whether it is since.
        after: bool,
    },
    /// The owner, which only lines change.
    Owner {
        /// The owner before.
        before: Value,
        /// The owner after.
        after: Value,
    },
}

/// The record of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number, which rises.
    pub id: i64,
    /// Of which application.
    pub application_id: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who: as it was given; [`INGEST`] or [`ingested_by`] for a line.
    pub actor: String,
    /// What.
    pub changed: Changed,
    /// Why, if that was said.
    pub reason: Option<String>,
    /// The request that was granted by it.
    pub request_id: Option<i64>,
}

/// What has become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// Nobody has decided.
    Open,
    /// The capacity was raised.
    Granted,
    /// It was not.
    Refused,
}

impl RequestState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Open, Self::Granted, Self::Refused];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Granted => "granted",
            Self::Refused => "refused",
        }
    }

    /// The state of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// That somebody asked for a higher capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityRequest {
    /// Its number, which rises.
    pub id: i64,
    /// For which application.
    pub application_id: i64,
    /// The capacity that is asked for.
    pub athlete_capacity: i64,
    /// Who asked, and why.
    pub asked: By,
    /// When, in milliseconds since 1970.
    pub asked_at_ms: i64,
    /// What has become of it.
    pub state: RequestState,
    /// Who decided, with the answer to who asked.
    pub decided: Option<By>,
    /// When, in milliseconds since 1970.
    pub decided_at_ms: Option<i64>,
    /// The capacity that was granted.
    pub granted_capacity: Option<i64>,
}

/// What became of a wish for a higher capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// It is written down.
    New(CapacityRequest),
    /// There is one for the application that nobody has decided yet.
    Open(CapacityRequest),
    /// The capacity is at least as high already.
    Enough {
        /// What it is.
        athlete_capacity: i64,
    },
    /// There is no such application.
    UnknownApplication,
}

/// What somebody decides of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The capacity becomes this one; nothing: what was asked for, and one that is higher already stays.
    Grant(Option<i64>),
    /// It stays as it is.
    Refuse,
}

/// What became of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It is done.
    Done {
        /// The request as it is now.
        request: CapacityRequest,
        /// The application as it is now.
        usage: Usage,
    },
    /// Somebody had decided before.
    Already(CapacityRequest),
    /// What would be granted is less than there is: nothing changed, and the request is open.
    Lowers {
        /// What the capacity is.
        athlete_capacity: i64,
    },
    /// There is no such request, or its application is gone.
    Unknown,
}

/// Which requests are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestsOf {
    /// Of one application only.
    pub application_id: Option<i64>,
    /// In one state only.
    pub state: Option<RequestState>,
}

/// Looking after applications.
#[async_trait]
pub trait CanonAdmin: CanonWrite + Names + Notices + Recounts + AgedRecords {
    /// Applications with their usage in the order of their ids, after one of them, at most `limit`.
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<Usage>>;

    /// The usage of some applications: those that are known, by id.
    async fn usages_of(&self, ids: &[i64]) -> Result<Vec<Usage>>;

    /// Changes an application and records what changed by it; the application as it is then, if there is
    /// one. Its version stays: a line that is applied later decides about the capacity again. What is as it was is
    /// not recorded.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for the capacity of applications that are a view of an app's own table.
    async fn change(
        &self,
        application_id: i64,
        change: Change,
        by: &By,
        now_ms: i64,
    ) -> Result<Option<Usage>>;

    /// What was changed of an application, newest first, before the entry with a number, at most
    /// `limit`.
    async fn audit(
        &self,
        application_id: i64,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>>;

    /// Writes down that a higher capacity is wished for. There is at most one open request of an
    /// application.
    async fn request_capacity(
        &self,
        application_id: i64,
        athlete_capacity: i64,
        by: &By,
        now_ms: i64,
    ) -> Result<Requested>;

    /// Requests, newest first, before the one with a number, at most `limit`.
    async fn capacity_requests(
        &self,
        of: RequestsOf,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CapacityRequest>>;

    /// Decides a request, and changes and records the capacity with it.
    ///
    /// # Errors
    /// As [`CanonAdmin::change`], if it is granted.
    async fn decide(
        &self,
        request_id: i64,
        decision: Decision,
        by: &By,
        now_ms: i64,
    ) -> Result<Decided>;
}
