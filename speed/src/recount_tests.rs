use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use jobs::counting::CountingSection;
use schemas::clock::FixedClock;
use schemas::random::SeededRandom;
use stores::recounts::{RecordedCount, Recount};

use super::*;

/// Applications with their numbers of athletes, and the recorded counts.
#[derive(Debug, Default)]
struct Store {
    athletes: Mutex<BTreeMap<i64, u64>>,
    recorded: Mutex<BTreeMap<i64, RecordedCount>>,
    /// The applications of each counting statement.
    counted: Mutex<Vec<Vec<i64>>>,
    is_unavailable: AtomicBool,
    /// An application whose count fails.
    broken: Mutex<Option<i64>>,
    /// Number of pages of all applications that were read.
    pages: Mutex<usize>,
    forgets_to_record: AtomicBool,
}

impl Store {
    fn recorded(&self) -> BTreeMap<i64, u64> {
        let recorded = self.recorded.lock().unwrap();
        recorded
            .iter()
            .map(|(id, recount)| (*id, recount.connected))
            .collect()
    }

    fn set(&self, id: i64, athletes: u64) {
        self.athletes.lock().unwrap().insert(id, athletes);
    }

    fn check_available(&self) -> stores::Result<()> {
        match self.is_unavailable.load(Ordering::Relaxed) {
            true => Err(unavailable()),
            false => Ok(()),
        }
    }

    fn known(&self, after: Option<i64>, limit: usize) -> stores::Result<Vec<CountedApplication>> {
        self.check_available()?;
        let recorded = self.recorded.lock().unwrap();
        let athletes = self.athletes.lock().unwrap();
        let countable = |id: &i64| CountedApplication {
            application_id: *id,
            athlete_capacity: 10,
            recorded: recorded.get(id).copied(),
        };
        let later = athletes
            .keys()
            .filter(|id| after.is_none_or(|after| **id > after));
        Ok(later.take(limit).map(countable).collect())
    }
}

fn unavailable() -> stores::Error {
    stores::Error::Unavailable {
        operation: "reading the database".to_owned(),
        reason: "it is unavailable".to_owned(),
    }
}

#[async_trait]
impl Recounts for Store {
    async fn counted_applications(&self, ids: &[i64]) -> stores::Result<Vec<CountedApplication>> {
        let all = self.known(None, usize::MAX)?;
        let is_requested = |app: &CountedApplication| ids.contains(&app.application_id);
        Ok(all.into_iter().filter(is_requested).collect())
    }

    async fn counted_applications_after(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> stores::Result<Vec<CountedApplication>> {
        *self.pages.lock().unwrap() += 1;
        self.known(after, limit)
    }

    async fn recount(&self, ids: &[i64], now_ms: i64) -> stores::Result<Vec<Recount>> {
        self.check_available()?;
        self.counted.lock().unwrap().push(ids.to_vec());
        if self
            .broken
            .lock()
            .unwrap()
            .is_some_and(|id| ids.contains(&id))
        {
            return Err(unavailable());
        }
        let athletes = self.athletes.lock().unwrap();
        let recount = |id: &i64| Recount {
            application_id: *id,
            ticket: 1,
            counted: RecordedCount {
                connected: athletes.get(id).copied().unwrap_or_default(),
                counted_at_ms: now_ms,
            },
        };
        Ok(ids.iter().map(recount).collect())
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> stores::Result<()> {
        self.check_available()?;
        if !self.forgets_to_record.load(Ordering::Relaxed) {
            let recorded = recounts
                .iter()
                .map(|recount| (recount.application_id, recount.counted));
            self.recorded.lock().unwrap().extend(recorded);
        }
        Ok(())
    }
}

fn counting(large_size: i64) -> CountingClasses {
    CountingClasses::parse(&[section(large_size)]).unwrap()
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

fn recounter(store: &Arc<Store>, counting: CountingClasses) -> (Recounter, Arc<FixedClock>) {
    let clock = Arc::new(FixedClock::new(1_000));
    let recounter = Recounter {
        recounts: Arc::clone(store) as _,
        clock: Arc::clone(&clock) as _,
        draws: Arc::new(SeededRandom::new(7)),
        queue: Arc::new(RecountQueue::new(counting)),
        sweep_interval: Duration::from_secs(3_600),
        retry_pause_ms: 1,
    };
    (recounter, clock)
}

/// Steps until there is no work.
async fn settle(recounter: &Recounter, progress: &mut SweepProgress) {
    while recounter.step(progress, false).await.unwrap() {}
}

#[tokio::test]
async fn events_of_an_application_are_merged() {
    let store = Arc::new(Store::default());
    (1..=3).for_each(|id| store.set(id, 5));
    let (recounter, _) = recounter(&store, counting(100));
    let mut progress = SweepProgress::default();
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded(), BTreeMap::new());
    store.set(2, 6);
    recounter.queue().add_events([2, 1, 2, 2, 9]);
    settle(&recounter, &mut progress).await;
    assert_eq!(*store.counted.lock().unwrap(), [[1, 2]]);
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5), (2, 6)]));
}

