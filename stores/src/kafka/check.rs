//! What is wrong with the topics of an installation and their brokers.

use async_trait::async_trait;
use rdkafka::admin::ResourceSpecifier;
use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::plays::LINE_BYTES_MAX;
use schemas::source::Source;

use super::KafkaLog;
use super::log::Inner;
use super::topics::{Settings, is_compacted, is_no_right};
use crate::log::topics;
use crate::{Result, Server};

/// A dead letter holds a line as text or in twice as many digits, and says where it came from.
const LETTER_BYTES_MAX: usize = 2 * LINE_BYTES_MAX + (64 << 10);

/// Topics are made through the port.
#[async_trait]
impl Server for KafkaLog {
    fn name(&self) -> &'static str {
        "log on Kafka"
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        self.blocking(Inner::flaws).await
    }
}

impl Inner {
    fn flaws(&self) -> Result<Vec<String>> {
        let mut flaws = Vec::new();
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for (topic, _) in topics(1) {
            let name = self.cluster.namespace.topic(topic);
            match self.partitions(&name)? {
                Some(_) => there.push(name),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            flaws.push(self.told(&format!(
                "these topics are not there: {}; run `backstitch migrate`",
                missing.join(", ")
            )));
        }
        let asked: Vec<_> = there
            .iter()
            .map(|name| ResourceSpecifier::Topic(name))
            .collect();
        if !asked.is_empty() {
            for (name, settings) in there.iter().zip(self.cluster.settings(&asked)?) {
                let of_topic = settings.map_or_else(
                    |code| vec![unseen(&format!("the topic {name}"), code)],
                    |settings| of_topic(name, &settings),
                );
                flaws.extend(of_topic.iter().map(|flaw| self.told(flaw)));
            }
        }
        if let Some(flaw) = self.of_brokers()? {
            flaws.push(self.told(&flaw));
        }
        Ok(flaws)
    }

    fn told(&self, flaw: &str) -> String {
        format!(
            "Kafka at {}: {flaw}",
            self.cluster.options.bootstrap_servers
        )
    }

    /// What is wrong with how brokers are set; one stands for all.
    fn of_brokers(&self) -> Result<Option<String>> {
        let timeout = self.cluster.options.request_timeout();
        let topic = self.cluster.namespace.topic(Source::Plays.topic());
        let metadata = self
            .asker
            .fetch_metadata(Some(&topic), timeout)
            .map_err(|error| self.complain("asking for the brokers", &error))?;
        let Some(broker) = metadata.brokers().first() else {
            return Ok(Some("no broker names itself".to_owned()));
        };
        let settings = self
            .cluster
            .settings(&[ResourceSpecifier::Broker(broker.id())])?;
        Ok(match settings.into_iter().next() {
            Some(Ok(settings)) => settings
                .get("auto.create.topics.enable")
                .filter(|set| *set == "true")
                .map(|_| {
                    "auto.create.topics.enable is true: a name that is spelt wrong elsewhere makes a topic. Set it to false".to_owned()
                }),
            // Only those who run the brokers may see it in many places.
            Some(Err(code)) if is_no_right(code) => None,
            Some(Err(code)) => Some(unseen("the brokers", code)),
            None => None,
        })
    }
}

fn unseen(what: &str, code: Code) -> String {
    format!("how {what} is set can't be seen: {code}; give this user DESCRIBE_CONFIGS")
}

/// What is wrong with how a topic is set.
fn of_topic(name: &str, settings: &Settings) -> Vec<String> {
    let mut flaws = Vec::new();
    let set = |key: &str| settings.get(key).map_or("", String::as_str);
    if is_compacted(settings) {
        flaws.push(format!(
            "the topic {name} is compacted: of the records of a key only the newest stays. Set its cleanup.policy to delete"
        ));
    }
    if set("message.timestamp.type") != "LogAppendTime" {
        flaws.push(format!(
            "the topic {name} keeps the times that writers give, which may fall. Set its message.timestamp.type to LogAppendTime"
        ));
    }
    let bytes_max: Option<usize> = set("max.message.bytes").parse().ok();
    if let Some(bytes_max) = bytes_max.filter(|max| *max < LETTER_BYTES_MAX) {
        flaws.push(format!(
            "the topic {name} takes no record of more than {bytes_max} bytes. Set its max.message.bytes to {LETTER_BYTES_MAX} or more"
        ));
    }
    flaws
}
