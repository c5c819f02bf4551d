//! The shared types of Backstitch: events and entities with their decoding, keys, time buckets,
//! cuts, and the rules of the seam protocol.
//!
//! Everything here is pure. Nothing in this crate reads a clock, a file, an environment variable or
//! a socket. No code here depends on a store or a query engine.

pub mod access;
pub mod achievement;
pub mod avro;
pub mod clock;
pub mod dead_letter;
pub mod entities;
pub mod json_error;
pub mod json_value;
pub mod key;
pub mod leb128;
pub mod line;
mod named;
mod options;
pub mod partition;
pub mod plays;
pub mod provenance;
pub mod random;
pub mod seam;
pub mod source;
pub mod time;
pub mod traces;
