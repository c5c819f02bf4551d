//! The settings and their defaults.
//!
//! A value comes from the configuration file, the environment or a flag; the last one wins. [`mod@load`] reads them,
//! [`mod@show`] prints the result and the origin of each value.

mod load;
mod reconciliation;
mod schema;
mod show;

use std::path::PathBuf;

use batch::{BatchOptions, RetentionOptions};
use jobs::counting::{CountingClasses, CountingError, CountingSection};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serving::ServingOptions;
use speed::SpeedOptions;
use stores::StoresOptions;
use stores::namespace::Namespace;
use stores::options::{
    CassandraOptions, KafkaOptions, NoticesOptions, RedisOptions, RegistryOptions, S3Options,
    SqlOptions,
};

pub(crate) use load::{Flags, Loaded, load};
pub(crate) use reconciliation::{ReconciliationSection, ReconciliationSpec};
pub(crate) use schema::build_schema;

/// Maximum number of partitions of a topic.
const PARTITIONS_MAX: u64 = 1024;
/// Minimum memory of a query.
const MEMORY_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Maximum size of an archive file, whose text columns have 32-bit offsets.
const ARCHIVE_BYTES_MAX: u64 = 512 * 1024 * 1024;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Settings that are never printed. `KEY_file` can name a file with the value.
const SECRETS: [&str; 10] = [
    "cassandra.password",
    "database.password",
    "kafka.sasl_password",
    "notices.webhook_secret",
    "notices.webhook_secret_before",
    "notices.webhook_url",
    "redis.password",
    "registry.password",
    "s3.secret_access_key",
    "serving.session_secret",
];

/// The settings of an installation.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// Data folder of the embedded stores.
    pub(crate) data_dir: PathBuf,
    /// Folder with your own views, one folder for each, in addition to the built-in ones. All processes need the same.
    pub(crate) views_dir: Option<PathBuf>,
    /// Separates installations that share servers: prefix of topics, keyspaces, schemas, live keys and objects, and a
    /// folder in the data folder. At most 32 lower-case letters, digits and `-`.
    #[schemars(with = "String")]
    pub(crate) namespace: Namespace,
    /// API applications.
    pub(crate) applications: ApplicationsSection,
    /// The event log.
    pub(crate) log: LogSection,
    /// Kafka, for the event log. Embedded if no brokers are named.
    #[schemars(schema_with = "schema::build_section_schema::<KafkaOptions>")]
    pub(crate) kafka: KafkaOptions,
    /// Redis, for live state. Embedded if no nodes are named.
    #[schemars(schema_with = "schema::build_section_schema::<RedisOptions>")]
    pub(crate) redis: RedisOptions,
    /// Cassandra, for run records, batch rows and leases. Embedded if no nodes are named.
    #[schemars(schema_with = "schema::build_section_schema::<CassandraOptions>")]
    pub(crate) cassandra: CassandraOptions,
    /// PostgreSQL or MySQL, for entities. Embedded if no host is named.
    #[schemars(schema_with = "schema::build_section_schema::<SqlOptions>")]
    pub(crate) database: SqlOptions,
    /// S3, for the archive. Local files if no bucket is named.
    #[schemars(schema_with = "schema::build_section_schema::<S3Options>")]
    pub(crate) s3: S3Options,
    /// Schema registry of Avro records.
    #[schemars(schema_with = "schema::build_section_schema::<RegistryOptions>")]
    pub(crate) registry: RegistryOptions,
    /// Scheduled comparisons.
    pub(crate) reconciliation: Vec<ReconciliationSection>,
    /// Webhook for capacity notices and reconciliation alerts, in addition to the log.
    #[schemars(schema_with = "schema::build_section_schema::<NoticesOptions>")]
    pub(crate) notices: NoticesOptions,
    /// The speed layer.
    #[schemars(schema_with = "schema::build_section_schema::<SpeedOptions>")]
    pub(crate) speed: SpeedOptions,
    /// The batch layer.
    #[schemars(schema_with = "schema::build_section_schema::<BatchOptions>")]
    pub(crate) batch: BatchOptions,
    /// The serving layer.
    #[schemars(schema_with = "schema::build_section_schema::<ServingOptions>")]
    pub(crate) serving: ServingOptions,
    /// Retention in days; without a value, data is kept forever.
    #[schemars(schema_with = "schema::build_section_schema::<RetentionOptions>")]
    pub(crate) retention: RetentionOptions,
    /// Query engine of the batch and speed layers.
    pub(crate) query: QuerySection,
    /// Logs, metrics and traces.
    pub(crate) telemetry: TelemetrySection,
}

