//! The connection to live state on Redis: requests, and the records of partition states.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use redis::Value;

use super::nodes::{Nodes, Request};
use super::record::{PartitionKeys, Record};
use super::script::Script;
use super::{RedisOptions, errors};
use crate::live::PartitionId;
use crate::namespace::Namespace;
use crate::{Error, Result};

/// Groups to repack by container, each with its number of chunks. Zero means that its string is
/// full.
pub(super) type RepackQueue = HashMap<String, HashMap<Vec<u8>, usize>>;

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
    pub(super) namespace: Namespace,
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
        let replies = self.nodes.send(operation, &[request]).await?;
        self.take_single_reply(operation, replies)
    }

    /// Sends one request with retries, so it must be idempotent.
    pub(super) async fn send_with_retry(&self, operation: &str, request: Request) -> Result<Value> {
        let replies = self.nodes.send_with_retry(operation, &[request]).await?;
        self.take_single_reply(operation, replies)
    }

    /// Sends one idempotent request with retries, and returns its integer reply.
    pub(super) async fn send_for_integer(&self, operation: &str, request: Request) -> Result<i64> {
        match self.send_with_retry(operation, request).await? {
            Value::Int(number) => Ok(number),
            _ => Err(errors::unexpected_reply(
                &self.nodes.retry_policy,
                operation,
            )),
        }
    }

    fn take_single_reply(&self, operation: &str, replies: Vec<Value>) -> Result<Value> {
        let reply = replies.into_iter().next();
        reply.ok_or_else(|| errors::unexpected_reply(&self.nodes.retry_policy, operation))
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
            _ => Err(errors::unexpected_reply(
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
        let record = Record::parse(&bytes).map_err(|reason| {
            let reason = format!(
                "{keys} is not a readable partition state: {reason}; update this program, or stop all Backstitch processes and delete the keys of this partition (they are rebuilt from the log)"
            );
            Error::broken(self.nodes.retry_policy.describe(operation), reason)
        })?;
        Ok(RecordSnapshot { bytes, record })
    }

    pub(super) fn record_from_reply(
        &self,
        operation: &str,
        keys: &PartitionKeys,
        reply: Option<Value>,
    ) -> Result<Option<Record>> {
        let Some(Value::BulkString(bytes)) = reply else {
            return Err(errors::unexpected_reply(
                &self.nodes.retry_policy,
                operation,
            ));
        };
        Ok(self.parse_snapshot(operation, keys, bytes.into())?.record)
    }

    pub(super) fn parse_count(&self, operation: &str, value: &[u8]) -> Result<i64> {
        let text = std::str::from_utf8(value).ok();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| errors::unexpected_reply(&self.nodes.retry_policy, operation))
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
