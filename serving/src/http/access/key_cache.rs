//! Cache of keys. It limits reads of the key store, and how long a revoked key remains valid.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use stores::keys::{ApiKeyRecord, Keys, Token};
use tokio::time::{Instant, timeout};

use crate::http::problem::Problem;
use crate::lock::lock;
use crate::options::ServingOptions;
use crate::request_coalescer::{RequestCoalescer, seeded_hash};

/// Maximum age of the cached fact that no key exists.
const NO_KEYS_TTL: Duration = Duration::from_secs(1);
/// Maximum number of cached keys.
const CACHED_KEYS_MAX: u64 = 100_000;
/// Interval between records of a key's use, and the time limit of each record.
const RECORD_USE_INTERVAL: Duration = Duration::from_secs(60);
const RECORD_USE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit of a read of the store if a stale entry can replace its result.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// A result of the key store.
#[derive(Debug, Clone, Copy)]
struct CacheEntry<T> {
    value: T,
    read_at: Instant,
    /// Time of the last attempt to read, even if it failed.
    tried_at: Instant,
}

type ReadCoalescer<T> = RequestCoalescer<Result<T, Problem>>;

/// Keys that this process has looked up.
#[derive(Debug)]
pub(crate) struct KeyCache {
    keys: Arc<dyn Keys>,
    fresh_for: Duration,
    stale_for: Duration,
    /// Keys by id; `None` for an id without a key.
    entries: Cache<String, CacheEntry<Option<Arc<ApiKeyRecord>>>>,
    /// Keys whose use was recorded during the last interval.
    recently_used: Cache<String, ()>,
    key_coalescer: ReadCoalescer<Option<Arc<ApiKeyRecord>>>,
    /// True once a key has existed. It never becomes false again.
    has_keys: AtomicBool,
    /// The last read that found no key.
    no_keys: Mutex<Option<CacheEntry<bool>>>,
    has_keys_coalescer: ReadCoalescer<bool>,
}

impl KeyCache {
    pub(crate) fn new(keys: Arc<dyn Keys>, options: &ServingOptions) -> Self {
        let stale_for = Duration::from_millis(options.keys_kept_stale_ms.max(options.keys_kept_ms));
        let entries = Cache::builder()
            .max_capacity(CACHED_KEYS_MAX)
            .time_to_live(stale_for)
            .build();
        Self {
            keys,
            fresh_for: Duration::from_millis(options.keys_kept_ms),
            stale_for,
            entries,
            recently_used: Cache::builder()
                .max_capacity(CACHED_KEYS_MAX)
                .time_to_live(RECORD_USE_INTERVAL)
                .build(),
            key_coalescer: RequestCoalescer::new(),
            has_keys: AtomicBool::new(false),
            no_keys: Mutex::default(),
            has_keys_coalescer: RequestCoalescer::new(),
        }
    }

    /// Returns whether requests need a key, which is so once a key has existed. If the store does
    /// not answer, a stale entry is used for a while.
    pub(crate) async fn is_key_required(&self) -> Result<bool, Problem> {
        if self.has_keys.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let cached = *lock(&self.no_keys);
        let fresh_for = self.fresh_for.min(NO_KEYS_TTL);
        if cached.is_some_and(|entry| entry.tried_at.elapsed() < fresh_for) {
            return Ok(false);
        }
        let keys = Arc::clone(&self.keys);
        let read = async move {
            let has_keys = keys.has_keys().await;
            has_keys.map_err(Problem::from)
        };
        let read = self.has_keys_coalescer.read(0, read);
        let entry = self.refresh(cached, read).await?;
        if entry.value {
            self.has_keys.store(true, Ordering::Relaxed);
        } else {
            *lock(&self.no_keys) = Some(entry);
        }
        Ok(entry.value)
    }

    /// Reads from the store. If that fails or takes too long, returns the last entry unless it is
    /// too old.
    async fn refresh<T>(
        &self,
        last: Option<CacheEntry<T>>,
        read: impl Future<Output = Result<T, Problem>>,
    ) -> Result<CacheEntry<T>, Problem> {
        let last = last.filter(|last| last.read_at.elapsed() < self.stale_for);
        let value = match last {
            None => read.await?,
            Some(last) => match timeout(REFRESH_TIMEOUT, read).await {
                Ok(Ok(value)) => value,
                Ok(Err(_)) | Err(_) => {
                    let tried_at = Instant::now();
                    return Ok(CacheEntry { tried_at, ..last });
                }
            },
        };
        let read_at = Instant::now();
        Ok(CacheEntry {
            value,
            read_at,
            tried_at: read_at,
        })
    }

    /// Returns a cached key without reading the store.
    pub(crate) fn cached(&self, id: &str) -> Option<Arc<ApiKeyRecord>> {
        self.entries.get(id)?.value
    }

    /// Looks up the key of a token, and records its use. Returns `None` if there is no such key, or
    /// its secret differs.
    pub(crate) async fn verify(
        &self,
        token: &Token,
        now_ms: i64,
    ) -> Result<Option<Arc<ApiKeyRecord>>, Problem> {
        let key = self.get(token.id()).await?;
        let key = key.filter(|key| key.digest == token.digest());
        if let Some(key) = &key {
            self.record_use(key, now_ms).await;
        }
        Ok(key)
    }

    /// Returns the key of an id without checking a secret.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<Arc<ApiKeyRecord>>, Problem> {
        let cached = self.entries.get(id);
        if let Some(entry) = cached
            .as_ref()
            .filter(|entry| entry.tried_at.elapsed() < self.fresh_for)
        {
            return Ok(entry.value.clone());
        }
        let (keys, key_id) = (Arc::clone(&self.keys), id.to_owned());
        let read = async move {
            let key = keys.key(&key_id).await.map_err(|error| {
                tracing::warn!(%error, "cannot look up a key");
                Problem::from(&error)
            });
            Ok(key?.map(Arc::new))
        };
        let read = self.key_coalescer.read(seeded_hash(&id), read);
        let last = cached.filter(|entry| entry.value.is_some());
        let entry = self.refresh(last, read).await?;
        if entry.value.is_some() {
            self.has_keys.store(true, Ordering::Relaxed);
        }
        self.entries.insert(id.to_owned(), entry.clone());
        Ok(entry.value)
    }

    /// Records the use of a key, at most once a minute. A failure does not refuse the request.
    pub(crate) async fn record_use(&self, key: &ApiKeyRecord, now_ms: i64) {
        let id = &key.key.id;
        if self.recently_used.contains_key(id) {
            return;
        }
        self.recently_used.insert(id.clone(), ());
        match timeout(RECORD_USE_TIMEOUT, self.keys.record_key_use(id, now_ms)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, id, "cannot record the use of a key"),
            Err(_) => tracing::debug!(id, "recording the use of a key took too long"),
        }
    }
}
