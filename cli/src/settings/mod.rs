//! Everything that can be set, with its default.
//!
//! A value comes from the configuration file, else the environment, else a flag: the last one that
//! has it wins. [`mod@load`] reads them, [`mod@show`] says what came of it and from where.

mod load;
mod reconciliation;
mod schema;
mod show;

use std::path::PathBuf;

use batch::{BatchOptions, RetentionOptions};
use jobs::counting::{Counting, CountingFlaw, CountingSection};
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
pub(crate) use reconciliation::{ReconciliationSection, Words};
pub(crate) use schema::schema;

/// Most partitions that a topic may have here.
const PARTITIONS_MAX: u64 = 1024;
/// Less memory than this holds no query.
const MEMORY_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Columns of text within one file of the archive have offsets of 32 bits.
const ARCHIVE_BYTES_MAX: u64 = 512 * 1024 * 1024;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Settings that are never shown. Each may be in a file, which `KEY_file` names.
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
    /// The folder that holds everything of an installation on embedded stores.
    pub(crate) data_dir: PathBuf,
    /// A folder of views of your own, a folder each, beside those that are built in. All processes need the same.
    pub(crate) views_dir: Option<PathBuf>,
    /// What this installation is called on servers that it shares with others: it stands before the
    /// names of topics, keyspaces, schemas, live keys and buckets, and is a folder of its own in the
    /// data folder. At most 32 lower-case letters, digits and `-`.
    #[schemars(with = "String")]
    pub(crate) namespace: Namespace,
    /// The applications.
    pub(crate) applications: ApplicationsSection,
    /// The event log.
    pub(crate) log: LogSection,
    /// The log on Kafka, if brokers are named.
    #[schemars(schema_with = "schema::section::<KafkaOptions>")]
    pub(crate) kafka: KafkaOptions,
    /// Live state on Redis, if nodes are named.
    #[schemars(schema_with = "schema::section::<RedisOptions>")]
    pub(crate) redis: RedisOptions,
    /// Run records, batch rows and leases on Cassandra, if nodes are named.
    #[schemars(schema_with = "schema::section::<CassandraOptions>")]
    pub(crate) cassandra: CassandraOptions,
    /// Entities on PostgreSQL or MySQL, if a host is named.
    #[schemars(schema_with = "schema::section::<SqlOptions>")]
    pub(crate) database: SqlOptions,
    /// The archive on S3, if a bucket is named.
    #[schemars(schema_with = "schema::section::<S3Options>")]
    pub(crate) s3: S3Options,
    /// The schemas of records of Avro, if the address of a registry is named.
    #[schemars(schema_with = "schema::section::<RegistryOptions>")]
    pub(crate) registry: RegistryOptions,
    /// Comparisons that are made again and again.
    pub(crate) reconciliation: Vec<ReconciliationSection>,
    /// Where notices of capacities and alerts of reconciliations go besides the log, if the address of a webhook is named.
    #[schemars(schema_with = "schema::section::<NoticesOptions>")]
    pub(crate) notices: NoticesOptions,
    /// The speed layer.
    #[schemars(schema_with = "schema::section::<SpeedOptions>")]
    pub(crate) speed: SpeedOptions,
    /// The batch layer.
    #[schemars(schema_with = "schema::section::<BatchOptions>")]
    pub(crate) batch: BatchOptions,
    /// The serving layer.
    #[schemars(schema_with = "schema::section::<ServingOptions>")]
    pub(crate) serving: ServingOptions,
    /// How many days are kept of what is kept for ever otherwise.
    #[schemars(schema_with = "schema::section::<RetentionOptions>")]
    pub(crate) retention: RetentionOptions,
    /// The query engine that batch and speed layer share.
    pub(crate) query: QuerySection,
    /// Logs.
    pub(crate) telemetry: TelemetrySection,
}

/// The applications.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApplicationsSection {
    /// How the athletes of applications are counted, by class: in the place of what the view says. An application
    /// belongs to the first class that has it; one that is in none is counted by increments.
    #[schemars(schema_with = "schema::counting")]
    pub(crate) counting: Vec<CountingSection>,
}

