//! The stores of an installation: each behind its port, embedded or on a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;

use crate::Result;
use crate::achievements::AchievementsWrite;
use crate::admin::CanonAdmin;
use crate::archive::Archive;
use crate::canon::CanonErase;
use crate::canon_sifted::Sifted;
use crate::canon_sql::{SqlCanon, SqlOptions, SqlServer};
use crate::cassandra::{Cassandra, CassandraOptions};
use crate::counts::CountsWrite;
use crate::embedded::DataFolder;
use crate::erasures::{Erasures, Suppressions};
use crate::kafka::{KafkaLog, KafkaOptions};
use crate::keys::Keys;
use crate::lazily::Lazy;
use crate::lease::Leases;
use crate::live::LiveWrite;
use crate::log::Log;
use crate::namespace::Namespace;
use crate::reconciliations::Reconciliations;
use crate::redis::{RedisLive, RedisOptions};
use crate::registry::{NoRegistry, Registry, RegistryOptions, Schemas};
use crate::s3::{S3, S3Options};
use crate::views::ViewsWrite;
use crate::webhook::{Hook, NoticesOptions, Webhook};

/// The stores of an installation.
#[derive(Debug, Clone)]
pub struct Stores {
    /// The log.
    pub log: Arc<dyn Log>,
    /// Live state.
    pub live: Arc<dyn LiveWrite>,
    /// Run records and batch rows.
    pub views: Arc<dyn ViewsWrite>,
    /// Entities, without athletes who were erased.
    pub canon: Arc<dyn CanonAdmin>,
    /// The same as an erasure sees them.
    pub canon_erase: Arc<dyn CanonErase>,
    /// The archive.
    pub archive: Archive,
    /// What athletes have achieved.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// Counts of members by day.
    pub counts: Arc<dyn CountsWrite>,
    /// Who was erased.
    pub erasures: Arc<dyn Erasures>,
    /// What was compared.
    pub reconciliations: Arc<dyn Reconciliations>,
    /// Leases.
    pub leases: Arc<dyn Leases>,
    /// Keys of the API.
    pub keys: Arc<dyn Keys>,
    /// Schemas of records of Avro.
    pub schemas: Arc<dyn Schemas>,
    /// Where notices go besides the log, if anywhere.
    pub hook: Option<Arc<dyn Hook>>,
}

/// Where the stores of an installation are: on a server where that is configured, else in the data
/// folder.
#[derive(Debug, Clone, Default)]
pub struct StoresOptions {
    /// The data folder.
    pub data_dir: PathBuf,
    /// What the installation is called.
    pub namespace: Namespace,
    /// The log, if brokers are named.
    pub kafka: KafkaOptions,
    /// Live state, if nodes are named.
    pub redis: RedisOptions,
    /// Run records, batch rows and leases, if nodes are named.
    pub cassandra: CassandraOptions,
    /// Entities, if a host is named.
    pub database: SqlOptions,
    /// The archive, if a bucket is named.
    pub s3: S3Options,
    /// Schemas of records of Avro, if an address is named.
    pub registry: RegistryOptions,
    /// Where notices go, if an address is named.
    pub notices: NoticesOptions,
}

impl StoresOptions {
    /// The folder of the embedded stores: each installation has its own.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.data_dir.join(self.namespace.as_str())
    }

    /// Whether any store is embedded.
    #[must_use]
    pub const fn has_embedded(&self) -> bool {
        self.kafka.bootstrap_servers.is_empty()
            || self.redis.nodes.is_empty()
            || self.cassandra.nodes.is_empty()
            || self.database.host.is_empty()
            || self.s3.bucket.is_empty()
    }

    /// The archive alone, for processes that need no other store.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub fn archive(&self) -> Result<Archive> {
        match self.s3() {
            Some(s3) => Ok(s3?.archive()),
            None => DataFolder::open(&self.folder())?.archive(),
        }
    }

    /// The views alone, for processes that need no other store but the archive: on a server, of which nothing is asked
    /// yet, or else in the folder that holds the archive too. Nothing if the archive is on a server and they are not.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub async fn views(&self) -> Result<Option<Arc<dyn ViewsWrite>>> {
        if let Some(cassandra) = self.cassandra() {
            return Ok(Some(cassandra.stores().0));
        }
        if self.s3().is_some() {
            return Ok(None);
        }
        let folder = DataFolder::open(&self.folder())?;
        Ok(Some(Arc::new(folder.views().await?)))
    }

    fn kafka(&self) -> Option<Result<KafkaLog>> {
        let is_named = !self.kafka.bootstrap_servers.is_empty();
        is_named.then(|| KafkaLog::open(&self.kafka, &self.namespace))
    }

    fn redis(&self) -> Option<Result<RedisLive>> {
        let is_named = !self.redis.nodes.is_empty();
        is_named.then(|| RedisLive::new(&self.redis, &self.namespace))
    }

    fn cassandra(&self) -> Option<OnCassandra> {
        let is_named = !self.cassandra.nodes.is_empty();
        is_named.then(|| OnCassandra {
            options: self.cassandra.clone(),
            namespace: self.namespace.clone(),
        })
    }

    fn database(&self) -> Option<OnDatabase> {
        let is_named = !self.database.host.is_empty();
        is_named.then(|| OnDatabase {
            options: self.database.clone(),
            namespace: self.namespace.clone(),
        })
    }

    fn s3(&self) -> Option<Result<S3>> {
        let is_named = !self.s3.bucket.is_empty();
        is_named.then(|| S3::new(&self.s3, &self.namespace))
    }

    fn registry(&self) -> Option<Result<Registry>> {
        let is_named = !self.registry.url.is_empty();
        is_named.then(|| Registry::new(&self.registry))
    }

    /// The servers that are configured. Nothing is asked of them yet.
    ///
    /// # Errors
    /// Options that can't be used.
    pub fn servers(&self) -> Result<Vec<Box<dyn Server>>> {
        let servers = [
            self.kafka().map(boxed),
            self.redis().map(boxed),
            self.cassandra().map(Ok).map(boxed),
            self.database().map(Ok).map(boxed),
            self.s3().map(boxed),
            self.registry().map(boxed),
        ];
        servers.into_iter().flatten().collect()
    }
}

