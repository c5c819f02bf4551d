//! The batch layer. A run ends the epoch, archives the log, recomputes the views, checks and
//! publishes what differs, records itself complete, prunes live epochs, and reports the drift of
//! live state.
//!
//! A run may die at any point. The next run keeps recorded work and repeats the rest, and answers
//! stay exact meanwhile. This crate uses no database client and nothing of the other layers.

mod archive;
mod batch;
mod board;
mod concurrency;
mod drift;
mod erase;
mod error;
mod executor;
mod lease;
mod manifest_file;
mod options;
mod pages;
mod report;
mod restore;
mod results;
mod retention;
mod run;
mod run_steps;
mod seal;
mod snapshot;
mod table;
mod tally;
mod task;
mod view_tables;
mod worker;

pub use archive::{ArchiveReport, Backfill, BackfillReport};
pub use batch::Batch;
pub use drift::{Cause, Drift, DriftedKey, ViewDrift};
pub use erase::{ErasePorts, EraseRequest, ErasedPlace, Eraser, Finding, Receipt};
pub(crate) use error::query_error;
pub use error::{Error, Result};
pub use executor::Workers;
pub use options::{BatchOptions, BatchPorts, Progress, RunRequest, VersionOptions};
pub use report::{RunReport, Seconds};
pub use restore::{
    Address, Applied, Cause as ReconcileCause, ChangesFile, Difference, Expected, OfCause,
    Outcome as ReconcileOutcome, Policy, ReconcileReport, ReconcileRequest, Reconciled, Recorded,
    Restoration, RestorationKind, Scheduled, ScheduledView, When,
};
pub use retention::{Amount, DataKind, KindReport, RetainedItems, Retention, RetentionOptions};
pub use snapshot::SnapshotReport;
pub use worker::Worker;
