#![expect(
    clippy::disallowed_methods,
    reason = "tasks are awaited or aborted by the test"
)]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use stores::board_cache::{BoardName, Cached, CachedBoard};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;

/// A store whose calls end when they are let. Each answers the place that was asked for and what had been
/// counted when the call began.
#[derive(Clone)]
struct Store {
    lookups: Arc<Lookups>,
    counted: Arc<AtomicUsize>,
    /// The questions of each call.
    calls: Arc<Mutex<Vec<usize>>>,
    ends: Arc<Semaphore>,
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);

type Told = Option<Vec<(u64, u64)>>;

impl Store {
    fn new(behind_max: Duration) -> Self {
        Self {
            lookups: Arc::new(Lookups::new(behind_max)),
            counted: Arc::default(),
            calls: Arc::default(),
            ends: Arc::new(Semaphore::new(0)),
        }
    }

    async fn call(self, queries: Vec<BoardQuery>) -> stores::Result<Vec<BoardAnswer>> {
        let counted = self.counted.load(SeqCst) as u64;
        lock(&self.calls).push(queries.len());
        self.ends.acquire().await.expect("it is open").forget();
        if counted == 13 {
            return Err(stores::Error::Refused("thirteen".to_owned()));
        }
        let answer = |query: BoardQuery| {
            let BoardWant::Page { offset, .. } = query.want else {
                panic!("a page");
            };
            let board = CachedBoard {
                first: offset,
                count: counted,
                ..CachedBoard::default()
            };
            BoardAnswer {
                slot: None,
                board: Cached::Board(board),
            }
        };
        Ok(queries.into_iter().map(answer).collect())
    }

    /// Asks for pages at some places.
    fn ask(&self, offsets: Vec<u64>, limit: usize) -> JoinHandle<Result<Told, ReadError>> {
        let (store, lookups) = (self.clone(), Arc::clone(&self.lookups));
        let query = move |offset| BoardQuery {
            name: BoardName {
                view: "boards".to_owned(),
                key: vec![1],
                section: Vec::new(),
            },
            partition: 0,
            score_bytes: 16,
            want: BoardWant::Page { offset, limit },
        };
        let queries: Vec<BoardQuery> = offsets.into_iter().map(query).collect();
        tokio::spawn(async move {
            let asked = |queries| store.call(queries);
            let answers = lookups.read(Source::Efforts, &queries, asked).await?;
            let told = |answer| match answer {
                BoardAnswer {
                    board: Cached::Board(board),
                    ..
                } => (board.first, board.count),
                other => panic!("{other:?}"),
            };
            Ok(answers.map(|answers| answers.into_iter().map(told).collect()))
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

async fn told(asked: JoinHandle<Result<Told, ReadError>>) -> Vec<(u64, u64)> {
    let told = asked.await.expect("no panic").expect("answers");
    told.expect("together with others")
}

#[tokio::test]
async fn who_asks_during_a_call_goes_with_the_next_one() {
    let store = Store::new(LONG);
    let first = store.ask(vec![0], 1);
    settle().await;
    store.counted.store(7, SeqCst);
    let others: Vec<_> = (1..=10).map(|n| store.ask(vec![n, n + 100], 1)).collect();
    settle().await;
    assert_eq!(store.calls(), [1], "the others wait");
    store.ends.add_permits(1);
    assert_eq!(told(first).await, [(0, 0)]);
    settle().await;
    assert_eq!(store.calls(), [1, 20], "one call for all of them");
    // Who comes now has missed its beginning.
    store.counted.store(9, SeqCst);
    let late = store.ask(vec![5], 1);
    settle().await;
    store.ends.add_permits(2);
    for (n, other) in (1..).zip(others) {
        assert_eq!(told(other).await, [(n, 7), (n + 100, 7)]);
    }
    assert_eq!(told(late).await, [(5, 9)]);
}

#[tokio::test]
async fn who_goes_away_leaves_the_others_their_answers() {
    let store = Store::new(LONG);
    let asked: Vec<_> = (0..5).map(|n| store.ask(vec![n], 1)).collect();
    settle().await;
    let mut asked = asked.into_iter();
    let mut next = || asked.next().expect("five");
    let (first, second, third) = (next(), next(), next());
    first.abort();
    second.abort();
    store.ends.add_permits(2);
    assert_eq!(told(third).await, [(2, 0)]);
    assert_eq!(told(next()).await, [(3, 0)]);
    assert_eq!(told(next()).await, [(4, 0)]);
    // All of them: neither the call nor what waits for it is there any more.
    let asked = [store.ask(vec![6], 1), store.ask(vec![7], 1)];
    settle().await;
    asked.iter().for_each(JoinHandle::abort);
    settle().await;
    let last = store.ask(vec![8], 1);
    store.ends.add_permits(1);
    assert_eq!(told(last).await, [(8, 0)]);
}

#[tokio::test]
async fn nobody_waits_for_a_call_that_hangs() {
    let store = Store::new(SHORT);
    let hanging = store.ask(vec![0], 1);
    settle().await;
    let next = store.ask(vec![1], 1);
    settle().await;
    assert_eq!(store.calls(), [1]);
    tokio::time::sleep(SHORT * 2).await;
    settle().await;
    assert_eq!(store.calls(), [1, 1]);
    store.ends.add_permits(2);
    assert_eq!(told(hanging).await, [(0, 0)]);
    assert_eq!(told(next).await, [(1, 0)]);
}

#[tokio::test]
async fn many_rows_are_asked_for_alone_and_a_call_has_an_end() {
    let store = Store::new(LONG);
    let large = store.ask(vec![0], 1_000).await.expect("no panic");
    assert_eq!(large.expect("no fault"), None);
    let first = store.ask(vec![0], 1);
    settle().await;
    let others: Vec<_> = (0..20).map(|n| store.ask(vec![n], 100)).collect();
    settle().await;
    store.ends.add_permits(2);
    told(first).await;
    let mut together = 0;
    for other in others {
        let answer = other.await.expect("no panic").expect("no fault");
        together += usize::from(answer.is_some());
    }
    assert_eq!(together, 10);
    assert_eq!(store.calls(), [1, 10]);
}

#[tokio::test]
async fn a_fault_is_told_to_all_who_asked() {
    let store = Store::new(LONG);
    store.counted.store(13, SeqCst);
    let asked = [store.ask(vec![0], 1), store.ask(vec![1], 1)];
    settle().await;
    store.ends.add_permits(2);
    for asked in asked {
        let error = asked.await.expect("no panic").expect_err("refused");
        assert!(error.to_string().contains("thirteen"), "{error}");
    }
}
