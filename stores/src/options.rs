//! The settings of every adapter. They need no client library, so every build reads the same
//! configuration.

mod cassandra;
mod kafka;
mod redis;
mod registry;
mod s3;
mod sql;
mod webhook;

pub use cassandra::CassandraOptions;
pub use kafka::KafkaOptions;
pub use redis::RedisOptions;
pub use registry::RegistryOptions;
pub use s3::S3Options;
pub use sql::{SqlOptions, SqlServer, SqlTls};
pub use webhook::NoticesOptions;
