//! The batch layer: rolls the epoch, archives, recomputes exactly, checks, publishes what differs,
//! completes, lets go of live epochs, and says how far live state had drifted.
//!
//! A run may die at any point and be run again: what it had recorded stands, what it had not is
//! made anew, and readers are right throughout. This crate knows no store's client and nothing of
//! the other layers.

mod archive;
mod board;
mod drift;
mod erase;
mod error;
mod executor;
mod manifest_file;
mod options;
mod pages;
mod report;
mod restore;
mod results;
mod retention;
mod run;
mod seal;
mod side_by_side;
mod snapshot;
mod table;
mod tally;
mod task;
mod worker;

pub use archive::{ArchiveReport, Backfill, BackfillReport};
pub use drift::{Cause, Drift, DriftedKey, ViewDrift};
pub use erase::{ErasePorts, EraseRequest, Erased, Eraser, Finding, Receipt};
pub(crate) use error::failed_of;
pub use error::{Error, Result};
pub use executor::Workers;
pub use options::{BatchOptions, BatchPorts, EditionOptions, Progress, RunRequest};
pub use report::{RunReport, Seconds};
pub use restore::{
    Address, Applied, Cause as RestoreCause, ChangesFile, Difference, Expected, OfCause,
    Outcome as RestoreOutcome, Policy, Reconciled, Recorded, Restoration, RestorationKind,
    RestoreReport, RestoreRequest, Scheduled, ScheduledView, When,
};
pub use retention::{Amount, HeldBack, Kind, KindReport, Retention, RetentionOptions};
pub use run::Batch;
pub use snapshot::SnapshotReport;
pub use worker::Worker;
