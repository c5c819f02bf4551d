//! The protocol that makes live state, batch rows and readers agree: checkpoints, epochs, cuts.
//!
//! These are pure rules on values; nothing here reads or writes a store. An adapter of the live
//! port loads a [`PartitionState`], calls one of its methods, and stores the result together with
//! the live deltas in one atomic step. The terms:
//!
//! - A **partition state** is the live state of one log partition.
//! - Its **checkpoint** names the next offset to apply and the epoch that is being filled.
//! - An **epoch** ends at a **cut**. Run e covers exactly the events below the cuts of epoch e.
//! - A **read** adds the live deltas of the epochs after e to a batch row of epoch e. It does so
//!   only if the partition state ended its epoch e exactly at run e's sealed cut.
//!
//! Callers must keep these rules:
//!
//! - A reader reads the run records with the newest complete epochs first, then partition states
//!   with their deltas, then rows. It reads the partition states of all partitions of the log, and
//!   of [`Runs::partition_count`] if that is larger. It fails for a view that has a complete run
//!   but no rows table.
//! - A worker reads the partition state first and then the run records.
//! - A run records its result before it takes a stamp, and takes a stamp only while no newer run is
//!   recorded. After its cuts are sealed, it reads the results that were recorded since. It leaves
//!   a row unchanged only if all results since the published one agree on that row.

pub mod live_count;
mod partition_state;
mod read;
mod run;
mod seal;
mod worker;

pub use partition_state::{
    Checkpoint, CheckpointMismatch, Cut, EndEpochError, GenerationStart, LastRecord, PartitionState,
};
pub use read::{base_epoch, is_readable};
pub use run::{Run, RunState, Runs};
pub use seal::can_seal;
pub use worker::{WorkerStep, needs_rebuild, next_step};

/// The number of an interval of the log between two cuts. Epoch 0 is empty.
pub type Epoch = u64;

/// A position in a log partition.
pub type Offset = i64;

/// The incarnation of a partition state. Live deltas of another generation never count.
pub type Generation = u64;
