//! The speed layer: fenced micro-batches from the log into live state.
//!
//! One worker for each log partition. It resumes from the slot's fence and from nothing else, folds
//! each micro-batch (events, or the rows of the groups that notifications name) with the views' own
//! queries and applies what comes out together with the fence. So a crash, a replay, a second worker or lost live state each end with every
//! event counted exactly once. What a worker may do next is decided by [`schemas::seam`]; this
//! crate knows no store's client and nothing of the other layers.

mod boards;
mod entities;
mod error;
mod facts;
mod homes;
mod idle;
mod notices;
mod options;
mod outbox;
mod processor;
mod recount;
mod sums;
mod supervise;
mod tell;
mod window;
mod worker;

pub use error::{Error, Result};
pub use options::{SpeedOptions, SpeedPorts};
pub use supervise::{Speed, SpeedReport};
