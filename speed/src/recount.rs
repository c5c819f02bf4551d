//! Recounts the athletes of applications beside the workers, for the classes with recounts.
//!
//! After the checkpoint advanced, a worker queues the applications of the changed groups, without
//! waiting. The queue merges events by application, so many events give one recount. For each event
//! of a large application, a random number (a draw) decides whether it causes a recount
//! ([`should_recount`]).
//!
//! No recount is lost. A sweep visits all applications of the classes as if each had an event: at
//! the start of the process, at the start of a worker (since its predecessor may have ended with
//! queued events), and after an overflow of the queue. A count that exceeds its maximum age is
//! refreshed without an event ([`jobs::counting::RecountPolicy::recount_interval_ms`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobs::counting::{CountingClasses, RecountPolicy, should_recount};
use schemas::clock::Clock;
use schemas::random::RandomNumbers;
use stores::recounts::{CountedApplication, Recounts};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::pause::pause;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Maximum queued applications.
const QUEUED_APPLICATIONS_MAX: usize = 10_000;
/// Applications that are handled in one step.
const APPLICATIONS_PER_STEP: usize = 256;
/// Athletes that one statement counts, unless one application has more. It bounds the duration of a
/// statement.
const ATHLETES_PER_STATEMENT: u64 = 500_000;
/// Pause after counting, so that simultaneous events are merged.
const MERGE_PAUSE_MS: u64 = 50;
/// Failed statements after which the remaining applications of a step are postponed: either the
/// store fails or many applications do. It also bounds the immediate retries of failed
/// applications.
const FAILURES_MAX: usize = 2;
/// Applications per step of a sweep.
const APPLICATIONS_PER_SWEEP_STEP: usize = 1_000;
/// Maximum draws for the events of one application in one step. With more, a recount is practically
/// certain.
const DRAWS_MAX: u64 = 100_000;
/// Sweeps for stale counts per recount interval.
const SWEEPS_PER_INTERVAL: u64 = 4;
/// Longest pause between two such sweeps.
const SWEEP_INTERVAL_MS_MAX: u64 = 3_600_000;
/// Attempts to count before `finish` fails.
const TRIES_MAX: u32 = 20;
/// Longest pause before a failed application is tried again. Pauses double up to it.
const FAILURE_PAUSE_MS_MAX: u64 = 300_000;

/// Queued applications whose groups changed.
#[derive(Debug)]
pub(crate) struct RecountQueue {
    counting: CountingClasses,
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    /// In order of arrival, each once.
    order: VecDeque<i64>,
    events: HashMap<i64, PendingEvents>,
    /// True if events may be lost, so that a sweep must visit all applications.
    is_incomplete: bool,
}

/// The events of one application.
#[derive(Debug, Clone, Copy)]
struct PendingEvents {
    count: u64,
    /// The arrival of the first event.
    first_arrival: Instant,
    /// True if a draw required a count and the count failed. The application is then counted
    /// without another draw, by a separate statement.
    is_due: bool,
    /// Failures since the last count.
    failures: u32,
    /// The earliest next attempt after a failure.
    not_before: Option<Instant>,
}

impl PendingEvents {
    fn new(count: u64) -> Self {
        Self {
            count,
            first_arrival: Instant::now(),
            is_due: false,
            failures: 0,
            not_before: None,
        }
    }

    const fn into_due(self) -> Self {
        Self {
            is_due: true,
            ..self
        }
    }

    /// Makes the events due after a pause, which doubles with each failure.
    fn into_failed(self, pause_ms: u64) -> Self {
        let pauses = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let pause_ms = pause_ms.saturating_mul(pauses).min(FAILURE_PAUSE_MS_MAX);
        Self {
            failures: self.failures.saturating_add(1),
            not_before: Some(Instant::now() + Duration::from_millis(pause_ms)),
            ..self.into_due()
        }
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|pause_end| pause_end > now)
    }
}

