//! Diagnostics of the topics of an installation and of the brokers.

use async_trait::async_trait;
use rdkafka::admin::ResourceSpecifier;
use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::plays::LINE_BYTES_MAX;
use schemas::source::Source;

use super::KafkaLog;
use super::log::Inner;
use super::topics::{Settings, is_compacted, is_unauthorized};
use crate::log::list_topics;
use crate::{Result, Server};

/// Upper limit of the size of a dead letter: a line as text or in hexadecimal, and its origin.
const DEAD_LETTER_BYTES_MAX: usize = 2 * LINE_BYTES_MAX + (64 << 10);

#[async_trait]
impl Server for KafkaLog {
    fn name(&self) -> &'static str {
        "log on Kafka"
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        self.run_blocking(Inner::diagnostics).await
    }
}

impl Inner {
    fn diagnostics(&self) -> Result<Vec<String>> {
        let mut diagnostics = Vec::new();
        let (mut existing, mut missing) = (Vec::new(), Vec::new());
        for (topic, _) in list_topics(1) {
            let name = self.cluster.namespace.topic(topic);
            match self.fetch_partition_count(&name)? {
                Some(_) => existing.push(name),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            diagnostics.push(self.with_address(&format!(
                "these topics do not exist: {}; run `backstitch migrate`",
                missing.join(", ")
            )));
        }
        let resources: Vec<_> = existing
            .iter()
            .map(|name| ResourceSpecifier::Topic(name))
            .collect();
        if !resources.is_empty() {
            for (name, settings) in existing
                .iter()
                .zip(self.cluster.fetch_settings(&resources)?)
            {
                let topic_problems = settings.map_or_else(
                    |code| {
                        vec![describe_unreadable_settings(
                            &format!("the topic {name}"),
                            code,
                        )]
                    },
                    |settings| check_topic(name, &settings),
                );
                diagnostics.extend(
                    topic_problems
                        .iter()
                        .map(|problem| self.with_address(problem)),
                );
            }
        }
        if let Some(problem) = self.check_brokers()? {
            diagnostics.push(self.with_address(&problem));
        }
        Ok(diagnostics)
    }

    fn with_address(&self, problem: &str) -> String {
        format!(
            "Kafka at {}: {problem}",
            self.cluster.options.bootstrap_servers
        )
    }

    /// Checks the settings of one broker, because all brokers should have the same.
    fn check_brokers(&self) -> Result<Option<String>> {
        let timeout = self.cluster.options.request_timeout();
        let topic = self.cluster.namespace.topic(Source::Plays.topic());
        let metadata = self
            .metadata_client
            .fetch_metadata(Some(&topic), timeout)
            .map_err(|error| self.metadata_error("reading the list of brokers", &error))?;
        let Some(broker) = metadata.brokers().first() else {
            return Ok(Some("the cluster's metadata names no broker".to_owned()));
        };
        let settings = self
            .cluster
            .fetch_settings(&[ResourceSpecifier::Broker(broker.id())])?;
        Ok(match settings.into_iter().next() {
            Some(Ok(settings)) => settings
                .get("auto.create.topics.enable")
                .filter(|value| *value == "true")
                .map(|_| {
                    "auto.create.topics.enable is true: a misspelled name creates a topic. Set it to false".to_owned()
                }),
            // Many installations let only administrators read broker settings.
            Some(Err(code)) if is_unauthorized(code) => None,
            Some(Err(code)) => Some(describe_unreadable_settings("the brokers", code)),
            None => None,
        })
    }
}

fn describe_unreadable_settings(resource: &str, code: Code) -> String {
    format!("cannot read the settings of {resource}: {code}; grant this user DESCRIBE_CONFIGS")
}

/// Checks the settings of a topic.
fn check_topic(name: &str, settings: &Settings) -> Vec<String> {
    let mut diagnostics = Vec::new();
    let setting = |key: &str| settings.get(key).map_or("", String::as_str);
    if is_compacted(settings) {
        diagnostics.push(format!(
            "the topic {name} is compacted, which removes all but the newest record of each key. Set its cleanup.policy to delete"
        ));
    }
    if setting("message.timestamp.type") != "LogAppendTime" {
        diagnostics.push(format!(
            "the topic {name} stores the writers' timestamps, which may decrease. Set its message.timestamp.type to LogAppendTime"
        ));
    }
    let bytes_max: Option<usize> = setting("max.message.bytes").parse().ok();
    if let Some(bytes_max) = bytes_max.filter(|max| *max < DEAD_LETTER_BYTES_MAX) {
        diagnostics.push(format!(
            "the topic {name} accepts records of at most {bytes_max} bytes. Set its max.message.bytes to {DEAD_LETTER_BYTES_MAX} or more"
        ));
    }
    diagnostics
}