/// API applications.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApplicationsSection {
    /// Counting methods by class of application; replaces the view's classes. An application belongs to the first class
    /// that matches; without one it is counted by increments.
    #[schemars(schema_with = "schema::build_counting_schema")]
    pub(crate) counting: Vec<CountingSection>,
}

impl ApplicationsSection {
    /// Parses the configured classes, if there are any.
    ///
    /// # Errors
    /// An invalid field.
    pub(crate) fn parse_counting(&self) -> Result<Option<CountingClasses>, CountingError> {
        if self.counting.is_empty() {
            return Ok(None);
        }
        CountingClasses::parse(&self.counting).map(Some)
    }
}

/// The event log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogSection {
    /// Partitions of new topics. Existing topics keep theirs.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) partitions: u32,
}

/// Query engine of the batch and speed layers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuerySection {
    /// Parallel threads of a query [default: number of cores].
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) threads: usize,
    /// Memory of all queries together, in bytes. Larger queries spill to `DATA_DIR/spill`.
    #[schemars(range(min = 67_108_864))]
    pub(crate) memory_bytes: usize,
    /// Maximum size of spilled data, in bytes.
    pub(crate) spill_bytes_max: u64,
}

/// Logs, metrics and traces.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TelemetrySection {
    /// Format of log lines.
    pub(crate) log_format: LogFormat,
    /// Log level or filter, as in `RUST_LOG` [default: `warn` for commands, `info` for services].
    pub(crate) log_level: Option<String>,
    /// Additional address for `/metrics` and `/livez` of a service, such as `127.0.0.1:9464`. Without authentication.
    pub(crate) metrics_listen: Option<String>,
    /// Collector of traces by OTLP over HTTP, such as `http://127.0.0.1:4318`; `/v1/traces` is appended. The environment
    /// variables `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES` and so on set sampling and attributes.
    pub(crate) otlp_endpoint: Option<String>,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./backstitch-data"),
            views_dir: None,
            namespace: Namespace::default(),
            kafka: KafkaOptions::default(),
            redis: RedisOptions::default(),
            cassandra: CassandraOptions::default(),
            database: SqlOptions::default(),
            s3: S3Options::default(),
            registry: RegistryOptions::default(),
            reconciliation: Vec::new(),
            notices: NoticesOptions::default(),
            applications: ApplicationsSection::default(),
            log: LogSection::default(),
            speed: SpeedOptions::default(),
            batch: BatchOptions::default(),
            serving: ServingOptions::default(),
            retention: RetentionOptions::default(),
            query: QuerySection::default(),
            telemetry: TelemetrySection::default(),
        }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self { partitions: 4 }
    }
}

impl Default for QuerySection {
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 2 * 1024 * 1024 * 1024,
            spill_bytes_max: 64 * 1024 * 1024 * 1024,
        }
    }
}

impl Settings {
    /// Options of the stores.
    pub(crate) fn stores_options(&self) -> StoresOptions {
        StoresOptions {
            data_dir: self.data_dir.clone(),
            namespace: self.namespace.clone(),
            kafka: self.kafka.clone(),
            redis: self.redis.clone(),
            cassandra: self.cassandra.clone(),
            database: self.database.clone(),
            s3: self.s3.clone(),
            registry: self.registry.clone(),
            notices: self.notices.clone(),
        }
    }

