//! Wakes the idle workers of a source.
//!
//! One task reads the ends of the log, the partition states and the run records for all of them. So
//! the number of requests for an idle source does not grow with its partitions. A worker never acts
//! on these reads. It wakes, and reads again in the order that the seam protocol requires.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::seam::{Checkpoint, Offset, PartitionState};
use schemas::source::Source;
use stores::live::LiveRead;
use stores::log::LogRead;
use stores::views::{RunRecords, ViewsRead};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pause::pause;
use crate::{Result, SpeedOptions, SpeedPorts};

/// Longest time until an idle worker detects that its partition state was lost or changed.
const STATE_INTERVAL_MS_MAX: u64 = 1_000;
/// A worker reads the log itself if the shared read of the log takes longer than this.
const LOG_READ_MS_MAX: u64 = 1_000;
/// A log without new records for this long is read less often.
const QUIET_AFTER: Duration = Duration::from_secs(10);
/// Interval of reads of a quiet log, unless the configured one is longer.
const QUIET_LOG_INTERVAL_MS: u64 = 370;
/// Pause after a failed read.
const FAILURE_PAUSE_MS: u64 = 1_000;

/// Wakes the idle workers of one source.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    log: Arc<dyn LogRead>,
    live: Arc<dyn LiveRead>,
    views: Arc<dyn ViewsRead>,
    source: Source,
    log_interval_ms: u64,
    state_interval_ms: u64,
    runs_interval_ms: u64,
    reads: watch::Sender<LastReads>,
}

/// The reason why a worker stops waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The log has new records for the worker, its end moved back, or its shared read is overdue.
    Log,
    /// The partition state or the run records changed, or cannot be read.
    Refresh,
    /// The time limit was reached.
    Timeout,
}

/// The subject of a shared read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The ends of the log.
    Log,
    /// The partition states.
    States,
    /// The run records.
    Runs,
}

/// The results of the last shared reads.
#[derive(Debug, Clone, Default)]
struct LastReads {
    ends: Option<SharedRead<Vec<Offset>>>,
    /// Time of the last change of the ends.
    ends_changed: Option<Instant>,
    states: Option<SharedRead<Vec<Option<Checkpoint>>>>,
    runs: Option<SharedRead<RunRecords>>,
    /// Partitions of the log. They remain known after a failed read of the ends.
    partitions: u32,
    failures: u64,
}

/// The result of a shared read.
#[derive(Debug, Clone)]
struct SharedRead<T> {
    /// Start of the read. The result includes everything that was written before.
    began: Instant,
    value: Arc<T>,
}

/// A waiting worker and its position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleWorker<'a> {
    pub(crate) partition: u32,
    /// The partitions that the worker knows.
    pub(crate) partitions: u32,
    /// Its checkpoint, at the end of the log.
    pub(crate) checkpoint: Checkpoint,
    /// The run records of its last refresh.
    pub(crate) runs: &'a RunRecords,
    pub(crate) wait_start: WaitStart,
}

/// The start of a wait. Reads that began earlier may be outdated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitStart {
    time: Instant,
    failures: u64,
}

impl IdleWatch {
    pub(crate) fn new(ports: &SpeedPorts, source: Source, options: &SpeedOptions) -> Self {
        let log_interval_ms = options.poll_interval_ms.max(1);
        Self {
            log: Arc::clone(&ports.log),
            live: Arc::clone(&ports.live) as _,
            views: Arc::clone(&ports.views),
            source,
            log_interval_ms,
            state_interval_ms: options
                .look_interval_ms
                .clamp(log_interval_ms, STATE_INTERVAL_MS_MAX.max(log_interval_ms)),
            runs_interval_ms: options.look_interval_ms.max(log_interval_ms),
            reads: watch::Sender::default(),
        }
    }

    /// Starts a wait, which may take several calls of [`IdleWatch::wait`].
    pub(crate) fn start_wait(&self) -> WaitStart {
        WaitStart {
            time: Instant::now(),
            failures: self.reads.borrow().failures,
        }
    }

    /// Waits until a worker has work, but at most for `timeout`.
    pub(crate) async fn wait(
        &self,
        idle: IdleWorker<'_>,
        timeout: Duration,
        stop: &CancellationToken,
    ) -> Wake {
        let mut reads = self.reads.subscribe();
        let wakes = reads.wait_for(|reads| reads.find_wake(&idle).is_some());
        tokio::select! {
            woken = wakes => match woken {
                Ok(reads) => reads.find_wake(&idle).unwrap_or(Wake::Refresh),
                Err(_) => Wake::Refresh,
            },
            () = tokio::time::sleep(timeout) => self.check_log_read(&idle),
            () = stop.cancelled() => Wake::Timeout,
        }
    }

