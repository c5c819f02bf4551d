#![expect(
    clippy::disallowed_methods,
    reason = "tasks are awaited or aborted by the test"
)]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use stores::board_cache::{BoardName, CacheLookup, CachedBoard};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;

/// A store whose calls end when the test releases them. Each answer contains the requested offset
/// and the count at the beginning of the call.
#[derive(Clone)]
struct Store {
    lookups: Arc<LookupBatcher>,
    counted: Arc<AtomicUsize>,
    /// Number of queries of each call.
    calls: Arc<Mutex<Vec<usize>>>,
    ends: Arc<Semaphore>,
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);

type Pages = Option<Vec<(u64, u64)>>;

impl Store {
    fn new(previous_call_wait: Duration) -> Self {
        Self {
            lookups: Arc::new(LookupBatcher::new(previous_call_wait)),
            counted: Arc::default(),
            calls: Arc::default(),
            ends: Arc::new(Semaphore::new(0)),
        }
    }

    async fn call(self, queries: Vec<BoardQuery>) -> stores::Result<Vec<CachedBoardSnapshot>> {
        let counted = self.counted.load(SeqCst) as u64;
        lock(&self.calls).push(queries.len());
        self.ends.acquire().await.expect("it is open").forget();
        if counted == 13 {
            return Err(stores::Error::Refused("thirteen".to_owned()));
        }
        let answer = |query: BoardQuery| {
            let BoardSelection::Page { offset, .. } = query.selection else {
                panic!("a page");
            };
            let board = CachedBoard {
                first_index: offset,
                count: counted,
                ..CachedBoard::default()
            };
            CachedBoardSnapshot {
                state: None,
                board: CacheLookup::Board(board),
            }
        };
        Ok(queries.into_iter().map(answer).collect())
    }

    /// Requests pages at some offsets.
    fn request(&self, offsets: Vec<u64>, limit: usize) -> JoinHandle<Result<Pages, ReadError>> {
        let (store, lookups) = (self.clone(), Arc::clone(&self.lookups));
        let query = move |offset| BoardQuery {
            name: BoardName {
                view: "boards".to_owned(),
                key: vec![1],
                filtered_board: Vec::new(),
            },
            partition: 0,
            score_bytes: 16,
            selection: BoardSelection::Page { offset, limit },
        };
        let queries: Vec<BoardQuery> = offsets.into_iter().map(query).collect();
        tokio::spawn(async move {
            let fetch = |queries| store.call(queries);
            let answers = lookups.read(Source::Efforts, &queries, fetch).await?;
            let page = |answer| match answer {
                CachedBoardSnapshot {
                    board: CacheLookup::Board(board),
                    ..
                } => (board.first_index, board.count),
                other => panic!("{other:?}"),
            };
            Ok(answers.map(|answers| answers.into_iter().map(page).collect()))
        })
    }

    fn calls(&self) -> Vec<usize> {
        lock(&self.calls).clone()
    }
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn pages(task: JoinHandle<Result<Pages, ReadError>>) -> Vec<(u64, u64)> {
    let result = task.await.expect("no panic").expect("answers");
    result.expect("part of a batch")
}

#[tokio::test]
async fn queries_during_a_call_share_the_next_one() {
    let store = Store::new(LONG);
    let first = store.request(vec![0], 1);
    settle().await;
    store.counted.store(7, SeqCst);
    let others: Vec<_> = (1..=10)
        .map(|n| store.request(vec![n, n + 100], 1))
        .collect();
    settle().await;
    assert_eq!(store.calls(), [1], "the others wait");
    store.ends.add_permits(1);
    assert_eq!(pages(first).await, [(0, 0)]);
    settle().await;
    assert_eq!(store.calls(), [1, 20], "one call for all of them");
    // A query that arrives now has missed the beginning of that call.
    store.counted.store(9, SeqCst);
    let late = store.request(vec![5], 1);
    settle().await;
    store.ends.add_permits(2);
    for (n, other) in (1..).zip(others) {
        assert_eq!(pages(other).await, [(n, 7), (n + 100, 7)]);
    }
    assert_eq!(pages(late).await, [(5, 9)]);
}

#[tokio::test]
async fn an_aborted_query_leaves_other_answers_unchanged() {
    let store = Store::new(LONG);
    let tasks: Vec<_> = (0..5).map(|n| store.request(vec![n], 1)).collect();
    settle().await;
    let mut tasks = tasks.into_iter();
    let mut next = || tasks.next().expect("five");
    let (first, second, third) = (next(), next(), next());
    first.abort();
    second.abort();
    store.ends.add_permits(2);
    assert_eq!(pages(third).await, [(2, 0)]);
    assert_eq!(pages(next()).await, [(3, 0)]);
    assert_eq!(pages(next()).await, [(4, 0)]);
    // With all queries aborted, neither the call nor the waiting one remains.
    let tasks = [store.request(vec![6], 1), store.request(vec![7], 1)];
    settle().await;
    tasks.iter().for_each(JoinHandle::abort);
    settle().await;
    let last = store.request(vec![8], 1);
    store.ends.add_permits(1);
    assert_eq!(pages(last).await, [(8, 0)]);
}

#[tokio::test]
async fn queries_do_not_wait_for_a_hanging_call() {
    let store = Store::new(SHORT);
    let hanging = store.request(vec![0], 1);
    settle().await;
    let next = store.request(vec![1], 1);
    settle().await;
    assert_eq!(store.calls(), [1]);
    tokio::time::sleep(SHORT * 2).await;
    settle().await;
    assert_eq!(store.calls(), [1, 1]);
    store.ends.add_permits(2);
    assert_eq!(pages(hanging).await, [(0, 0)]);
    assert_eq!(pages(next).await, [(1, 0)]);
}

#[tokio::test]
async fn large_queries_are_sent_alone_and_calls_are_bounded() {
    let store = Store::new(LONG);
    let large = store.request(vec![0], 1_000).await.expect("no panic");
    assert_eq!(large.expect("no fault"), None);
    let first = store.request(vec![0], 1);
    settle().await;
    let others: Vec<_> = (0..20).map(|n| store.request(vec![n], 100)).collect();
    settle().await;
    store.ends.add_permits(2);
    pages(first).await;
    let mut together = 0;
    for other in others {
        let answer = other.await.expect("no panic").expect("no fault");
        together += usize::from(answer.is_some());
    }
    assert_eq!(together, 10);
    assert_eq!(store.calls(), [1, 10]);
}

#[tokio::test]
async fn an_error_reaches_all_queries_of_the_call() {
    let store = Store::new(LONG);
    store.counted.store(13, SeqCst);
    let tasks = [store.request(vec![0], 1), store.request(vec![1], 1)];
    settle().await;
    store.ends.add_permits(2);
    for task in tasks {
        let error = task.await.expect("no panic").expect_err("refused");
        assert!(error.to_string().contains("thirteen"), "{error}");
    }
}
