//! The protocol by which live state, batch rows and readers agree: fences, epochs, cuts.
//!
//! Pure rules on values: nothing here reads or writes a store. An adapter of the live port loads a
//! [`Slot`], calls one of its methods and stores the outcome together with the live parts, in one
//! atomic step. The names are those of the protocol:
//!
//! - a **slot** is the live state of one log partition,
//! - its **fence** says up to where the log has been counted, and into which epoch,
//! - an **epoch** ends at a **cut**; run e covers exactly the events below the cuts of epoch e,
//! - a **read** adds to a batch row of epoch e the live parts of the epochs after e, and only where
//!   the slot shows that its epoch e ended exactly at run e's cut, which can't change any more.
//!
//! What is not decided here, and must be kept by those who call:
//!
//! - A reader reads the run records with the newest complete epochs first, then slots with their
//!   parts, then rows. It asks for the slots of all partitions of the log, and of [`Runs::partitions`]
//!   if those are more. A view that has a newest complete run and no rows table is not answered.
//! - A worker reads the slot first and then the run records.
//! - A run records its result before it takes a stamp, takes a stamp only while no newer run is
//!   recorded, and reads the results that were recorded after its own cuts are sealed. It leaves a row
//!   alone only if all results since the published one agree about it.

mod read;
mod run;
mod seal;
mod slot;
pub mod sum;
mod worker;

pub use read::{base, whole};
pub use run::{Run, RunState, Runs};
pub use seal::sealable;
pub use slot::{Cut, Fence, LastRecord, Moved, NewLife, RollRefused, Slot};
pub use worker::{Step, broken, next_step};

/// The number of a stretch of the log between two cuts. Epoch 0 holds nothing.
pub type Epoch = u64;

/// A position in a log partition.
pub type Offset = i64;

/// The number of a slot's life: live parts of another generation are never counted.
pub type Generation = u64;

#[cfg(test)]
mod board_histories;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;
