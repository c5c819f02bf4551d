//! Reads the history of a key: a count for every day, without gaps.

use std::ops::Range;

use schemas::seam::{Epoch, Runs};
use schemas::source::Source;

use super::{CountsRead, Day, DayRow, PublishedRuns, RUNS_KEY, RunCount};
use crate::views::ViewsRead;
use crate::{Error, Result};

/// The number of tries if runs complete during the read.
const MAX_TRIES: u32 = 5;
/// The number of rows that are read to find the first run.
const FIRST_ROWS: usize = 64;

/// Selects a history.
#[derive(Debug, Clone, Copy)]
pub struct HistoryQuery<'a> {
    /// The source of the job.
    pub source: Source,
    /// The job's name.
    pub job: &'a str,
    /// The encoded key.
    pub key: &'a [u8],
}

/// A day of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayCount {
    /// The day.
    pub day: Day,
    /// The number of members of the key.
    pub count: u64,
    /// The run of the count: the last run of the day, or of the last day before that had one.
    pub epoch: Epoch,
}

/// A page of a history.
#[derive(Debug, Clone)]
pub struct HistoryPage {
    /// The days from the first run to the day of the last run, ascending, without gaps.
    pub days: Vec<DayCount>,
    /// The first day of the next page; `None` on the last one.
    pub next: Option<Day>,
    /// The run records of the read.
    pub runs: Runs,
}

/// Reads the history of a key in a range of days, at most `limit` days, as of the newest complete
/// run.
///
/// # Errors
/// Those of the stores; [`Error::Unavailable`] if runs keep completing during the read.
pub async fn read_history(
    counts: &dyn CountsRead,
    views: &dyn ViewsRead,
    query: HistoryQuery<'_>,
    days: Range<Day>,
    limit: usize,
) -> Result<HistoryPage> {
    // Runs first: their rows exist then, unless two later runs have replaced them.
    let mut runs = views.runs(query.source).await?.runs;
    for _ in 0..MAX_TRIES {
        let mut reader = HistoryReader {
            counts,
            query,
            published: PublishedRuns::from_runs(&runs),
            has_hidden: false,
        };
        let (found, next) = reader.read(&days, limit).await?;
        let current = match reader.has_hidden {
            true => views.runs(query.source).await?.runs,
            false => runs.clone(),
        };
        if current.newest() == runs.newest() {
            return Ok(HistoryPage {
                days: found,
                next,
                runs,
            });
        }
        runs = current;
    }
    Err(Error::Unavailable {
        what: "reading daily counts".to_owned(),
        why: "batch runs kept completing during the read; try again".to_owned(),
    })
}

/// For each key, its newest rows, newest first, up to the first with a published count.
///
/// # Errors
/// Those of the store.
pub async fn newest_rows(
    counts: &dyn CountsRead,
    job: &str,
    keys: &[&[u8]],
    published: &PublishedRuns,
) -> Result<Vec<Vec<DayRow>>> {
    let mut found: Vec<Vec<DayRow>> = vec![Vec::new(); keys.len()];
    let mut unfinished: Vec<usize> = (0..keys.len()).collect();
    while !unfinished.is_empty() {
        let before = |at: &usize| {
            let last = found.get(*at).and_then(|rows| rows.last());
            let key = keys.get(*at).copied().unwrap_or_default();
            (key, last.map_or(Day::MAX, |row| row.day))
        };
        let requests: Vec<(&[u8], Day)> = unfinished.iter().map(before).collect();
        let rows = counts.last_days(job, &requests).await?;
        let mut remaining = Vec::new();
        for (at, row) in unfinished.into_iter().zip(rows) {
            let (Some(rows), Some(row)) = (found.get_mut(at), row) else {
                continue;
            };
            rows.push(row);
            if published.published_count(&row).is_none() {
                remaining.push(at);
            }
        }
        unfinished = remaining;
    }
    Ok(found)
}

/// One try to read a history.
struct HistoryReader<'a> {
    counts: &'a dyn CountsRead,
    query: HistoryQuery<'a>,
    published: PublishedRuns,
    /// True if a row without a published count was read: its run is in progress, or completed
    /// meanwhile.
    has_hidden: bool,
}

