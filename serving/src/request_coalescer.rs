//! Coalesces equal requests into one read.
//!
//! A request that arrives during an equal read waits for the next read. That read begins when the
//! current one ends, and serves all requests that arrived in between. So a read always begins after
//! the requests that it answers, and an answer includes everything that was counted before its
//! request arrived. Of equal requests, at most one read runs and one waits. A read is dropped when
//! no request waits for it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use xxhash_rust::xxh3::Xxh3;

use crate::lock::lock;

/// Number of entries at which finished reads are removed.
const PRUNE_ENTRIES_MIN: usize = 1024;

/// Hash that identifies a request. The seed differs in each process, so a client cannot construct
/// two requests with the same hash.
pub(crate) fn seeded_hash(request: &impl Hash) -> u128 {
    static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()));
    let mut hash = Xxh3::with_seed(*SEED);
    request.hash(&mut hash);
    hash.digest128()
}

type Read<T> = Shared<BoxFuture<'static, T>>;
type WeakRead<T> = WeakShared<BoxFuture<'static, T>>;

/// Reads in progress, by the hash of their request.
#[derive(Debug)]
pub(crate) struct RequestCoalescer<T: Clone> {
    groups: Arc<Mutex<ReadGroups<T>>>,
}

#[derive(Debug)]
struct ReadGroups<T: Clone> {
    by_key: HashMap<u128, ReadGroup<T>>,
    prune_entries: usize,
}

#[derive(Debug)]
struct ReadGroup<T: Clone> {
    /// The read in progress.
    running: WeakRead<T>,
    /// The read that begins when the current one ends.
    waiting: Option<WeakRead<T>>,
}

impl<T: Clone + Send + Sync + 'static> RequestCoalescer<T> {
    pub(crate) fn new() -> Self {
        Self {
            groups: Arc::new(Mutex::new(ReadGroups {
                by_key: HashMap::new(),
                prune_entries: PRUNE_ENTRIES_MIN,
            })),
        }
    }

    /// Returns the result of `read`, or of the read of an equal request, if that read has not begun
    /// yet.
    pub(crate) async fn read<F>(&self, key: u128, read: F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let shared_read = self.join(key, read);
        shared_read.await
    }

    fn join(&self, key: u128, read: impl Future<Output = T> + Send + 'static) -> Read<T> {
        let mut groups = lock(&self.groups);
        groups.prune();
        if let Some(group) = groups.by_key.get_mut(&key) {
            if let Some(waiting) = group.waiting.as_ref().and_then(WeakRead::upgrade) {
                metrics::counter!("backstitch_serving_joined_reads_total").increment(1);
                return waiting;
            }
            if let Some(running) = upgrade_if_running(&group.running) {
                let groups_for_read = Arc::clone(&self.groups);
                let next = async move {
                    running.await;
                    promote_waiting(&groups_for_read, key);
                    read.await
                };
                let next = next.boxed().shared();
                group.waiting = next.downgrade();
                return next;
            }
        }
        let read = read.boxed().shared();
        if let Some(running) = read.downgrade() {
            let waiting = None;
            groups.by_key.insert(key, ReadGroup { running, waiting });
        }
        read
    }
}

impl<T: Clone> ReadGroups<T> {
    /// Removes finished reads once there are many.
    fn prune(&mut self) {
        if self.by_key.len() < self.prune_entries {
            return;
        }
        self.by_key.retain(|_, group| {
            let waiting = group.waiting.as_ref().and_then(WeakRead::upgrade);
            waiting.is_some() || upgrade_if_running(&group.running).is_some()
        });
        self.prune_entries = PRUNE_ENTRIES_MIN.max(self.by_key.len() * 2);
    }
}

/// Promotes the waiting read to the running one, so that no later request joins it.
fn promote_waiting<T: Clone>(groups: &Mutex<ReadGroups<T>>, key: u128) {
    if let Some(group) = lock(groups).by_key.get_mut(&key)
        && let Some(started) = group.waiting.take()
    {
        group.running = started;
    }
}

fn upgrade_if_running<T: Clone>(read: &WeakRead<T>) -> Option<Read<T>> {
    read.upgrade().filter(|read| read.peek().is_none())
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tasks are awaited or aborted by the test"
)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Reads that end when the test releases them, each with the count at its beginning.
    #[derive(Clone)]
    struct ReadSource {
        count: Arc<AtomicUsize>,
        begun: Arc<AtomicUsize>,
        ends: Arc<Semaphore>,
    }

    impl ReadSource {
        fn new() -> Self {
            Self {
                count: Arc::default(),
                begun: Arc::default(),
                ends: Arc::new(Semaphore::new(0)),
            }
        }

        fn read(&self) -> impl Future<Output = usize> + Send + 'static {
            let source = self.clone();
            async move {
                source.begun.fetch_add(1, Ordering::SeqCst);
                let count = source.count.load(Ordering::SeqCst);
                source.ends.acquire().await.unwrap().forget();
                count
            }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }
    }

    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn requests_during_a_read_share_the_next_one() {
        let (coalescer, source) = (Arc::new(RequestCoalescer::new()), ReadSource::new());
        let request = || {
            let (coalescer, read) = (Arc::clone(&coalescer), source.read());
            tokio::spawn(async move { coalescer.read(1, read).await })
        };
        let first = request();
        settle().await;
        source.count.store(7, Ordering::SeqCst);
        let others: Vec<_> = (0..100).map(|_| request()).collect();
        settle().await;
        assert_eq!(source.begun(), 1, "the others wait");
        source.ends.add_permits(1);
        assert_eq!(first.await.unwrap(), 0);
        settle().await;
        assert_eq!(source.begun(), 2, "one read for all of them");
        // A request that arrives now has missed the beginning of that read.
        source.count.store(9, Ordering::SeqCst);
        let later = request();
        settle().await;
        source.ends.add_permits(1);
        for other in others {
            assert_eq!(
                other.await.unwrap(),
                7,
                "includes everything counted before the request"
            );
        }
        source.ends.add_permits(1);
        assert_eq!(later.await.unwrap(), 9);
        assert_eq!(source.begun(), 3);
    }

    #[tokio::test]
    async fn an_aborted_request_leaves_other_answers_unchanged() {
        let (coalescer, source) = (Arc::new(RequestCoalescer::new()), ReadSource::new());
        let request = |key| {
            let (coalescer, read) = (Arc::clone(&coalescer), source.read());
            tokio::spawn(async move { coalescer.read(key, read).await })
        };
        let (first, second, third) = (request(1), request(1), request(1));
        settle().await;
        first.abort();
        settle().await;
        second.abort();
        source.ends.add_permits(2);
        assert_eq!(third.await.unwrap(), 0);
        // With no request left, nothing is in progress, and the next read begins at once.
        let alone = request(2);
        settle().await;
        alone.abort();
        settle().await;
        let next = request(2);
        source.ends.add_permits(1);
        assert_eq!(next.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn finished_reads_are_removed() {
        let coalescer = RequestCoalescer::new();
        for key in 0..5_000 {
            assert_eq!(coalescer.read(key, async move { key }).await, key);
        }
        assert!(lock(&coalescer.groups).by_key.len() <= PRUNE_ENTRIES_MIN);
    }
}
