//! The servers of an installation: which are configured, and how each is migrated and checked.

use crate::Result;
#[cfg(feature = "cassandra")]
use crate::cassandra::Cassandra;
#[cfg(feature = "kafka")]
use crate::kafka::KafkaLog;
#[cfg(feature = "sql")]
use crate::namespace::Namespace;
#[cfg(feature = "redis")]
use crate::redis::RedisLive;
#[cfg(feature = "http")]
use crate::registry::Registry;
#[cfg(feature = "s3")]
use crate::s3::S3;
use crate::server::Server;
#[cfg(feature = "sql")]
use crate::sql::{ApiKeyStore, EntityStore, SqlOptions, SqlServer};
use crate::stores::StoresOptions;

impl StoresOptions {
    #[cfg(feature = "kafka")]
    pub(crate) fn open_kafka(&self) -> Option<Result<KafkaLog>> {
        let is_configured = !self.kafka.bootstrap_servers.is_empty();
        is_configured.then(|| KafkaLog::open(&self.kafka, &self.namespace))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn open_redis(&self) -> Option<Result<RedisLive>> {
        let is_configured = !self.redis.nodes.is_empty();
        is_configured.then(|| RedisLive::new(&self.redis, &self.namespace))
    }

    #[cfg(feature = "cassandra")]
    pub(crate) fn create_cassandra(&self) -> Option<Cassandra> {
        let is_configured = !self.cassandra.nodes.is_empty();
        is_configured.then(|| Cassandra::new(&self.cassandra, &self.namespace))
    }

    #[cfg(feature = "sql")]
    pub(crate) fn create_database_server(&self) -> Option<DatabaseServer> {
        let is_configured = !self.database.host.is_empty();
        is_configured.then(|| DatabaseServer {
            options: self.database.clone(),
            namespace: self.namespace.clone(),
        })
    }

    #[cfg(feature = "s3")]
    pub(crate) fn open_s3(&self) -> Option<Result<S3>> {
        let is_configured = !self.s3.bucket.is_empty();
        is_configured.then(|| S3::new(&self.s3, &self.namespace))
    }

    #[cfg(feature = "http")]
    pub(crate) fn open_registry(&self) -> Option<Result<Registry>> {
        let is_configured = !self.registry.url.is_empty();
        is_configured.then(|| Registry::new(&self.registry))
    }

    /// The configured servers. No request is sent yet.
    ///
    /// # Errors
    /// Options that cannot be used, or a server whose client is not built in.
    pub fn servers(&self) -> Result<Vec<Box<dyn Server>>> {
        self.check_features()?;
        #[allow(unused_mut, reason = "a build without servers adds none")]
        let mut servers: Vec<Box<dyn Server>> = Vec::new();
        #[cfg(feature = "kafka")]
        if let Some(kafka) = self.open_kafka() {
            servers.push(Box::new(kafka?));
        }
        #[cfg(feature = "redis")]
        if let Some(redis) = self.open_redis() {
            servers.push(Box::new(redis?));
        }
        #[cfg(feature = "cassandra")]
        if let Some(cassandra) = self.create_cassandra() {
            servers.push(Box::new(cassandra));
        }
        #[cfg(feature = "sql")]
        if let Some(database) = self.create_database_server() {
            servers.push(Box::new(database));
        }
        #[cfg(feature = "s3")]
        if let Some(s3) = self.open_s3() {
            servers.push(Box::new(s3?));
        }
        #[cfg(feature = "http")]
        if let Some(registry) = self.open_registry() {
            servers.push(Box::new(registry?));
        }
        Ok(servers)
    }
}

#[cfg(feature = "cassandra")]
#[async_trait::async_trait]
impl Server for Cassandra {
    fn name(&self) -> &'static str {
        "views on Cassandra"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let changed = Self::migrate(&self.options, &self.namespace).await?;
        Ok(to_messages(changed, "updated the keyspace"))
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        Self::diagnostics(&self.options, &self.namespace).await
    }
}

/// A database server. Its schema may not exist yet.
#[cfg(feature = "sql")]
#[derive(Debug, Clone)]
pub(crate) struct DatabaseServer {
    options: SqlOptions,
    namespace: Namespace,
}

#[cfg(feature = "sql")]
impl DatabaseServer {
    pub(crate) fn entities(&self) -> EntityStore {
        EntityStore::on_server(&self.options, &self.namespace)
    }

    pub(crate) fn keys(&self) -> ApiKeyStore {
        ApiKeyStore::on_server(&self.options, &self.namespace)
    }
}

#[cfg(feature = "sql")]
#[async_trait::async_trait]
impl Server for DatabaseServer {
    fn name(&self) -> &'static str {
        match self.options.server {
            SqlServer::Postgres => "entities on PostgreSQL",
            SqlServer::MySql => "entities on MySQL",
        }
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let changed = EntityStore::migrate(&self.options, &self.namespace).await?;
        let mut messages = to_messages(changed, "updated the schema");
        let recounted = EntityStore::recount(&self.options, &self.namespace).await?;
        if !recounted.is_empty() {
            let ids: Vec<String> = recounted.iter().map(i64::to_string).collect();
            messages.push(format!(
                "recounted the connected athletes of the applications {}",
                ids.join(", ")
            ));
        }
        Ok(messages)
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        EntityStore::diagnostics(&self.options, &self.namespace).await
    }
}

#[cfg(any(feature = "cassandra", feature = "sql"))]
fn to_messages(changed: bool, message: &str) -> Vec<String> {
    changed.then(|| message.to_owned()).into_iter().collect()
}
