//! Sharing the partitions of a topic with other processes, through a group of consumers.
//!
//! The member of the group only tells which partitions are this process's: they are paused and
//! nothing is read through it. What is read, and from where, is the business of who works on them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::Offset as At;
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::watch;

use super::cluster::{Cluster, Ear};
use crate::log::{Assigned, Share};
use crate::{Error, ErrorKind, Result};

/// The group of those that keep live state.
const GROUP: &str = "backstitch.speed";
const POLL: Duration = Duration::from_millis(100);
/// Before a member that can't go on is made anew.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is told that nothing is given to this process.
const TELL_INTERVAL: Duration = Duration::from_secs(60);
/// How soon new partitions are noticed.
const LOOK_MS: &str = "5000";

/// What is told of changes.
struct Member {
    ear: Ear,
    assigned: Arc<watch::Sender<Assigned>>,
}

impl ClientContext for Member {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.ear.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.ear.error(error, reason);
    }
}

impl ConsumerContext for Member {
    /// Runs on the polling thread, so it only notes what came and went.
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        what: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let one_by_one = matches!(
            consumer.rebalance_protocol(),
            RebalanceProtocol::Cooperative
        );
        let outcome = if what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            assign(consumer, partitions, one_by_one).map(|()| self.came(partitions))
        } else {
            self.went(partitions);
            if one_by_one {
                consumer.incremental_unassign(partitions)
            } else {
                consumer.unassign()
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a change of shared partitions can't be followed");
        }
    }
}

/// Nothing is to be fetched, so they begin at their ends, and are paused.
fn assign(
    consumer: &BaseConsumer<Member>,
    partitions: &mut TopicPartitionList,
    one_by_one: bool,
) -> KafkaResult<()> {
    partitions.set_all_offsets(At::End)?;
    if one_by_one {
        consumer.incremental_assign(partitions)?;
    } else {
        consumer.assign(partitions)?;
    }
    consumer.pause(partitions)
}

impl Member {
    fn came(&self, partitions: &TopicPartitionList) {
        let came = numbers(partitions);
        tracing::info!(partitions = ?came, "partitions came to this process");
        metrics::counter!("backstitch_kafka_partitions_assigned_total")
            .increment(came.len() as u64);
        self.change(|mine| mine.extend(came));
    }

    fn went(&self, partitions: &TopicPartitionList) {
        let went = numbers(partitions);
        tracing::info!(partitions = ?went, "partitions went from this process");
        self.change(|mine| mine.retain(|one| !went.contains(one)));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<u32>)) {
        self.assigned.send_modify(|assigned| {
            if let Assigned::Some(mine) = assigned {
                change(mine);
            }
        });
    }
}

fn numbers(partitions: &TopicPartitionList) -> BTreeSet<u32> {
    let elements = partitions.elements();
    let numbers = elements.iter().map(|one| u32::try_from(one.partition()));
    numbers.flatten().collect()
}

/// Joins the group. It is left when the share is dropped.
pub(super) fn join(cluster: &Arc<Cluster>, topic: String) -> Result<Share> {
    let (told, assigned) = watch::channel(Assigned::Some(BTreeSet::new()));
    let (until, ended) = sync_channel::<()>(0);
    let doing = format!("sharing {topic}");
    let (its, what) = (Arc::clone(cluster), cluster.what(&doing));
    std::thread::Builder::new()
        .name("kafka-member".to_owned())
        .spawn(move || take_part(&its, &topic, &Arc::new(told), &ended))
        .map_err(|error| Error::broken(what, error))?;
    Ok(Share::new(assigned, Leave { _until: until }))
}

/// Its end is the sign to leave.
#[derive(Debug)]
struct Leave {
    _until: SyncSender<()>,
}

fn take_part(
    cluster: &Arc<Cluster>,
    topic: &str,
    told: &Arc<watch::Sender<Assigned>>,
    ended: &Receiver<()>,
) {
    while ended.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout) {
        match member(cluster, topic, told) {
            Ok(member) => {
                follow(cluster, topic, &member, ended);
                // Leaving the group may take as long as its brokers do; this thread has the time.
                drop(member);
            }
            Err(error) => tracing::warn!(topic, %error, "the group can't be joined; trying again"),
        }
        told.send_replace(Assigned::Some(BTreeSet::new()));
        if ended.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn member(
    cluster: &Cluster,
    topic: &str,
    told: &Arc<watch::Sender<Assigned>>,
) -> KafkaResult<BaseConsumer<Member>> {
    let session_ms = cluster.options.session_timeout_ms.max(1_000);
    let mut config = cluster.config();
    config
        .set("group.id", cluster.namespace.group(GROUP))
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", session_ms.to_string())
        .set("heartbeat.interval.ms", (session_ms / 4).to_string())
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "latest")
        .set("topic.metadata.refresh.interval.ms", LOOK_MS);
    let consumer: BaseConsumer<Member> = config.create_with_context(Member {
        ear: cluster.ear(),
        assigned: Arc::clone(told),
    })?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

/// Polls until the share is dropped, or the member can't go on.
fn follow(cluster: &Cluster, topic: &str, member: &BaseConsumer<Member>, ended: &Receiver<()>) {
    let mut told = None;
    while ended.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout) {
        match member.poll(POLL) {
            None | Some(Ok(_)) => {}
            Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                tracing::warn!(%code, "the member of the group can't go on; another one is made");
                return;
            }
            Some(Err(error)) => {
                let why = cluster.fault(&format!("sharing {topic}"), &error);
                let is_due = told.is_none_or(|at: Instant| at.elapsed() > TELL_INTERVAL);
                // While what does not pass goes on, nothing is assigned, and so nothing counted.
                if why.kind() != ErrorKind::Retry && is_due {
                    tracing::warn!(topic, %why, "no partitions are given to this process");
                    told = Some(Instant::now());
                } else {
                    tracing::debug!(topic, %why, "sharing partitions");
                }
            }
        }
    }
}