    /// Returns [`Wake::Log`] if the shared read of the log is overdue. The read may hang on another
    /// partition whose leader is unavailable.
    fn check_log_read(&self, idle: &IdleWorker<'_>) -> Wake {
        let log_read_max = Duration::from_millis(LOG_READ_MS_MAX.max(2 * self.log_interval_ms));
        let ends_began = self.reads.borrow().ends.as_ref().map(|read| read.began);
        let is_recent = ends_began.is_some_and(|began| began.elapsed() < log_read_max);
        if is_recent || idle.wait_start.time.elapsed() < log_read_max {
            Wake::Timeout
        } else {
            Wake::Log
        }
    }

    /// Runs the shared reads for waiting workers, until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<()> {
        tokio::join!(
            self.repeat_read(Subject::Log, self.log_interval_ms, &stop),
            self.repeat_read(Subject::States, self.state_interval_ms, &stop),
            self.repeat_read(Subject::Runs, self.runs_interval_ms, &stop),
        );
        Ok(())
    }

    /// Reads every `interval_ms` while a worker waits. A failed read wakes the workers, which
    /// report the error.
    async fn repeat_read(&self, subject: Subject, interval_ms: u64, stop: &CancellationToken) {
        let mut is_failing = false;
        while !stop.is_cancelled() {
            let interval_ms = match subject {
                Subject::Log if self.is_quiet() => interval_ms.max(QUIET_LOG_INTERVAL_MS),
                _ => interval_ms,
            };
            pause(interval_ms, stop).await;
            if self.reads.receiver_count() == 0 {
                continue;
            }
            let Err(error) = self.read(subject).await else {
                is_failing = false;
                continue;
            };
            if !is_failing {
                tracing::warn!(source = %self.source, ?subject, %error, "a shared read of idle workers failed");
            }
            is_failing = true;
            self.reads.send_modify(|reads| {
                reads.failures += 1;
                if subject == Subject::Log {
                    reads.ends = None;
                }
            });
            pause(FAILURE_PAUSE_MS, stop).await;
        }
    }

    /// Returns whether the log had no new records for a while.
    fn is_quiet(&self) -> bool {
        let ends_changed = self.reads.borrow().ends_changed;
        ends_changed.is_some_and(|time| time.elapsed() > QUIET_AFTER)
    }

    async fn read(&self, subject: Subject) -> Result<()> {
        let (source, began) = (self.source, Instant::now());
        match subject {
            Subject::Log => {
                let ends = self.log.ends(source.topic()).await?;
                self.reads.send_if_modified(|reads| {
                    let is_equal = |read: &SharedRead<_>| *read.value == ends;
                    let is_new = !reads.ends.as_ref().is_some_and(is_equal);
                    reads.partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
                    if is_new {
                        reads.ends_changed = Some(began);
                    }
                    reads.ends = Some(SharedRead::new(began, ends));
                    is_new
                });
            }
            // Notify workers even if nothing changed. The states may be new for a worker that began
            // to wait later.
            Subject::States => {
                let partitions = self.reads.borrow().partitions;
                let states = self.live.partition_states(source, 0..partitions);
                let states = states.await?;
                let states = states
                    .iter()
                    .map(|state| state.as_ref().map(PartitionState::checkpoint));
                let states = states.collect();
                self.reads
                    .send_modify(|reads| reads.states = Some(SharedRead::new(began, states)));
            }
            Subject::Runs => {
                let runs = self.views.runs(source).await?;
                self.reads
                    .send_modify(|reads| reads.runs = Some(SharedRead::new(began, runs)));
            }
        }
        Ok(())
    }
}

impl<T> SharedRead<T> {
    fn new(began: Instant, value: T) -> Self {
        let value = Arc::new(value);
        Self { began, value }
    }
}

impl LastReads {
    /// Returns the reason to wake a waiting worker; `None` if it has no work.
    fn find_wake(&self, idle: &IdleWorker<'_>) -> Option<Wake> {
        let (index, wait_time) = (idle.partition as usize, idle.wait_start.time);
        if self.failures > idle.wait_start.failures || self.partitions > idle.partitions {
            return Some(Wake::Refresh);
        }
        if let Some(ends) = &self.ends {
            let end = ends.value.get(index).copied().unwrap_or(Offset::MIN);
            // A read that began before the wait may show an earlier end.
            let is_behind = end < idle.checkpoint.next_offset && ends.began >= wait_time;
            if end > idle.checkpoint.next_offset || is_behind {
                return Some(Wake::Log);
            }
        }
        let states = self.states.as_ref().filter(|read| read.began >= wait_time);
        let runs = self.runs.as_ref().filter(|read| read.began >= wait_time);
        let has_new_state = states
            .and_then(|read| read.value.get(index))
            .is_some_and(|checkpoint| *checkpoint != Some(idle.checkpoint));
        let has_new_runs = runs.is_some_and(|read| *read.value != *idle.runs);
        (has_new_state || has_new_runs).then_some(Wake::Refresh)
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
