//! Counting the athletes of applications anew, beside the workers, for the classes that are counted so.
//!
//! A worker hands over the applications of the groups that a micro-batch touched, after the fence has moved, and never
//! waits. What waits is merged by application, so many events of one make one count. Nothing is lost for good: where
//! there is no room, when workers come and at the start (somebody may have died with what it was handed), all applications
//! of the classes are gone through as if each had had an event; and a count that is older than a day's share
//! is made anew without one ([`jobs::counting::Policy::share_ms`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobs::counting::{Counting, Policy, should_count};
use schemas::clock::Clock;
use schemas::draws::Draws;
use stores::recounts::{Countable, Recounts};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::worker::pause;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Applications that wait, at most.
const WAITING_MAX: usize = 10_000;
/// Applications that are decided about at once.
const AT_ONCE: usize = 256;
/// Athletes that are counted by one statement, unless one application has more: so that it ends in time.
const ATHLETES_AT_ONCE: u64 = 500_000;
/// After counting, so that the events of a moment come together.
const PAUSE_MS: u64 = 50;
/// So many counts may fail before the others of the same applications are put off: it is the store then, or they are
/// many. No more of those that failed are tried again at once.
const FAILURES_MAX: usize = 2;
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
/// The longest pause before an application that can't be counted is tried again; pauses double up to it.
const FAILURE_PAUSE_MS_MAX: u64 = 300_000;

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
    /// Whether it was to be counted and was not: then it is counted without another draw, by a statement of its own.
    is_due: bool,
    /// How often counting it failed since it was counted last.
    failures: u32,
    /// When it is tried again after that.
    not_before: Option<Instant>,
}

impl Events {
    fn new(count: u64) -> Self {
        Self {
            count,
            since: Instant::now(),
            is_due: false,
            failures: 0,
            not_before: None,
        }
    }

    const fn due(self) -> Self {
        Self {
            is_due: true,
            ..self
        }
    }

    /// Due after a pause, which doubles from failure to failure.
    fn failed(self, pause_ms: u64) -> Self {
        let pauses = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let pause_ms = pause_ms.saturating_mul(pauses).min(FAILURE_PAUSE_MS_MAX);
        Self {
            failures: self.failures.saturating_add(1),
            not_before: Some(Instant::now() + Duration::from_millis(pause_ms)),
            ..self.due()
        }
    }

