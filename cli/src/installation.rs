//! Builds stores and layers from the settings.

use std::sync::Arc;

use anyhow::Context;
use batch::{Batch, BatchOptions, BatchPorts, Retention};
use jobs::{Catalog, Engine, EngineOptions};
use metrics_exporter_prometheus::PrometheusHandle;
use schemas::clock::Clock;
use schemas::source::Source;
use serving::{Serving, ServingPorts};
use speed::{Speed, SpeedOptions, SpeedPorts};
use stores::Stores;
#[cfg(feature = "scale")]
use stores::archive::Archive;
use stores::erasures::Suppressions;
use stores::intake::{Intake, IntakePorts};
use stores::log::create_topics;

use crate::clock::SystemClock;
use crate::settings::{ReconciliationSection, Settings};
use crate::{monitoring, random};

/// The stores of an installation, from which its layers are built.
#[derive(Debug)]
pub(crate) struct Installation {
    settings: Settings,
    stores: Stores,
    suppressions: Suppressions,
    clock: Arc<dyn Clock>,
}

impl Installation {
    /// Opens the stores, and creates the data folder if it is missing.
    ///
    /// # Errors
    /// A folder that cannot be created or written, or damaged stores.
    pub(crate) async fn open(settings: &Settings) -> anyhow::Result<Self> {
        let stores = Stores::open(&settings.stores_options()).await?;
        Ok(Self {
            settings: settings.clone(),
            suppressions: Suppressions::new(Arc::clone(&stores.erasures)),
            stores,
            clock: Arc::new(SystemClock),
        })
    }

    /// Opens the stores of an existing installation.
    ///
    /// # Errors
    /// As [`Installation::open`], or if the data folder is missing.
    pub(crate) async fn open_existing(settings: &Settings) -> anyhow::Result<Self> {
        let options = settings.stores_options();
        let folder = options.folder();
        anyhow::ensure!(
            folder.is_dir() || !options.has_embedded(),
            "data folder {} does not exist; name another with --data-dir, or run `backstitch ingest` first",
            folder.display()
        );
        Self::open(settings).await
    }

    /// The stores.
    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The clock.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Loads all views.
    ///
    /// # Errors
    /// An invalid definition.
    pub(crate) fn load_catalog(&self) -> anyhow::Result<Catalog> {
        Self::load_catalog_from(&self.settings)
    }

    /// Loads all views of an installation with these settings.
    ///
    /// # Errors
    /// An invalid definition.
    pub(crate) fn load_catalog_from(settings: &Settings) -> anyhow::Result<Catalog> {
        let catalog = match &settings.views_dir {
            Some(folder) => Catalog::with_custom_views(folder)?,
            None => Catalog::built_in()?,
        };
        Ok(match settings.applications.parse_counting()? {
            Some(counting) => catalog.with_counting(&counting),
            None => catalog,
        })
    }

    /// Opens the intake of a source.
    ///
    /// # Errors
    /// Those of the log.
    pub(crate) async fn open_intake(&self, source: Source) -> anyhow::Result<Intake> {
        let partitions = self.settings.log.partitions;
        let ports = IntakePorts {
            log: Arc::clone(&self.stores.log) as _,
            entities: Arc::clone(&self.stores.entities) as _,
            suppressions: self.suppressions.clone(),
            clock: Arc::clone(&self.clock),
        };
        let intake = Intake::open(ports, source, partitions).await?;
        if Source::LOGGED.contains(&source) && intake.partition_count() != partitions {
            tracing::warn!(
                %source,
                configured = partitions,
                actual = intake.partition_count(),
                "log.partitions applies to new topics only; this topic keeps its partitions"
            );
        }
        Ok(intake)
    }

    /// Creates missing topics, and returns a message for each.
    ///
    /// # Errors
    /// Those of the log.
    pub(crate) async fn create_topics(&self) -> anyhow::Result<Vec<String>> {
        let topics = create_topics(&*self.stores.log, self.settings.log.partitions).await?;
        let messages = topics.into_iter().map(|(topic, partitions)| {
            format!("log: created topic {topic} with {partitions} partitions")
        });
        Ok(messages.collect())
    }

    /// Options of batch runs.
    pub(crate) const fn batch_options(&self) -> &BatchOptions {
        &self.settings.batch
    }

    /// Creates the query engine.
    ///
    /// # Errors
    /// A spill folder that cannot be used.
    pub(crate) fn create_engine(&self) -> anyhow::Result<Engine> {
        create_engine(&self.settings)
    }

