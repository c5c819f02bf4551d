//! The store of API keys, on the server of the entities or in `keys.db`.

use std::path::Path;

use async_trait::async_trait;
use uuid::Uuid;

#[cfg(feature = "sql")]
use super::SqlOptions;
use super::connection::{Value, to_sql_limit};
use super::database::Database;
use super::keys::SELECT_KEYS;
use super::pooled_connection::sql_call;
use super::{keys, sqlite};
use crate::Result;
use crate::keys::{AdminAction, ApiKey, ApiKeyRecord, Keys, RotateOutcome};
#[cfg(feature = "sql")]
use crate::namespace::Namespace;

/// The API keys of an installation. On a server they have a separate connection pool, so that
/// authentication does not wait for entities.
#[derive(Debug)]
pub struct ApiKeyStore {
    database: Database,
}

impl ApiKeyStore {
    /// Opens the keys of a data folder.
    pub(crate) async fn open_file(folder: &Path) -> Result<Self> {
        let database = Database::open_file(folder, &sqlite::keys::KEYS).await?;
        Ok(Self { database })
    }

    /// The keys on a server. The first call connects.
    #[cfg(feature = "sql")]
    #[must_use]
    pub fn on_server(options: &SqlOptions, namespace: &Namespace) -> Self {
        Self {
            database: Database::on_server(options, namespace),
        }
    }
}

#[async_trait]
impl Keys for ApiKeyStore {
    async fn has_keys(&self) -> Result<bool> {
        let statement = "SELECT number FROM api_keys ORDER BY number LIMIT 1";
        let numbers: Vec<i64> = self
            .database
            .fetch_all(keys::READING, statement, &[])
            .await?;
        Ok(!numbers.is_empty())
    }

    async fn key(&self, id: &str) -> Result<Option<ApiKeyRecord>> {
        let call = sql_call!(connection => keys::fetch_key(connection, id));
        self.database.read(keys::READING, call).await
    }

    async fn keys(&self, before: Option<&str>, limit: usize) -> Result<Vec<ApiKey>> {
        let condition = match before {
            None => "",
            Some(_) => "WHERE number < (SELECT number FROM api_keys WHERE id = ?)",
        };
        let statement = format!("{SELECT_KEYS} {condition} ORDER BY number DESC LIMIT ?");
        let limit = Value::Int(to_sql_limit(limit));
        let values: Vec<_> = before.map(Value::Text).into_iter().chain([limit]).collect();
        let records = self.database.fetch_all(keys::READING, &statement, &values);
        Ok(records
            .await?
            .into_iter()
            .map(|record: ApiKeyRecord| record.key)
            .collect())
    }

    async fn add_key(&self, key: &ApiKeyRecord) -> Result<()> {
        let call = sql_call!(connection => keys::add(connection, key));
        self.database.write(keys::CHANGING, call).await
    }

    async fn rotate_key(
        &self,
        id: &str,
        until_ms: i64,
        by: &ApiKeyRecord,
    ) -> Result<RotateOutcome> {
        let call = sql_call!(connection => keys::rotate(connection, id, until_ms, by));
        self.database.write(keys::CHANGING, call).await
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        let call = sql_call!(connection => keys::revoke(connection, id, by, now_ms));
        self.database.write(keys::CHANGING, call).await
    }

    async fn record_key_use(&self, id: &str, at_ms: i64) -> Result<()> {
        let call = sql_call!(connection => keys::record_use(connection, id, at_ms));
        self.database.write(keys::CHANGING, call).await
    }

    async fn record_action(&self, action: &AdminAction) -> Result<()> {
        let id = &Uuid::new_v4().to_string();
        let call = sql_call!(connection => keys::record_once(connection, id, action));
        self.database.write(keys::CHANGING, call).await
    }

    async fn actions(&self, before: Option<i64>, limit: usize) -> Result<Vec<AdminAction>> {
        let statement = "SELECT number, at_ms, actor, action, target, detail FROM admin_actions
            WHERE number < ? ORDER BY number DESC LIMIT ?";
        let values = [before.unwrap_or(i64::MAX), to_sql_limit(limit)].map(Value::Int);
        self.database
            .fetch_all(keys::ACTIONS, statement, &values)
            .await
    }
}
