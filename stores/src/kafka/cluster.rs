//! State that all clients of one cluster share: configuration, callbacks, and the classification of
//! errors.

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

/// A client error explains a failed call if it is at most this old.
const CLIENT_ERROR_MAX_AGE: Duration = Duration::from_secs(30);
/// Remedy for failed authentication.
const AUTHENTICATION_REMEDY: &str = "check user, password and mechanism";
/// New clients wait while this many closed clients have not ended.
const CLOSING_CLIENTS_MAX: i64 = 64;
/// Upper limit of events that one call of [`drain_events`] takes from a client's queue.
const EVENTS_PER_DRAIN_MAX: usize = 100;

/// State shared by the clients of a cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) options: KafkaOptions,
    pub(super) namespace: Namespace,
    last_error: Arc<LastClientError>,
    /// Closed clients that have not ended.
    closing: Arc<ClosingClients>,
    /// Topics whose settings were checked, by their names on the brokers.
    pub(super) checked_topics: Mutex<BTreeSet<String>>,
}

/// The newest error that the client library reported to a callback. It often says more than the
/// error of the call that fails afterwards.
#[derive(Debug, Default)]
struct LastClientError(Mutex<Option<ClientError>>);

/// An error that the client library reported, with a remedy if one is known.
#[derive(Debug)]
struct ClientError {
    reported_at: Instant,
    reason: String,
    remedy: Option<&'static str>,
}

impl ClientError {
    fn new(code: Option<Code>, reason: &str) -> Self {
        let remedy = match code {
            Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
                Some(AUTHENTICATION_REMEDY)
            }
            Some(Code::SSL) => Some("check ca_file and the brokers' certificates"),
            _ => None,
        };
        Self {
            reported_at: Instant::now(),
            reason: reason.to_owned(),
            remedy,
        }
    }

    fn is_recent(&self) -> bool {
        self.reported_at.elapsed() < CLIENT_ERROR_MAX_AGE
    }
}

/// Callbacks of a client: they log its messages and record its errors.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientCallbacks(Arc<LastClientError>);

impl ClientContext for ClientCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => tracing::warn!(facility, message, "Kafka client"),
            _ => tracing::debug!(facility, message, "Kafka client"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The end of a partition is reported as an error, too.
        if matches!(error.rdkafka_error_code(), Some(Code::PartitionEOF)) {
            return;
        }
        tracing::debug!(%error, reason, "Kafka client");
        metrics::counter!("backstitch_kafka_client_errors_total").increment(1);
        let code = error.rdkafka_error_code();
        let mut last_error = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The errors of single brokers, which precede this one, say more.
        let is_summary = matches!(code, Some(Code::AllBrokersDown));
        if !(is_summary && last_error.as_ref().is_some_and(ClientError::is_recent)) {
            *last_error = Some(ClientError::new(code, reason));
        }
    }
}

impl ConsumerContext for ClientCallbacks {}

impl Cluster {
    pub(super) fn new(options: &KafkaOptions, namespace: &Namespace) -> Self {
        Self {
            options: options.clone(),
            namespace: namespace.clone(),
            last_error: Arc::default(),
            closing: Arc::default(),
            checked_topics: Mutex::default(),
        }
    }

    pub(super) fn callbacks(&self) -> ClientCallbacks {
        ClientCallbacks(Arc::clone(&self.last_error))
    }

    /// Builds a configuration with the settings that all clients share.
    pub(super) fn build_config(&self) -> ClientConfig {
        let options = &self.options;
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &options.bootstrap_servers)
            .set("client.id", &options.client_id)
            .set("allow.auto.create.topics", "false")
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.max.ms", "2000")
            // Closes a silent connection. The lower bound exceeds the half second that a fetch may
            // wait for records.
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

    /// Describes the operation and the cluster, for an error message.
    pub(super) fn describe(&self, operation: &str) -> String {
        format!("{operation} (Kafka at {})", self.options.bootstrap_servers)
    }

    /// Converts an error of the client library.
    pub(super) fn classify_error(&self, operation: &str, error: &KafkaError) -> Error {
        let code = match error {
            KafkaError::AdminOp(code) => Some(*code),
            other => other.rdkafka_error_code(),
        };
        let Some(code) = code else {
            return match error {
                KafkaError::Canceled | KafkaError::NoMessageReceived => {
                    self.unavailable(operation, error)
                }
                // These fields never contain the password.
                KafkaError::ClientConfig(_, reason, key, _) => Error::broken(
                    self.describe(operation),
                    format!("cannot set {key}: {reason}; check the options"),
                ),
                other => Error::broken(self.describe(operation), other),
            };
        };
        self.classify_code(operation, code)
    }

