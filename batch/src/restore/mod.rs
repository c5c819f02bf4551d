//! The Restorator of tallies: what is served beside what it should be, key by key, and putting it right.
//!
//! What the events give is counted from the archive by the view's own queries, not from what runs left behind. It is
//! compared with the rows of the table and with live state as both are now, at one place of the log: whoever reads
//! gets their sum. All of it goes through files on the local disk, so memory is that of the query engine.
//!
//! It holds the lease of batch runs: no run publishes meanwhile, and two Restorators wait for each other. Readers and
//! the speed layer go on.

mod applied;
mod apply;
mod behind;
mod boards;
mod cause;
mod claims;
mod collect;
mod compare;
mod correct;
mod correction_index;
mod held_back;
mod history;
mod journal;
mod kept;
mod live;
mod reconcile;
mod recount;
mod repair;
mod report;
mod request;
mod run_again;
mod scheduled;
mod scope;
mod side;
mod sides;
mod spool;
mod stored;
mod stray;
mod undo;

pub use applied::Applied;
pub use cause::Cause;
pub(crate) use correct::{CHANGE, STEP_ROWS as CHANGES_BATCH_ROWS, encode_changes};
pub use history::Outcome;
pub(crate) use history::{parts_of, redact_record};
pub(crate) use journal::changes_folder;
pub use journal::{ChangesFile, Recorded, Restoration, RestorationKind};
pub use report::{Difference, OfCause, ReconcileReport};
pub use request::{Address, Expected, ReconcileRequest};
pub use scheduled::{Policy, Reconciled, Scheduled, ScheduledView, When};
