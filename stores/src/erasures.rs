//! Erasures: the people that were removed from all stores, and the rows that were removed.
//!
//! They are the list of suppressed people: later data of them, from a replay, a restored copy or an
//! old file, is ingested without them. The list holds no ids but keyed hashes. Each installation
//! has its own key, stored beside the list. So the list is pseudonymous, not anonymous: a reader of
//! key and list can try all ids.
//!
//! An erasure is recorded before anything is removed, and its receipt records the progress: an
//! interrupted erasure continues under the same number. Numbers rise, and an erasure is never
//! deleted. So a copy of this store must not be restored that is older than the copies of the other
//! stores.

mod erasure;
mod numbers;
pub(crate) mod records;
mod searched_people;
mod suppressed;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::records::Records;
use crate::{Error, Result};

pub use erasure::{Erasure, Key, Person, PersonHash, PersonKind};
pub use searched_people::SearchedPeople;
pub(crate) use suppressed::may_mention;
pub use suppressed::{SuppressedPeople, may_mention_kind};

/// The requester of an erasure and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attribution {
    /// The requester.
    pub by: String,
    /// The reason.
    pub reason: String,
}

/// The list of suppressed people. It is cached, and before each use compared with the number of the
/// newest erasure. Clones share the cache.
#[derive(Debug, Clone)]
pub struct Suppressions {
    records: Option<Arc<dyn Records>>,
    cached: Arc<RwLock<Arc<SuppressedPeople>>>,
    /// When [`Self::recent`] got no response from the store.
    unavailable_since: Arc<RwLock<Option<Instant>>>,
}

/// How long [`Suppressions::recent`] waits for the store.
const RECENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long [`Suppressions::recent`] skips a store that did not respond.
const RECENT_RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Suppressions {
    /// The list in a record store.
    #[must_use]
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self {
            records: Some(records),
            cached: Arc::default(),
            unavailable_since: Arc::default(),
        }
    }

    /// An empty list, for stores without erasures.
    #[must_use]
    pub fn none() -> Self {
        Self {
            records: None,
            cached: Arc::default(),
            unavailable_since: Arc::default(),
        }
    }

    /// The people who are suppressed now, including all whose erasure began before the call.
    ///
    /// # Errors
    /// Those of the store. The caller must then not ingest, because the data might be of a
    /// suppressed person.
    pub async fn current(&self) -> Result<Arc<SuppressedPeople>> {
        let cached = self.cached();
        let Some(records) = &self.records else {
            return Ok(cached);
        };
        if records::read_newest(&**records).await? == cached.newest() {
            return Ok(cached);
        }
        let key = records::read_key(&**records, new_key()).await?;
        let current = Arc::new(SuppressedPeople::new(
            key,
            &records::read_all(&**records).await?,
        ));
        *self.cached.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&current);
        Ok(current)
    }

    /// The people who are suppressed now, or if the store does not respond soon, those of its last
    /// response. For writes that must not wait for another store, and whose readers use
    /// [`Self::current`].
    pub async fn recent(&self) -> Arc<SuppressedPeople> {
        let unavailable_since = || {
            self.unavailable_since
                .write()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if unavailable_since().is_some_and(|since| since.elapsed() < RECENT_RETRY_PAUSE) {
            return self.cached();
        }
        match tokio::time::timeout(RECENT_TIMEOUT, self.current()).await {
            Ok(Ok(current)) => {
                *unavailable_since() = None;
                return current;
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot read recent erasures"),
            Err(_) => tracing::warn!("cannot read recent erasures: no response in time"),
        }
        *unavailable_since() = Some(Instant::now());
        self.cached()
    }

    fn cached(&self) -> Arc<SuppressedPeople> {
        Arc::clone(&self.cached.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All erasures, the oldest first.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn all(&self) -> Result<Vec<Erasure>> {
        match &self.records {
            Some(records) => records::read_all(&**records).await,
            None => Ok(Vec::new()),
        }
    }

    /// Begins an erasure, or returns the unfinished one of this person. From here on the person is
    /// suppressed.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn begin(
        &self,
        person: Person,
        attribution: &Attribution,
        now_ms: i64,
    ) -> Result<Erasure> {
        let records = self.require_records()?;
        let hash = suppressed::hash_person(&records::read_key(records, new_key()).await?, person);
        loop {
            let erasures = records::read_all(records).await?;
            let unfinished = erasures.iter().find(|erasure| {
                erasure.person == hash
                    && erasure.kind == person.kind
                    && erasure.finished_at_ms.is_none()
            });
            if let Some(unfinished) = unfinished {
                return Ok(unfinished.clone());
            }
            let erasure = Erasure {
                number: erasures.last().map_or(0, |last| last.number) + 1,
                kind: person.kind,
                person: hash,
                begun_at_ms: now_ms,
                by: attribution.by.clone(),
                reason: attribution.reason.clone(),
                finished_at_ms: None,
                receipt: Value::Null,
            };
            if records::add(records, &erasure).await? {
                return Ok(erasure);
            }
        }
    }

    /// Replaces the receipt of an erasure, and when it was finished.
    ///
    /// # Errors
    /// Those of the store, and [`Error::Refused`] if the erasure does not exist.
    pub async fn set_receipt(
        &self,
        number: u64,
        finished_at_ms: Option<i64>,
        receipt: &Value,
    ) -> Result<()> {
        records::set_receipt(self.require_records()?, number, finished_at_ms, receipt).await
    }

    fn require_records(&self) -> Result<&dyn Records> {
        self.records.as_deref().ok_or_else(|| {
            Error::Refused("an erasure needs a record store, and this list has none".to_owned())
        })
    }
}

/// A random key: two identifiers of version 4, 122 bits each from the generator of the operating
/// system.
fn new_key() -> Key {
    let (a, b) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let mut key = [0; 32];
    key[..16].copy_from_slice(a.as_bytes());
    key[16..].copy_from_slice(b.as_bytes());
    key
}

#[cfg(test)]
#[path = "erasures/tests.rs"]
mod tests;