    /// Finds the first invalid value: its key and the reason.
    fn find_invalid_value(&self) -> Option<(String, String)> {
        if let Err(error) = self.applications.parse_counting() {
            let key = format!("applications.counting[{}].{}", error.section, error.field);
            return Some((key, error.reason));
        }
        let views_dir = self.views_dir.as_ref();
        if views_dir.is_some_and(|folder| folder.as_os_str().is_empty()) {
            let reason = "is empty; name a folder, or remove the setting";
            return Some(("views_dir".to_owned(), reason.to_owned()));
        }
        if let Some((index, field, reason)) =
            ReconciliationSection::find_invalid(&self.reconciliation)
        {
            return Some((format!("reconciliation[{index}].{field}"), reason));
        }
        if let Some(missing) = self.stores_options().missing_feature() {
            return Some((missing.setting.to_owned(), missing.to_string()));
        }
        if let Some((key, reason)) = self.find_out_of_range_value() {
            return Some((key.to_owned(), reason));
        }
        let error = self.serving.check().err()?;
        Some(match error {
            serving::Error::Option {
                option,
                value,
                advice,
            } => (
                format!("serving.{option}"),
                format!("{value} is invalid; {advice}"),
            ),
            other => ("serving".to_owned(), other.to_string()),
        })
    }

    fn find_out_of_range_value(&self) -> Option<(&'static str, String)> {
        if self.data_dir.as_os_str().is_empty() {
            return Some(("data_dir", "is empty; name a folder".to_owned()));
        }
        let partitions = u64::from(self.log.partitions);
        let (speed, batch) = (&self.speed, &self.batch);
        let bounds = [
            ("log.partitions", partitions, 1..=PARTITIONS_MAX),
            ("query.threads", self.query.threads as u64, 1..=1024),
            (
                "query.memory_bytes",
                self.query.memory_bytes as u64,
                MEMORY_BYTES_MIN..=u64::MAX,
            ),
            ("speed.records_max", speed.records_max as u64, 1..=u64::MAX),
            ("speed.bytes_max", speed.bytes_max as u64, 1..=u64::MAX),
            ("speed.look_interval_ms", speed.look_interval_ms, 1..=DAY_MS),
            ("speed.poll_interval_ms", speed.poll_interval_ms, 1..=DAY_MS),
            (
                "batch.archive_rows_max",
                batch.archive_rows_max as u64,
                1..=u64::MAX,
            ),
            (
                "batch.archive_bytes_max",
                batch.archive_bytes_max as u64,
                1..=ARCHIVE_BYTES_MAX,
            ),
            (
                "batch.archive_merged_wait_ms",
                batch.archive_merged_wait_ms,
                0..=7 * DAY_MS,
            ),
            ("batch.archive_wait_ms", batch.archive_wait_ms, 0..=DAY_MS),
            ("batch.task_rows_max", batch.task_rows_max, 1..=u64::MAX),
            (
                "batch.task_seconds_max",
                batch.task_seconds_max,
                1..=DAY_MS / 1_000,
            ),
            (
                "batch.result_bytes_max",
                batch.result_bytes_max as u64,
                1..=u64::MAX,
            ),
            (
                "batch.publish_rows",
                batch.publish_rows as u64,
                1..=u64::MAX,
            ),
        ];
        for (key, value, bounds) in bounds {
            if !bounds.contains(&value) {
                let (min, max) = (bounds.start(), bounds.end());
                let expected = if *max == u64::MAX {
                    format!("at least {min}")
                } else {
                    format!("{min} to {max}")
                };
                return Some((key, format!("{value} is out of range; expected {expected}")));
            }
        }
        if self.retention.archive_days == 1 {
            let reason = "1 is too short: in some time zones yesterday is not over; expected 0 for no limit, or at least 2";
            return Some(("retention.archive_days", reason.to_owned()));
        }
        if speed.dedup_window_ms < 0 {
            return Some(("speed.dedup_window_ms", "is negative".to_owned()));
        }
        None
    }
}
