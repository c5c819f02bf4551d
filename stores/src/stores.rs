//! Opens the stores of an installation, each behind its port, embedded or on a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::achievements::AchievementsWrite;
use crate::admin::EntityAdmin;
use crate::archive::Archive;
use crate::counts::CountsWrite;
use crate::embedded::DataFolder;
use crate::entities::EntityErase;
use crate::erasures::Suppressions;
use crate::keys::Keys;
use crate::lease::Leases;
use crate::live::LiveWrite;
use crate::log::Log;
use crate::namespace::Namespace;
use crate::options::{
    CassandraOptions, KafkaOptions, NoticesOptions, RedisOptions, RegistryOptions, S3Options,
    SqlOptions, SqlServer,
};
use crate::records::Records;
use crate::registry::{NoRegistry, SchemaSource};
use crate::sql::{ApiKeyStore, EntityStore};
use crate::views::ViewsWrite;
use crate::webhook::WebhookSender;
use crate::{Error, Result};

/// The stores of an installation.
#[derive(Debug, Clone)]
pub struct Stores {
    /// The log.
    pub log: Arc<dyn Log>,
    /// Live state.
    pub live: Arc<dyn LiveWrite>,
    /// Run records and batch rows.
    pub views: Arc<dyn ViewsWrite>,
    /// Entities, without erased athletes.
    pub entities: Arc<dyn EntityAdmin>,
    /// All entities, for erasures.
    pub entity_eraser: Arc<dyn EntityErase>,
    /// The archive.
    pub archive: Archive,
    /// Achievements.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// Daily counts of members.
    pub counts: Arc<dyn CountsWrite>,
    /// Records of erasures. If embedded, they are in a separate file.
    pub erasures: Arc<dyn Records>,
    /// Records of reconciliations, alerts, approvals, corrections and schedules.
    pub records: Arc<dyn Records>,
    /// Leases.
    pub leases: Arc<dyn Leases>,
    /// API keys.
    pub keys: Arc<dyn Keys>,
    /// Schemas of Avro records.
    pub schemas: Arc<dyn SchemaSource>,
    /// The webhook of notices, if configured.
    pub hook: Option<Arc<dyn WebhookSender>>,
    /// The folder of the embedded stores.
    pub data_folder: DataFolder,
}

/// The location of each store: a server if one is configured, otherwise the data folder.
#[derive(Debug, Clone, Default)]
pub struct StoresOptions {
    /// The data folder.
    pub data_dir: PathBuf,
    /// The namespace of the installation.
    pub namespace: Namespace,
    /// The log, if brokers are configured.
    pub kafka: KafkaOptions,
    /// Live state, if nodes are configured.
    pub redis: RedisOptions,
    /// Run records, batch rows and leases, if nodes are configured.
    pub cassandra: CassandraOptions,
    /// Entities, if a host is configured.
    pub database: SqlOptions,
    /// The archive, if a bucket is configured.
    pub s3: S3Options,
    /// Schemas of Avro records, if a URL is configured.
    pub registry: RegistryOptions,
    /// The webhook of notices, if a URL is configured.
    pub notices: NoticesOptions,
}

/// A setting that needs a Cargo feature which this build lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFeature {
    /// The key of the setting, such as `kafka.bootstrap_servers`.
    pub setting: &'static str,
    /// The Cargo feature.
    pub feature: &'static str,
}

impl std::fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { feature, .. } = self;
        write!(
            f,
            "needs the Cargo feature `{feature}`, which this build lacks; build with `--features {feature}`, or remove the setting"
        )
    }
}

