//! What all clients of one cluster share: how they are set up, what they have to say, and what their
//! errors mean.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::KafkaOptions;
use crate::namespace::Namespace;
use crate::{Error, Result};

/// A complaint of the client library explains an error so much later, at most.
const HEARD_FOR: Duration = Duration::from_secs(30);
/// What to do where one is not let in.
const LET_IN: &str = "check user, password and mechanism";
/// Clients that were given up and don't end, at most.
const CLOSING_MAX: i64 = 64;
/// Events that are taken from a client's queue at once.
const EVENTS_MAX: usize = 100;

/// A cluster, as all its clients know it.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) options: KafkaOptions,
    pub(super) namespace: Namespace,
    heard: Arc<Heard>,
    /// Clients that were given up and are not gone yet.
    closing: Arc<Closing>,
    /// Topics that were found fit, by their names here.
    pub(super) fit: Mutex<BTreeSet<String>>,
}

/// The newest complaint of a client library, which often says more than the error that follows.
#[derive(Debug, Default)]
struct Heard(Mutex<Option<Complaint>>);

/// A complaint, and what to do about it where that is known.
#[derive(Debug)]
struct Complaint {
    at: Instant,
    reason: String,
    remedy: Option<&'static str>,
}

impl Complaint {
    fn of(code: Option<Code>, reason: &str) -> Self {
        let remedy = match code {
            Some(Code::Authentication | Code::SaslAuthenticationFailed) => Some(LET_IN),
            Some(Code::SSL) => Some("check ca_file and the brokers' certificates"),
            _ => None,
        };
        Self {
            at: Instant::now(),
            reason: reason.to_owned(),
            remedy,
        }
    }

    fn is_recent(&self) -> bool {
        self.at.elapsed() < HEARD_FOR
    }
}

/// What listens to a client.
#[derive(Debug, Clone, Default)]
pub(super) struct Ear(Arc<Heard>);

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => tracing::warn!(facility, message, "Kafka's client"),
            _ => tracing::debug!(facility, message, "Kafka's client"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The end of a partition comes this way too.
        if matches!(error.rdkafka_error_code(), Some(Code::PartitionEOF)) {
            return;
        }
        tracing::debug!(%error, reason, "Kafka's client");
        metrics::counter!("backstitch_kafka_client_errors_total").increment(1);
        let complaint = Complaint::of(error.rdkafka_error_code(), reason);
        let mut heard = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        // That no broker answers follows from what was said of each.
        let follows = matches!(error.rdkafka_error_code(), Some(Code::AllBrokersDown));
        if !(follows && heard.as_ref().is_some_and(Complaint::is_recent)) {
            *heard = Some(complaint);
        }
    }
}

impl ConsumerContext for Ear {}

impl Cluster {
    pub(super) fn new(options: &KafkaOptions, namespace: &Namespace) -> Self {
        Self {
            options: options.clone(),
            namespace: namespace.clone(),
            heard: Arc::default(),
            closing: Arc::default(),
            fit: Mutex::default(),
        }
    }

    pub(super) fn ear(&self) -> Ear {
        Ear(Arc::clone(&self.heard))
    }

