//! The log on Kafka.
//!
//! Rights that are needed: on topics that begin with the namespace `DESCRIBE`, `DESCRIBE_CONFIGS`,
//! `READ`, `WRITE` and, to make them, `CREATE`; on groups that begin with it `READ`.

mod check;
mod cluster;
mod log;
mod producer;
mod reader;
mod readers;
mod share;
mod topics;

pub use crate::options::KafkaOptions;
pub use log::KafkaLog;