impl StoresOptions {
    /// The folder of the embedded stores. Each installation has its own.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.data_dir.join(self.namespace.as_str())
    }

    /// Returns whether any store is embedded.
    #[must_use]
    pub const fn has_embedded(&self) -> bool {
        self.kafka.bootstrap_servers.is_empty()
            || self.redis.nodes.is_empty()
            || self.cassandra.nodes.is_empty()
            || self.database.host.is_empty()
            || self.s3.bucket.is_empty()
    }

    /// The first setting that needs a client which this build lacks.
    #[must_use]
    pub fn missing_feature(&self) -> Option<MissingFeature> {
        let database = match self.database.server {
            SqlServer::Postgres => ("postgres", cfg!(feature = "postgres")),
            SqlServer::MySql => ("mysql", cfg!(feature = "mysql")),
        };
        let kafka = ("kafka", cfg!(feature = "kafka"));
        let redis = ("redis", cfg!(feature = "redis"));
        let cassandra = ("cassandra", cfg!(feature = "cassandra"));
        let s3 = ("s3", cfg!(feature = "s3"));
        let http = ("http", cfg!(feature = "http"));
        [
            (
                "kafka.bootstrap_servers",
                self.kafka.bootstrap_servers.is_empty(),
                kafka,
            ),
            ("redis.nodes", self.redis.nodes.is_empty(), redis),
            (
                "cassandra.nodes",
                self.cassandra.nodes.is_empty(),
                cassandra,
            ),
            ("database.host", self.database.host.is_empty(), database),
            ("s3.bucket", self.s3.bucket.is_empty(), s3),
            ("registry.url", self.registry.url.is_empty(), http),
            (
                "notices.webhook_url",
                self.notices.webhook_url.is_empty(),
                http,
            ),
        ]
        .into_iter()
        .find(|(_, is_unset, (_, is_built))| !is_unset && !is_built)
        .map(|(setting, _, (feature, _))| MissingFeature { setting, feature })
    }

    /// Refuses settings that this build cannot serve, so that no embedded store opens in place of a
    /// server.
    pub(crate) fn check_features(&self) -> Result<()> {
        match self.missing_feature() {
            None => Ok(()),
            Some(missing) => Err(Error::broken(missing.setting, missing)),
        }
    }

    /// Opens the archive alone, for processes that need no other store.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub fn archive(&self) -> Result<Archive> {
        self.check_features()?;
        self.open_archive(|| DataFolder::open(&self.folder()))
    }

    /// Opens the views alone, for processes that need only the archive besides: on a server,
    /// without a first request, or in the data folder that holds the archive too. `None` if the
    /// archive is on a server and the views are not.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub async fn views(&self) -> Result<Option<Arc<dyn ViewsWrite>>> {
        self.check_features()?;
        #[cfg(feature = "cassandra")]
        if let Some(cassandra) = self.create_cassandra() {
            return Ok(Some(cassandra.stores().views));
        }
        if !self.s3.bucket.is_empty() {
            return Ok(None);
        }
        let folder = DataFolder::open(&self.folder())?;
        Ok(Some(Arc::new(folder.views().await?)))
    }

    fn open_archive(&self, folder: impl FnOnce() -> Result<DataFolder>) -> Result<Archive> {
        #[cfg(feature = "s3")]
        if let Some(s3) = self.open_s3() {
            return Ok(s3?.archive());
        }
        folder()?.archive()
    }

    async fn open_log(&self, folder: &DataFolder) -> Result<Arc<dyn Log>> {
        #[cfg(feature = "kafka")]
        if let Some(kafka) = self.open_kafka() {
            return Ok(Arc::new(kafka?));
        }
        Ok(Arc::new(folder.log().await?))
    }

    async fn open_live(&self, folder: &DataFolder) -> Result<Arc<dyn LiveWrite>> {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.open_redis() {
            return Ok(Arc::new(redis?));
        }
        Ok(Arc::new(folder.live().await?))
    }

    fn open_schemas(&self) -> Result<Arc<dyn SchemaSource>> {
        #[cfg(feature = "http")]
        if let Some(registry) = self.open_registry() {
            return Ok(Arc::new(registry?));
        }
        Ok(Arc::new(NoRegistry))
    }

    fn open_hook(&self) -> Result<Option<Arc<dyn WebhookSender>>> {
        #[cfg(feature = "http")]
        if let Some(hook) = crate::webhook::Webhook::from_options(&self.notices)? {
            return Ok(Some(Arc::new(hook)));
        }
        Ok(None)
    }

    async fn open_views(&self, folder: &DataFolder) -> Result<ViewStores> {
        #[cfg(feature = "cassandra")]
        if let Some(cassandra) = self.create_cassandra() {
            return Ok(cassandra.stores());
        }
        ViewStores::embedded(folder).await
    }

    /// All entities, and API keys.
    async fn open_entities(&self, folder: &DataFolder) -> Result<(EntityStore, ApiKeyStore)> {
        #[cfg(feature = "sql")]
        if let Some(database) = self.create_database_server() {
            return Ok((database.entities(), database.keys()));
        }
        Ok((folder.entities().await?, folder.keys().await?))
    }
}

/// The stores that share one keyspace or one data folder.
pub(crate) struct ViewStores {
    pub(crate) views: Arc<dyn ViewsWrite>,
    pub(crate) achievements: Arc<dyn AchievementsWrite>,
    pub(crate) counts: Arc<dyn CountsWrite>,
    pub(crate) leases: Arc<dyn Leases>,
    pub(crate) erasures: Arc<dyn Records>,
    pub(crate) records: Arc<dyn Records>,
}

impl ViewStores {
    async fn embedded(folder: &DataFolder) -> Result<Self> {
        Ok(Self {
            views: Arc::new(folder.views().await?),
            achievements: Arc::new(folder.achievements().await?),
            counts: Arc::new(folder.counts().await?),
            leases: Arc::new(folder.leases()),
            erasures: Arc::new(folder.erasures().await?),
            records: Arc::new(folder.records().await?),
        })
    }
}

impl Stores {
    /// Opens the stores of an installation. A server gets its first request when a store needs it,
    /// so a process works without the servers that it does not use.
    ///
    /// # Errors
    /// As [`Stores::embedded`], options of servers that cannot be used, and servers whose client is
    /// not built in.
    pub async fn open(options: &StoresOptions) -> Result<Self> {
        options.check_features()?;
        Self::open_in(options, &DataFolder::open(&options.folder())?).await
    }

    async fn open_in(options: &StoresOptions, folder: &DataFolder) -> Result<Self> {
        let log = options.open_log(folder).await?;
        let live = options.open_live(folder).await?;
        let view_stores = options.open_views(folder).await?;
        let suppressions = Suppressions::new(Arc::clone(&view_stores.erasures));
        let (entities, keys) = options.open_entities(folder).await?;
        Ok(Self {
            log,
            live,
            views: view_stores.views,
            entities: Arc::new(entities.without_erased(suppressions)),
            entity_eraser: Arc::new(entities),
            archive: options.open_archive(|| Ok(folder.clone()))?,
            achievements: view_stores.achievements,
            counts: view_stores.counts,
            erasures: view_stores.erasures,
            records: view_stores.records,
            leases: view_stores.leases,
            keys: Arc::new(keys),
            schemas: options.open_schemas()?,
            hook: options.open_hook()?,
            data_folder: folder.clone(),
        })
    }

    /// Opens the stores in a data folder, and creates the folder if it is missing. Several
    /// processes may do so at the same moment.
    ///
    /// # Errors
    /// [`crate::Error::Broken`] if the folder can't be created or written, or if a file in it is
    /// damaged or of a newer version; [`crate::Error::Unavailable`] if another process blocks it
    /// for too long.
    pub async fn embedded(folder: &Path) -> Result<Self> {
        Self::open_in(&StoresOptions::default(), &DataFolder::open(folder)?).await
    }
}