    /// The settings of any client.
    pub(super) fn config(&self) -> ClientConfig {
        let options = &self.options;
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &options.bootstrap_servers)
            .set("client.id", &options.client_id)
            .set("allow.auto.create.topics", "false")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "2000")
            // A connection that says nothing is given up; a fetch may be silent for half a second.
            .set(
                "socket.timeout.ms",
                options.request_timeout_ms.clamp(2_000, 300_000).to_string(),
            )
            .set("message.max.bytes", options.record_bytes_max.to_string());
        for (key, value) in [
            ("security.protocol", options.security_protocol.as_str()),
            ("sasl.mechanism", &options.sasl_mechanism),
            ("sasl.username", &options.sasl_username),
            ("sasl.password", options.sasl_password.reveal()),
            ("ssl.ca.location", &options.ca_file),
        ] {
            if !value.is_empty() {
                config.set(key, value);
            }
        }
        config.set_log_level(RDKafkaLogLevel::Warning);
        config
    }

    /// What was to be done, and where.
    pub(super) fn what(&self, doing: &str) -> String {
        format!("{doing} (Kafka at {})", self.options.bootstrap_servers)
    }

    /// What an error of the client library means.
    pub(super) fn fault(&self, doing: &str, error: &KafkaError) -> Error {
        let code = match error {
            KafkaError::AdminOp(code) => Some(*code),
            other => other.rdkafka_error_code(),
        };
        let Some(code) = code else {
            return match error {
                KafkaError::Canceled | KafkaError::NoMessageReceived => {
                    self.unavailable(doing, error)
                }
                // Options that can't be used; the password is never in these.
                KafkaError::ClientConfig(_, why, key, _) => {
                    Error::broken(self.what(doing), format!("{key}: {why}; check the options"))
                }
                other => Error::broken(self.what(doing), other),
            };
        };
        self.fault_of(doing, code)
    }

    pub(super) fn fault_of(&self, doing: &str, code: Code) -> Error {
        let what = self.what(doing);
        match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => Error::NoPartition { what },
            // The client says so, too, where a partition has no leader for a moment.
            Code::UnknownPartition => {
                self.unavailable(doing, "the partition has no leader, or is not there")
            }
            Code::MessageSizeTooLarge | Code::InvalidMessageSize => Error::Refused(format!(
                "{what}: a record is larger than the topic's max.message.bytes or the option record_bytes_max"
            )),
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed => Error::broken(
                what,
                format!("{code}; give this user the right to, and try again"),
            ),
            Code::Authentication | Code::SaslAuthenticationFailed => {
                let why = self.because(code);
                if why.ends_with(LET_IN) {
                    return Error::broken(what, why);
                }
                Error::broken(what, format!("{why}; {LET_IN}"))
            }
            Code::BadMessage | Code::BadCompression | Code::InvalidMessage => Error::broken(
                what,
                format!("{code}: a record is damaged; restore the partition from a replica"),
            ),
            Code::InvalidReplicationFactor
            | Code::InvalidConfig
            | Code::InvalidPartitions
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::UnsupportedFeature
            | Code::UnsupportedVersion => Error::broken(
                what,
                format!("{code}; check the options and the brokers' settings"),
            ),
            code => self.unavailable(doing, code),
        }
    }

    pub(super) fn unavailable(&self, doing: &str, why: impl ToString) -> Error {
        Error::Unavailable {
            what: self.what(doing),
            why: self.because(why),
        }
    }

    /// Why, and what the client library said shortly before.
    fn because(&self, why: impl ToString) -> String {
        let why = why.to_string();
        let heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        match heard.as_ref().filter(|heard| heard.is_recent()) {
            Some(Complaint { reason, remedy, .. }) => match remedy {
                Some(remedy) => format!("{why} ({reason}); {remedy}"),
                None => format!("{why} ({reason})"),
            },
            None => why,
        }
    }

    /// Waits while too many clients that were given up have not ended. Blocks.
    pub(super) fn may_open(&self, doing: &str) -> Result<()> {
        let (closing, timeout) = (&self.closing, self.options.request_timeout());
        let count = closing.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = closing
            .ended
            .wait_timeout_while(count, timeout, |count| *count >= CLOSING_MAX);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *count < CLOSING_MAX {
            return Ok(());
        }
        let why = format!("{count} clients that were closed have not ended yet");
        Err(self.unavailable(doing, why))
    }

    /// Lets go of a client. Ending it may wait for brokers without limit, so that happens elsewhere.
    pub(super) fn close(&self, client: impl Send + 'static) {
        let closing = Arc::clone(&self.closing);
        closing.add(1);
        let end = move || {
            drop(client);
            closing.add(-1);
        };
        let spawned = std::thread::Builder::new().name("kafka-close".to_owned());
        if let Err(error) = spawned.spawn(end) {
            self.closing.add(-1);
            tracing::warn!(%error, "no thread to close a Kafka client on");
        }
    }
}

/// How many clients that were given up have not ended.
#[derive(Debug, Default)]
struct Closing {
    count: Mutex<i64>,
    ended: Condvar,
}

impl Closing {
    fn add(&self, change: i64) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += change;
        self.ended.notify_one();
    }
}

/// Takes what a client without a thread of its own has to say.
pub(super) fn listen(client: &BaseConsumer<Ear>) {
    for _ in 0..EVENTS_MAX {
        let _event = client.poll(Duration::ZERO);
    }
}

/// Runs calls that block where they may.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::broken("calling Kafka's client", error)),
    }
}
