//! In-memory API keys.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use schemas::access::Scopes;
use stores::keys::{AdminAction, ApiKey, ApiKeyRecord, Keys, RotateOutcome, Token};
use stores::{Error, Result};

/// API keys and recorded actions.
#[derive(Debug, Default)]
pub(crate) struct InMemoryKeys {
    keys: Mutex<Vec<ApiKeyRecord>>,
    pub(crate) actions: Mutex<Vec<AdminAction>>,
    /// True if the store is unavailable.
    pub(crate) is_down: AtomicBool,
    /// True if calls never return.
    pub(crate) hangs: AtomicBool,
    /// Number of key lookups.
    pub(crate) reads: AtomicUsize,
}

impl InMemoryKeys {
    /// Creates a key.
    pub(crate) fn create(&self, scopes: &str, expires_at_ms: Option<i64>) -> Token {
        let token = Token::generate();
        let key = ApiKey {
            id: token.id().to_owned(),
            name: format!("key with {scopes}"),
            scopes: scopes.parse::<Scopes>().unwrap(),
            made_at_ms: 0,
            made_by: "a test".to_owned(),
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
        match self.is_down.load(Ordering::Relaxed) {
            true => Err(Error::Unavailable {
                what: "reading keys".to_owned(),
                why: "the test made it unavailable".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Keys for InMemoryKeys {
    async fn has_keys(&self) -> Result<bool> {
        self.check_available().await?;
        Ok(!self.keys.lock().unwrap().is_empty())
    }

    async fn key(&self, id: &str) -> Result<Option<ApiKeyRecord>> {
        self.check_available().await?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let keys = self.keys.lock().unwrap();
        Ok(keys.iter().find(|stored| stored.key.id == id).cloned())
    }

    async fn keys(&self, _: Option<&str>, _: usize) -> Result<Vec<ApiKey>> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn add_key(&self, _: &ApiKeyRecord) -> Result<()> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn rotate_key(&self, _: &str, _: i64, _: &ApiKeyRecord) -> Result<RotateOutcome> {
        Err(Error::Refused("not used by the serving layer".to_owned()))
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        let mut keys = self.keys.lock().unwrap();
        let found = keys.iter_mut().find(|stored| stored.key.id == id);
        Ok(found.map(|stored| {
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
