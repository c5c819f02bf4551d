//! Counting the athletes of applications anew, beside the workers, for the classes that are counted so.
//!
//! A worker hands over the applications of the groups that a micro-batch touched, after the fence has moved, and never
//! waits. What waits is merged by application, so many events of one make one count. Nothing is lost for good: where
//! there is no room, when workers come and at the start (somebody may have died with what it was handed), all applications
//! of the classes are gone through as if each had had an event; and a count that is older than a day's share
//! is made anew without one ([`jobs::counting::Policy::share_ms`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobs::counting::{Counting, Policy, should_count};
use schemas::clock::Clock;
use schemas::draws::Draws;
use stores::recounts::{Countable, Recounts};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::worker::pause;
use crate::{Result, SpeedOptions, SpeedPorts};

/// Applications that wait, at most.
const WAITING_MAX: usize = 10_000;
/// Applications that are decided about at once.
const AT_ONCE: usize = 256;
/// Athletes that are counted by one statement, unless one application has more: so that it ends in time.
const ATHLETES_AT_ONCE: u64 = 500_000;
/// After counting, so that the events of a moment come together.
const PAUSE_MS: u64 = 50;
/// Applications that are gone through at once.
const STEP: usize = 1_000;
/// Of one application so many events are decided one by one: of more, one decides as good as surely.
const EVENTS_MAX: u64 = 100_000;
/// How often a day's share is looked for counts that are older.
const LOOKS_A_SHARE: u64 = 4;
/// The longest pause between two such looks.
const LOOK_MS_MAX: u64 = 3_600_000;
/// How often counting is tried again where the end is to be reached.
const TRIES: u32 = 20;

/// The applications whose groups were touched, on their way from the workers.
#[derive(Debug)]
pub(crate) struct Touched {
    counting: Counting,
    waiting: Mutex<Waiting>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which they came, each once.
    order: VecDeque<i64>,
    events: HashMap<i64, Events>,
    /// Whether some may have been lost: all are to be gone through.
    is_missing_some: bool,
}

/// What happened to an application.
#[derive(Debug, Clone, Copy)]
struct Events {
    count: u64,
    /// When the first of them was handed over.
    since: Instant,
}

impl Touched {
    fn new(counting: Counting) -> Self {
        Self {
            counting,
            waiting: Mutex::default(),
            came: Notify::new(),
        }
    }

    /// Hands over the applications of groups, one for each event.
    pub(crate) fn hand_over(&self, applications: impl IntoIterator<Item = i64>) {
        let since = Instant::now();
        let theirs = |id: &i64| self.counting.may_recount(*id);
        let events = applications.into_iter().filter(theirs);
        self.add(events.map(|id| (id, Events { count: 1, since })));
    }

    /// Somebody who was handed some may have lost them.
    pub(crate) fn some_are_missing(&self) {
        self.waiting().is_missing_some = true;
        self.came.notify_one();
    }

    fn add(&self, events: impl IntoIterator<Item = (i64, Events)>) {
        let mut waiting = self.waiting();
        for (id, more) in events {
            let is_full = waiting.order.len() >= WAITING_MAX;
            if let Some(events) = waiting.events.get_mut(&id) {
                events.count = events.count.saturating_add(more.count);
                events.since = events.since.min(more.since);
            } else if is_full {
                waiting.is_missing_some = true;
            } else {
                waiting.order.push_back(id);
                waiting.events.insert(id, more);
            }
        }
        if waiting.is_missing_some || !waiting.order.is_empty() {
            self.came.notify_one();
        }
    }

    /// Those that have waited longest.
    fn take(&self) -> BTreeMap<i64, Events> {
        let mut waiting = self.waiting();
        let count = waiting.order.len().min(AT_ONCE);
        let ids: Vec<i64> = waiting.order.drain(..count).collect();
        let taken = ids
            .into_iter()
            .filter_map(|id| waiting.events.remove_entry(&id));
        taken.collect()
    }