/// A server that holds one of the stores.
#[async_trait]
pub trait Server: std::fmt::Debug + Send + Sync {
    /// What is on which server.
    fn name(&self) -> &'static str;

    /// Makes there what must be there before the store can be used; answers what was made, in
    /// sentences.
    ///
    /// # Errors
    /// Those of the server.
    async fn migrate(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// What is wrong there, in sentences; nothing if all is well.
    ///
    /// # Errors
    /// Those of a server that can't be asked.
    async fn flaws(&self) -> Result<Vec<String>>;
}

/// Topics are made through the port.
#[async_trait]
impl Server for KafkaLog {
    fn name(&self) -> &'static str {
        "log on Kafka"
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        Self::flaws(self).await
    }
}

#[async_trait]
impl Server for RedisLive {
    fn name(&self) -> &'static str {
        "live state on Redis"
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        Self::flaws(self).await
    }
}

/// A keyspace, which need not be there yet.
#[derive(Debug, Clone)]
struct OnCassandra {
    options: CassandraOptions,
    namespace: Namespace,
}

/// What is kept in a keyspace.
type OfCassandra = (
    Arc<dyn ViewsWrite>,
    Arc<dyn AchievementsWrite>,
    Arc<dyn CountsWrite>,
    Arc<dyn Leases>,
    Arc<dyn Erasures>,
    Arc<dyn Reconciliations>,
);

impl OnCassandra {
    /// Views, achievements, counts, leases, erasures and reconciliations, which share a session.
    fn stores(self) -> OfCassandra {
        let session = Arc::new(Lazy::new(move || {
            let this = self.clone();
            async move { Cassandra::open(&this.options, &this.namespace).await }.boxed()
        }));
        let of_leases = Arc::clone(&session);
        let of_achievements = Arc::clone(&session);
        let of_counts = Arc::clone(&session);
        let of_erasures = Arc::clone(&session);
        let of_reconciliations = Arc::clone(&session);
        let views = Lazy::new(move || {
            let session = Arc::clone(&session);
            async move { Ok(session.get().await?.views()) }.boxed()
        });
        let leases = Lazy::new(move || {
            let session = Arc::clone(&of_leases);
            async move { Ok(session.get().await?.leases()) }.boxed()
        });
        let achievements = Lazy::new(move || {
            let session = Arc::clone(&of_achievements);
            async move { Ok(session.get().await?.achievements()) }.boxed()
        });
        let counts = Lazy::new(move || {
            let session = Arc::clone(&of_counts);
            async move { Ok(session.get().await?.counts()) }.boxed()
        });
        let erasures = Lazy::new(move || {
            let session = Arc::clone(&of_erasures);
            async move { Ok(session.get().await?.erasures()) }.boxed()
        });
        let reconciliations = Lazy::new(move || {
            let session = Arc::clone(&of_reconciliations);
            async move { Ok(session.get().await?.reconciliations()) }.boxed()
        });
        (
            Arc::new(views),
            Arc::new(achievements),
            Arc::new(counts),
            Arc::new(leases),
            Arc::new(erasures),
            Arc::new(reconciliations),
        )
    }
}

#[async_trait]
impl Server for OnCassandra {
    fn name(&self) -> &'static str {
        "views on Cassandra"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let made = Cassandra::migrate(&self.options, &self.namespace).await?;
        Ok(told(made, "brought the keyspace up to date"))
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        Cassandra::flaws(&self.options, &self.namespace).await
    }
}

/// A schema, which need not be there yet.
#[derive(Debug, Clone)]
struct OnDatabase {
    options: SqlOptions,
    namespace: Namespace,
}

impl OnDatabase {
    fn store(self) -> Lazy<SqlCanon> {
        Lazy::new(move || {
            let this = self.clone();
            async move { SqlCanon::open(&this.options, &this.namespace).await }.boxed()
        })
    }
}

