use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use jobs::counting::CountingSection;
use schemas::clock::FixedClock;
use schemas::draws::SeededDraws;
use stores::recounts::{Recount, Recounted};

use super::*;

/// Applications with so many athletes each, and what is recorded of them.
#[derive(Debug, Default)]
struct Store {
    athletes: Mutex<BTreeMap<i64, u64>>,
    recorded: Mutex<BTreeMap<i64, Recounted>>,
    /// The applications of each statement that counted.
    counted: Mutex<Vec<Vec<i64>>>,
    is_away: AtomicBool,
    /// One that can't be counted.
    broken: Mutex<Option<i64>>,
    /// Pages of all applications that were asked for.
    pages: Mutex<usize>,
    forgets_to_record: AtomicBool,
}

impl Store {
    fn recorded(&self) -> BTreeMap<i64, u64> {
        let recorded = self.recorded.lock().unwrap();
        recorded
            .iter()
            .map(|(id, of)| (*id, of.connected))
            .collect()
    }

    fn set(&self, id: i64, athletes: u64) {
        self.athletes.lock().unwrap().insert(id, athletes);
    }

    fn answers(&self) -> stores::Result<()> {
        match self.is_away.load(Ordering::Relaxed) {
            true => Err(away()),
            false => Ok(()),
        }
    }

    fn known(&self, after: Option<i64>, limit: usize) -> stores::Result<Vec<Countable>> {
        self.answers()?;
        let recorded = self.recorded.lock().unwrap();
        let athletes = self.athletes.lock().unwrap();
        let countable = |id: &i64| Countable {
            application_id: *id,
            athlete_capacity: 10,
            recounted: recorded.get(id).copied(),
        };
        let later = athletes
            .keys()
            .filter(|id| after.is_none_or(|after| **id > after));
        Ok(later.take(limit).map(countable).collect())
    }
}

fn away() -> stores::Error {
    stores::Error::Unavailable {
        what: "asking the database".to_owned(),
        why: "it is away".to_owned(),
    }
}

#[async_trait]
impl Recounts for Store {
    async fn countables(&self, ids: &[i64]) -> stores::Result<Vec<Countable>> {
        let all = self.known(None, usize::MAX)?;
        let asked = |one: &Countable| ids.contains(&one.application_id);
        Ok(all.into_iter().filter(asked).collect())
    }

    async fn countables_after(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> stores::Result<Vec<Countable>> {
        *self.pages.lock().unwrap() += 1;
        self.known(after, limit)
    }

    async fn recount(&self, ids: &[i64], now_ms: i64) -> stores::Result<Vec<Recount>> {
        self.answers()?;
        self.counted.lock().unwrap().push(ids.to_vec());
        if self
            .broken
            .lock()
            .unwrap()
            .is_some_and(|id| ids.contains(&id))
        {
            return Err(away());
        }
        let athletes = self.athletes.lock().unwrap();
        let recount = |id: &i64| Recount {
            application_id: *id,
            ticket: 1,
            counted: Recounted {
                connected: athletes.get(id).copied().unwrap_or_default(),
                counted_at_ms: now_ms,
            },
        };
        Ok(ids.iter().map(recount).collect())
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> stores::Result<()> {
        self.answers()?;
        if !self.forgets_to_record.load(Ordering::Relaxed) {
            let recorded = recounts.iter().map(|one| (one.application_id, one.counted));
            self.recorded.lock().unwrap().extend(recorded);
        }
        Ok(())
    }
}

fn counting(large_size: i64) -> Counting {
    Counting::of(&[section(large_size)]).unwrap()
}

fn section(large_size: i64) -> CountingSection {
    CountingSection {
        class: "all".to_owned(),
        strategy: "recount".to_owned(),
        capacity_from: Some(0),
        large_size: Some(large_size),
        events_per_athlete_per_day: Some(1.0),
        recounts_per_day: Some(1),
        ..CountingSection::default()
    }
}

fn recounter(store: &Arc<Store>, counting: Counting) -> (Recounter, Arc<FixedClock>) {
    let clock = Arc::new(FixedClock::at_ms(1_000));
    let recounter = Recounter {
        recounts: Arc::clone(store) as _,
        clock: Arc::clone(&clock) as _,
        draws: Arc::new(SeededDraws::new(7)),
        touched: Arc::new(Touched::new(counting)),
        look: Duration::from_secs(3_600),
        retry_ms: 1,
    };
    (recounter, clock)
}

/// Steps until there is nothing to do.
async fn settle(recounter: &Recounter, progress: &mut Progress) {
    while recounter.step(progress, false).await.unwrap() {}
}

#[tokio::test]
async fn events_of_an_application_make_one_count() {
    let store = Arc::new(Store::default());
    (1..=3).for_each(|id| store.set(id, 5));
    let (recounter, _) = recounter(&store, counting(100));
    let mut progress = Progress::default();
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded(), BTreeMap::new());
    store.set(2, 6);
    recounter.touched().hand_over([2, 1, 2, 2, 9]);
    settle(&recounter, &mut progress).await;
    assert_eq!(*store.counted.lock().unwrap(), [[1, 2]]);
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5), (2, 6)]));
}

