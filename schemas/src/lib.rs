//! The nouns of Backstitch: events and entities and their decoding, keys, buckets, cuts and the
//! rules of the seam.
//!
//! Everything here is pure. Nothing in this crate reads a clock, a file, an environment variable or
//! a socket, and it names no store and no query engine.

pub mod access;
pub mod achievement;
pub mod avro;
pub mod clock;
pub mod dead_letter;
pub mod draws;
pub mod entities;
pub mod key;
pub mod leb128;
pub mod line;
mod named;
mod options;
pub mod partition;
pub mod plays;
pub mod provenance;
pub mod seam;
pub mod shown;
pub mod source;
pub mod time;
pub mod traces;
