//! Keys that were looked up, kept for some seconds: so one that is taken back is refused that soon, and not
//! every request asks the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::sync::Cache;
use stores::ErrorKind;
use stores::keys::{KeptKey, Keys, Token};
use tokio::time::Instant;

use crate::gather::{Gather, key_of};
use crate::http::problem::Problem;
use crate::options::ServingOptions;

/// Keys that are kept, at most.
const KEPT_MAX: u64 = 100_000;
/// How often it is noted that a key is used.
const NOTE_EVERY_MS: i64 = 60_000;

/// A key as it was read; nothing where there is none of its id.
#[derive(Debug, Clone)]
struct Entry {
    found: Option<Arc<KeptKey>>,
    read_at: Instant,
}

type Read<T> = Gather<Result<T, Problem>>;

/// The keys that this process knows.
#[derive(Debug)]
pub(crate) struct KeyRing {
    keys: Arc<dyn Keys>,
    fresh_for: Duration,
    entries: Cache<String, Entry>,
    reads: Read<Option<Arc<KeptKey>>>,
    /// Whether there ever was a key, once that is known: what is true stays so.
    any: AtomicBool,
    none_at: std::sync::Mutex<Option<Instant>>,
    any_reads: Read<bool>,
}

impl KeyRing {
    pub(crate) fn new(keys: Arc<dyn Keys>, options: &ServingOptions) -> Self {
        let stale_for = Duration::from_millis(options.keys_kept_stale_ms.max(options.keys_kept_ms));
        let entries = Cache::builder()
            .max_capacity(KEPT_MAX)
            .time_to_live(stale_for)
            .build();
        Self {
            keys,
            fresh_for: Duration::from_millis(options.keys_kept_ms),
            entries,
            reads: Gather::new(),
            any: AtomicBool::new(false),
            none_at: std::sync::Mutex::default(),
            any_reads: Gather::new(),
        }
    }

    /// Whether keys are asked for: whether there ever was one. Where the store does not answer, what it said last
    /// holds, since nobody can have made one meanwhile.
    pub(crate) async fn is_asked_for(&self) -> Result<bool, Problem> {
        if self.any.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let none_at = || {
            *self
                .none_at
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        };
        if none_at().is_some_and(|at| at.elapsed() < self.fresh_for) {
            return Ok(false);
        }
        let keys = Arc::clone(&self.keys);
        let read = async move {
            let found = keys.any_key().await;
            found.map_err(Problem::from)
        };
        match self.any_reads.read(0, read).await {
            Ok(true) => {
                self.any.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Ok(false) => {
                let mut at = self
                    .none_at
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                *at = Some(Instant::now());
                Ok(false)
            }
            Err(_) if none_at().is_some() => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    /// Whether it is known that keys are asked for; the store is not asked.
    pub(crate) fn is_known_to_be_asked_for(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether a key of this id was looked up lately and found.
    pub(crate) fn knows(&self, token: &Token) -> bool {
        let entry = self.entries.get(token.id());
        entry.is_some_and(|entry| {
            entry
                .found
                .is_some_and(|kept| kept.digest == token.digest())
        })
    }

    /// The key that somebody has; nothing if there is none, or if its secret is another.
    pub(crate) async fn key(
        &self,
        token: &Token,
        now_ms: i64,
    ) -> Result<Option<Arc<KeptKey>>, Problem> {
        let found = self.found(token.id(), now_ms).await?;
        Ok(found.filter(|kept| kept.digest == token.digest()))
    }

    /// The key of an id, for who is known to have had it.
    pub(crate) async fn found(
        &self,
        id: &str,
        now_ms: i64,
    ) -> Result<Option<Arc<KeptKey>>, Problem> {
        let kept = self.entries.get(id);
        if let Some(entry) = kept
            .as_ref()
            .filter(|entry| entry.read_at.elapsed() < self.fresh_for)
        {
            return Ok(entry.found.clone());
        }
        let (keys, of) = (Arc::clone(&self.keys), id.to_owned());
        let read = async move {
            let found = match keys.key(&of).await {
                Ok(found) => found.map(Arc::new),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    tracing::warn!(%error, "a key can't be looked up");
                    return Err(Problem::from(&error));
                }
                Err(error) => return Err(Problem::from(&error)),
            };
            note_use(&*keys, found.as_deref(), now_ms).await;
            Ok(found)
        };
        match (self.reads.read(key_of(&id), read).await, kept) {
            (Ok(found), _) => {
                let entry = Entry {
                    found: found.clone(),
                    read_at: Instant::now(),
                };
                self.entries.insert(id.to_owned(), entry);
                Ok(found)
            }
            // The store does not answer: what it said last holds for a while.
            (Err(_), Some(entry)) if entry.found.is_some() => Ok(entry.found),
            (Err(problem), _) => Err(problem),
        }
    }
}

/// Notes that a key is used. Who asks waits for it once a minute; whether it can be noted is no reason to refuse.
async fn note_use(keys: &dyn Keys, found: Option<&KeptKey>, now_ms: i64) {
    let Some(key) = found.map(|kept| &kept.key) else {
        return;
    };
    let is_new = |used: i64| now_ms.saturating_sub(used) >= NOTE_EVERY_MS;
    if key.used_at_ms.is_none_or(is_new)
        && let Err(error) = keys.key_used(&key.id, now_ms).await
    {
        tracing::debug!(%error, key = key.id, "it is not noted that a key is used");
    }
}
