//! Redis implementation of the live state port.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Checkpoint, CheckpointMismatch, Cut, PartitionState};

use super::live_chunks::{RepackInput, RepackQueue};
use super::live_write::{Decision, build_apply_call, prepare_changes};
use super::nodes::{Nodes, Request};
use super::record::{PartitionKeys, Record};
use super::script::{CHANGE, Script};
use super::{RedisOptions, errors};
use crate::board_cache::BoardCache;
use crate::live::{Changes, LiveWrite, Outbox, PartitionId, StateTransition};
use crate::namespace::Namespace;
use crate::{Error, Result, Server};

/// Most live entries in one call. A script with more would block the server for tens of
/// milliseconds.
const STATES_MAX: usize = 10_000;
/// Most deltas in one call. Deltas are packed, so they cost less than live entries.
const DELTAS_MAX: usize = 40_000;

/// The record of a partition state at one moment.
#[derive(Debug)]
pub(super) struct RecordSnapshot {
    /// Empty if the record is missing.
    pub(super) bytes: Bytes,
    pub(super) record: Option<Record>,
}

/// Live state on a Redis server.
#[derive(Debug)]
pub struct RedisLive {
    pub(super) nodes: Nodes,
    namespace: Namespace,
    /// Newest known record of each partition state. Most changes start from the record that this
    /// process wrote last. A script detects an outdated record.
    snapshots: Mutex<HashMap<PartitionId, Arc<RecordSnapshot>>>,
    /// Newest record that reads of cached boards returned. An unchanged record is neither sent nor
    /// parsed again.
    reader_snapshots: Mutex<HashMap<PartitionId, Arc<RecordSnapshot>>>,
    /// Groups to repack, as far as this process knows. Each one occupies several KB on the server,
    /// so the list is small in comparison.
    pub(super) repack_queue: Mutex<HashMap<PartitionId, RepackQueue>>,
}

impl RedisLive {
    /// Creates the store without connecting.
    ///
    /// # Errors
    /// [`Error::Broken`] if the options are invalid.
    pub fn new(options: &RedisOptions, namespace: &Namespace) -> Result<Self> {
        Ok(Self {
            nodes: Nodes::new(options)?,
            namespace: namespace.clone(),
            snapshots: Mutex::default(),
            reader_snapshots: Mutex::default(),
            repack_queue: Mutex::default(),
        })
    }

    /// Connects to the server or to all nodes of the cluster.
    ///
    /// # Errors
    /// [`Error::Broken`] if the options are invalid, the user lacks rights, or the server cannot
    /// hold live state. A server must be Redis 7 or newer, a primary, and have the
    /// `maxmemory-policy` `noeviction`. [`Error::Unavailable`] if the server does not answer. Every
    /// new connection is checked in the same way, so any later call may return these errors, too.
    pub async fn open(options: &RedisOptions, namespace: &Namespace) -> Result<Self> {
        let live = Self::new(options, namespace)?;
        live.nodes.connect().await?;
        Ok(live)
    }

    /// Tests the commands that scripts use on strings: writes a key, reads it, and deletes it.
    async fn probe(&self) -> Result<()> {
        let operation = "testing write access";
        let keys = PartitionKeys::from_tag(&self.namespace.key("check"));
        let change = async |before: &'static str, after: &'static str| {
            let arguments = vec![Bytes::from(before), Bytes::from(after)];
            self.run_script(operation, &keys, &CHANGE, arguments).await
        };
        change("", "1").await?;
        let commands = [
            redis::cmd("MGET").arg(&keys.record).take(),
            redis::cmd("APPEND").arg(&keys.record).arg("").take(),
            redis::cmd("STRLEN").arg(&keys.record).take(),
            redis::cmd("GETRANGE")
                .arg(&keys.record)
                .arg(0)
                .arg(0)
                .take(),
        ];
        for command in commands {
            self.send_one(operation, Request::command(&keys, command))
                .await?;
        }
        change("1", "").await?;
        Ok(())
    }

    pub(super) fn keys(&self, partition_id: PartitionId) -> PartitionKeys {
        PartitionKeys::new(&self.namespace, partition_id)
    }

    /// Runs a script on one partition state, without retries.
    pub(super) async fn run_script(
        &self,
        operation: &str,
        keys: &PartitionKeys,
        script: &'static Script,
        arguments: Vec<Bytes>,
    ) -> Result<Value> {
        self.send_one(operation, Request::script(keys, script, arguments))
            .await
    }

    /// Sends one request, without retries.
    pub(super) async fn send_one(&self, operation: &str, request: Request) -> Result<Value> {
        let answers = self.nodes.send(operation, &[request]).await?;
        self.single_answer(operation, answers)
    }

    /// Sends one request with retries, so it must be idempotent.
    pub(super) async fn send_with_retry(&self, operation: &str, request: Request) -> Result<Value> {
        let answers = self.nodes.send_with_retry(operation, &[request]).await?;
        self.single_answer(operation, answers)
    }

    /// Sends one idempotent request with retries, and returns its integer answer.
    pub(super) async fn send_for_integer(&self, operation: &str, request: Request) -> Result<i64> {
        match self.send_with_retry(operation, request).await? {
            Value::Int(number) => Ok(number),
            _ => Err(errors::unexpected_answer(
                &self.nodes.retry_policy,
                operation,
            )),
        }
    }