/// The first look comes after its interval; who begins says that some are missing.
#[tokio::test]
async fn what_may_be_lost_is_gone_through() {
    let store = Arc::new(Store::default());
    let all = i64::try_from(WAITING_MAX).unwrap() + 7;
    (1..=all).for_each(|id| store.set(id, 1));
    let (recounter, clock) = recounter(&store, counting(100));
    recounter.touched().some_are_missing();
    let mut progress = Progress::default();
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded().len(), WAITING_MAX + 7);
    // More are touched than may wait.
    (1..=all).for_each(|id| store.set(id, 2));
    clock.set_ms(2_000);
    recounter.touched().hand_over(1..=all);
    assert_eq!(recounter.touched().waiting().order.len(), WAITING_MAX);
    settle(&recounter, &mut progress).await;
    assert!(store.recorded().values().all(|count| *count == 2));
}

#[tokio::test]
async fn metrics_tell_what_was_done() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let store = Arc::new(Store::default());
    store.set(1, 5);
    store.set(2, u64::MAX);
    let (recounter, _) = recounter(&store, counting(100));
    let mut progress = Progress::default();
    recounter.touched().hand_over([1, 2]);
    settle(&recounter, &mut progress).await;
    // A count of any number, an application that is not known, and no answer.
    recounter.touched().hand_over([1, 2, 3]);
    store.is_away.store(true, Ordering::Relaxed);
    recounter.step(&mut progress, false).await.unwrap_err();
    store.is_away.store(false, Ordering::Relaxed);
    settle(&recounter, &mut progress).await;
    let text = recorder.handle().render();
    for line in [
        "backstitch_speed_recounts_total 3",
        "backstitch_speed_recount_noops_total 2",
        "backstitch_speed_recount_errors_total 1",
        "backstitch_speed_recount_handler_seconds_count 5",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
}

#[tokio::test]
async fn what_can_not_be_counted_waits() {
    let store = Arc::new(Store::default());
    store.set(1, 5);
    let (recounter, _) = recounter(&store, counting(100));
    let mut progress = Progress::default();
    settle(&recounter, &mut progress).await;
    store.is_away.store(true, Ordering::Relaxed);
    recounter.touched().hand_over([1]);
    for _ in 0..3 {
        recounter.step(&mut progress, false).await.unwrap_err();
    }
    recounter.touched().hand_over([1]);
    let waiting = recounter
        .touched()
        .waiting()
        .events
        .get(&1)
        .map(|of| of.count);
    assert_eq!(waiting, Some(2));
    store.is_away.store(false, Ordering::Relaxed);
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5)]));
}

