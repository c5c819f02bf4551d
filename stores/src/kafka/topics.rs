//! Creates topics, deletes their records, and reads the settings of topics and brokers.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as KafkaOffset;
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;
use tokio::runtime::Handle;

use super::cluster::{ClientCallbacks, Cluster};
use crate::log::TopicRetention;
use crate::{Error, Result};

/// The settings of a topic or a broker by name.
pub(super) type Settings = BTreeMap<String, String>;

/// The cleanup policy that a topic must not have: it removes all but the newest record of each key.
const COMPACT: &str = "compact";

/// An admin client for one operation. The queue of a long-lived one would fill with events that
/// nothing reads.
struct ScopedAdminClient<'a> {
    cluster: &'a Cluster,
    admin: Option<AdminClient<ClientCallbacks>>,
}

impl Drop for ScopedAdminClient<'_> {
    fn drop(&mut self) {
        if let Some(admin) = self.admin.take() {
            self.cluster.close_in_background(admin);
        }
    }
}

impl<'a> ScopedAdminClient<'a> {
    fn new(cluster: &'a Cluster, operation: &str) -> Result<Self> {
        cluster.wait_for_closing_clients(operation)?;
        let admin = cluster
            .build_config()
            .create_with_context(cluster.callbacks());
        Ok(Self {
            cluster,
            admin: Some(admin.map_err(|error| cluster.classify_error(operation, &error))?),
        })
    }

    fn client(&self, operation: &str) -> Result<&AdminClient<ClientCallbacks>> {
        let closed_error = || self.cluster.unavailable(operation, "the client was closed");
        self.admin.as_ref().ok_or_else(closed_error)
    }

    fn options(&self) -> AdminOptions {
        let timeout = self.cluster.options.request_timeout();
        AdminOptions::new()
            .request_timeout(Some(timeout))
            .operation_timeout(Some(timeout))
    }
}

impl Cluster {
    /// Creates a topic if it does not exist. Blocks.
    pub(super) fn create_topic(&self, name: &str, partitions: u32) -> Result<()> {
        let operation = format!("creating the topic {name}");
        let scoped_client = ScopedAdminClient::new(self, &operation)?;
        let options = &self.options;
        let to_i32 = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        // -1 selects the brokers' default.
        let replicas = match options.replication_factor {
            0 => -1,
            n => to_i32(n),
        };
        let retention_ms = options.retention_ms.max(-1).to_string();
        let bytes_max = options.record_bytes_max.to_string();
        let min_insync_replicas = options.min_insync_replicas.to_string();
        let mut topic = NewTopic::new(
            name,
            to_i32(partitions.max(1)),
            TopicReplication::Fixed(replicas),
        )
        .set("cleanup.policy", "delete")
        // The brokers' timestamps do not depend on the writers' clocks.
        .set("message.timestamp.type", "LogAppendTime")
        .set("retention.ms", &retention_ms)
        .set("retention.bytes", "-1")
        .set("max.message.bytes", &bytes_max);
        if options.min_insync_replicas > 0 {
            topic = topic.set("min.insync.replicas", &min_insync_replicas);
        }
        let admin = scoped_client.client(&operation)?;
        let results = Handle::current()
            .block_on(admin.create_topics([&topic], &scoped_client.options()))
            .map_err(|error| self.classify_error(&operation, &error))?;
        match results.into_iter().next() {
            Some(Ok(_) | Err((_, Code::TopicAlreadyExists))) => Ok(()),
            Some(Err((_, code))) => Err(self.classify_code(&operation, code)),
            None => Err(self.unavailable(&operation, "the brokers returned no result")),
        }
    }

    /// Deletes the records of a topic below these offsets, by partition. Blocks.
    pub(super) fn delete_before(&self, name: &str, end_offsets: &[Offset]) -> Result<()> {
        let operation = format!("deleting records of the topic {name}");
        let classify = |error: KafkaError| self.classify_error(&operation, &error);
        let mut limits = TopicPartitionList::new();
        for (partition, end) in (0_i32..).zip(end_offsets).filter(|(_, end)| **end > 0) {
            limits
                .add_partition_offset(name, partition, KafkaOffset::Offset(*end))
                .map_err(classify)?;
        }
        if limits.count() == 0 {
            return Ok(());
        }
        let scoped = ScopedAdminClient::new(self, &operation)?;
        let admin = scoped.client(&operation)?;
        let results = Handle::current()
            .block_on(admin.delete_records(&limits, &scoped.options()))
            .map_err(classify)?;
        for partition in results.elements() {
            partition.error().map_err(classify)?;
        }
        Ok(())
    }

