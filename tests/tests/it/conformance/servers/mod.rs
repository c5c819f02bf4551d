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

/// What goes well at all has gone well by then, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Until it goes well: on a busy machine, what waits for a moment only may give up before a server has answered.
async fn patiently<T>(call: impl AsyncFn() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                assert!(begun.elapsed() < PATIENCE, "{error}");
            }
        }
    }
}
