//! The speed layer: applies the log to live state in micro-batches with compare-and-set.
//!
//! Each log partition has one worker. It resumes only from the checkpoint of the partition state.
//! It folds each micro-batch with the views' own queries and applies the result together with the
//! new checkpoint. A micro-batch contains events, or notifications of groups whose rows are read
//! again.
//!
//! So every event counts exactly once after a crash, a replay, a second worker or a loss of live
//! state. [`schemas::seam`] decides the next step of a worker. This crate does not depend on
//! clients of stores or on other layers.

mod boards;
mod changes;
mod entities;
mod entity_outbox;
mod error;
mod events;
mod idle;
mod live_counts;
mod notices;
mod options;
mod ownership;
mod pause;
mod processor;
mod recount;
mod report;
mod supervise;
mod window;
mod worker;

pub use error::{Error, Result};
pub use options::{SpeedOptions, SpeedPorts};
pub use report::SpeedReport;
pub use supervise::Speed;
