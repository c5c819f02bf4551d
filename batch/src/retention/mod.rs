//! Retention: reports the stored data of each kind, deletes data that its policy no longer keeps,
//! and explains why other old data remains.
//!
//! Data that a current, unfinished or future run needs is never deleted. Data of a source is
//! deleted under its run lease, after the needs were read. Most kinds have a fixed limit; the
//! others are kept forever unless a setting limits their days.

mod events;
mod files;
mod report;
mod topics;

use std::sync::Arc;

use schemas::source::{Source, SourceKind};
use serde::{Deserialize, Serialize};
use stores::expiry::{ExpiringRecords, ExpiryCount, RecordExpiry};
use stores::reconciliations;
use tokio_util::sync::CancellationToken;

pub use report::{Amount, DataKind, KindReport, RetainedItems};

use crate::run::check_stop;
use crate::{Batch, Error, Result};

const DAY_MS: i64 = 86_400_000;
/// Records that are deleted in one transaction.
const RECORDS_AT_ONCE: usize = 1_000;

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

    const fn days_of(&self, of: ExpiringRecords) -> u32 {
        match of {
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
    batch: Batch,
    records: Arc<dyn RecordExpiry>,
    options: RetentionOptions,
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

    /// Reports the stored data, and the data that [`Retention::run`] would delete. Deletes nothing.
    ///
    /// # Errors
    /// Errors of the stores.
    pub async fn show(&self) -> Result<Vec<KindReport>> {
        self.process_all(Mode::Report, &CancellationToken::new())
            .await
    }

    /// Deletes what may be deleted. Does not wait for a run or backfill under way: data that it may
    /// need remains, and the report says so. The next call finishes an interrupted deletion.
    ///
    /// # Errors
    /// Errors of the stores, and [`Error::Stopped`].
    pub async fn run(&self, stop: &CancellationToken) -> Result<Vec<KindReport>> {
        self.process_all(Mode::Delete, stop).await
    }

    async fn process_all(&self, mode: Mode, stop: &CancellationToken) -> Result<Vec<KindReport>> {
        let mut reports = Vec::new();
        for source in Source::LOGGED {
            if source.kind() == SourceKind::Events {
                reports.push(self.process_events(source, mode, stop).await?);
            }
        }
        for source in Source::LOGGED {
            reports.push(self.process_results(source, mode, stop).await?);
            if source.kind() == SourceKind::Entities {
                reports.push(self.report_snapshots(source).await?);
            }
            reports.push(self.report_live_epochs(source).await?);
            reports.push(self.report_run_records(source).await?);
        }
        for of in ExpiringRecords::ALL {
            reports.push(self.process_records(of, mode, stop).await?);
        }
        for source in Source::LOGGED {
            reports.push(self.process_comparisons(source, mode, stop).await?);
        }
        reports.extend(self.report_topics().await?);
        Ok(reports)
    }

    /// Returns the time `days` ago, in milliseconds since the Unix epoch.
    fn before_ms(&self, days: u32) -> i64 {
        let span = i64::from(days).saturating_mul(DAY_MS);
        self.batch.ports.clock.now_ms().saturating_sub(span)
    }

    /// Returns the time before which records are too old; none are if `days` is 0.
    fn aged_before_ms(&self, days: u32) -> i64 {
        match days {
            0 => i64::MIN,
            days => self.before_ms(days),
        }
    }

    /// Reports aged records of the entity store, and deletes old ones.
    async fn process_records(
        &self,
        of: ExpiringRecords,
        mode: Mode,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let (kind, why) = match of {
            ExpiringRecords::Audit => (DataKind::Audit, "they are needed"),
            ExpiringRecords::CapacityRequests => {
                (DataKind::CapacityRequests, "they are not decided yet")
            }
            ExpiringRecords::CapacityNotices => (
                DataKind::CapacityNotices,
                "they are not delivered yet, or are about the current capacity of an application and would be created again",
            ),
        };
        let days = self.options.days_of(of);
        let mut report = KindReport::new(kind, None, policy_text(days));
        let before_ms = self.aged_before_ms(days);
        let found = self.records.count_expired(of, before_ms).await?;
        report.retain(found.retained, None, why);
        let forget = || self.records.purge_expired(of, before_ms, RECORDS_AT_ONCE);
        purge_expired(&mut report, &found, mode, stop, forget).await?;
        Ok(report)
    }

    /// Reports records of comparisons, which belong to the audit, and deletes old ones.
    async fn process_comparisons(
        &self,
        source: Source,
        mode: Mode,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let days = self.options.audit_days;
        let mut report = KindReport::new(DataKind::Comparisons, Some(source), policy_text(days));
        let before_ms = self.aged_before_ms(days);
        let records = &*self.batch.ports.records;
        let found = reconciliations::count_expired(records, source, before_ms).await?;
        let forget = || reconciliations::purge_expired(records, source, before_ms, RECORDS_AT_ONCE);
        purge_expired(&mut report, &found, mode, stop, forget).await?;
        Ok(report)
    }
}

/// Reports aged records, and deletes them in steps.
async fn purge_expired<F>(
    report: &mut KindReport,
    found: &ExpiryCount,
    mode: Mode,
    stop: &CancellationToken,
    forget: impl Fn() -> F,
) -> Result<()>
where
    F: Future<Output = stores::Result<u64>>,
{
    report.stored = Amount::new(found.total, found.oldest_ms);
    report.eligible.count = found.expired;
    while mode == Mode::Delete && report.deleted.count < found.expired {
        check_stop(stop)?;
        let deleted = forget().await?;
        if deleted == 0 {
            break;
        }
        report.deleted.count += deleted;
    }
    Ok(())
}

/// Describes a policy of `days` days.
fn policy_text(days: u32) -> String {
    match days {
        0 => "forever".to_owned(),
        days => format!("{days} days"),
    }
}

/// Returns the reason as a value if another process holds the lease, since this is not a failure.
fn or_busy_reason<T>(acquired: Result<T>) -> Result<Result<T, String>> {
    match acquired {
        Ok(acquired) => Ok(Ok(acquired)),
        Err(Error::Busy(why)) => Ok(Err(why)),
        Err(error) => Err(error),
    }
}
