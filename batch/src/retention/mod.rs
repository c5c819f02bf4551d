//! Retention: reports the stored data of each kind, deletes data that its policy no longer keeps,
//! and explains why other old data remains.
//!
//! Data that a current, unfinished or future run needs is never deleted. To delete data of a
//! source, this module acquires its run lease and then reads which data runs need. Most kinds have
//! a fixed limit; the others are kept forever unless a setting limits their days.

mod events;
mod files;
mod no_lease;
mod policy;
mod records;
mod report;
mod topics;

use schemas::source::{Source, SourceKind};
use stores::expiry::ExpiringRecords;
use tokio_util::sync::CancellationToken;

use self::policy::Mode;
pub use policy::{Retention, RetentionOptions};
pub use report::{Amount, DataKind, KindReport, RetainedItems};

use crate::Result;

impl Retention {
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
    /// Errors of the stores, and [`crate::Error::Stopped`].
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
        for kind in ExpiringRecords::ALL {
            reports.push(self.process_records(kind, mode, stop).await?);
        }
        for source in Source::LOGGED {
            reports.push(self.process_comparisons(source, mode, stop).await?);
        }
        reports.extend(self.report_topics().await?);
        Ok(reports)
    }
}