    fn pauses(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|then| then > now)
    }
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
        let one = Events::new(1);
        let theirs = |id: &i64| self.counting.may_recount(*id);
        let events = applications.into_iter().filter(theirs);
        self.add(events.map(|id| (id, one)));
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
                events.is_due |= more.is_due;
                events.failures = events.failures.max(more.failures);
                events.not_before = events.not_before.max(more.not_before);
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

    /// Those that have waited longest, and few of those whose count failed: with pauses, once theirs has passed. The
    /// others keep their order.
    fn take(&self, with_pauses: bool) -> BTreeMap<i64, Events> {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let Waiting { order, events, .. } = &mut *waiting;
        let (mut taken, mut due) = (BTreeMap::<i64, Events>::new(), 0);
        order.retain(|id| {
            let of = events.get(id);
            let is_due = of.is_some_and(|of| of.is_due);
            let waits = with_pauses && of.is_some_and(|of| of.pauses(now));
            if waits || taken.len() >= AT_ONCE || (is_due && due >= FAILURES_MAX) {
                return true;
            }
            due += usize::from(is_due);
            taken.extend(events.remove_entry(id));
            false
        });
        taken
    }

    /// Until the first pause after a failure ends, if there is one.
    fn until_again(&self) -> Option<Duration> {
        let waiting = self.waiting();
        let ends = waiting.events.values().filter_map(|of| of.not_before);
        Some(ends.min()?.saturating_duration_since(Instant::now()))
    }

    /// Leaves out those that wait for being counted by a statement of their own.
    fn without_due(&self, known: &mut Vec<Countable>) {
        let waiting = self.waiting();
        known.retain(|one| {
            let waits = waiting.events.get(&one.application_id);
            waits.is_none_or(|of| !of.is_due)
        });
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

impl Progress {
    /// The last application that the sweep under way has gone through.
    fn after(&self) -> Option<i64> {
        self.sweep.and_then(|sweep| sweep.after)
    }
}

/// What became of applications that may have to be counted.
#[derive(Debug, Default)]
struct Counted {
    /// How many are of a class that recounts and were not to be counted now.
    noops: usize,
    /// Those that were to be counted and were not: they wait again.
    failed: BTreeSet<i64>,
    /// The last error.
    error: Option<Error>,
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
            match self.step(&mut progress, true).await {
                Ok(true) => pause(PAUSE_MS, &stop).await,
                Ok(false) => {
                    let look = self.until_look(&progress);
                    let until = self
                        .touched
                        .until_again()
                        .map_or(look, |next| next.min(look));
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

    /// Counts what is to be counted now, of all applications. Where one can't be counted, the others are gone through
    /// first.
    pub(crate) async fn finish(&self, stop: &CancellationToken) -> Result<()> {
        let mut progress = Progress::default();
        self.touched.some_are_missing();
        let mut tries = 0;
        while !stop.is_cancelled() {
            let before = progress.after();
            match self.step(&mut progress, false).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    if progress.after() <= before {
                        tries += 1;
                        if !error.may_pass() || tries >= TRIES {
                            return Err(error);
                        }
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

    /// Handles some of what waits, and goes on with a sweep; answers whether there was anything to do. An application
    /// that can't be counted waits again, if need be with a pause, and its error is told when the others have been seen
    /// to.
    async fn step(&self, progress: &mut Progress, with_pauses: bool) -> Result<bool> {
        let taken = self.touched.take(with_pauses);
        let uncounted = match self.events(&taken).await {
            Ok(uncounted) => uncounted,
            Err(error) => {
                failed();
                // What can't be decided about now waits again.
                self.touched.add(taken);
                return Err(error);
            }
        };
        // Looking for old counts gives way; what is missed while all are gone through waits for the end of that, or no
        // end would ever be reached.
        let gives_way = progress.sweep.is_none_or(|sweep| sweep.events == 0);
        if gives_way && self.touched.take_missing() {
            let (after, events) = (None, 1);
            progress.sweep = Some(Sweep { after, events });
        } else if progress.sweep.is_none() && self.until_look(progress).is_zero() {
            let (after, events) = (None, 0);
            progress.sweep = Some(Sweep { after, events });
        }
        let Some(sweep) = progress.sweep else {
            progress.swept.get_or_insert_with(Instant::now);
            return uncounted.map_or(Ok(!taken.is_empty()), Err);
        };
        let (left, unswept) = self.sweep(sweep).await.inspect_err(|_| failed())?;
        progress.sweep = left;
        if left.is_none() {
            progress.swept = Some(Instant::now());
        }
        uncounted.or(unswept).map_or(Ok(true), Err)
    }

    /// Handles what happened to applications; answers why some could not be counted.
    async fn events(&self, taken: &BTreeMap<i64, Events>) -> Result<Option<Error>> {
        if taken.is_empty() {
            return Ok(None);
        }
        let ids: Vec<i64> = taken.keys().copied().collect();
        let known = self.recounts.countables(&ids).await?;
        let counted = self.count(&known, taken, Events::new(0)).await;
        // One that is not known is not enabled.
        let noops = counted.noops + (taken.len() - known.len());
        metrics::counter!("backstitch_speed_recount_noops_total").increment(noops as u64);
        for (id, events) in taken {
            if !counted.failed.contains(id) {
                let took = events.since.elapsed();
                metrics::histogram!("backstitch_speed_recount_handler_seconds").record(took);
            }
        }
        Ok(counted.error)
    }

    /// Goes through some more applications; nothing is left of the sweep after the last. Answers why some could not
    /// be counted, too: the sweep does not wait for them.
    async fn sweep(&self, sweep: Sweep) -> Result<(Option<Sweep>, Option<Error>)> {
        let (mut known, after) = self.next(sweep.after).await?;
        self.touched.without_due(&mut known);
        let each = Events::new(sweep.events);
        let counted = self.count(&known, &BTreeMap::new(), each).await;
        let left = after.map(|after| Sweep {
            after: Some(after),
            ..sweep
        });
        Ok((left, counted.error))
    }

    /// The next applications that may belong to a class that recounts, after one of them, and the last one if there may be
    /// more.
    async fn next(&self, after: Option<i64>) -> Result<(Vec<Countable>, Option<i64>)> {
        let Some(listed) = self.touched.counting.listed() else {
            let known = self.recounts.countables_after(after, STEP).await?;
            let last = known.last().filter(|_| known.len() >= STEP);
            let last = last.map(|last| last.application_id);
            return Ok((known, last));
        };
        let later = listed.into_iter().filter(|id| Some(*id) > after);
        let ids: Vec<i64> = later.take(STEP).collect();
        if ids.is_empty() {
            return Ok((Vec::new(), None));
        }
        let known = self.recounts.countables(&ids).await?;
        Ok((known, ids.last().copied().filter(|_| ids.len() >= STEP)))
    }

    /// Counts those of some applications that are to be counted now, by what happened to them: what was taken, or
    /// the same to each. Those that can't be counted wait again, and keep nobody else from it.
    async fn count(
        &self,
        known: &[Countable],
        taken: &BTreeMap<i64, Events>,
        each: Events,
    ) -> Counted {
        let happened = |id: i64| taken.get(&id).copied().unwrap_or(each);
        let (noops, parts) = self.chosen(known, happened);
        let mut counted = Counted {
            noops,
            ..Counted::default()
        };
        let mut failures = 0;
        for ids in parts {
            let is_tried = failures < FAILURES_MAX;
            if is_tried {
                let Err(error) = self.recount(&ids).await else {
                    continue;
                };
                tracing::debug!(%error, applications = ?ids, "not counted anew");
                failed();
                failures += 1;
                counted.error = Some(error);
            }
            // One of several may be the reason; of one alone it is known.
            let again = |events: Events| match is_tried && ids.len() == 1 {
                true => events.failed(self.retry_ms),
                false => events.due(),
            };
            self.touched
                .add(ids.iter().map(|id| (*id, again(happened(*id)))));
            counted.failed.extend(ids);
        }
        counted
    }

    /// How many of some applications are of a class that recounts and wait for another event, and those that are to be
    /// counted now, by statements.
    fn chosen(
        &self,
        known: &[Countable],
        happened: impl Fn(i64) -> Events,
    ) -> (usize, Vec<Vec<i64>>) {
        let now_ms = self.clock.now_ms();
        let counting = &self.touched.counting;
        let policy = |one: &Countable| counting.policy_of(one.application_id, one.athlete_capacity);
        let recounting = known.iter().filter_map(|one| Some((one, policy(one)?)));
        let (mut noops, mut chosen, mut due) = (0, Vec::new(), Vec::new());
        for (one, policy) in recounting {
            let counted = one.recounted.map(|recounted| recounted.connected);
            let counts = |_| should_count(true, counted, &policy, self.draws.draw());
            let happened = happened(one.application_id);
            let events = happened.count.min(EVENTS_MAX);
            if happened.is_due {
                due.push(vec![one.application_id]);
            } else if is_old(one, policy, now_ms) || (0..events).any(counts) {
                chosen.push(one);
            } else {
                noops += 1;
            }
        }
        // Those that failed come last.
        let mut statements = parts(&chosen);
        statements.extend(due);
        (noops, statements)
    }

    /// Counts applications by one statement and records it.
    async fn recount(&self, ids: &[i64]) -> Result<()> {
        let counted = self.recounts.recount(ids, self.clock.now_ms()).await?;
        self.recounts.record_recounts(&counted).await?;
        let count = counted.len() as u64;
        metrics::counter!("backstitch_speed_recounts_total").increment(count);
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