    /// Reads the settings of topics and brokers. Blocks.
    pub(super) fn fetch_settings(
        &self,
        resources: &[ResourceSpecifier<'_>],
    ) -> Result<Vec<std::result::Result<Settings, Code>>> {
        let operation = "reading settings of topics or brokers";
        let scoped = ScopedAdminClient::new(self, operation)?;
        let admin = scoped.client(operation)?;
        let described =
            Handle::current().block_on(admin.describe_configs(resources, &scoped.options()));
        let described = match described {
            Err(KafkaError::AdminOp(code)) if is_unsupported(code) => {
                return Ok(resources.iter().map(|_| Err(code)).collect());
            }
            described => described.map_err(|error| self.classify_error(operation, &error))?,
        };
        let settings = described.into_iter().map(|resource| {
            let entries = resource?.entries.into_iter();
            Ok(entries
                .map(|entry| (entry.name, entry.value.unwrap_or_default()))
                .collect())
        });
        Ok(settings.collect())
    }

    /// Reads the retention of a topic; `None` if its settings cannot be read. Blocks.
    pub(super) fn fetch_retention(&self, name: &str) -> Result<Option<TopicRetention>> {
        let outcome = self
            .fetch_settings(&[ResourceSpecifier::Topic(name)])?
            .pop();
        let settings = match outcome {
            Some(Ok(settings)) => settings,
            Some(Err(code)) => {
                tracing::debug!(topic = name, %code, "cannot read the retention of the topic");
                return Ok(None);
            }
            None => return Ok(None),
        };
        // -1, which means no limit, does not parse as `u64`.
        let limit = |key: &str| {
            settings
                .get(key)
                .and_then(|value| value.parse::<u64>().ok())
        };
        Ok(Some(TopicRetention {
            age_ms: limit("retention.ms"),
            bytes: limit("retention.bytes"),
        }))
    }

    /// Fails if a topic is compacted. Reads the settings of each topic once. Blocks.
    pub(super) fn check_not_compacted(&self, name: &str) -> Result<()> {
        let lock_checked_topics = || {
            self.checked_topics
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if lock_checked_topics().contains(name) {
            return Ok(());
        }
        match self
            .fetch_settings(&[ResourceSpecifier::Topic(name)])?
            .pop()
        {
            Some(Ok(settings)) if is_compacted(&settings) => {
                let reason = "the topic is compacted: it would lose all but the newest record of each key. Set its cleanup.policy to delete, or configure another namespace";
                Err(Error::broken(
                    self.describe(&format!("using the topic {name}")),
                    reason,
                ))
            }
            Some(Err(Code::UnknownTopicOrPartition | Code::UnknownTopic)) => Ok(()),
            Some(Err(code)) if is_unauthorized(code) || is_unsupported(code) => {
                tracing::warn!(topic = name, %code, "cannot read the settings of the topic; make sure that it is not compacted");
                lock_checked_topics().insert(name.to_owned());
                Ok(())
            }
            Some(Err(code)) => {
                let operation = format!("reading the settings of the topic {name}");
                Err(self.classify_code(&operation, code))
            }
            Some(Ok(_)) | None => {
                lock_checked_topics().insert(name.to_owned());
                Ok(())
            }
        }
    }
}

pub(super) fn is_compacted(settings: &Settings) -> bool {
    let policy = settings.get("cleanup.policy");
    policy.is_some_and(|policy| policy.contains(COMPACT))
}

/// Returns whether the brokers do not support the request.
const fn is_unsupported(code: Code) -> bool {
    matches!(code, Code::UnsupportedFeature | Code::UnsupportedVersion)
}

pub(super) const fn is_unauthorized(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed
    )
}
