//! The port of application management: capacities, their enforcement, the audit log, and capacity
//! requests.
//!
//! Each change is one transaction under the lock of the application's counter, which connecting
//! athletes ([`crate::entities::EntityWrite::authorize`]) takes too. So changes and connections
//! have one order, and every change has its audit entry. Changes that an application makes with its
//! own SQL are not audited.

use async_trait::async_trait;
use schemas::entities::Application;
use serde_json::Value;

use crate::Result;
pub use crate::actor::{INGEST, ingest_actor, is_reserved_actor};
use crate::entities::EntityWrite;
use crate::expiry::RecordExpiry;
use crate::names::Names;
use crate::notices::Notices;
use crate::recounts::Recounts;

/// The maximum size of a text that a user enters: a reason, an answer, or an actor.
pub const TEXT_BYTES_MAX: usize = 1024;

/// An application, and how much of its capacity is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplicationUsage {
    /// The application.
    pub application: Application,
    /// True if connections beyond the capacity are refused.
    pub is_enforced: bool,
    /// The counter of distinct connected athletes, which capacities are compared with. `None` if
    /// authorizations are a view on an application's own table, which has no counter.
    pub connected: Option<i64>,
}

/// The author of a change, and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditContext {
    /// The author, at most [`TEXT_BYTES_MAX`] bytes.
    pub actor: String,
    /// The reason, if given, at most [`TEXT_BYTES_MAX`] bytes.
    pub reason: Option<String>,
}

/// A change of an application. Absent fields stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ApplicationChange {
    /// The maximum number of connected athletes, from 0.
    pub athlete_capacity: Option<i64>,
    /// True if the capacity is enforced.
    pub is_enforced: Option<bool>,
}

impl ApplicationChange {
    /// Changes the capacity alone.
    #[must_use]
    pub const fn capacity(athlete_capacity: i64) -> Self {
        Self {
            athlete_capacity: Some(athlete_capacity),
            is_enforced: None,
        }
    }

    /// Changes the enforcement alone.
    #[must_use]
    pub const fn enforced(is_enforced: bool) -> Self {
        Self {
            athlete_capacity: None,
            is_enforced: Some(is_enforced),
        }
    }
}

/// A change in the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditedChange {
    /// The capacity.
    Capacity {
        /// The old value.
        before: i64,
        /// The new value.
        after: i64,
    },
    /// The enforcement of the capacity.
    Enforcement {
        /// The old value.
        before: bool,
        /// The new value.
        after: bool,
    },
    /// The owner, which only lines change.
    Owner {
        /// The old value.
        before: Value,
        /// The new value.
        after: Value,
    },
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The ascending number.
    pub id: i64,
    /// The application.
    pub application_id: i64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The author as given; [`INGEST`] or [`ingest_actor`] for a line.
    pub actor: String,
    /// The change.
    pub changed: AuditedChange,
    /// The reason, if given.
    pub reason: Option<String>,
    /// The capacity request that this change granted.
    pub request_id: Option<i64>,
}

/// The state of a capacity request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// Not decided yet.
    Open,
    /// The capacity was raised.
    Granted,
    /// The request was refused.
    Refused,
}

impl RequestState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Open, Self::Granted, Self::Refused];

    /// The name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Granted => "granted",
            Self::Refused => "refused",
        }
    }

    /// The state with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// A request for a higher capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityRequest {
    /// The ascending number.
    pub id: i64,
    /// The application.
    pub application_id: i64,
    /// The requested capacity.
    pub athlete_capacity: i64,
    /// The requester, and the reason.
    pub requested_by: AuditContext,
    /// When it was made, in milliseconds since the Unix epoch.
    pub requested_at_ms: i64,
    /// The state.
    pub state: RequestState,
    /// The author of the decision, with the answer to the requester.
    pub decided_by: Option<AuditContext>,
    /// When it was decided, in milliseconds since the Unix epoch.
    pub decided_at_ms: Option<i64>,
    /// The granted capacity.
    pub granted_capacity: Option<i64>,
}

/// The result of requesting a higher capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacityRequestOutcome {
    /// The request is stored.
    Created(CapacityRequest),
    /// The application has an open request already.
    AlreadyOpen(CapacityRequest),
    /// The capacity is at least as high already.
    AlreadySufficient {
        /// The capacity.
        athlete_capacity: i64,
    },
    /// The application does not exist.
    UnknownApplication,
}

/// A decision about a capacity request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestDecision {
    /// Sets the capacity to this value; `None` grants the requested one, and keeps a higher one.
    Grant(Option<i64>),
    /// Keeps the capacity.
    Refuse,
}

/// The result of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionOutcome {
    /// The decision is stored.
    Done {
        /// The request after the decision.
        request: CapacityRequest,
        /// The application after the decision.
        usage: ApplicationUsage,
    },
    /// The request was decided before.
    AlreadyDecided(CapacityRequest),
    /// The granted capacity is lower than the current one. Nothing changed, and the request is
    /// still open.
    WouldLower {
        /// The current capacity.
        athlete_capacity: i64,
    },
    /// The request or its application does not exist.
    Unknown,
}

/// Selects capacity requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapacityRequestFilter {
    /// Only requests of this application.
    pub application_id: Option<i64>,
    /// Only requests in this state.
    pub state: Option<RequestState>,
}

/// Manages applications.
#[async_trait]
pub trait EntityAdmin: EntityWrite + Names + Notices + Recounts + RecordExpiry {
    /// Applications with their usage in the order of their ids, after one of them, at most `limit`.
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<ApplicationUsage>>;

    /// The usage of the existing applications among `ids`, by id.
    async fn usages_by_id(&self, ids: &[i64]) -> Result<Vec<ApplicationUsage>>;

    /// Changes an application and audits each value that differs. Returns the application after the
    /// change, if it exists. Its version stays, so a line that is applied later decides about the
    /// capacity again.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] for the capacity of applications that are a view on an
    /// application's own table.
    async fn change_application(
        &self,
        application_id: i64,
        change: ApplicationChange,
        context: &AuditContext,
        now_ms: i64,
    ) -> Result<Option<ApplicationUsage>>;

    /// Audit entries of an application, newest first, before the entry with a number, at most
    /// `limit`.
    async fn audit_entries(
        &self,
        application_id: i64,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>>;

    /// Stores a request for a higher capacity. An application has at most one open request.
    async fn request_capacity(
        &self,
        application_id: i64,
        athlete_capacity: i64,
        context: &AuditContext,
        now_ms: i64,
    ) -> Result<CapacityRequestOutcome>;

    /// Capacity requests, newest first, before the one with a number, at most `limit`.
    async fn capacity_requests(
        &self,
        filter: CapacityRequestFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CapacityRequest>>;

    /// Decides a request. A grant changes the capacity and audits the change in the same
    /// transaction.
    ///
    /// # Errors
    /// As [`EntityAdmin::change_application`], for a grant.
    async fn decide_request(
        &self,
        request_id: i64,
        decision: RequestDecision,
        context: &AuditContext,
        now_ms: i64,
    ) -> Result<DecisionOutcome>;
}