impl ApplicationsSection {
    /// The classes, if any are set.
    ///
    /// # Errors
    /// A field that can't be used.
    pub(crate) fn counting(&self) -> Result<Option<Counting>, CountingFlaw> {
        if self.counting.is_empty() {
            return Ok(None);
        }
        Counting::of(&self.counting).map(Some)
    }
}

/// The event log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogSection {
    /// Partitions of a topic when it is made; a topic that is there keeps those that it has.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) partitions: u32,
}

/// The query engine that batch and speed layer share.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuerySection {
    /// Parts of a query that run side by side; the number of cores unless said.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) threads: usize,
    /// Memory of all queries together, in bytes. What needs more is spilled to `DATA_DIR/spill`.
    #[schemars(range(min = 67_108_864))]
    pub(crate) memory_bytes: usize,
    /// How much may be spilled, in bytes.
    pub(crate) spill_bytes_max: u64,
}

/// Logs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TelemetrySection {
    /// How log lines look.
    pub(crate) log_format: LogFormat,
    /// What is logged, as in `RUST_LOG`; unless said, warnings of a command and information of a
    /// service.
    pub(crate) log_level: Option<String>,
    /// Where a service answers `/metrics` and `/livez`, as in `127.0.0.1:9464`, besides what `serve` answers; nowhere unless said.
    /// Nobody is asked for a key there.
    pub(crate) metrics_listen: Option<String>,
    /// Where traces go by OTLP over HTTP, as in `http://127.0.0.1:4318` (`/v1/traces` is put behind it); nowhere unless said. How many
    /// are kept, and what else a trace says of this process, is set by the variables `OTEL_TRACES_SAMPLER`, `OTEL_RESOURCE_ATTRIBUTES` and so on.
    pub(crate) otlp_endpoint: Option<String>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
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
    /// Where the stores are.
    pub(crate) fn stores(&self) -> StoresOptions {
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

    /// The first value that can't be used: its key and what is expected.
    fn flaw(&self) -> Option<(String, String)> {
        if let Err(flaw) = self.applications.counting() {
            let key = format!("applications.counting[{}].{}", flaw.section, flaw.field);
            return Some((key, flaw.what));
        }
        let views_dir = self.views_dir.as_ref();
        if views_dir.is_some_and(|folder| folder.as_os_str().is_empty()) {
            let what = "is empty; name a folder, or leave it out";
            return Some(("views_dir".to_owned(), what.to_owned()));
        }
        if let Some((place, field, why)) = ReconciliationSection::flaw(&self.reconciliation) {
            return Some((format!("reconciliation[{place}].{field}"), why));
        }
        if let Some(missing) = self.stores().missing_feature() {
            return Some((missing.setting.to_owned(), missing.to_string()));
        }
        if let Some((key, why)) = self.plain_flaw() {
            return Some((key.to_owned(), why));
        }
        let flaw = self.serving.check().err()?;
        Some(match flaw {
            serving::Error::Option {
                option,
                given,
                expected,
            } => (
                format!("serving.{option}"),
                format!("{given} can't be used; {expected}"),
            ),
            other => ("serving".to_owned(), other.to_string()),
        })
    }

    fn plain_flaw(&self) -> Option<(&'static str, String)> {
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
                let (least, most) = (bounds.start(), bounds.end());
                let expected = if *most == u64::MAX {
                    format!("at least {least}")
                } else {
                    format!("{least} to {most}")
                };
                return Some((key, format!("{value} can't be used; write {expected}")));
            }
        }
        if self.retention.archive_days == 1 {
            let why = "1 can't be used: somewhere on earth yesterday is not over; write 0 for all, or at least 2";
            return Some(("retention.archive_days", why.to_owned()));
        }
        if speed.dedup_window_ms < 0 {
            return Some(("speed.dedup_window_ms", "is negative".to_owned()));
        }
        None
    }
}
