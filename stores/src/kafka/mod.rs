//! The log on Kafka.
//!
//! Required rights on topics with the namespace as prefix: `DESCRIBE`, `DESCRIBE_CONFIGS`, `READ`,
//! `WRITE`, and `CREATE` to create them. Required right on consumer groups with that prefix:
//! `READ`.

mod check;
mod cluster;
mod group_membership;
mod log;
mod producer;
mod reader;
mod reader_pool;
mod topics;

pub use crate::options::KafkaOptions;
pub use log::KafkaLog;