/// The first sweep starts after its interval, unless a worker requested one.
#[tokio::test]
async fn possibly_lost_events_cause_a_sweep() {
    let store = Arc::new(Store::default());
    let all = i64::try_from(QUEUED_APPLICATIONS_MAX).unwrap() + 7;
    (1..=all).for_each(|id| store.set(id, 1));
    let (recounter, clock) = recounter(&store, counting(100));
    recounter.queue().mark_incomplete();
    let mut progress = SweepProgress::default();
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded().len(), QUEUED_APPLICATIONS_MAX + 7);
    // More applications than the queue holds.
    (1..=all).for_each(|id| store.set(id, 2));
    clock.set_ms(2_000);
    recounter.queue().add_events(1..=all);
    assert_eq!(
        recounter.queue().lock_state().order.len(),
        QUEUED_APPLICATIONS_MAX
    );
    settle(&recounter, &mut progress).await;
    assert!(store.recorded().values().all(|count| *count == 2));
}

#[tokio::test]
async fn metrics_count_recounts() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let store = Arc::new(Store::default());
    store.set(1, 5);
    store.set(2, u64::MAX);
    let (recounter, _) = recounter(&store, counting(100));
    let mut progress = SweepProgress::default();
    recounter.queue().add_events([1, 2]);
    settle(&recounter, &mut progress).await;
    // A small count, an unknown application, and a disabled one.
    recounter.queue().add_events([1, 2, 3]);
    store.is_unavailable.store(true, Ordering::Relaxed);
    recounter.step(&mut progress, false).await.unwrap_err();
    store.is_unavailable.store(false, Ordering::Relaxed);
    settle(&recounter, &mut progress).await;
    let text = recorder.handle().render();
    for line in [
        "backstitch_speed_recounts_total 3",
        "backstitch_speed_recount_noops_total 2",
        "backstitch_speed_recount_errors_total 1",
        "backstitch_speed_recount_handler_seconds_count 5",
    ] {
        assert!(
            text.lines().any(|rendered| rendered == line),
            "{line}: {text}"
        );
    }
}

#[tokio::test]
async fn failed_recounts_are_queued_again() {
    let store = Arc::new(Store::default());
    store.set(1, 5);
    let (recounter, _) = recounter(&store, counting(100));
    let mut progress = SweepProgress::default();
    settle(&recounter, &mut progress).await;
    store.is_unavailable.store(true, Ordering::Relaxed);
    recounter.queue().add_events([1]);
    for _ in 0..3 {
        recounter.step(&mut progress, false).await.unwrap_err();
    }
    recounter.queue().add_events([1]);
    let waiting = recounter
        .queue()
        .lock_state()
        .events
        .get(&1)
        .map(|events| events.count);
    assert_eq!(waiting, Some(2));
    store.is_unavailable.store(false, Ordering::Relaxed);
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5)]));
}