    /// Whether all are to be gone through; then somebody does.
    fn take_missing(&self) -> bool {
        std::mem::take(&mut self.waiting().is_missing_some)
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Going through all applications.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    /// The last application that was gone through.
    after: Option<i64>,
    /// How many events each is taken to have had: none where only old counts are looked for.
    events: u64,
}

/// What is under way beside what waits.
#[derive(Debug, Default)]
struct Progress {
    sweep: Option<Sweep>,
    /// When the last sweep came to its end.
    swept: Option<Instant>,
}

/// Counts applications anew.
#[derive(Debug, Clone)]
pub(crate) struct Recounter {
    recounts: Arc<dyn Recounts>,
    clock: Arc<dyn Clock>,
    draws: Arc<dyn Draws>,
    touched: Arc<Touched>,
    /// Between looks for counts that are old.
    look: Duration,
    retry_ms: u64,
}

impl Recounter {
    /// What counts in these classes; nothing if none of them recounts.
    pub(crate) fn new(
        ports: &SpeedPorts,
        counting: Counting,
        options: &SpeedOptions,
    ) -> Option<Self> {
        let share_ms = counting.share_ms()?;
        let look_ms = (share_ms / LOOKS_A_SHARE).clamp(1, LOOK_MS_MAX);
        Some(Self {
            recounts: Arc::clone(&ports.recounts),
            clock: Arc::clone(&ports.clock),
            draws: Arc::clone(&ports.draws),
            touched: Arc::new(Touched::new(counting)),
            look: Duration::from_millis(look_ms),
            retry_ms: options.look_interval_ms.max(1),
        })
    }

    /// Where workers hand over what they touched.
    pub(crate) fn touched(&self) -> &Arc<Touched> {
        &self.touched
    }

    /// Counts what was handed over and what is old, until `stop`. Errors are told and tried again: nothing else
    /// waits for it, and what is recorded is served as it is.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        let mut progress = Progress::default();
        while !stop.is_cancelled() {
            match self.step(&mut progress).await {
                Ok(true) => pause(PAUSE_MS, &stop).await,
                Ok(false) => {
                    let until = self.until_look(&progress);
                    tokio::select! {
                        () = self.touched.came.notified() => {}
                        () = tokio::time::sleep(until) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "athletes of applications can't be counted anew; trying again");
                    pause(self.retry_ms, &stop).await;
                }
            }
        }
        Ok(())
    }

