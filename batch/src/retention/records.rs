//! Records of the entity store and of comparisons, which age.

use schemas::source::Source;
use stores::expiry::{ExpiringRecords, ExpiryCount};
use stores::reconciliations;
use tokio_util::sync::CancellationToken;

use super::policy::{Mode, Retention, format_policy};
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
            days => self.days_ago_ms(days),
        }
    }

    /// Reports aged records of the entity store, and deletes old ones.
    pub(super) async fn process_records(
        &self,
        records: ExpiringRecords,
        mode: Mode,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let (kind, reason) = match records {
            ExpiringRecords::Audit => (DataKind::Audit, "they are needed"),
            ExpiringRecords::CapacityRequests => {
                (DataKind::CapacityRequests, "they are not decided yet")
            }
            ExpiringRecords::CapacityNotices => (
                DataKind::CapacityNotices,
                "they are not delivered yet, or are about the current capacity of an application and would be created again",
            ),
        };
        let days = self.options.days_for(records);
        let mut report = KindReport::new(kind, None, format_policy(days));
        let before_ms = self.aged_before_ms(days);
        let count = self.records.count_expired(records, before_ms).await?;
        report.retain(count.retained, None, reason);
        let purge = || {
            self.records
                .purge_expired(records, before_ms, RECORDS_AT_ONCE)
        };
        report_and_purge(&mut report, &count, mode, stop, purge).await?;
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
        let mut report = KindReport::new(DataKind::Comparisons, Some(source), format_policy(days));
        let before_ms = self.aged_before_ms(days);
        let records = &*self.batch.ports.records;
        let count = reconciliations::count_expired(records, source, before_ms).await?;
        let purge = || reconciliations::purge_expired(records, source, before_ms, RECORDS_AT_ONCE);
        report_and_purge(&mut report, &count, mode, stop, purge).await?;
        Ok(report)
    }
}

/// Reports aged records, and deletes them in steps.
async fn report_and_purge<F>(
    report: &mut KindReport,
    count: &ExpiryCount,
    mode: Mode,
    stop: &CancellationToken,
    purge: impl Fn() -> F,
) -> Result<()>
where
    F: Future<Output = stores::Result<u64>>,
{
    report.stored = Amount::new(count.total, count.oldest_ms);
    report.eligible.count = count.expired;
    while mode == Mode::Delete && report.deleted.count < count.expired {
        check_stop(stop)?;
        let deleted = purge().await?;
        if deleted == 0 {
            break;
        }
        report.deleted.count += deleted;
    }
    Ok(())
}