/// A failed application is retried alone, with doubling pauses, and does not block others.
#[tokio::test]
async fn failed_recounts_pause_alone() {
    let store = Arc::new(Store::default());
    (1..=3).for_each(|id| store.set(id, 5));
    *store.broken.lock().unwrap() = Some(2);
    let (mut recounter, _) = recounter(&store, counting(100));
    recounter.retry_pause_ms = 100_000;
    let mut progress = SweepProgress::default();
    recounter.queue().mark_incomplete();
    // All by one statement, then each by its own.
    recounter.step(&mut progress, true).await.unwrap_err();
    assert_eq!(store.recorded(), BTreeMap::new());
    while recounter.step(&mut progress, true).await.is_err() {}
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5), (3, 5)]));
    let tries = || store.counted.lock().unwrap().len();
    let tries_before = tries();
    recounter.queue().add_events([1, 2]);
    recounter.queue().mark_incomplete();
    while recounter.step(&mut progress, true).await.unwrap() {}
    let counted = store.counted.lock().unwrap().split_off(tries_before);
    assert_eq!(counted, [vec![1], vec![1, 3]], "the second pauses");
    let pause = recounter.queue().time_until_retry().unwrap();
    assert!(pause > Duration::from_secs(90), "{pause:?}");
    assert!(pause <= Duration::from_secs(100), "{pause:?}");
    // `finish` ignores pauses.
    recounter.step(&mut progress, false).await.unwrap_err();
    let pause = recounter.queue().time_until_retry().unwrap();
    assert!(pause > Duration::from_secs(190), "{pause:?}");
    for _ in 0..70 {
        recounter.step(&mut progress, false).await.unwrap_err();
    }
    let pause = recounter.queue().time_until_retry().unwrap();
    assert!(
        pause <= Duration::from_millis(FAILURE_PAUSE_MS_MAX),
        "{pause:?}"
    );
    *store.broken.lock().unwrap() = None;
    settle(&recounter, &mut progress).await;
    assert_eq!(store.recorded()[&2], 5);
    assert_eq!(recounter.queue().time_until_retry(), None);
}

/// If classes list their applications, no others are read.
#[tokio::test]
async fn a_sweep_reads_only_listed_applications() {
    let store = Arc::new(Store::default());
    let step = i64::try_from(APPLICATIONS_PER_SWEEP_STEP).unwrap();
    (1..=3 * step).for_each(|id| store.set(id, 1));
    let listed = CountingSection {
        capacity_from: None,
        applications: (step..=2 * step + 5).collect(),
        ..section(100)
    };
    let (recounter, _) = recounter(&store, CountingClasses::parse(&[listed]).unwrap());
    recounter.queue().mark_incomplete();
    settle(&recounter, &mut SweepProgress::default()).await;
    let ids: Vec<i64> = store.recorded().into_keys().collect();
    assert_eq!(ids, (step..=2 * step + 5).collect::<Vec<_>>());
    assert_eq!(*store.pages.lock().unwrap(), 0);
}

/// A large count is refreshed after some of its events, and when it exceeds its maximum age.
#[tokio::test]
async fn large_counts_are_recounted_from_time_to_time() {
    let store = Arc::new(Store::default());
    store.set(1, 1_000);
    let (recounter, clock) = recounter(&store, counting(100));
    let mut progress = SweepProgress::default();
    for _ in 0..4_000 {
        recounter.queue().add_events([1]);
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

/// A crash between counting and recording records nothing. The next process sweeps all
/// applications.
#[tokio::test]
async fn an_unrecorded_count_is_repeated() {
    let store = Arc::new(Store::default());
    store.set(1, 5);
    let (first, _) = recounter(&store, counting(100));
    store.forgets_to_record.store(true, Ordering::Relaxed);
    first.queue().add_events([1]);
    settle(&first, &mut SweepProgress::default()).await;
    assert_eq!(store.recorded(), BTreeMap::new());
    store.forgets_to_record.store(false, Ordering::Relaxed);
    let (second, _) = recounter(&store, counting(100));
    second.finish(&CancellationToken::new()).await.unwrap();
    assert_eq!(store.recorded(), BTreeMap::from([(1, 5)]));
}

#[test]
fn statements_count_a_bounded_number_of_athletes() {
    let application = |application_id, connected| CountedApplication {
        application_id,
        athlete_capacity: 1,
        recorded: Some(RecordedCount {
            connected,
            counted_at_ms: 0,
        }),
    };
    let all = [
        application(1, 10),
        application(2, 499_990),
        application(3, 1),
        application(4, u64::MAX),
        application(5, 0),
    ];
    let all: Vec<&CountedApplication> = all.iter().collect();
    assert_eq!(
        split_statements(&all),
        [vec![1, 2], vec![3], vec![4], vec![5]]
    );
    assert!(split_statements(&[]).is_empty());
}
