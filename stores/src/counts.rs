//! The port of counts by day: how many members each key of a board had, day by day in UTC, as the
//! batch runs found it.
//!
//! A row holds what the last run of a day found for a key. A day on which the count did not change has
//! no row: it has that of the day before. Which run was the last one of a day stands in rows of the
//! same form under the key [`RUNS`]; a run writes that one last.
//!
//! A run writes its rows before it is complete, so a row keeps the value of the run before beside its
//! own: readers take the one whose run is published ([`Published`]). What a try that died has left is
//! put right by the next one ([`to_write`]), which goes through the same keys, before it is complete.
//! Rows are written with the stamp of their try, and one with a larger stamp stays. Days never go
//! back from run to run.

mod history;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use async_trait::async_trait;
use jiff::SignedDuration;
use jiff::civil::Date;
use schemas::seam::{Epoch, RunState, Runs};

pub use history::{DayCount, History, Past, newest_rows, past};

use crate::Result;

/// A day, counted from that of the Unix epoch on, in UTC.
pub type Day = i32;

/// The key under which it is kept which run was the last one of a day; the count there is 0. No other
/// key is empty.
pub const RUNS: &[u8] = b"";

const MS_PER_DAY: i64 = 86_400_000;

/// The day of a moment in milliseconds since the Unix epoch.
#[must_use]
pub fn day_of(at_ms: i64) -> Day {
    let day = at_ms.div_euclid(MS_PER_DAY);
    Day::try_from(day).unwrap_or(if day < 0 { Day::MIN } else { Day::MAX })
}

/// The day of a date.
#[must_use]
pub fn day_of_date(date: Date) -> Day {
    let since = date.duration_since(Date::constant(1970, 1, 1));
    day_of(since.as_secs().saturating_mul(1000))
}

/// The date of a day; the first or last one that there is if it is before or after that.
#[must_use]
pub fn date_of(day: Day) -> Date {
    let since = SignedDuration::from_hours(i64::from(day) * 24);
    Date::constant(1970, 1, 1).saturating_add(since)
}

/// What a run found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The run.
    pub epoch: Epoch,
    /// How many members the key had.
    pub count: u64,
}

/// The count of a key on a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayRow {
    /// The day.
    pub day: Day,
    /// What the last run of the day found.
    pub now: Counted,
    /// What the run of this day before it found, for as long as `now` is not published; nothing where
    /// the day has no other: then the day before counts.
    pub before: Option<Counted>,
}

/// Which runs are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    newest: Epoch,
    abandoned: BTreeSet<Epoch>,
}

impl Published {
    /// By the run records of the source.
    #[must_use]
    pub fn of(runs: &Runs) -> Self {
        let abandoned = runs.iter().filter(|run| run.state == RunState::Abandoned);
        Self {
            newest: runs.newest(),
            abandoned: abandoned.map(|run| run.epoch).collect(),
        }
    }

    /// The newest run that is; 0 before the first.
    #[must_use]
    pub const fn newest(&self) -> Epoch {
        self.newest
    }

    /// Whether a run is. A run whose record is gone was complete long ago.
    #[must_use]
    pub fn has(&self, epoch: Epoch) -> bool {
        epoch <= self.newest && !self.abandoned.contains(&epoch)
    }

    /// What a row says of its day; nothing if it says only what no published run found.
    #[must_use]
    pub fn seen(&self, row: &DayRow) -> Option<Counted> {
        let found = [Some(row.now), row.before].into_iter().flatten();
        found.into_iter().find(|counted| self.has(counted.epoch))
    }
}

/// The rows that a run writes for a key, so that its count on `day` is what it found, and that what
/// runs left which were never published is taken back. `newest_first` are the newest rows of the
/// key up to the first of which something is published ([`newest_rows`]); `is_doubtful` says that a try
/// that stood still may yet write a row of the key: then the day gets one even if nothing changed.
#[must_use]
pub fn to_write(
    newest_first: &[DayRow],
    (day, found): (Day, Counted),
    published: &Published,
    is_doubtful: bool,
) -> Vec<DayRow> {
    let stands = newest_first.iter().find_map(|row| published.seen(row));
    let (mut rows, mut before, mut is_wrong) = (Vec::new(), None, false);
    for row in newest_first {
        let is_published = published.has(row.now.epoch);
        match row.day.cmp(&day) {
            Ordering::Equal => {
                let earlier = [Some(row.now), row.before].into_iter().flatten();
                before = earlier
                    .into_iter()
                    .find(|counted| counted.epoch < found.epoch && published.has(counted.epoch));
                is_wrong = !is_published;
            }
            // Before this run it was as before; the run itself is of an earlier day.
            Ordering::Greater if !is_published => rows.push(DayRow {
                day: row.day,
                now: found,
                before: Some(stands.unwrap_or(NOTHING)),
            }),
            Ordering::Less if !is_published => rows.push(DayRow {
                day: row.day,
                now: stands.unwrap_or(NOTHING),
                before: None,
            }),
            Ordering::Greater | Ordering::Less => {}
        }
    }
    let is_other = stands.map_or(0, |counted| counted.count) != found.count;
    if is_other || is_wrong || is_doubtful {
        rows.push(DayRow {
            day,
            now: found,
            before,
        });
    }
    rows
}

/// What holds before the first run.
const NOTHING: Counted = Counted { epoch: 0, count: 0 };

/// Reading counts by day. `job` is the job's name without its version.
#[async_trait]
pub trait CountsRead: std::fmt::Debug + Send + Sync {
    /// The rows of a key of some days, ascending, at most `limit`.
    async fn days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>>;

    /// For each key the row of the last day before the one that is given with it, in the order of the
    /// question.
    async fn last_days(&self, job: &str, keys: &[(&[u8], Day)]) -> Result<Vec<Option<DayRow>>>;
}

/// Writing counts by day.
#[async_trait]
pub trait CountsWrite: CountsRead {
    /// Writes rows of encoded keys with a stamp; those that have a larger one stay. A key has one row for a day.
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()>;
}

#[cfg(test)]
#[path = "counts/tests.rs"]
mod tests;
