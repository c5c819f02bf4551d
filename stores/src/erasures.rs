//! Erasures: who was removed from all stores, and what was removed where.
//!
//! They are the list of those who are suppressed: what comes of them later, out of a replay, a copy that
//! was put back or an old file, is taken without them. The list holds no ids but keyed hashes, whose key
//! is the installation's own and lies beside them. That makes it pseudonymous, not anonymous: who has key
//! and list can try all ids.
//!
//! An erasure is written down before anything is removed, and with it what was done so far: one that was
//! killed is gone on with under the same number. Numbers rise, and an erasure never goes away again. So a
//! copy of this store must not be put back that is older than the others'.

mod numbers;
mod sought;
mod suppressed;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub use sought::Sought;
pub(crate) use suppressed::holds;
pub use suppressed::{Suppressed, mentions};

/// The key of the hashes, which each installation draws for itself.
pub type Key = [u8; 32];
/// A person, as the list holds one.
pub type PersonHash = [u8; 16];

/// What a person is in the events or rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The `listener_id` of plays.
    Listener,
    /// The athlete of efforts, clubs, follows and authorizations.
    Athlete,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Athlete => "athlete",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        [Self::Listener, Self::Athlete]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// Somebody who is to be erased, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Person {
    /// What the id is of.
    pub kind: Kind,
    /// The id.
    pub id: i64,
}

/// One erasure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// Its number, from 1 on.
    pub number: u64,
    /// What was erased.
    pub kind: Kind,
    /// Who.
    pub person: PersonHash,
    /// When it began, in milliseconds since the Unix epoch.
    pub begun_at_ms: i64,
    /// Who wanted it, as they said.
    pub by: String,
    /// Why, as they said.
    pub reason: String,
    /// When it was done; nothing while there is something left to do.
    pub finished_at_ms: Option<i64>,
    /// What was done so far, as who does it wrote it. It must not name the person.
    pub receipt: serde_json::Value,
}

/// Erasures as they are stored. Adapters do no more than this; [`Suppressions`] is what is worked with.
#[async_trait]
pub trait Erasures: std::fmt::Debug + Send + Sync {
    /// The number of the newest erasure; 0 if there is none. It is asked for often.
    async fn newest(&self) -> Result<u64>;

    /// All of them, the oldest first.
    async fn all(&self) -> Result<Vec<Erasure>>;

    /// The key of the hashes: `drawn`, unless there is one already.
    async fn key(&self, drawn: Key) -> Result<Key>;

    /// Writes an erasure down, durably when it answers, if its number is the one after the newest; else
    /// nothing, and answers false.
    async fn add(&self, erasure: &Erasure) -> Result<bool>;

    /// Replaces when an erasure was finished, and its receipt.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none of that number.
    async fn note(
        &self,
        number: u64,
        finished_at_ms: Option<i64>,
        receipt: &serde_json::Value,
    ) -> Result<()>;

    /// Sees to it that of what was deleted nothing is left in files beside the stores, as far as that is this
    /// installation's business and not a server's.
    async fn tidy(&self) -> Result<()>;
}

/// Who wants an erasure, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Who wants it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// The list of those who are suppressed, as it is now: it is remembered, and before each use it is asked
/// whether it has become longer. Clones share what they remember.
#[derive(Debug, Clone)]
pub struct Suppressions {
    store: Option<Arc<dyn Erasures>>,
    known: Arc<RwLock<Arc<Suppressed>>>,
    /// When the store did not answer one who does not wait for it.
    unanswered: Arc<RwLock<Option<Instant>>>,
}

/// Who does not wait for the store waits so long,
const ANSWER_FOR: Duration = Duration::from_secs(1);
/// and asks again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(5);

impl Suppressions {
    /// The list in a store.
    #[must_use]
    pub fn new(store: Arc<dyn Erasures>) -> Self {
        Self {
            store: Some(store),
            known: Arc::default(),
            unanswered: Arc::default(),
        }
    }

