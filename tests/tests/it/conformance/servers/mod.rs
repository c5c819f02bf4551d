//! Adapters on servers, which `deploy/servers up` starts.

mod cassandra;
mod cassandra_zombies;
mod kafka;
mod redis;
mod s3;
mod sql;

use super::{Stage, embedded, laws_of};
