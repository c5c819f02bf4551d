//! Records of the entity store and of comparisons, which age.

use schemas::source::Source;
use stores::expiry::{ExpiringRecords, ExpiryCount};
use stores::reconciliations;
use tokio_util::sync::CancellationToken;

use super::policy::{Mode, Retention, policy_text};
use super::report::{Amount, DataKind, KindReport};
use crate::Result;
use crate::lease::check_stop;

/// Records that are deleted in one transaction.
const RECORDS_AT_ONCE: usize = 1_000;

impl Retention {
    /// Returns the time before which records are too old; none are if `days` is 0.
    fn aged_before_ms(&self, days: u32) -> i64 {
        match days {
            0 => i64::MIN,
            days => self.before_ms(days),
        }
    }

    /// Reports aged records of the entity store, and deletes old ones.
    pub(super) async fn process_records(
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
    pub(super) async fn process_comparisons(
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