impl RecountQueue {
    fn new(counting: CountingClasses) -> Self {
        Self {
            counting,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Queues the applications of groups, one for each event.
    pub(crate) fn add_events(&self, applications: impl IntoIterator<Item = i64>) {
        let event = PendingEvents::new(1);
        let may_recount = |id: &i64| self.counting.may_recount(*id);
        let events = applications.into_iter().filter(may_recount);
        self.add(events.map(|id| (id, event)));
    }

    /// Requests a sweep, because a worker may have lost events.
    pub(crate) fn mark_incomplete(&self) {
        self.lock_state().is_incomplete = true;
        self.changed.notify_one();
    }

    fn add(&self, events: impl IntoIterator<Item = (i64, PendingEvents)>) {
        let mut state = self.lock_state();
        for (id, new_events) in events {
            let is_full = state.order.len() >= QUEUED_APPLICATIONS_MAX;
            if let Some(events) = state.events.get_mut(&id) {
                events.count = events.count.saturating_add(new_events.count);
                events.first_arrival = events.first_arrival.min(new_events.first_arrival);
                events.is_due |= new_events.is_due;
                events.failures = events.failures.max(new_events.failures);
                events.not_before = events.not_before.max(new_events.not_before);
            } else if is_full {
                state.is_incomplete = true;
            } else {
                state.order.push_back(id);
                state.events.insert(id, new_events);
            }
        }
        if state.is_incomplete || !state.order.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Takes the oldest applications, and a few whose count failed. With `respects_pauses`, failed ones
    /// are skipped until their pause ends. The rest keep their order.
    fn take_oldest(&self, respects_pauses: bool) -> BTreeMap<i64, PendingEvents> {
        let now = Instant::now();
        let mut state = self.lock_state();
        let QueueState { order, events, .. } = &mut *state;
        let (mut pending, mut due) = (BTreeMap::<i64, PendingEvents>::new(), 0);
        order.retain(|id| {
            let queued = events.get(id);
            let is_due = queued.is_some_and(|events| events.is_due);
            let is_paused = respects_pauses && queued.is_some_and(|events| events.is_paused(now));
            if is_paused
                || pending.len() >= APPLICATIONS_PER_STEP
                || (is_due && due >= FAILURES_MAX)
            {
                return true;
            }
            due += usize::from(is_due);
            pending.extend(events.remove_entry(id));
            false
        });
        pending
    }

    /// Time until the first pause after a failure ends.
    fn time_until_retry(&self) -> Option<Duration> {
        let state = self.lock_state();
        let pause_ends = state.events.values().filter_map(|events| events.not_before);
        Some(pause_ends.min()?.saturating_duration_since(Instant::now()))
    }

    /// Removes applications that wait for a separate statement.
    fn exclude_due(&self, applications: &mut Vec<CountedApplication>) {
        let state = self.lock_state();
        applications.retain(|application| {
            let pending = state.events.get(&application.application_id);
            pending.is_none_or(|events| !events.is_due)
        });
    }

    /// Returns whether a sweep is requested, and clears the request.
    fn take_incomplete(&self) -> bool {
        std::mem::take(&mut self.lock_state().is_incomplete)
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sweep over all applications.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    /// The last visited application.
    after: Option<i64>,
    /// Number of events that each application is assumed to have; 0 if only stale counts are
    /// wanted.
    events: u64,
}

/// The progress of sweeps.
#[derive(Debug, Default)]
struct SweepProgress {
    sweep: Option<Sweep>,
    /// The end of the last sweep.
    sweep_end: Option<Instant>,
}

impl SweepProgress {
    /// The last application that the current sweep visited.
    fn last_visited(&self) -> Option<i64> {
        self.sweep.and_then(|sweep| sweep.after)
    }
}

/// The result of a step.
#[derive(Debug, Default)]
struct RecountResult {
    /// Number of applications that need no recount now.
    noops: usize,
    /// Applications whose recount failed. They are queued again.
    failed: BTreeSet<i64>,
    /// The last error.
    error: Option<Error>,
}

/// Recounts applications.
#[derive(Debug, Clone)]
pub(crate) struct Recounter {
    recounts: Arc<dyn Recounts>,
    clock: Arc<dyn Clock>,
    draws: Arc<dyn RandomNumbers>,
    queue: Arc<RecountQueue>,
    /// The pause between sweeps for stale counts.
    sweep_interval: Duration,
    retry_pause_ms: u64,
}

impl Recounter {
    /// Creates a recounter, or returns `None` if no class recounts.
    pub(crate) fn new(
        ports: &SpeedPorts,
        counting: CountingClasses,
        options: &SpeedOptions,
    ) -> Option<Self> {
        let interval_ms = counting.shortest_recount_interval_ms()?;
        let sweep_ms = (interval_ms / SWEEPS_PER_INTERVAL).clamp(1, SWEEP_INTERVAL_MS_MAX);
        Some(Self {
            recounts: Arc::clone(&ports.recounts),
            clock: Arc::clone(&ports.clock),
            draws: Arc::clone(&ports.draws),
            queue: Arc::new(RecountQueue::new(counting)),
            sweep_interval: Duration::from_millis(sweep_ms),
            retry_pause_ms: options.look_interval_ms.max(1),
        })
    }

    /// The queue for the workers.
    pub(crate) fn queue(&self) -> &Arc<RecountQueue> {
        &self.queue
    }

    /// Recounts queued and stale applications, until `stop`. Errors are logged and retried. Nothing
    /// waits for a recount; readers get the recorded count.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<()> {
        let mut progress = SweepProgress::default();
        while !stop.is_cancelled() {
            match self.step(&mut progress, true).await {
                Ok(true) => pause(MERGE_PAUSE_MS, &stop).await,
                Ok(false) => {
                    let sweep_wait = self.time_until_sweep(&progress);
                    let retry_wait = self.queue.time_until_retry();
                    let wait = retry_wait.map_or(sweep_wait, |retry| retry.min(sweep_wait));
                    tokio::select! {
                        () = self.queue.changed.notified() => {}
                        () = tokio::time::sleep(wait) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "athletes of applications can't be recounted; trying again");
                    pause(self.retry_pause_ms, &stop).await;
                }
            }
        }
        Ok(())
    }

    /// Recounts all applications that need it now. If one fails, the others are counted first.
    pub(crate) async fn finish(&self, stop: &CancellationToken) -> Result<()> {
        let mut progress = SweepProgress::default();
        self.queue.mark_incomplete();
        let mut tries = 0;
        while !stop.is_cancelled() {
            let last_visited = progress.last_visited();
            match self.step(&mut progress, false).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    if progress.last_visited() <= last_visited {
                        tries += 1;
                        if !error.is_transient() || tries >= TRIES_MAX {
                            return Err(error);
                        }
                    }
                    pause(self.retry_pause_ms, stop).await;
                }
            }
        }
        Ok(())
    }

    fn time_until_sweep(&self, progress: &SweepProgress) -> Duration {
        let elapsed = progress.sweep_end.map(|sweep_end| sweep_end.elapsed());
        self.sweep_interval
            .saturating_sub(elapsed.unwrap_or_default())
    }

    /// Handles some queued applications and a part of the sweep. Returns whether there was work. A
    /// failed application is queued again, with a pause if required. Its error is returned after
    /// the other applications were handled.
    async fn step(&self, progress: &mut SweepProgress, respects_pauses: bool) -> Result<bool> {
        let pending = self.queue.take_oldest(respects_pauses);
        let event_error = match self.handle_events(&pending).await {
            Ok(event_error) => event_error,
            Err(error) => {
                count_failure();
                // Queue them again, because they could not be decided.
                self.queue.add(pending);
                return Err(error);
            }
        };
        // A requested sweep replaces a sweep for stale counts. During another requested sweep it
        // waits, so that sweeps end.
        let may_replace_sweep = progress.sweep.is_none_or(|sweep| sweep.events == 0);
        if may_replace_sweep && self.queue.take_incomplete() {
            let (after, events) = (None, 1);
            progress.sweep = Some(Sweep { after, events });
        } else if progress.sweep.is_none() && self.time_until_sweep(progress).is_zero() {
            let (after, events) = (None, 0);
            progress.sweep = Some(Sweep { after, events });
        }
        let Some(sweep) = progress.sweep else {
            progress.sweep_end.get_or_insert_with(Instant::now);
            return event_error.map_or(Ok(!pending.is_empty()), Err);
        };
        let (remaining, sweep_error) = self.sweep(sweep).await.inspect_err(|_| count_failure())?;
        progress.sweep = remaining;
        if remaining.is_none() {
            progress.sweep_end = Some(Instant::now());
        }
        event_error.or(sweep_error).map_or(Ok(true), Err)
    }

    /// Handles queued events. Returns an error if some applications could not be counted.
    async fn handle_events(&self, pending: &BTreeMap<i64, PendingEvents>) -> Result<Option<Error>> {
        if pending.is_empty() {
            return Ok(None);
        }
        let ids: Vec<i64> = pending.keys().copied().collect();
        let known = self.recounts.counted_applications(&ids).await?;
        let result = self
            .recount_selected(&known, pending, PendingEvents::new(0))
            .await;
        // An unknown application is not enabled.
        let noops = result.noops + (pending.len() - known.len());
        metrics::counter!("backstitch_speed_recount_noops_total").increment(noops as u64);
        for (id, events) in pending {
            if !result.failed.contains(id) {
                let duration = events.first_arrival.elapsed();
                metrics::histogram!("backstitch_speed_recount_handler_seconds").record(duration);
            }
        }
        Ok(result.error)
    }

    /// Visits the next applications of a sweep. Returns `None` after the last ones. Returns also an
    /// error if some could not be counted; the sweep continues.
    async fn sweep(&self, sweep: Sweep) -> Result<(Option<Sweep>, Option<Error>)> {
        let (mut applications, after) = self.read_next(sweep.after).await?;
        self.queue.exclude_due(&mut applications);
        let assumed_events = PendingEvents::new(sweep.events);
        let result = self
            .recount_selected(&applications, &BTreeMap::new(), assumed_events)
            .await;
        let remaining = after.map(|after| Sweep {
            after: Some(after),
            ..sweep
        });
        Ok((remaining, result.error))
    }

    /// Reads the next applications that may belong to a class with recounts, and the last of them
    /// if there may be more.
    async fn read_next(
        &self,
        after: Option<i64>,
    ) -> Result<(Vec<CountedApplication>, Option<i64>)> {
        let Some(listed) = self.queue.counting.listed_applications() else {
            let known = self
                .recounts
                .counted_applications_after(after, APPLICATIONS_PER_SWEEP_STEP)
                .await?;
            let last = known
                .last()
                .filter(|_| known.len() >= APPLICATIONS_PER_SWEEP_STEP);
            let last = last.map(|last| last.application_id);
            return Ok((known, last));
        };
        let later = listed.into_iter().filter(|id| Some(*id) > after);
        let ids: Vec<i64> = later.take(APPLICATIONS_PER_SWEEP_STEP).collect();
        if ids.is_empty() {
            return Ok((Vec::new(), None));
        }
        let known = self.recounts.counted_applications(&ids).await?;
        let last = ids.last().copied();
        Ok((
            known,
            last.filter(|_| ids.len() >= APPLICATIONS_PER_SWEEP_STEP),
        ))
    }

    /// Recounts the applications that need it by their queued events. An application without
    /// queued events has `default_events`. Failed ones are queued again and do not block others.
    async fn recount_selected(
        &self,
        known: &[CountedApplication],
        pending: &BTreeMap<i64, PendingEvents>,
        default_events: PendingEvents,
    ) -> RecountResult {
        let events_of = |id: i64| pending.get(&id).copied().unwrap_or(default_events);
        let (noops, statements) = self.select_statements(known, events_of);
        let mut result = RecountResult {
            noops,
            ..RecountResult::default()
        };
        let mut failures = 0;
        for ids in statements {
            let is_tried = failures < FAILURES_MAX;
            if is_tried {
                let Err(error) = self.run_statement(&ids).await else {
                    continue;
                };
                tracing::debug!(%error, applications = ?ids, "a recount failed");
                count_failure();
                failures += 1;
                result.error = Some(error);
            }
            // An application that failed alone is the cause. Of several, each is retried alone.
            let requeued = |events: PendingEvents| match is_tried && ids.len() == 1 {
                true => events.into_failed(self.retry_pause_ms),
                false => events.into_due(),
            };
            self.queue
                .add(ids.iter().map(|id| (*id, requeued(events_of(*id)))));
            result.failed.extend(ids);
        }
        result
    }

    /// Selects the applications to count now, grouped by statement. Returns also the number of
    /// applications that need no recount.
    fn select_statements(
        &self,
        known: &[CountedApplication],
        events_of: impl Fn(i64) -> PendingEvents,
    ) -> (usize, Vec<Vec<i64>>) {
        let now_ms = self.clock.now_ms();
        let counting = &self.queue.counting;
        let policy = |application: &CountedApplication| {
            counting.find_policy(application.application_id, application.athlete_capacity)
        };
        let recounting = known.iter().filter_map(|app| Some((app, policy(app)?)));
        let (mut noops, mut selected, mut due) = (0, Vec::new(), Vec::new());
        for (application, policy) in recounting {
            let counted = application.recorded.map(|recounted| recounted.connected);
            let is_drawn = |_| should_recount(true, counted, &policy, self.draws.next_u64());
            let events = events_of(application.application_id);
            let draws = events.count.min(DRAWS_MAX);
            if events.is_due {
                due.push(vec![application.application_id]);
            } else if is_stale(application, policy, now_ms) || (0..draws).any(is_drawn) {
                selected.push(application);
            } else {
                noops += 1;
            }
        }
        // Previously failed applications come last.
        let mut statements = split_statements(&selected);
        statements.extend(due);
        (noops, statements)
    }

    /// Counts applications with one statement and records the counts.
    async fn run_statement(&self, ids: &[i64]) -> Result<()> {
        let counted = self.recounts.recount(ids, self.clock.now_ms()).await?;
        self.recounts.record_recounts(&counted).await?;
        let count = counted.len() as u64;
        metrics::counter!("backstitch_speed_recounts_total").increment(count);
        Ok(())
    }
}

fn count_failure() {
    metrics::counter!("backstitch_speed_recount_errors_total").increment(1);
}

/// Returns whether a count is missing or older than its interval. A time equally far in the future
/// also counts as old.
fn is_stale(application: &CountedApplication, policy: RecountPolicy, now_ms: i64) -> bool {
    application.recorded.is_none_or(|recorded| {
        let age_ms = now_ms.saturating_sub(recorded.counted_at_ms);
        age_ms.unsigned_abs() >= policy.recount_interval_ms()
    })
}

/// Groups applications into statements by their known sizes.
fn split_statements(selected: &[&CountedApplication]) -> Vec<Vec<i64>> {
    let mut statements: Vec<Vec<i64>> = Vec::new();
    let mut athletes = 0_u64;
    for application in selected {
        let capacity = u64::try_from(application.athlete_capacity).unwrap_or_default();
        let size = application
            .recorded
            .map_or(capacity, |recorded| recorded.connected);
        athletes = athletes.saturating_add(size.max(1));
        match statements.last_mut() {
            Some(statement) if athletes <= ATHLETES_PER_STATEMENT => {
                statement.push(application.application_id)
            }
            _ => {
                athletes = size.max(1);
                statements.push(vec![application.application_id]);
            }
        }
    }
    statements
}

#[cfg(test)]
#[path = "recount_tests.rs"]
mod tests;
