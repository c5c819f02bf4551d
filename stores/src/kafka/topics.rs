//! Making topics, and looking at how they and the brokers are set.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as At;
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;
use tokio::runtime::Handle;

use super::cluster::{Cluster, Ear};
use crate::log::KeptFor;
use crate::{Error, Result};

/// What may be set of a topic or a broker, by name.
pub(super) type Settings = BTreeMap<String, String>;

/// What a topic must not be: then only the newest record of each key stays.
const COMPACT: &str = "compact";

/// A client for one errand: a kept one would gather what nobody hears.
struct Errand<'a> {
    cluster: &'a Cluster,
    admin: Option<AdminClient<Ear>>,
}

impl Drop for Errand<'_> {
    fn drop(&mut self) {
        if let Some(admin) = self.admin.take() {
            self.cluster.close(admin);
        }
    }
}

impl<'a> Errand<'a> {
    fn new(cluster: &'a Cluster, doing: &str) -> Result<Self> {
        cluster.may_open(doing)?;
        let admin = cluster.config().create_with_context(cluster.ear());
        Ok(Self {
            cluster,
            admin: Some(admin.map_err(|error| cluster.fault(doing, &error))?),
        })
    }

    fn client(&self, doing: &str) -> Result<&AdminClient<Ear>> {
        let closed = || self.cluster.unavailable(doing, "the client was closed");
        self.admin.as_ref().ok_or_else(closed)
    }

    fn options(&self) -> AdminOptions {
        let timeout = self.cluster.options.request_timeout();
        AdminOptions::new()
            .request_timeout(Some(timeout))
            .operation_timeout(Some(timeout))
    }
}

impl Cluster {
    /// Makes a topic if it is not there. Blocks.
    pub(super) fn make_topic(&self, name: &str, partitions: u32) -> Result<()> {
        let doing = format!("making the topic {name}");
        let errand = Errand::new(self, &doing)?;
        let options = &self.options;
        let counted = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        // -1 is what the brokers are set to.
        let replicas = match options.replication_factor {
            0 => -1,
            n => counted(n),
        };
        let retention_ms = options.retention_ms.max(-1).to_string();
        let bytes_max = options.record_bytes_max.to_string();
        let in_sync = options.min_insync_replicas.to_string();
        let mut topic = NewTopic::new(
            name,
            counted(partitions.max(1)),
            TopicReplication::Fixed(replicas),
        )
        .set("cleanup.policy", "delete")
        // Times that never fall, whoever writes.
        .set("message.timestamp.type", "LogAppendTime")
        .set("retention.ms", &retention_ms)
        .set("retention.bytes", "-1")
        .set("max.message.bytes", &bytes_max);
        if options.min_insync_replicas > 0 {
            topic = topic.set("min.insync.replicas", &in_sync);
        }
        let admin = errand.client(&doing)?;
        let made = Handle::current()
            .block_on(admin.create_topics([&topic], &errand.options()))
            .map_err(|error| self.fault(&doing, &error))?;
        match made.into_iter().next() {
            Some(Ok(_) | Err((_, Code::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, code))) => Err(self.fault_of(&doing, code)),
            None => Err(self.unavailable(&doing, "the brokers answered nothing")),
        }
    }

    /// Deletes the records of a topic below these offsets, by partition. Blocks.
    pub(super) fn delete_before(&self, name: &str, before: &[Offset]) -> Result<()> {
        let doing = format!("deleting records of the topic {name}");
        let mut places = TopicPartitionList::new();
        for (partition, before) in (0_i32..).zip(before).filter(|(_, before)| **before > 0) {
            places
                .add_partition_offset(name, partition, At::Offset(*before))
                .map_err(|error| self.fault(&doing, &error))?;
        }
        if places.count() == 0 {
            return Ok(());
        }
        let errand = Errand::new(self, &doing)?;
        let admin = errand.client(&doing)?;
        let done = Handle::current()
            .block_on(admin.delete_records(&places, &errand.options()))
            .map_err(|error| self.fault(&doing, &error))?;
        for place in done.elements() {
            place.error().map_err(|error| self.fault(&doing, &error))?;
        }
        Ok(())
    }

    /// How topics and brokers are set. Blocks.
    pub(super) fn settings(
        &self,
        of: &[ResourceSpecifier<'_>],
    ) -> Result<Vec<std::result::Result<Settings, Code>>> {
        let doing = "asking for settings";
        let errand = Errand::new(self, doing)?;
        let admin = errand.client(doing)?;
        let found = Handle::current().block_on(admin.describe_configs(of, &errand.options()));
        let found = match found {
            Err(KafkaError::AdminOp(code)) if is_unknown_here(code) => {
                return Ok(of.iter().map(|_| Err(code)).collect());
            }
            found => found.map_err(|error| self.fault(doing, &error))?,
        };
        let settings = found.into_iter().map(|one| {
            let entries = one?.entries.into_iter();
            Ok(entries
                .map(|entry| (entry.name, entry.value.unwrap_or_default()))
                .collect())
        });
        Ok(settings.collect())
    }

    /// How long a topic keeps its records; nothing where that can't be seen. Blocks.
    pub(super) fn kept_for(&self, name: &str) -> Result<Option<KeptFor>> {
        let found = self.settings(&[ResourceSpecifier::Topic(name)])?.pop();
        let settings = match found {
            Some(Ok(settings)) => settings,
            Some(Err(code)) => {
                tracing::debug!(topic = name, %code, "how long the topic keeps records can't be seen");
                return Ok(None);
            }
            None => return Ok(None),
        };
        // -1 is without limit.
        let limit = |key: &str| settings.get(key).and_then(|set| set.parse::<u64>().ok());
        Ok(Some(KeptFor {
            age_ms: limit("retention.ms"),
            bytes: limit("retention.bytes"),
        }))
    }

    /// Refuses a topic in which the newest record of a key would replace the others; looks once at
    /// each topic. Blocks.
    pub(super) fn must_be_fit(&self, name: &str) -> Result<()> {
        let fit = || self.fit.lock().unwrap_or_else(PoisonError::into_inner);
        if fit().contains(name) {
            return Ok(());
        }
        match self.settings(&[ResourceSpecifier::Topic(name)])?.pop() {
            Some(Ok(settings)) if is_compacted(&settings) => {
                let why = "it is compacted: of the records of a key only the newest would stay, and the others would not count. Set its cleanup.policy to delete, or name another namespace";
                Err(Error::broken(
                    self.what(&format!("using the topic {name}")),
                    why,
                ))
            }
            Some(Err(Code::UnknownTopicOrPartition | Code::UnknownTopic)) => Ok(()),
            Some(Err(code)) if is_no_right(code) || is_unknown_here(code) => {
                tracing::warn!(topic = name, %code, "how the topic is set can't be seen; it must not be compacted");
                fit().insert(name.to_owned());
                Ok(())
            }
            Some(Err(code)) => Err(self.fault_of(&format!("looking at the topic {name}"), code)),
            Some(Ok(_)) | None => {
                fit().insert(name.to_owned());
                Ok(())
            }
        }
    }
}

pub(super) fn is_compacted(settings: &Settings) -> bool {
    let policy = settings.get("cleanup.policy");
    policy.is_some_and(|policy| policy.contains(COMPACT))
}

/// Whether the brokers have no such call.
const fn is_unknown_here(code: Code) -> bool {
    matches!(code, Code::UnsupportedFeature | Code::UnsupportedVersion)
}

pub(super) const fn is_no_right(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed
    )
}
