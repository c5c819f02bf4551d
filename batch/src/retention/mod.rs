//! What is kept for how long: what there is of each kind, what a policy lets go, and what stays in spite of it, and why.
//!
//! Nothing goes that a run needs, be it under way, unfinished or yet to come: what is deleted of a source is deleted
//! under the lease of its runs, after it was asked what they rest on. Most kinds have a limit of their own, which no setting
//! changes; for the others everything is kept unless a setting says how many days.

mod events;
mod files;
mod report;
mod topics;

use std::sync::Arc;

use schemas::source::{Source, SourceKind};
use serde::{Deserialize, Serialize};
use stores::aged::{AgedCount, AgedRecords, Ageing};
use stores::reconciliations;
use tokio_util::sync::CancellationToken;

pub use report::{Amount, HeldBack, Kind, KindReport};

use crate::run::go_on;
use crate::{Batch, Error, Result};

const DAY_MS: i64 = 86_400_000;
/// Records that go in one transaction.
const AT_ONCE: usize = 1_000;

/// How many days are kept, of what is kept for ever unless this is said (0).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionOptions {
    /// Events in the archive: files of which all events are of days longer ago. What they count stays in the
    /// results. At least 2 if it is not 0: the day that has begun anywhere on earth is not over.
    pub archive_days: u32,
    /// What was changed of applications, and records of comparisons.
    pub audit_days: u32,
    /// Requests for capacity, from the day on which they were decided.
    pub capacity_requests_days: u32,
    /// Notices of capacities that are delivered.
    pub capacity_notices_days: u32,
}

impl RetentionOptions {
    /// Whether anything is to be let go.
    #[must_use]
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    const fn days_of(&self, of: Ageing) -> u32 {
        match of {
            Ageing::Audit => self.audit_days,
            Ageing::CapacityRequests => self.capacity_requests_days,
            Ageing::CapacityNotices => self.capacity_notices_days,
        }
    }
}

/// Whether anything is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Looking,
    Deleting,
}

/// What lets old things go.
#[derive(Debug)]
pub struct Retention {
    batch: Batch,
    records: Arc<dyn AgedRecords>,
    options: RetentionOptions,
}

impl Retention {
    /// Over the stores of a batch layer, and the records beside the canonical rows.
    #[must_use]
    pub const fn build(
        batch: Batch,
        records: Arc<dyn AgedRecords>,
        options: RetentionOptions,
    ) -> Self {
        Self {
            batch,
            records,
            options,
        }
    }

    /// What there is and what would go. Nothing is deleted.
    ///
    /// # Errors
    /// Those of the stores.
    pub async fn show(&self) -> Result<Vec<KindReport>> {
        self.all(Doing::Looking, &CancellationToken::new()).await
    }

    /// Lets go of what may go. A run or backfill that is under way is not waited for: what it may need stays, and the
    /// report says so. What was begun and not done is done by the next call.
    ///
    /// # Errors
    /// Those of the stores, and [`Error::Stopped`].
    pub async fn run(&self, stop: &CancellationToken) -> Result<Vec<KindReport>> {
        self.all(Doing::Deleting, stop).await
    }

    async fn all(&self, doing: Doing, stop: &CancellationToken) -> Result<Vec<KindReport>> {
        let mut reports = Vec::new();
        for source in Source::LOGGED {
            if source.kind() == SourceKind::Facts {
                reports.push(self.events(source, doing, stop).await?);
            }
        }
        for source in Source::LOGGED {
            reports.push(self.results(source, doing, stop).await?);
            if source.kind() == SourceKind::Entities {
                reports.push(self.snapshots(source).await?);
            }
            reports.push(self.live_epochs(source).await?);
            reports.push(self.run_records(source).await?);
        }
        for of in Ageing::ALL {
            reports.push(self.records(of, doing, stop).await?);
        }
        for source in Source::LOGGED {
            reports.push(self.comparisons(source, doing, stop).await?);
        }
        reports.extend(self.topics().await?);
        Ok(reports)
    }

    /// The moment before which something is older than so many days.
    fn before_ms(&self, days: u32) -> i64 {
        let span = i64::from(days).saturating_mul(DAY_MS);
        self.batch.ports.clock.now_ms().saturating_sub(span)
    }

    /// The same; no moment is before it if nothing is too old.
    fn aged_before_ms(&self, days: u32) -> i64 {
        match days {
            0 => i64::MIN,
            days => self.before_ms(days),
        }
    }

    /// Records beside the canonical rows.
    async fn records(
        &self,
        of: Ageing,
        doing: Doing,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let (kind, why) = match of {
            Ageing::Audit => (Kind::Audit, "they are needed"),
            Ageing::CapacityRequests => (Kind::CapacityRequests, "nobody has decided them yet"),
            Ageing::CapacityNotices => (
                Kind::CapacityNotices,
                "they are of the capacity that an application has now and would be made once more, or are not delivered yet",
            ),
        };
        let days = self.options.days_of(of);
        let mut report = KindReport::new(kind, None, policy_of(days));
        let before_ms = self.aged_before_ms(days);
        let found = self.records.aged(of, before_ms).await?;
        report.hold_back(found.needed, None, why);
        let forget = || self.records.forget_aged(of, before_ms, AT_ONCE);
        forget_aged(&mut report, &found, doing, stop, forget).await?;
        Ok(report)
    }

    /// Records of comparisons, which are audit too.
    async fn comparisons(
        &self,
        source: Source,
        doing: Doing,
        stop: &CancellationToken,
    ) -> Result<KindReport> {
        let days = self.options.audit_days;
        let mut report = KindReport::new(Kind::Comparisons, Some(source), policy_of(days));
        let before_ms = self.aged_before_ms(days);
        let records = &*self.batch.ports.records;
        let found = reconciliations::aged(records, source, before_ms).await?;
        let forget = || reconciliations::forget_aged(records, source, before_ms, AT_ONCE);
        forget_aged(&mut report, &found, doing, stop, forget).await?;
        Ok(report)
    }
}

/// Reports aged records, and deletes them step by step.
async fn forget_aged<F>(
    report: &mut KindReport,
    found: &AgedCount,
    doing: Doing,
    stop: &CancellationToken,
    forget: impl Fn() -> F,
) -> Result<()>
where
    F: Future<Output = stores::Result<u64>>,
{
    report.held = Amount::counted(found.all, found.oldest_ms);
    report.would_go.count = found.aged;
    while doing == Doing::Deleting && report.went.count < found.aged {
        go_on(stop)?;
        let gone = forget().await?;
        if gone == 0 {
            break;
        }
        report.went.count += gone;
    }
    Ok(())
}

/// A policy of so many days, in words.
fn policy_of(days: u32) -> String {
    match days {
        0 => "for ever".to_owned(),
        days => format!("{days} days"),
    }
}

/// Why nothing is deleted now, where that is no failure: somebody else is at work.
fn busy<T>(taken: Result<T>) -> Result<Result<T, String>> {
    match taken {
        Ok(taken) => Ok(Ok(taken)),
        Err(Error::Busy(why)) => Ok(Err(why)),
        Err(error) => Err(error),
    }
}
