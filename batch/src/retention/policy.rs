//! Retention policies: the settings, and what all kinds of data share.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stores::expiry::{ExpiringRecords, RecordExpiry};

use crate::{Batch, Error, Result};

const DAY_MS: i64 = 86_400_000;

/// Retention in days; 0 keeps data forever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionOptions {
    /// Event files of the archive, if all their events are older. Results still count the events.
    /// At least 2 if not 0, because the current day is not over everywhere on earth.
    pub archive_days: u32,
    /// Changes of applications, and records of comparisons.
    pub audit_days: u32,
    /// Capacity requests, from the day of their decision.
    pub capacity_requests_days: u32,
    /// Delivered capacity notices.
    pub capacity_notices_days: u32,
}

impl RetentionOptions {
    /// Returns whether any retention is limited.
    #[must_use]
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    pub(super) const fn days_for(&self, kind: ExpiringRecords) -> u32 {
        match kind {
            ExpiringRecords::Audit => self.audit_days,
            ExpiringRecords::CapacityRequests => self.capacity_requests_days,
            ExpiringRecords::CapacityNotices => self.capacity_notices_days,
        }
    }
}

/// The mode of a retention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Report,
    Delete,
}

/// Deletes old data.
#[derive(Debug)]
pub struct Retention {
    pub(super) batch: Batch,
    pub(super) records: Arc<dyn RecordExpiry>,
    pub(super) options: RetentionOptions,
}

impl Retention {
    /// Creates the retention of a batch layer's stores and of the records in the entity store.
    #[must_use]
    pub const fn new(
        batch: Batch,
        records: Arc<dyn RecordExpiry>,
        options: RetentionOptions,
    ) -> Self {
        Self {
            batch,
            records,
            options,
        }
    }

    /// Returns the time `days` ago, in milliseconds since the Unix epoch.
    pub(super) fn days_ago_ms(&self, days: u32) -> i64 {
        let span = i64::from(days).saturating_mul(DAY_MS);
        self.batch.ports.clock.now_ms().saturating_sub(span)
    }
}

/// Describes a policy of `days` days.
pub(super) fn format_policy(days: u32) -> String {
    match days {
        0 => "forever".to_owned(),
        days => format!("{days} days"),
    }
}

/// Returns the reason as a value if another process holds the lease, since this is not a failure.
pub(super) fn or_busy_reason<T>(acquired: Result<T>) -> Result<Result<T, String>> {
    match acquired {
        Ok(acquired) => Ok(Ok(acquired)),
        Err(Error::Busy(reason)) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}