    /// A list of nobody, for work on stores in which nobody is ever erased.
    #[must_use]
    pub fn nobody() -> Self {
        Self {
            store: None,
            known: Arc::default(),
            unanswered: Arc::default(),
        }
    }

    /// Who is suppressed now: nobody is missing whose erasure had begun before the call.
    ///
    /// # Errors
    /// Those of the store. Nothing may be taken then: it may be of somebody who is suppressed.
    pub async fn now(&self) -> Result<Arc<Suppressed>> {
        let known = self.known();
        let Some(store) = &self.store else {
            return Ok(known);
        };
        if store.newest().await? == known.newest() {
            return Ok(known);
        }
        let key = store.key(drawn()).await?;
        let now = Arc::new(Suppressed::of(key, &store.all().await?));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&now);
        Ok(now)
    }

    /// Who is suppressed now; where the store does not answer soon, who was when it answered last. For what
    /// is only written down here, and taken without them by whoever reads it: that must not wait for another
    /// store than its own.
    pub async fn recent(&self) -> Arc<Suppressed> {
        let unanswered = || {
            self.unanswered
                .write()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if unanswered().is_some_and(|since| since.elapsed() < ASK_AGAIN) {
            return self.known();
        }
        match tokio::time::timeout(ANSWER_FOR, self.now()).await {
            Ok(Ok(now)) => {
                *unanswered() = None;
                return now;
            }
            Ok(Err(error)) => tracing::warn!(%error, "who was erased lately is not known"),
            Err(_) => tracing::warn!("who was erased lately is not known: no answer in time"),
        }
        *unanswered() = Some(Instant::now());
        self.known()
    }

    fn known(&self) -> Arc<Suppressed> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All erasures, the oldest first.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn all(&self) -> Result<Vec<Erasure>> {
        match &self.store {
            Some(store) => store.all().await,
            None => Ok(Vec::new()),
        }
    }

    /// Begins an erasure, or answers the one of this person that was not finished. From here on the
    /// person is suppressed.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn begin(&self, person: Person, asked: &Asked, now_ms: i64) -> Result<Erasure> {
        let store = self.store()?;
        let hash = suppressed::hash(&store.key(drawn()).await?, person);
        loop {
            let all = store.all().await?;
            let unfinished = all.iter().find(|erasure| {
                erasure.person == hash
                    && erasure.kind == person.kind
                    && erasure.finished_at_ms.is_none()
            });
            if let Some(unfinished) = unfinished {
                return Ok(unfinished.clone());
            }
            let erasure = Erasure {
                number: all.last().map_or(0, |last| last.number) + 1,
                kind: person.kind,
                person: hash,
                begun_at_ms: now_ms,
                by: asked.by.clone(),
                reason: asked.reason.clone(),
                finished_at_ms: None,
                receipt: serde_json::Value::Null,
            };
            if store.add(&erasure).await? {
                return Ok(erasure);
            }
        }
    }

    /// Notes how far an erasure is.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn note(
        &self,
        number: u64,
        finished_at_ms: Option<i64>,
        receipt: &serde_json::Value,
    ) -> Result<()> {
        self.store()?.note(number, finished_at_ms, receipt).await
    }

    /// Sees to it that of what was deleted nothing is left in files beside the stores.
    ///
    /// # Errors
    /// Those of the stores.
    pub async fn tidy(&self) -> Result<()> {
        self.store()?.tidy().await
    }

    fn store(&self) -> Result<&Arc<dyn Erasures>> {
        let none = || Error::Refused("nobody can be erased without a list of erasures".to_owned());
        self.store.as_ref().ok_or_else(none)
    }
}

/// A new key. Identifiers of version 4 are drawn from the system's generator, 122 bits each.
fn drawn() -> Key {
    let (a, b) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let mut key = [0; 32];
    key[..16].copy_from_slice(a.as_bytes());
    key[16..].copy_from_slice(b.as_bytes());
    key
}

#[cfg(test)]
#[path = "erasures/tests.rs"]
mod tests;
