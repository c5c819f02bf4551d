//! The demo's traffic: some days of history, then live events at a steady rate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemas::clock::Clock;
use schemas::source::Source;
use stores::intake::Intake;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::entities::rows_after;
use crate::generate::{Mix, Rhythm, Row, Shape, Traffic, write_line};
use crate::installation::Installation;
use crate::roles::sleep;

const TICK: Duration = Duration::from_millis(100);
/// How far back the history reaches.
const HISTORY_MS: i64 = 9 * 24 * 3_600_000;
const LINES_PER_STEP: usize = 5_000;
const SHAPE: Shape = Shape {
    owners: 150,
    tracks: 1_500,
    listeners: 4_000,
};
const MIX: Mix = Mix {
    duplicates: 0.02,
    late: 0.03,
    malformed: 0.005,
};
/// A duplicate comes at most so much later than its first: well within the speed layer's window,
/// so that live values are exact.
const REPEATS_WITHIN_SECONDS: usize = 300;

/// Lines that were given to the log and have not been read back yet, each with how often.
#[derive(Debug, Default)]
pub(super) struct Pending(Mutex<HashMap<Vec<u8>, u64>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, line: &[u8]) {
        *self.lock().entry(line.to_vec()).or_default() += 1;
    }

    /// Notes that the line was read back; answers whether it was given.
    pub(super) fn read_back(&self, line: &[u8]) -> bool {
        let mut lines = self.lock();
        let Some(times) = lines.get_mut(line) else {
            return false;
        };
        *times -= 1;
        if *times == 0 {
            lines.remove(line);
        }
        true
    }

    /// How many lines have not been read back.
    pub(super) fn len(&self) -> u64 {
        self.lock().values().sum()
    }
}

/// What was produced.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Events in the log.
    pub(super) events: u64,
    /// Of these: those that repeat another one.
    pub(super) duplicates: u64,
    /// Lines that were refused.
    pub(super) rejected: u64,
    /// Lines that should have been refused and were not, or the other way round.
    pub(super) misjudged: u64,
}

/// Makes up events and gives them to the log.
#[derive(Debug)]
pub(super) struct Producer {
    intake: Intake,
    clock: Arc<dyn Clock>,
    traffic: Traffic,
    rate: u32,
    pending: Option<Arc<Pending>>,
    counts: Counts,
}

impl Producer {
    pub(super) async fn new(
        installation: &Installation,
        rate: u32,
        seed: u64,
        pending: Option<Arc<Pending>>,
    ) -> anyhow::Result<Self> {
        let clock = Arc::clone(installation.clock());
        // Events of another demo on the same data folder are other events.
        let seed = seed ^ clock.now_ms().unsigned_abs();
        let remembered = usize::try_from(rate)?.saturating_mul(REPEATS_WITHIN_SECONDS);
        Ok(Self {
            intake: installation.intake(Source::Plays).await?,
            traffic: Traffic::new(seed, SHAPE, MIX)?.remember(remembered),
            clock,
            rate,
            pending,
            counts: Counts::default(),
        })
    }

    /// Gives `events` events of the days before to the log.
    pub(super) async fn history(&mut self, events: u64) -> anyhow::Result<()> {
        let now_ms = self.clock.now_ms();
        let rhythm = Rhythm::new(now_ms - HISTORY_MS, now_ms - 2_000);
        let mut rows = Vec::new();
        for index in 0..events {
            rows.push(self.traffic.next(rhythm.at(index, events)));
            if rows.len() == LINES_PER_STEP {
                self.give(&rows).await?;
                rows.clear();
            }
        }
        self.give(&rows).await
    }

    /// Gives live events to the log until `stop`.
    pub(super) async fn run(&mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut given = 0_u128;
        while sleep(TICK, stop).await {
            let elapsed_ms = begun.elapsed().as_millis();
            let all = elapsed_ms * u128::from(self.rate) / 1_000;
            let due = all.saturating_sub(rows_after(elapsed_ms, self.rate));
            let now_ms = self.clock.now_ms();
            // After a pause, such as a laptop's sleep, only some are made up for.
            let count = usize::try_from(due - given)?.min(LINES_PER_STEP);
            given = due;
            let rows: Vec<Row> = (0..count)
                .map(|_| self.traffic.next(now_ms - 1_500))
                .collect();
            self.give(&rows).await?;
        }
        Ok(())
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    async fn give(&mut self, rows: &[Row]) -> anyhow::Result<()> {
        let mut bad = 0;
        let mut lines = Vec::with_capacity(rows.len());
        for row in rows {
            let mut line = Vec::with_capacity(256);
            write_line(&mut line, row);
            line.truncate(line.trim_ascii_end().len());
            if row.fault.is_some() {
                bad += 1;
            } else {
                self.counts.duplicates += u64::from(row.repeated);
                if let Some(pending) = &self.pending {
                    pending.expect(&line);
                }
            }
            lines.push(line);
        }
        let numbered = (1..).zip(lines.iter().map(Vec::as_slice));
        let taken = self.intake.take("demo", numbered).await?;
        let rejected = u64::try_from(taken.rejected.len())?;
        self.counts.events += taken.accepted;
        self.counts.rejected += rejected;
        self.counts.misjudged += rejected.abs_diff(bad);
        Ok(())
    }
}