    /// Counts what is to be counted now, of all applications.
    pub(crate) async fn finish(&self, stop: &CancellationToken) -> Result<()> {
        let mut progress = Progress::default();
        self.touched.some_are_missing();
        let mut tries = 0;
        while !stop.is_cancelled() {
            match self.step(&mut progress).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    tries += 1;
                    if !error.may_pass() || tries >= TRIES {
                        return Err(error);
                    }
                    pause(self.retry_ms, stop).await;
                }
            }
        }
        Ok(())
    }

    fn until_look(&self, progress: &Progress) -> Duration {
        let since = progress.swept.map(|swept| swept.elapsed());
        self.look.saturating_sub(since.unwrap_or_default())
    }

    /// Handles some of what waits, and goes on with a sweep; answers whether there was anything to do.
    async fn step(&self, progress: &mut Progress) -> Result<bool> {
        let taken = self.touched.take();
        if let Err(error) = self.events(&taken).await {
            failed();
            // What can't be counted now waits again.
            self.touched.add(taken);
            return Err(error);
        }
        if self.touched.take_missing() {
            let (after, events) = (None, 1);
            progress.sweep = Some(Sweep { after, events });
        } else if progress.sweep.is_none() && self.until_look(progress).is_zero() {
            let (after, events) = (None, 0);
            progress.sweep = Some(Sweep { after, events });
        }
        let Some(sweep) = progress.sweep else {
            progress.swept.get_or_insert_with(Instant::now);
            return Ok(!taken.is_empty());
        };
        progress.sweep = self.sweep(sweep).await.inspect_err(|_| failed())?;
        if progress.sweep.is_none() {
            progress.swept = Some(Instant::now());
        }
        Ok(true)
    }

    /// Handles what happened to applications.
    async fn events(&self, taken: &BTreeMap<i64, Events>) -> Result<()> {
        if taken.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = taken.keys().copied().collect();
        let known = self.recounts.countables(&ids).await?;
        let events = |id: i64| taken.get(&id).map_or(0, |events| events.count);
        let (recounting, chosen) = self.chosen(&known, events);
        self.count(&chosen).await?;
        // One that is not known is not enabled.
        let noops = recounting - chosen.len() + (taken.len() - known.len());
        metrics::counter!("backstitch_speed_recount_noops_total").increment(noops as u64);
        for events in taken.values() {
            let took = events.since.elapsed();
            metrics::histogram!("backstitch_speed_recount_handler_seconds").record(took);
        }
        Ok(())
    }

    /// Goes through some more applications; nothing is left of the sweep after the last.
    async fn sweep(&self, sweep: Sweep) -> Result<Option<Sweep>> {
        let known = self.recounts.countables_after(sweep.after, STEP).await?;
        let (_, chosen) = self.chosen(&known, |_| sweep.events);
        self.count(&chosen).await?;
        let last = known.last().filter(|_| known.len() >= STEP);
        Ok(last.map(|last| Sweep {
            after: Some(last.application_id),
            ..sweep
        }))
    }

    /// How many of some applications are of a class that recounts, and those of them that are to be counted
    /// now.
    fn chosen<'a>(
        &self,
        known: &'a [Countable],
        events: impl Fn(i64) -> u64,
    ) -> (usize, Vec<&'a Countable>) {
        let now_ms = self.clock.now_ms();
        let counting = &self.touched.counting;
        let policy = |one: &Countable| counting.policy_of(one.application_id, one.athlete_capacity);
        let recounting = known.iter().filter_map(|one| Some((one, policy(one)?)));
        let (mut count, mut chosen) = (0, Vec::new());
        for (one, policy) in recounting {
            count += 1;
            let counted = one.recounted.map(|recounted| recounted.connected);
            let counts = |_| should_count(true, counted, &policy, self.draws.draw());
            let events = events(one.application_id).min(EVENTS_MAX);
            if is_old(one, policy, now_ms) || (0..events).any(counts) {
                chosen.push(one);
            }
        }
        (count, chosen)
    }

    /// Counts applications and records it.
    async fn count(&self, chosen: &[&Countable]) -> Result<()> {
        for ids in parts(chosen) {
            let counted = self.recounts.recount(&ids, self.clock.now_ms()).await?;
            self.recounts.record_recounts(&counted).await?;
            let count = counted.len() as u64;
            metrics::counter!("backstitch_speed_recounts_total").increment(count);
        }
        Ok(())
    }
}

fn failed() {
    metrics::counter!("backstitch_speed_recount_errors_total").increment(1);
}

/// Whether a count is missing, older than its share of a day, or of a clock that was as far ahead.
fn is_old(one: &Countable, policy: Policy, now_ms: i64) -> bool {
    one.recounted.is_none_or(|recounted| {
        let age_ms = now_ms.saturating_sub(recounted.counted_at_ms);
        age_ms.unsigned_abs() >= policy.share_ms()
    })
}

/// Applications that are counted by one statement each, by what is known of their sizes.
fn parts(chosen: &[&Countable]) -> Vec<Vec<i64>> {
    let mut parts: Vec<Vec<i64>> = Vec::new();
    let mut athletes = 0_u64;
    for one in chosen {
        let capacity = u64::try_from(one.athlete_capacity).unwrap_or_default();
        let size = one
            .recounted
            .map_or(capacity, |recounted| recounted.connected);
        athletes = athletes.saturating_add(size.max(1));
        match parts.last_mut() {
            Some(part) if athletes <= ATHLETES_AT_ONCE => part.push(one.application_id),
            _ => {
                athletes = size.max(1);
                parts.push(vec![one.application_id]);
            }
        }
    }
    parts
}

#[cfg(test)]
#[path = "recount_tests.rs"]
mod tests;
