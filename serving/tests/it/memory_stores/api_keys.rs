//! API keys, and the actions that administrators did with them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use schemas::access::Scopes;
use stores::keys::{AdminAction, ApiKey, ApiKeyRecord, Keys, RotateOutcome, Token};
use stores::{Error, Result};

use super::fail_unsupported;

/// API keys and recorded actions, with faults that a test injects.
#[derive(Debug, Default)]
pub(crate) struct MemoryKeys {
    keys: Mutex<Vec<ApiKeyRecord>>,
    pub(crate) actions: Mutex<Vec<AdminAction>>,
    pub(crate) is_down: AtomicBool,
    /// True if calls wait forever.
    pub(crate) hangs: AtomicBool,
    /// Number of key lookups.
    pub(crate) lookups: AtomicUsize,
}

impl MemoryKeys {
    /// Creates a key. Its name is `key with SCOPES`.
    pub(crate) fn create(&self, scopes: &str, expires_at_ms: Option<i64>) -> Token {
        let token = Token::generate();
        let key = ApiKey {
            id: token.id().to_owned(),
            name: format!("key with {scopes}"),
            scopes: scopes.parse::<Scopes>().unwrap(),
            created_at_ms: 0,
            created_by: "a test".to_owned(),
            expires_at_ms,
            revoked_at_ms: None,
            revoked_by: None,
            replaced_by: None,
            used_at_ms: None,
        };
        let digest = token.digest();
        self.keys.lock().unwrap().push(ApiKeyRecord { key, digest });
        token
    }

    async fn check_available(&self) -> Result<()> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_down.load(Ordering::Relaxed) {
            return Err(Error::Unavailable {
                operation: "reading keys".to_owned(),
                reason: "the test made it unavailable".to_owned(),
            });
        }
        Ok(())
    }
}

#[async_trait]
impl Keys for MemoryKeys {
    async fn has_keys(&self) -> Result<bool> {
        self.check_available().await?;
        Ok(!self.keys.lock().unwrap().is_empty())
    }

    async fn key(&self, id: &str) -> Result<Option<ApiKeyRecord>> {
        self.check_available().await?;
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let keys = self.keys.lock().unwrap();
        Ok(keys.iter().find(|stored| stored.key.id == id).cloned())
    }

    async fn keys(&self, _: Option<&str>, _: usize) -> Result<Vec<ApiKey>> {
        fail_unsupported()
    }

    async fn add_key(&self, _: &ApiKeyRecord) -> Result<()> {
        fail_unsupported()
    }

    async fn rotate_key(&self, _: &str, _: i64, _: &ApiKeyRecord) -> Result<RotateOutcome> {
        fail_unsupported()
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        let mut keys = self.keys.lock().unwrap();
        let stored = keys.iter_mut().find(|stored| stored.key.id == id);
        Ok(stored.map(|stored| {
            stored.key.revoked_at_ms = Some(now_ms);
            stored.key.revoked_by = Some(by.to_owned());
            stored.key.clone()
        }))
    }

    async fn record_key_use(&self, id: &str, at_ms: i64) -> Result<()> {
        let mut keys = self.keys.lock().unwrap();
        if let Some(stored) = keys.iter_mut().find(|stored| stored.key.id == id) {
            stored.key.used_at_ms = Some(at_ms);
        }
        Ok(())
    }

    async fn record_action(&self, action: &AdminAction) -> Result<()> {
        self.check_available().await?;
        self.actions.lock().unwrap().push(action.clone());
        Ok(())
    }

    async fn actions(&self, _: Option<i64>, _: usize) -> Result<Vec<AdminAction>> {
        Ok(self.actions.lock().unwrap().clone())
    }
}
