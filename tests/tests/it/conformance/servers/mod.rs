//! Adapters on servers, which `deploy/servers up` starts.

mod cassandra;
mod cassandra_records;
mod cassandra_zombies;
mod kafka;
mod redis;
mod s3;
mod sql;

use std::time::{Duration, Instant};

use stores::{ErrorKind, Result};

use super::{Stage, embedded, laws_of};

/// Any call that succeeds at all has succeeded by then, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Retries a call until it succeeds. On a busy machine, a call with a short timeout may give up
/// before a server answers.
async fn retry_until_ok<T>(call: impl AsyncFn() -> Result<T>) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                assert!(started.elapsed() < WAIT_MAX, "{error}");
            }
        }
    }
}
