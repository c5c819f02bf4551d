//! Keys that were looked up, kept for some seconds: so one that is taken back is refused that soon, and not
//! every request asks the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use stores::keys::{KeptKey, Keys, Token};
use tokio::time::{Instant, timeout};

use crate::gather::{Gather, key_of};
use crate::http::problem::Problem;
use crate::lock::lock;
use crate::options::ServingOptions;

/// Maximum age of a cached answer that no key exists.
const NO_KEY_FOR: Duration = Duration::from_secs(1);
/// Keys that are kept, at most.
const KEPT_MAX: u64 = 100_000;
/// How often it is noted that a key is used, and how long somebody waits for that.
const NOTE_EVERY: Duration = Duration::from_secs(60);
const NOTE_WAIT: Duration = Duration::from_millis(500);
/// How long the store is waited for where what it said last would do.
const AGAIN_WAIT: Duration = Duration::from_secs(1);

/// What the store said.
#[derive(Debug, Clone, Copy)]
struct Entry<T> {
    found: T,
    read_at: Instant,
    /// When the store was asked last, also in vain.
    asked_at: Instant,
}

type Read<T> = Gather<Result<T, Problem>>;

/// The keys that this process knows.
#[derive(Debug)]
pub(crate) struct KeyRing {
    keys: Arc<dyn Keys>,
    fresh_for: Duration,
    stale_for: Duration,
    /// Keys by their ids; nothing where there is none.
    entries: Cache<String, Entry<Option<Arc<KeptKey>>>>,
    /// Keys of which it was noted lately that they are used.
    noted: Cache<String, ()>,
    reads: Read<Option<Arc<KeptKey>>>,
    /// Whether there ever was a key, once that is known: what is true stays so.
    any: AtomicBool,
    none_seen: Mutex<Option<Entry<bool>>>,
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
            stale_for,
            entries,
            noted: Cache::builder()
                .max_capacity(KEPT_MAX)
                .time_to_live(NOTE_EVERY)
                .build(),
            reads: Gather::new(),
            any: AtomicBool::new(false),
            none_seen: Mutex::default(),
            any_reads: Gather::new(),
        }
    }

    /// Whether keys are asked for: whether there ever was one. Where the store does not answer, what it said last
    /// holds for a while.
    pub(crate) async fn is_asked_for(&self) -> Result<bool, Problem> {
        if self.any.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let known = *lock(&self.none_seen);
        let fresh_for = self.fresh_for.min(NO_KEY_FOR);
        if known.is_some_and(|none| none.asked_at.elapsed() < fresh_for) {
            return Ok(false);
        }
        let keys = Arc::clone(&self.keys);
        let read = async move {
            let found = keys.any_key().await;
            found.map_err(Problem::from)
        };
        let read = self.any_reads.read(0, read);
        let any = self.read_again(known, read).await?;
        if any.found {
            self.any.store(true, Ordering::Relaxed);
        } else {
            *lock(&self.none_seen) = Some(any);
        }
        Ok(any.found)
    }

    /// What the store says now. Where it does not answer soon, what it said last does for a while.
    async fn read_again<T>(
        &self,
        last: Option<Entry<T>>,
        read: impl Future<Output = Result<T, Problem>>,
    ) -> Result<Entry<T>, Problem> {
        let last = last.filter(|last| last.read_at.elapsed() < self.stale_for);
        let found = match last {
            None => read.await?,
            Some(last) => match timeout(AGAIN_WAIT, read).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) | Err(_) => {
                    let asked_at = Instant::now();
                    return Ok(Entry { asked_at, ..last });
                }
            },
        };
        let now = Instant::now();
        Ok(Entry {
            found,
            read_at: now,
            asked_at: now,
        })
    }

    /// What is kept of a key; the store is not asked.
    pub(crate) fn kept(&self, id: &str) -> Option<Arc<KeptKey>> {
        self.entries.get(id)?.found
    }

    /// The key that somebody has; nothing if there is none, or if its secret is another.
    pub(crate) async fn key(
        &self,
        token: &Token,
        now_ms: i64,
    ) -> Result<Option<Arc<KeptKey>>, Problem> {
        let found = self.found(token.id()).await?;
        let found = found.filter(|kept| kept.digest == token.digest());
        if let Some(kept) = &found {
            self.note_use(kept, now_ms).await;
        }
        Ok(found)
    }

    /// The key of an id, for who is known to have had it.
    pub(crate) async fn found(&self, id: &str) -> Result<Option<Arc<KeptKey>>, Problem> {
        let kept = self.entries.get(id);
        if let Some(entry) = kept
            .as_ref()
            .filter(|entry| entry.asked_at.elapsed() < self.fresh_for)
        {
            return Ok(entry.found.clone());
        }
        let (keys, of) = (Arc::clone(&self.keys), id.to_owned());
        let read = async move {
            let found = keys.key(&of).await.map_err(|error| {
                tracing::warn!(%error, "a key can't be looked up");
                Problem::from(&error)
            });
            Ok(found?.map(Arc::new))
        };
        let read = self.reads.read(key_of(&id), read);
        let last = kept.filter(|entry| entry.found.is_some());
        let entry = self.read_again(last, read).await?;
        if entry.found.is_some() {
            self.any.store(true, Ordering::Relaxed);
        }
        self.entries.insert(id.to_owned(), entry.clone());
        Ok(entry.found)
    }

    /// Notes that somebody used a key, once a minute. Whether it can be noted is no reason to refuse.
    pub(crate) async fn note_use(&self, kept: &KeptKey, now_ms: i64) {
        let id = &kept.key.id;
        if self.noted.contains_key(id) {
            return;
        }
        self.noted.insert(id.clone(), ());
        match timeout(NOTE_WAIT, self.keys.key_used(id, now_ms)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, id, "it is not noted that a key is used"),
            Err(_) => tracing::debug!(id, "it is not noted in time that a key is used"),
        }
    }
}