/// One that can't be counted is tried with pauses that double, by itself, and nobody else waits for it.
#[tokio::test]
async fn one_that_can_not_be_counted_pauses() {
    let store = Arc::new(Store::default());
    (1..=3).for_each(|id| store.set(id, 5));
    *store.broken.lock().unwrap() = Some(2);
    let (mut recounter, _) = recounter(&store, counting(100));
    recounter.retry_ms = 100_000;
    let mut progress = Progress::default();
    recounter.touched().some_are_missing();
    // All by one statement, then each by its own.
    recounter.step(&mut progress, true).await.unwrap_err();
    assert_eq!(store.recorded(), BTreeMap::new());
    while recounter.step(&mut progress, true).await.is_err() {}
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5), (3, 5)]));
    let tries = || store.counted.lock().unwrap().len();
    let before = tries();
    recounter.touched().hand_over([1, 2]);
    recounter.touched().some_are_missing();
    while recounter.step(&mut progress, true).await.unwrap() {}
    let counted = store.counted.lock().unwrap().split_off(before);
    assert_eq!(counted, [vec![1], vec![1, 3]], "the second pauses");
    let pause = recounter.touched().until_again().unwrap();
    assert!(pause > Duration::from_secs(90), "{pause:?}");
    assert!(pause <= Duration::from_secs(100), "{pause:?}");
    // Who wants to reach the end does not wait.
    recounter.step(&mut progress, false).await.unwrap_err();
    let pause = recounter.touched().until_again().unwrap();
    assert!(pause > Duration::from_secs(190), "{pause:?}");
    for _ in 0..70 {
        recounter.step(&mut progress, false).await.unwrap_err();
    }
    let pause = recounter.touched().until_again().unwrap();
    assert!(
        pause <= Duration::from_millis(FAILURE_PAUSE_MS_MAX),
        "{pause:?}"
    );
    *store.broken.lock().unwrap() = None;
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded()[&2], 5);
    assert_eq!(recounter.touched().until_again(), None);
}

/// Where classes list their applications, no others are read.
#[tokio::test]
async fn a_sweep_reads_what_may_be_counted() {
    let store = Arc::new(Store::default());
    let step = i64::try_from(STEP).unwrap();
    (1..=3 * step).for_each(|id| store.set(id, 1));
    let listed = CountingSection {
        capacity_from: None,
        applications: (step..=2 * step + 5).collect(),
        ..section(100)
    };
    let (recounter, _) = recounter(&store, Counting::of(&[listed]).unwrap());
    recounter.touched().some_are_missing();
    settle(&recounter, &mut Progress::default()).await;
    let ids: Vec<i64> = store.recorded().into_keys().collect();
    assert_eq!(ids, (step..=2 * step + 5).collect::<Vec<_>>());
    assert_eq!(*store.pages.lock().unwrap(), 0);
}

/// A large count is made anew after some of its events, and when it is older than a day's share.
#[tokio::test]
async fn large_counts_are_made_anew_now_and_then() {
    let store = Arc::new(Store::default());
    store.set(1, 1_000);
    let (recounter, clock) = recounter(&store, counting(100));
    let mut progress = Progress::default();
    for _ in 0..4_000 {
        recounter.touched().hand_over([1]);
        settle(&recounter, &mut progress).await;
    }
    let times = store.counted.lock().unwrap().len();
    assert!((2..=12).contains(&times), "{times} of 4 that are likely");
    clock.set_ms(1_000 + 86_399_999);
    progress.sweep = Some(Sweep {
        after: None,
        events: 0,
    });
    settle(&recounter, &mut progress).await;
    assert_eq!(store.counted.lock().unwrap().len(), times);
    clock.set_ms(1_000 + 86_400_000);
    progress.sweep = Some(Sweep {
        after: None,
        events: 0,
    });
    settle(&recounter, &mut progress).await;
    assert_eq!(store.counted.lock().unwrap().len(), times + 1);
}

/// Who dies between counting and recording has recorded nothing; who comes after goes through all.
#[tokio::test]
async fn a_count_that_was_not_recorded_is_made_again() {
    let store = Arc::new(Store::default());
    store.set(1, 5);
    let (first, _) = recounter(&store, counting(100));
    store.forgets_to_record.store(true, Ordering::Relaxed);
    first.touched().hand_over([1]);
    settle(&first, &mut Progress::default()).await;
    assert_eq!(store.recorded(), BTreeMap::new());
    store.forgets_to_record.store(false, Ordering::Relaxed);
    let (second, _) = recounter(&store, counting(100));
    second.finish(&CancellationToken::new()).await.unwrap();
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5)]));
}

#[test]
fn statements_count_a_bounded_number_of_athletes() {
    let of = |application_id, connected| Countable {
        application_id,
        athlete_capacity: 1,
        recounted: Some(Recounted {
            connected,
            counted_at_ms: 0,
        }),
    };
    let all = [
        of(1, 10),
        of(2, 499_990),
        of(3, 1),
        of(4, u64::MAX),
        of(5, 0),
    ];
    let all: Vec<&Countable> = all.iter().collect();
    assert_eq!(parts(&all), [vec![1, 2], vec![3], vec![4], vec![5]]);
    assert!(parts(&[]).is_empty());
}