    /// Creates the speed layer of a source.
    ///
    /// # Errors
    /// Invalid views.
    pub(crate) async fn create_speed(
        &self,
        engine: &Engine,
        source: Source,
    ) -> anyhow::Result<Speed> {
        let stores = &self.stores;
        let ports = SpeedPorts {
            schemas: Arc::clone(&stores.schemas) as _,
            log: Arc::clone(&stores.log) as _,
            log_writes: Arc::clone(&stores.log) as _,
            entities: Arc::clone(&stores.entities) as _,
            live: Arc::clone(&stores.live) as _,
            views: Arc::clone(&stores.views) as _,
            achievements: Arc::clone(&stores.achievements) as _,
            suppressions: self.suppressions.clone(),
            hook: stores.hook.clone(),
            records: Arc::clone(&stores.records),
            recounts: Arc::clone(&stores.entities) as _,
            clock: Arc::clone(&self.clock),
            draws: Arc::new(random::create_seeded_random()),
        };
        let notices = &self.settings.notices;
        let options = SpeedOptions {
            partitions: self.settings.log.partitions,
            notice_retry_max_ms: notices.retry_max_ms,
            notice_give_up_after_ms: notices.give_up_after_ms,
            ..self.settings.speed.clone()
        };
        Ok(Speed::build(ports, &self.load_catalog()?, engine, source, options).await?)
    }

    /// Creates the batch layer.
    ///
    /// # Errors
    /// Invalid views.
    pub(crate) fn create_batch(&self, engine: &Engine) -> anyhow::Result<Batch> {
        let stores = &self.stores;
        let ports = BatchPorts {
            schemas: Arc::clone(&stores.schemas) as _,
            log: Arc::clone(&stores.log) as _,
            live: Arc::clone(&stores.live) as _,
            views: Arc::clone(&stores.views) as _,
            counts: Arc::clone(&stores.counts) as _,
            entities: Arc::clone(&stores.entities) as _,
            records: Arc::clone(&stores.records),
            archive: stores.archive.clone(),
            suppressions: self.suppressions.clone(),
            leases: Arc::clone(&stores.leases) as _,
            clock: Arc::clone(&self.clock),
        };
        let options = BatchOptions {
            holder: lease_holder(),
            ..self.settings.batch.clone()
        };
        Ok(Batch::new(
            ports,
            self.load_catalog()?,
            engine.clone(),
            options,
        ))
    }

    /// The scheduled reconciliations.
    pub(crate) fn reconciliation_sections(&self) -> &[ReconciliationSection] {
        &self.settings.reconciliation
    }

    /// True if the settings limit the age of any data.
    pub(crate) fn has_retention(&self) -> bool {
        self.settings.retention.is_set()
    }

    /// Creates retention, which deletes expired data.
    ///
    /// # Errors
    /// As [`Installation::create_batch`].
    pub(crate) fn create_retention(&self, engine: &Engine) -> anyhow::Result<Retention> {
        let records = Arc::clone(&self.stores.entities) as _;
        let options = self.settings.retention;
        Ok(Retention::new(self.create_batch(engine)?, records, options))
    }

    /// Creates the serving layer, which serves `/metrics` if `metrics` is given.
    ///
    /// # Errors
    /// Invalid options.
    pub(crate) fn create_serving(
        &self,
        metrics: Option<PrometheusHandle>,
    ) -> anyhow::Result<Serving> {
        let stores = &self.stores;
        let ports = ServingPorts {
            log: Arc::clone(&stores.log) as _,
            ingest: Arc::clone(&stores.log) as _,
            entities: Arc::clone(&stores.entities) as _,
            live: Arc::clone(&stores.live) as _,
            views: Arc::clone(&stores.views) as _,
            achievements: Arc::clone(&stores.achievements) as _,
            counts: Arc::clone(&stores.counts) as _,
            records: Arc::clone(&stores.records),
            schemas: Arc::clone(&stores.schemas),
            keys: Arc::clone(&stores.keys),
            leases: Arc::clone(&stores.leases),
            suppressions: self.suppressions.clone(),
            clock: Arc::clone(&self.clock),
        };
        let metrics = metrics.map(monitoring::create_metrics_text);
        let options = self.settings.serving.clone();
        Ok(Serving::new(ports, self.load_catalog()?, options, metrics)?)
    }
}

/// Creates the query engine of an installation with these settings.
///
/// # Errors
/// A spill folder that cannot be used.
pub(crate) fn create_engine(settings: &Settings) -> anyhow::Result<Engine> {
    let query = &settings.query;
    let spill_folder = settings.stores_options().folder().join("spill");
    Engine::new(EngineOptions {
        threads: query.threads,
        memory_bytes: query.memory_bytes,
        spill_folder: spill_folder.clone(),
        spill_bytes_max: query.spill_bytes_max,
    })
    .with_context(|| format!("using {}", spill_folder.display()))
}

/// Opens the archive of an installation, for a process that needs no other store.
///
/// # Errors
/// A missing folder, or invalid options.
#[cfg(feature = "scale")]
pub(crate) fn open_archive(settings: &Settings) -> anyhow::Result<Archive> {
    let stores = settings.stores_options();
    let folder = stores.folder();
    anyhow::ensure!(
        !stores.s3.bucket.is_empty() || folder.is_dir(),
        "data folder {} does not exist; name the installation's folder with --data-dir, or its bucket in [s3]",
        folder.display()
    );
    Ok(stores.archive()?)
}

/// Returns the name of this process as a holder of leases: process id and host.
pub(crate) fn lease_holder() -> String {
    let process = format!("process {}", std::process::id());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => process,
        host => format!("{process} on {host}"),
    }
}
