//! One read for all who ask the same at the same time.
//!
//! Who asks while the same question is being read waits for the next read, which begins when this one
//! ends and is for all who came in between: so a read always begins after everybody whom it answers
//! has asked, and an answer holds all that was counted before its request came. However many ask, there
//! is one read under way and one that waits. A read is dropped when nobody waits for it any more.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use xxhash_rust::xxh3::Xxh3;

use crate::lock::lock;

/// Entries of reads that are over are looked for once there are so many.
const PRUNE_AT: usize = 1024;

/// What tells questions apart. It is another one in each process: nobody can make up two questions that are
/// taken for one.
pub(crate) fn key_of(question: &impl Hash) -> u128 {
    static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()));
    let mut hash = Xxh3::with_seed(*SEED);
    question.hash(&mut hash);
    hash.digest128()
}

type Read<T> = Shared<BoxFuture<'static, T>>;
type WeakRead<T> = WeakShared<BoxFuture<'static, T>>;

/// Reads that are under way, by question.
#[derive(Debug)]
pub(crate) struct Gather<T: Clone> {
    groups: Arc<Mutex<Groups<T>>>,
}

#[derive(Debug)]
struct Groups<T: Clone> {
    by_key: HashMap<u128, Group<T>>,
    prune_at: usize,
}

#[derive(Debug)]
struct Group<T: Clone> {
    /// The read that has begun.
    running: WeakRead<T>,
    /// The read that begins when that one ends.
    waiting: Option<WeakRead<T>>,
}

impl<T: Clone + Send + Sync + 'static> Gather<T> {
    pub(crate) fn new() -> Self {
        Self {
            groups: Arc::new(Mutex::new(Groups {
                by_key: HashMap::new(),
                prune_at: PRUNE_AT,
            })),
        }
    }

    /// What `read` gives, or what the read of another asker gives that begins from now on.
    pub(crate) async fn read<F>(&self, key: u128, read: F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let joined = self.join(key, read);
        joined.await
    }

    fn join(&self, key: u128, read: impl Future<Output = T> + Send + 'static) -> Read<T> {
        let mut groups = lock(&self.groups);
        groups.prune();
        if let Some(group) = groups.by_key.get_mut(&key) {
            if let Some(waiting) = group.waiting.as_ref().and_then(WeakRead::upgrade) {
                metrics::counter!("backstitch_serving_joined_reads_total").increment(1);
                return waiting;
            }
            if let Some(running) = under_way(&group.running) {
                let all = Arc::clone(&self.groups);
                let next = async move {
                    running.await;
                    begin(&all, key);
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
            groups.by_key.insert(key, Group { running, waiting });
        }
        read
    }
}

impl<T: Clone> Groups<T> {
    /// Forgets reads that are over, once there are many.
    fn prune(&mut self) {
        if self.by_key.len() < self.prune_at {
            return;
        }
        self.by_key.retain(|_, group| {
            let waiting = group.waiting.as_ref().and_then(WeakRead::upgrade);
            waiting.is_some() || under_way(&group.running).is_some()
        });
        self.prune_at = PRUNE_AT.max(self.by_key.len() * 2);
    }
}

/// From now on nobody joins the read that waited.
fn begin<T: Clone>(groups: &Mutex<Groups<T>>, key: u128) {
    if let Some(group) = lock(groups).by_key.get_mut(&key)
        && let Some(begun) = group.waiting.take()
    {
        group.running = begun;
    }
}

fn under_way<T: Clone>(read: &WeakRead<T>) -> Option<Read<T>> {
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

    /// Reads that end when they are let, each with what had been counted when it began.
    #[derive(Clone)]
    struct Source {
        counted: Arc<AtomicUsize>,
        begun: Arc<AtomicUsize>,
        ends: Arc<Semaphore>,
    }

    impl Source {
        fn new() -> Self {
            Self {
                counted: Arc::default(),
                begun: Arc::default(),
                ends: Arc::new(Semaphore::new(0)),
            }
        }

        fn read(&self) -> impl Future<Output = usize> + Send + 'static {
            let source = self.clone();
            async move {
                source.begun.fetch_add(1, Ordering::SeqCst);
                let counted = source.counted.load(Ordering::SeqCst);
                source.ends.acquire().await.unwrap().forget();
                counted
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
    async fn who_asks_during_a_read_shares_the_next_one() {
        let (gather, source) = (Arc::new(Gather::new()), Source::new());
        let ask = || {
            let (gather, read) = (Arc::clone(&gather), source.read());
            tokio::spawn(async move { gather.read(1, read).await })
        };
        let first = ask();
        settle().await;
        source.counted.store(7, Ordering::SeqCst);
        let others: Vec<_> = (0..100).map(|_| ask()).collect();
        settle().await;
        assert_eq!(source.begun(), 1, "the others wait");
        source.ends.add_permits(1);
        assert_eq!(first.await.unwrap(), 0);
        settle().await;
        assert_eq!(source.begun(), 2, "one read for all of them");
        // Who comes now has missed the beginning of that one.
        source.counted.store(9, Ordering::SeqCst);
        let late = ask();
        settle().await;
        source.ends.add_permits(1);
        for other in others {
            assert_eq!(
                other.await.unwrap(),
                7,
                "all that was counted before it asked"
            );
        }
        source.ends.add_permits(1);
        assert_eq!(late.await.unwrap(), 9);
        assert_eq!(source.begun(), 3);
    }

    #[tokio::test]
    async fn who_goes_away_leaves_the_others_their_answer() {
        let (gather, source) = (Arc::new(Gather::new()), Source::new());
        let ask = |key| {
            let (gather, read) = (Arc::clone(&gather), source.read());
            tokio::spawn(async move { gather.read(key, read).await })
        };
        let (first, second, third) = (ask(1), ask(1), ask(1));
        settle().await;
        first.abort();
        settle().await;
        second.abort();
        source.ends.add_permits(2);
        assert_eq!(third.await.unwrap(), 0);
        // Alone and gone: nothing is under way, and the next one begins at once.
        let alone = ask(2);
        settle().await;
        alone.abort();
        settle().await;
        let next = ask(2);
        source.ends.add_permits(1);
        assert_eq!(next.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn reads_that_are_over_are_forgotten() {
        let gather = Gather::new();
        for key in 0..5_000 {
            assert_eq!(gather.read(key, async move { key }).await, key);
        }
        assert!(lock(&gather.groups).by_key.len() <= PRUNE_AT);
    }
}