    fn single_answer(&self, operation: &str, answers: Vec<Value>) -> Result<Value> {
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| errors::unexpected_answer(&self.nodes.retry_policy, operation))
    }

    /// Reads the record of a partition state.
    pub(super) async fn load_record(
        &self,
        operation: &str,
        keys: &PartitionKeys,
    ) -> Result<RecordSnapshot> {
        let command = redis::cmd("GET").arg(&keys.record).take();
        match self
            .send_one(operation, Request::command(keys, command))
            .await?
        {
            Value::Nil => self.parse_snapshot(operation, keys, Bytes::new()),
            Value::BulkString(bytes) => self.parse_snapshot(operation, keys, bytes.into()),
            _ => Err(errors::unexpected_answer(
                &self.nodes.retry_policy,
                operation,
            )),
        }
    }

    pub(super) fn parse_snapshot(
        &self,
        operation: &str,
        keys: &PartitionKeys,
        bytes: Bytes,
    ) -> Result<RecordSnapshot> {
        let record = Record::parse(&bytes).map_err(|why| {
            let why = format!(
                "{keys} is not a readable partition state: {why}; update this program, or stop all Backstitch processes and delete the keys of this partition (they are rebuilt from the log)"
            );
            Error::broken(self.nodes.retry_policy.describe(operation), why)
        })?;
        Ok(RecordSnapshot { bytes, record })
    }

    pub(super) fn reader_snapshots(
        &self,
    ) -> MutexGuard<'_, HashMap<PartitionId, Arc<RecordSnapshot>>> {
        self.reader_snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last_snapshot(&self, partition_id: PartitionId) -> Option<Arc<RecordSnapshot>> {
        let snapshots = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        snapshots.get(&partition_id).map(Arc::clone)
    }

    pub(super) fn remember(&self, partition_id: PartitionId, last: Option<Arc<RecordSnapshot>>) {
        let mut snapshots = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(last) => snapshots.insert(partition_id, last),
            None => snapshots.remove(&partition_id),
        };
    }
}

#[async_trait]
impl Server for RedisLive {
    fn name(&self) -> &'static str {
        "live state on Redis"
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        let mut diagnostics = self.nodes.diagnostics().await?;
        if let Err(error) = self.probe().await {
            diagnostics.push(error.to_string());
        }
        Ok(diagnostics)
    }
}

#[async_trait]
impl LiveWrite for RedisLive {
    fn deltas_max(&self, partition_id: PartitionId) -> usize {
        let snapshot = self.last_snapshot(partition_id);
        let record = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.record.as_ref());
        match record.is_some_and(Record::has_unpackable) {
            true => STATES_MAX,
            false => DELTAS_MAX,
        }
    }

    fn states_max(&self) -> usize {
        STATES_MAX
    }

    fn board_cache(&self) -> Option<&dyn BoardCache> {
        Some(self)
    }

    async fn apply(
        &self,
        partition_id: PartitionId,
        expected: Checkpoint,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), CheckpointMismatch>> {
        let prepared = prepare_changes(changes).await?;
        let decide = |record: Option<&Record>| {
            let Some(record) = record else {
                return Decision::Keep(Err(CheckpointMismatch { actual: None }));
            };
            let mut record = record.clone();
            if !changes.states.is_empty() && record.boards_revision != changes.boards.revision {
                let actual = Some(record.state.checkpoint());
                return Decision::Keep(Err(CheckpointMismatch { actual }));
            }
            if let Err(mismatch) = record.state.apply(&expected, next, views) {
                return Decision::Keep(Err(mismatch));
            }
            if changes.has_misrouted {
                record.state.record_misrouted();
            }
            Decision::Replace(Box::new(record), Ok(()))
        };
        let keys = self.keys(partition_id);
        let operation = "applying a micro-batch";
        let repack = self
            .read_repack_input(operation, partition_id, &prepared.families)
            .await?;
        let (no_repack, was_used) = (RepackInput::default(), AtomicBool::new(false));
        let script =
            |snapshot: &RecordSnapshot,
             record: &mut Record,
             applied: &std::result::Result<(), CheckpointMismatch>| match applied {
                Ok(()) => {
                    let is_current = repack.record_bytes == snapshot.bytes;
                    was_used.store(is_current, Ordering::Relaxed);
                    let repack = if is_current { &repack } else { &no_repack };
                    build_apply_call(&keys, record, &prepared, repack)
                }
                Err(_) => Ok((&CHANGE, Vec::new())),
            };
        let applied = self.change(operation, partition_id, script, decide).await;
        if !matches!(applied, Ok(Ok(()))) || !was_used.into_inner() {
            self.requeue_repacks(partition_id, repack);
        }
        applied
    }

    async fn remove_published(&self, partition_id: PartitionId, outbox: &Outbox) -> Result<bool> {
        self.remove_outbox_entries(partition_id, outbox).await
    }

    async fn update_state(
        &self,
        operation: &'static str,
        partition_id: PartitionId,
        rule: &StateTransition<'_>,
    ) -> Result<Option<PartitionState>> {
        let decide = |record: Option<&Record>| {
            let current = record.map(|record| record.state.clone());
            let Some(next) = rule(current.as_ref()) else {
                return Decision::Keep(current);
            };
            let retained = |state: &PartitionState| (state.generation, state.oldest);
            let next = match record {
                None => Record::new(next),
                // The same containers are retained, so none becomes garbage.
                Some(record) if retained(&record.state) == retained(&next) => {
                    let mut record = record.clone();
                    record.state = next;
                    record
                }
                Some(record) => record.with_state(next),
            };
            Decision::Replace(Box::new(next), current)
        };
        self.change_record(operation, partition_id, decide).await
    }

    async fn collect_garbage(&self, partition_id: PartitionId, limit: usize) -> Result<usize> {
        self.delete_garbage(partition_id, limit).await
    }
}
