//! The store of API keys, on the server of the entities or in `keys.db`.

use std::path::Path;

use async_trait::async_trait;
use uuid::Uuid;

#[cfg(feature = "sql")]
use super::SqlOptions;
use super::database::{Database, sql_call};
use super::{keys, sqlite};
use crate::Result;
use crate::keys::{Action, ApiKey, KeptKey, Keys, Rotated};
#[cfg(feature = "sql")]
use crate::namespace::Namespace;

/// The API keys of an installation. On a server they have a connection pool of their own, so that authentication does not wait
/// for entities.
#[derive(Debug)]
pub struct ApiKeyStore {
    database: Database,
}

impl ApiKeyStore {
    /// The keys of a data folder.
    pub(crate) async fn open_file(folder: &Path) -> Result<Self> {
        let database = Database::file(folder, &sqlite::keys::KEYS).await?;
        Ok(Self { database })
    }

    /// The keys on a server, which is connected when the first call needs it.
    #[cfg(feature = "sql")]
    #[must_use]
    pub fn on_server(options: &SqlOptions, namespace: &Namespace) -> Self {
        Self {
            database: Database::server(options, namespace),
        }
    }
}

#[async_trait]
impl Keys for ApiKeyStore {
    async fn any_key(&self) -> Result<bool> {
        self.database
            .read(
                keys::READING,
                sql_call!(connection => keys::any(connection)),
            )
            .await
    }

    async fn key(&self, id: &str) -> Result<Option<KeptKey>> {
        self.database
            .read(
                keys::READING,
                sql_call!(connection => keys::key(connection, id)),
            )
            .await
    }

    async fn keys(&self, before: Option<&str>, limit: usize) -> Result<Vec<ApiKey>> {
        let call = sql_call!(connection => keys::keys(connection, before, limit));
        self.database.read(keys::READING, call).await
    }

    async fn add_key(&self, key: &KeptKey) -> Result<()> {
        self.database
            .write(
                keys::CHANGING,
                sql_call!(connection => keys::add(connection, key)),
            )
            .await
    }

    async fn rotate_key(&self, id: &str, until_ms: i64, by: &KeptKey) -> Result<Rotated> {
        let call = sql_call!(connection => keys::rotate(connection, id, until_ms, by));
        self.database.write(keys::CHANGING, call).await
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        let call = sql_call!(connection => keys::revoke(connection, id, by, now_ms));
        self.database.write(keys::CHANGING, call).await
    }

    async fn key_used(&self, id: &str, at_ms: i64) -> Result<()> {
        self.database
            .write(
                keys::CHANGING,
                sql_call!(connection => keys::used(connection, id, at_ms)),
            )
            .await
    }

    async fn record_action(&self, action: &Action) -> Result<()> {
        let id = &Uuid::new_v4().to_string();
        self.database
            .write(
                keys::CHANGING,
                sql_call!(connection => keys::record_once(connection, id, action)),
            )
            .await
    }

    async fn actions(&self, before: Option<i64>, limit: usize) -> Result<Vec<Action>> {
        let call = sql_call!(connection => keys::actions(connection, before, limit));
        self.database.read(keys::ACTIONS, call).await
    }
}