#[async_trait]
impl Server for OnDatabase {
    fn name(&self) -> &'static str {
        match self.options.server {
            SqlServer::Postgres => "entities on PostgreSQL",
            SqlServer::MySql => "entities on MySQL",
        }
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let made = SqlCanon::migrate(&self.options, &self.namespace).await?;
        let mut told = told(made, "brought the schema up to date");
        let recounted = SqlCanon::recount(&self.options, &self.namespace).await?;
        if !recounted.is_empty() {
            let ids: Vec<String> = recounted.iter().map(i64::to_string).collect();
            told.push(format!(
                "counted connected athletes of the applications {} anew",
                ids.join(", ")
            ));
        }
        Ok(told)
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        SqlCanon::flaws(&self.options, &self.namespace).await
    }
}

fn told(made: bool, what: &str) -> Vec<String> {
    made.then(|| what.to_owned()).into_iter().collect()
}

#[async_trait]
impl Server for S3 {
    fn name(&self) -> &'static str {
        "archive on S3"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        Self::migrate(self).await
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        Self::flaws(self).await
    }
}

#[async_trait]
impl Server for Registry {
    fn name(&self) -> &'static str {
        "schema registry"
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        Self::flaws(self).await
    }
}

/// A server that is configured, as something to be asked.
fn boxed(server: Result<impl Server + 'static>) -> Result<Box<dyn Server>> {
    Ok(Box::new(server?))
}

impl Stores {
    /// Opens the stores of an installation. A server is asked for nothing before it is needed, so that
    /// whoever does not need it works without it.
    ///
    /// # Errors
    /// As [`Stores::embedded`], and options of servers that can't be used.
    pub async fn open(options: &StoresOptions) -> Result<Self> {
        let folder = &DataFolder::open(&options.folder())?;
        let log: Arc<dyn Log> = match options.kafka() {
            Some(kafka) => Arc::new(kafka?),
            None => Arc::new(folder.log().await?),
        };
        let live: Arc<dyn LiveWrite> = match options.redis() {
            Some(redis) => Arc::new(redis?),
            None => Arc::new(folder.live().await?),
        };
        let (views, achievements, counts, leases, erasures, reconciliations): OfCassandra =
            match options.cassandra() {
                Some(cassandra) => cassandra.stores(),
                None => (
                    Arc::new(folder.views().await?),
                    Arc::new(folder.achievements().await?),
                    Arc::new(folder.counts().await?),
                    Arc::new(folder.leases()),
                    Arc::new(folder.erasures().await?),
                    Arc::new(folder.reconciliations().await?),
                ),
            };
        let suppressions = Suppressions::new(Arc::clone(&erasures));
        let (canon, canon_erase) = match options.database() {
            Some(database) => Sifted::both(database.store(), suppressions),
            None => Sifted::both(folder.canon().await?, suppressions),
        };
        // Connections of their own: who asks is looked up while others wait for rows.
        let keys: Arc<dyn Keys> = match options.database() {
            Some(database) => Arc::new(database.store()),
            None => Arc::new(folder.keys().await?),
        };
        let archive = options.archive()?;
        let schemas: Arc<dyn Schemas> = match options.registry() {
            Some(registry) => Arc::new(registry?),
            None => Arc::new(NoRegistry),
        };
        let hook = Webhook::of(&options.notices)?.map(|hook| Arc::new(hook) as _);
        Ok(Self {
            log,
            live,
            views,
            canon,
            canon_erase,
            archive,
            achievements,
            counts,
            erasures,
            reconciliations,
            leases,
            keys,
            schemas,
            hook,
        })
    }

    /// Opens those in a data folder, which is made if it is not there. Several processes may do so at
    /// the same moment.
    ///
    /// # Errors
    /// [`crate::Error::Broken`] if the folder can't be made or written, or if a file in it is damaged
    /// or of a newer version; [`crate::Error::Unavailable`] if another process keeps it busy for too
    /// long.
    pub async fn embedded(folder: &Path) -> Result<Self> {
        let folder = DataFolder::open(folder)?;
        let erasures: Arc<dyn Erasures> = Arc::new(folder.erasures().await?);
        let suppressions = Suppressions::new(Arc::clone(&erasures));
        let (canon, canon_erase) = Sifted::both(folder.canon().await?, suppressions);
        Ok(Self {
            log: Arc::new(folder.log().await?),
            live: Arc::new(folder.live().await?),
            views: Arc::new(folder.views().await?),
            canon,
            canon_erase,
            archive: folder.archive()?,
            achievements: Arc::new(folder.achievements().await?),
            counts: Arc::new(folder.counts().await?),
            erasures,
            reconciliations: Arc::new(folder.reconciliations().await?),
            leases: Arc::new(folder.leases()),
            keys: Arc::new(folder.keys().await?),
            schemas: Arc::new(NoRegistry),
            hook: None,
        })
    }
}