impl HistoryReader<'_> {
    async fn read(
        &mut self,
        days: &Range<Day>,
        limit: usize,
    ) -> Result<(Vec<DayCount>, Option<Day>)> {
        let empty = (Vec::new(), None);
        let Some(last) = self.last_run().await? else {
            return Ok(empty);
        };
        let run = self.last_before(RUNS_KEY, days.start).await?;
        let run = run.filter(|(_, run)| run.epoch > 0);
        let first = match run {
            Some(_) => Some(days.start),
            None => self.first_run(days).await?,
        };
        let end = days.end.min(last.saturating_add(1));
        let Some(first) = first.filter(|first| *first < end) else {
            return Ok(empty);
        };
        let page = i64::from(first) + i64::try_from(limit).unwrap_or(i64::MAX - i64::from(end));
        let until = Day::try_from(page).map_or(end, |page| page.min(end));
        let (job, range) = (self.query.job, first..until);
        let rows_max = usize::try_from(until - first).unwrap_or(usize::MAX);
        let (runs, rows) = futures::try_join!(
            self.counts.days(job, RUNS_KEY, range.clone(), rows_max),
            self.counts
                .days(job, self.query.key, range.clone(), rows_max)
        )?;
        let count = self.last_before(self.query.key, first).await?;
        let mut runs = DailyValues::new(run.map(|(_, run)| run), self.published_counts(&runs));
        let mut counts =
            DailyValues::new(count.map(|(_, count)| count), self.published_counts(&rows));
        let filled = range.map(|day| DayCount {
            day,
            count: counts.on(day).map_or(0, |counted| counted.count),
            epoch: runs.on(day).map_or(0, |counted| counted.epoch),
        });
        Ok((filled.collect(), (until < end).then_some(until)))
    }

    /// The day of the newest run. A repaired row of a run that was never published repeats the
    /// previous count.
    async fn last_run(&mut self) -> Result<Option<Day>> {
        let mut last = self.last_before(RUNS_KEY, Day::MAX).await?;
        while let Some((day, run)) = last {
            match self.last_before(RUNS_KEY, day).await? {
                Some((day, before)) if before.epoch == run.epoch => last = Some((day, before)),
                _ => return Ok(Some(day)),
            }
        }
        Ok(None)
    }

    /// The last row with a published count before a day.
    async fn last_before(&mut self, key: &[u8], day: Day) -> Result<Option<(Day, RunCount)>> {
        let mut before = day;
        loop {
            let request = [(key, before)];
            let row = self.counts.last_days(self.query.job, &request).await?;
            let Some(row) = row.into_iter().flatten().next() else {
                return Ok(None);
            };
            if let Some(counted) = self.published.published_count(&row) {
                return Ok(Some((row.day, counted)));
            }
            self.has_hidden = true;
            before = row.day;
        }
    }

    /// The day of the first run in a range.
    async fn first_run(&mut self, days: &Range<Day>) -> Result<Option<Day>> {
        let mut from = days.start;
        loop {
            let range = from..days.end;
            let rows = self
                .counts
                .days(self.query.job, RUNS_KEY, range, FIRST_ROWS);
            let rows = rows.await?;
            let runs = self.published_counts(&rows);
            if let Some((day, _)) = runs.iter().find(|(_, run)| run.epoch > 0) {
                return Ok(Some(*day));
            }
            match rows.last() {
                Some(last) if rows.len() == FIRST_ROWS => from = last.day.saturating_add(1),
                _ => return Ok(None),
            }
        }
    }

    fn published_counts(&mut self, rows: &[DayRow]) -> Vec<(Day, RunCount)> {
        let mut counts = Vec::with_capacity(rows.len());
        for row in rows {
            match self.published.published_count(row) {
                Some(counted) => counts.push((row.day, counted)),
                None => self.has_hidden = true,
            }
        }
        counts
    }
}

/// The valid value of each day.
struct DailyValues {
    now: Option<RunCount>,
    next: std::iter::Peekable<std::vec::IntoIter<(Day, RunCount)>>,
}

impl DailyValues {
    fn new(now: Option<RunCount>, changes: Vec<(Day, RunCount)>) -> Self {
        Self {
            now,
            next: changes.into_iter().peekable(),
        }
    }

    /// The value of a day; calls must be in ascending order.
    fn on(&mut self, day: Day) -> Option<RunCount> {
        while let Some((_, counted)) = self.next.next_if(|(from, _)| *from <= day) {
            self.now = Some(counted);
        }
        self.now
    }
}
