//! The daily counts port: the number of members of each board key by UTC day, as batch runs counted
//! it.
//!
//! A row holds the count of a key after the last run of a day. A day without a change has no row;
//! the row of an earlier day is valid. Rows of the same form under the key [`RUNS_KEY`] record the
//! last run of each day; a run writes its row there last.
//!
//! A run writes its rows before it is complete, so a row also holds the value of the previous run.
//! Readers use the value whose run is published ([`PublishedRuns`]). The next run visits the same
//! keys, so it repairs the rows of a failed attempt before it is complete ([`plan_rows`]). Each
//! attempt writes rows with its own stamp; a row with a larger stamp is not overwritten. The day of
//! a run is never before that of an earlier run.

mod history;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use async_trait::async_trait;
use jiff::SignedDuration;
use jiff::civil::Date;
use schemas::seam::{Epoch, RunState, Runs};

pub use history::{DayCount, HistoryPage, HistoryQuery, read_history, read_newest_rows};

use crate::Result;

/// A day in UTC, counted from the Unix epoch.
pub type Day = i32;

/// The key of the rows that record the last run of each day, with a count of 0. No other key is
/// empty.
pub const RUNS_KEY: &[u8] = b"";

const MS_PER_DAY: i64 = 86_400_000;

/// The day of a time in milliseconds since the Unix epoch.
#[must_use]
pub fn day_from_ms(at_ms: i64) -> Day {
    let day = at_ms.div_euclid(MS_PER_DAY);
    Day::try_from(day).unwrap_or(if day < 0 { Day::MIN } else { Day::MAX })
}

/// The day of a date.
#[must_use]
pub fn day_from_date(date: Date) -> Day {
    let duration = date.duration_since(Date::constant(1970, 1, 1));
    day_from_ms(duration.as_secs().saturating_mul(1000))
}

/// The date of a day, clamped to the supported range.
#[must_use]
pub fn date_from_day(day: Day) -> Date {
    let duration = SignedDuration::from_hours(i64::from(day) * 24);
    Date::constant(1970, 1, 1).saturating_add(duration)
}

/// The count of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCount {
    /// The run.
    pub epoch: Epoch,
    /// The number of members of the key.
    pub count: u64,
}

/// The count of a key on a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayRow {
    /// The day.
    pub day: Day,
    /// The count of the last run of the day.
    pub current: RunCount,
    /// The count of the previous run of this day, which is valid until `current` is published.
    /// `None` if the day has no other run; then the previous day's row is valid.
    pub previous: Option<RunCount>,
}

/// The published runs of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRuns {
    newest: Epoch,
    abandoned: BTreeSet<Epoch>,
}

impl PublishedRuns {
    /// The published runs according to the run records of the source.
    #[must_use]
    pub fn from_runs(runs: &Runs) -> Self {
        let abandoned = runs.iter().filter(|run| run.state == RunState::Abandoned);
        Self {
            newest: runs.newest_complete(),
            abandoned: abandoned.map(|run| run.epoch).collect(),
        }
    }

    /// The newest published run; 0 before the first.
    #[must_use]
    pub const fn newest(&self) -> Epoch {
        self.newest
    }

    /// Returns whether a run is published. A run without a record completed long ago.
    #[must_use]
    pub fn contains(&self, epoch: Epoch) -> bool {
        epoch <= self.newest && !self.abandoned.contains(&epoch)
    }

    /// The published count of a row; `None` if none of its runs is published.
    #[must_use]
    pub fn published_count(&self, row: &DayRow) -> Option<RunCount> {
        let counts = [Some(row.current), row.previous].into_iter().flatten();
        counts
            .into_iter()
            .find(|counted| self.contains(counted.epoch))
    }
}

/// Plans the rows that a run writes for a key. They set the count on `day` to `count` and repair
/// rows of unpublished runs. `newest_first` contains the newest rows of the key, up to the first
/// with a published count ([`read_newest_rows`]). If `is_doubtful`, a suspended attempt may still
/// write a row of the key. Then the day gets a row even without a change.
#[must_use]
pub fn plan_rows(
    newest_first: &[DayRow],
    day: Day,
    count: RunCount,
    published: &PublishedRuns,
    is_doubtful: bool,
) -> Vec<DayRow> {
    let published_count = newest_first
        .iter()
        .find_map(|row| published.published_count(row));
    let (mut rows, mut previous, mut needs_repair) = (Vec::new(), None, false);
    for row in newest_first {
        let is_published = published.contains(row.current.epoch);
        match row.day.cmp(&day) {
            Ordering::Equal => {
                let earlier = [Some(row.current), row.previous].into_iter().flatten();
                previous = earlier.into_iter().find(|counted| {
                    counted.epoch < count.epoch && published.contains(counted.epoch)
                });
                needs_repair = !is_published;
            }
            // An unpublished run wrote this later day. The earlier count is valid until this run is
            // published.
            Ordering::Greater if !is_published => rows.push(DayRow {
                day: row.day,
                current: count,
                previous: Some(published_count.unwrap_or(NO_RUN)),
            }),
            Ordering::Less if !is_published => rows.push(DayRow {
                day: row.day,
                current: published_count.unwrap_or(NO_RUN),
                previous: None,
            }),
            Ordering::Greater | Ordering::Less => {}
        }
    }
    let has_changed = published_count.map_or(0, |counted| counted.count) != count.count;
    if has_changed || needs_repair || is_doubtful {
        rows.push(DayRow {
            day,
            current: count,
            previous,
        });
    }
    rows
}

/// The count before the first run.
const NO_RUN: RunCount = RunCount { epoch: 0, count: 0 };

/// Reads daily counts. `job` is the job's name without its version.
#[async_trait]
pub trait CountsRead: std::fmt::Debug + Send + Sync {
    /// The rows of a key in a range of days, ascending, at most `limit`.
    async fn read_days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>>;

    /// For each key, the last row before its day, in the order of the request.
    async fn read_last_days(&self, job: &str, keys: &[(&[u8], Day)])
    -> Result<Vec<Option<DayRow>>>;
}

/// Writes daily counts.
#[async_trait]
pub trait CountsWrite: CountsRead {
    /// Writes rows of encoded keys with a stamp. Rows with a larger stamp are not overwritten. A
    /// key has one row per day.
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()>;
}

#[cfg(test)]
#[path = "counts/tests.rs"]
mod tests;
