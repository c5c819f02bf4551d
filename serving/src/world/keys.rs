//! Keys over a plain list.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use schemas::access::Scopes;
use stores::keys::{Action, ApiKey, KeptKey, Keys, Rotated, Token};
use stores::{Error, Result};

/// Keys, and what was done.
#[derive(Debug, Default)]
pub(crate) struct PlainKeys {
    kept: Mutex<Vec<KeptKey>>,
    pub(crate) done: Mutex<Vec<Action>>,
    /// Whether the store does not answer.
    pub(crate) is_down: AtomicBool,
    /// Whether it lets everybody wait.
    pub(crate) hangs: AtomicBool,
    /// How often a key was looked up.
    pub(crate) reads: AtomicUsize,
}

impl PlainKeys {
    /// Makes a key.
    pub(crate) fn make(&self, scopes: &str, expires_at_ms: Option<i64>) -> Token {
        let token = Token::draw();
        let key = ApiKey {
            id: token.id().to_owned(),
            name: format!("of {scopes}"),
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
        self.kept.lock().unwrap().push(KeptKey { key, digest });
        token
    }

    async fn up(&self) -> Result<()> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        match self.is_down.load(Ordering::Relaxed) {
            true => Err(Error::Unavailable {
                what: "reading keys".to_owned(),
                why: "it is down".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Keys for PlainKeys {
    async fn any_key(&self) -> Result<bool> {
        self.up().await?;
        Ok(!self.kept.lock().unwrap().is_empty())
    }

    async fn key(&self, id: &str) -> Result<Option<KeptKey>> {
        self.up().await?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let kept = self.kept.lock().unwrap();
        Ok(kept.iter().find(|kept| kept.key.id == id).cloned())
    }

    async fn keys(&self, _: Option<&str>, _: usize) -> Result<Vec<ApiKey>> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn add_key(&self, _: &KeptKey) -> Result<()> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn rotate_key(&self, _: &str, _: i64, _: &KeptKey) -> Result<Rotated> {
        Err(Error::Refused("not for serving".to_owned()))
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        let mut kept = self.kept.lock().unwrap();
        let found = kept.iter_mut().find(|kept| kept.key.id == id);
        Ok(found.map(|kept| {
            kept.key.revoked_at_ms = Some(now_ms);
            kept.key.revoked_by = Some(by.to_owned());
            kept.key.clone()
        }))
    }

    async fn key_used(&self, id: &str, at_ms: i64) -> Result<()> {
        let mut kept = self.kept.lock().unwrap();
        if let Some(kept) = kept.iter_mut().find(|kept| kept.key.id == id) {
            kept.key.used_at_ms = Some(at_ms);
        }
        Ok(())
    }

    async fn record_action(&self, action: &Action) -> Result<()> {
        self.up().await?;
        self.done.lock().unwrap().push(action.clone());
        Ok(())
    }

    async fn actions(&self, _: Option<i64>, _: usize) -> Result<Vec<Action>> {
        Ok(self.done.lock().unwrap().clone())
    }
}