    pub(super) fn classify_code(&self, operation: &str, code: Code) -> Error {
        let subject = self.describe(operation);
        match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => {
                Error::NoPartition { operation: subject }
            }
            // The client also reports this while a partition has no leader.
            Code::UnknownPartition => {
                self.unavailable(operation, "the partition has no leader or does not exist")
            }
            Code::MessageSizeTooLarge | Code::InvalidMessageSize => Error::Refused(format!(
                "{subject}: a record is larger than the topic's max.message.bytes or the option record_bytes_max"
            )),
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed => Error::broken(
                subject,
                format!("{code}; grant this user access, and try again"),
            ),
            Code::Authentication | Code::SaslAuthenticationFailed => {
                let reason = self.with_last_error(code);
                if reason.ends_with(AUTHENTICATION_REMEDY) {
                    return Error::broken(subject, reason);
                }
                Error::broken(subject, format!("{reason}; {AUTHENTICATION_REMEDY}"))
            }
            Code::BadMessage | Code::BadCompression | Code::InvalidMessage => Error::broken(
                subject,
                format!("{code}: a record is damaged; restore the partition from a replica"),
            ),
            Code::InvalidReplicationFactor
            | Code::InvalidConfig
            | Code::InvalidPartitions
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::UnsupportedFeature
            | Code::UnsupportedVersion => Error::broken(
                subject,
                format!("{code}; check the options and the brokers' settings"),
            ),
            code => self.unavailable(operation, code),
        }
    }

    pub(super) fn unavailable(&self, operation: &str, reason: impl ToString) -> Error {
        Error::Unavailable {
            operation: self.describe(operation),
            reason: self.with_last_error(reason),
        }
    }

    /// Adds the last client error, if it is recent, to the reason of a failure.
    fn with_last_error(&self, failure: impl ToString) -> String {
        let failure = failure.to_string();
        let last_error = (self.last_error.0)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match last_error.as_ref().filter(|error| error.is_recent()) {
            Some(ClientError { reason, remedy, .. }) => match remedy {
                Some(remedy) => format!("{failure} ({reason}); {remedy}"),
                None => format!("{failure} ({reason})"),
            },
            None => failure,
        }
    }

    /// Waits until few enough closed clients have not ended. Blocks.
    pub(super) fn wait_for_closing_clients(&self, operation: &str) -> Result<()> {
        let (closing, timeout) = (&self.closing, self.options.request_timeout());
        let count = closing.count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = closing
            .ended
            .wait_timeout_while(count, timeout, |count| *count >= CLOSING_CLIENTS_MAX);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *count < CLOSING_CLIENTS_MAX {
            return Ok(());
        }
        let reason = format!("{count} closed clients have not ended yet");
        Err(self.unavailable(operation, reason))
    }

    /// Drops a client on a thread of its own, because dropping it may wait for brokers without
    /// limit.
    pub(super) fn close_in_background(&self, client: impl Send + 'static) {
        let closing = Arc::clone(&self.closing);
        closing.add(1);
        let close = move || {
            drop(client);
            closing.add(-1);
        };
        let thread = std::thread::Builder::new().name("kafka-close".to_owned());
        if let Err(error) = thread.spawn(close) {
            self.closing.add(-1);
            tracing::warn!(%error, "cannot start the thread that closes a Kafka client");
        }
    }
}

/// The number of closed clients that have not ended.
#[derive(Debug, Default)]
struct ClosingClients {
    count: Mutex<i64>,
    ended: Condvar,
}

impl ClosingClients {
    fn add(&self, change: i64) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += change;
        self.ended.notify_one();
    }
}

/// Delivers queued events to the callbacks of a client that nothing polls.
pub(super) fn drain_events(client: &BaseConsumer<ClientCallbacks>) {
    for _ in 0..EVENTS_PER_DRAIN_MAX {
        let _event = client.poll(Duration::ZERO);
    }
}

/// Runs a blocking call on the thread pool for such calls.
pub(super) async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(call).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Error::broken("running a call of the Kafka client", error)),
    }
}
