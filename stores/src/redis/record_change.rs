//! Changes of partition states: apply the rules of the seam to the record, then replace it by one
//! script.
//!
//! A call whose outcome is unknown is repeated. Each new record has a unique mark, so reading the
//! mark shows that the attempt succeeded. A late script finds another record and changes nothing.
//! If another process has changed the partition state, the rules are applied again. Then a caller
//! may get a checkpoint mismatch that its own earlier attempt caused; it refreshes, which is
//! correct.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use redis::Value;

use super::errors;
use super::live::{RecordSnapshot, RedisLive};
use super::record::{PartitionKeys, Record};
use super::script::{CHANGE, Script};
use crate::Result;
use crate::live::PartitionId;

/// The maximum number of times that one attempt applies the rules because other processes change
/// the record.
const DECISIONS_MAX: usize = 16;

/// The result of applying the rules of the seam to a record.
pub(super) enum Decision<T> {
    /// Keeps the record and returns the outcome.
    Keep(T),
    /// Replaces the record, then returns the outcome.
    Replace(Box<Record>, T),
    /// Replaces the record if the script's other conditions hold, and returns the first outcome.
    /// Otherwise nothing changes, and the second outcome is returned.
    ReplaceIf(Box<Record>, T, T),
}

/// Records that were sent and may have been written, with their outcomes.
type SentRecords<T> = Mutex<Vec<(Bytes, T)>>;

impl RedisLive {
    /// Changes only the record of a partition state, as `decide` returns.
    pub(super) async fn change_record<T: Clone + Send>(
        &self,
        operation: &str,
        partition_id: PartitionId,
        decide: impl Fn(Option<&Record>) -> Decision<T> + Sync,
    ) -> Result<T> {
        let change_only = |_: &RecordSnapshot, _: &mut Record, _: &T| Ok((&CHANGE, Vec::new()));
        self.change(operation, partition_id, change_only, decide)
            .await
    }

    /// Changes a partition state as `decide` returns, by the script and arguments that `script`
    /// returns for the old and the new record.
    pub(super) async fn change<T: Clone + Send>(
        &self,
        operation: &str,
        partition_id: PartitionId,
        script: impl Fn(&RecordSnapshot, &mut Record, &T) -> Result<(&'static Script, Vec<Bytes>)>
        + Sync,
        decide: impl Fn(Option<&Record>) -> Decision<T> + Sync,
    ) -> Result<T> {
        let (keys, decide, script) = (self.keys(partition_id), &decide, &script);
        let sent = &SentRecords::<T>::default();
        let tries = || async {
            self.try_change(operation, partition_id, &keys, script, decide, sent)
                .await
        };
        self.nodes.retry_policy.retry(operation, tries).await
    }

    async fn try_change<T: Clone + Send>(
        &self,
        operation: &str,
        partition_id: PartitionId,
        keys: &PartitionKeys,
        script: &(
             impl Fn(&RecordSnapshot, &mut Record, &T) -> Result<(&'static Script, Vec<Bytes>)> + Sync
         ),
        decide: &(impl Fn(Option<&Record>) -> Decision<T> + Sync),
        sent: &SentRecords<T>,
    ) -> Result<T> {
        let mut is_fresh = false;
        let mut next = self.last_snapshot(partition_id);
        for _ in 0..DECISIONS_MAX {
            let snapshot = match next.take() {
                Some(snapshot) => snapshot,
                None => {
                    is_fresh = true;
                    Arc::new(self.load_record(operation, keys).await?)
                }
            };
            if let Some(outcome) = find_written(sent, &snapshot.bytes) {
                self.remember(partition_id, Some(snapshot));
                return Ok(outcome);
            }
            let (mut record, outcome, refusal) = match decide(snapshot.record.as_ref()) {
                Decision::Keep(outcome) if is_fresh => {
                    self.remember(partition_id, Some(snapshot));
                    return Ok(outcome);
                }
                // The remembered record may be outdated.
                Decision::Keep(_) => continue,
                Decision::Replace(record, outcome) => (record, outcome, None),
                Decision::ReplaceIf(record, outcome, refusal) => (record, outcome, Some(refusal)),
            };
            let (script, script_arguments) = script(&snapshot, &mut record, &outcome)?;
            let bytes = Bytes::from(record.encode()?);
            let records = [snapshot.bytes.clone(), bytes.clone()];
            let arguments = records.into_iter().chain(script_arguments).collect();
            self.remember(partition_id, None);
            record_sent(sent, &bytes, &outcome);
            let reply = self.run_script(operation, keys, script, arguments).await?;
            let reported = match reply {
                Value::Int(1) => Vec::new(),
                Value::Int(0) => {
                    let unexpected =
                        || errors::unexpected_reply(&self.nodes.retry_policy, operation);
                    return refusal.ok_or_else(unexpected);
                }
                Value::Array(values) if values.first() == Some(&Value::Int(1)) => values,
                Value::BulkString(current) => {
                    is_fresh = true;
                    next = Some(Arc::new(self.parse_snapshot(
                        operation,
                        keys,
                        current.into(),
                    )?));
                    continue;
                }
                _ => {
                    return Err(errors::unexpected_reply(
                        &self.nodes.retry_policy,
                        operation,
                    ));
                }
            };
            self.queue_reported_groups(partition_id, &record, reported.into_iter().skip(1));
            let record = Some(*record);
            self.remember(
                partition_id,
                Some(Arc::new(RecordSnapshot { bytes, record })),
            );
            return Ok(outcome);
        }
        let reason = "other processes keep changing this partition state";
        Err(self.nodes.retry_policy.unavailable(operation, reason))
    }
}

fn find_written<T: Clone>(sent: &SentRecords<T>, current: &Bytes) -> Option<T> {
    let sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
    let mut matching = sent.iter().filter(|(bytes, _)| bytes == current);
    matching.next().map(|(_, outcome)| outcome.clone())
}

fn record_sent<T: Clone>(sent: &SentRecords<T>, bytes: &Bytes, outcome: &T) {
    let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
    sent.push((bytes.clone(), outcome.clone()));
}
