//! Shares the partitions of a topic with other processes through a consumer group.
//!
//! The group only assigns partitions. They are paused, and no records are read through the member:
//! the workers read the partitions with consumers of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::Offset as KafkaOffset;
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::watch;

use super::cluster::{ClientCallbacks, Cluster};
use crate::log::{Assignment, GroupMembership};
use crate::{Error, ErrorKind, Result};

/// The consumer group of the speed layer.
const GROUP: &str = "backstitch.speed";
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause before a failed member is replaced.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval between warnings that this process is assigned no partitions.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// New partitions are discovered within this time.
const METADATA_REFRESH_MS: &str = "5000";

/// Callbacks of a member of the group: they publish the assigned partitions.
struct MemberCallbacks {
    client: ClientCallbacks,
    assigned: Arc<watch::Sender<Assignment>>,
}

impl ClientContext for MemberCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.client.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.client.error(error, reason);
    }
}

impl ConsumerContext for MemberCallbacks {
    /// Runs on the polling thread, so it only records the change.
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let is_incremental = matches!(
            consumer.rebalance_protocol(),
            RebalanceProtocol::Cooperative
        );
        let outcome = if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            let assigned = assign(consumer, partitions, is_incremental);
            assigned.map(|()| self.add_assigned(partitions))
        } else {
            self.remove_revoked(partitions);
            if is_incremental {
                consumer.incremental_unassign(partitions)
            } else {
                consumer.unassign()
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot apply a change of the assigned partitions");
        }
    }
}

/// Assigns partitions at their ends and paused, because no records are read through the member.
fn assign(
    consumer: &BaseConsumer<MemberCallbacks>,
    partitions: &mut TopicPartitionList,
    is_incremental: bool,
) -> KafkaResult<()> {
    partitions.set_all_offsets(KafkaOffset::End)?;
    if is_incremental {
        consumer.incremental_assign(partitions)?;
    } else {
        consumer.assign(partitions)?;
    }
    consumer.pause(partitions)
}

impl MemberCallbacks {
    fn add_assigned(&self, partitions: &TopicPartitionList) {
        let added = collect_numbers(partitions);
        tracing::info!(partitions = ?added, "partitions were assigned to this process");
        metrics::counter!("backstitch_kafka_partitions_assigned_total")
            .increment(added.len() as u64);
        self.update(|assigned| assigned.extend(added));
    }

    fn remove_revoked(&self, partitions: &TopicPartitionList) {
        let revoked = collect_numbers(partitions);
        tracing::info!(partitions = ?revoked, "partitions were revoked from this process");
        self.update(|assigned| assigned.retain(|number| !revoked.contains(number)));
    }

    fn update(&self, update: impl FnOnce(&mut BTreeSet<u32>)) {
        self.assigned.send_modify(|assigned| {
            if let Assignment::Some(assigned) = assigned {
                update(assigned);
            }
        });
    }
}

fn collect_numbers(partitions: &TopicPartitionList) -> BTreeSet<u32> {
    let elements = partitions.elements();
    let numbers = elements
        .iter()
        .map(|element| u32::try_from(element.partition()));
    numbers.flatten().collect()
}

/// Joins the group. Dropping the membership leaves it.
pub(super) fn join(cluster: &Arc<Cluster>, topic: String) -> Result<GroupMembership> {
    let (sender, assigned) = watch::channel(Assignment::Some(BTreeSet::new()));
    let (stop, stopped) = sync_channel::<()>(0);
    let operation = format!("joining the consumer group of {topic}");
    let subject = cluster.describe(&operation);
    let cluster = Arc::clone(cluster);
    std::thread::Builder::new()
        .name("kafka-member".to_owned())
        .spawn(move || run_member(&cluster, &topic, &Arc::new(sender), &stopped))
        .map_err(|error| Error::broken(subject, error))?;
    Ok(GroupMembership::new(assigned, LeaveOnDrop { _stop: stop }))
}

/// Dropping it makes the member's thread leave the group.
#[derive(Debug)]
struct LeaveOnDrop {
    _stop: SyncSender<()>,
}

/// Stays a member of the group until `stopped` disconnects. Replaces a member that failed.
fn run_member(
    cluster: &Arc<Cluster>,
    topic: &str,
    assigned: &Arc<watch::Sender<Assignment>>,
    stopped: &Receiver<()>,
) {
    while stopped.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout) {
        match create_member(cluster, topic, assigned) {
            Ok(member) => {
                poll_member(cluster, topic, &member, stopped);
                // Leaving the group may wait for brokers; only this thread waits.
                drop(member);
            }
            Err(error) => {
                tracing::warn!(topic, %error, "cannot join the consumer group; retrying");
            }
        }
        assigned.send_replace(Assignment::Some(BTreeSet::new()));
        if stopped.recv_timeout(RETRY_PAUSE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn create_member(
    cluster: &Cluster,
    topic: &str,
    assigned: &Arc<watch::Sender<Assignment>>,
) -> KafkaResult<BaseConsumer<MemberCallbacks>> {
    let session_ms = cluster.options.session_timeout_ms.max(1_000);
    let mut config = cluster.build_config();
    config
        .set("group.id", cluster.namespace.group(GROUP))
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", session_ms.to_string())
        .set("heartbeat.interval.ms", (session_ms / 4).to_string())
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "latest")
        .set("topic.metadata.refresh.interval.ms", METADATA_REFRESH_MS);
    let consumer: BaseConsumer<MemberCallbacks> = config.create_with_context(MemberCallbacks {
        client: cluster.callbacks(),
        assigned: Arc::clone(assigned),
    })?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

/// Polls until the membership is dropped or the member fails.
fn poll_member(
    cluster: &Cluster,
    topic: &str,
    member: &BaseConsumer<MemberCallbacks>,
    stopped: &Receiver<()>,
) {
    let mut warned_at = None;
    while stopped.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout) {
        match member.poll(POLL_TIMEOUT) {
            None | Some(Ok(_)) => {}
            Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                tracing::warn!(%code, "the member of the consumer group failed; replacing it");
                return;
            }
            Some(Err(error)) => {
                let operation = format!("polling the consumer group of {topic}");
                let error = cluster.classify_error(&operation, &error);
                let is_due = warned_at
                    .is_none_or(|warned_at: Instant| warned_at.elapsed() > WARNING_INTERVAL);
                // A permanent error, such as a missing right, keeps this process without
                // partitions.
                if error.kind() != ErrorKind::Retry && is_due {
                    tracing::warn!(topic, %error, "this process is assigned no partitions");
                    warned_at = Some(Instant::now());
                } else {
                    tracing::debug!(topic, %error, "the member of the consumer group got an error");
                }
            }
        }
    }
}
