//! Reads the history of a key: a count for every day, without gaps.

use std::ops::Range;

use schemas::seam::{Epoch, Runs};
use schemas::source::Source;

use super::{CountsRead, Day, DayRow, PublishedRuns, RUNS_KEY, RunCount};
use crate::views::ViewsRead;
use crate::{Error, Result};

/// The number of tries if runs complete during the read.
const TRIES_MAX: u32 = 5;
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
    for _ in 0..TRIES_MAX {
        let mut reader = HistoryReader {
            counts,
            query,
            published: PublishedRuns::from_runs(&runs),
            has_unpublished_rows: false,
        };
        let (page_days, next) = reader.read(&days, limit).await?;
        let current = match reader.has_unpublished_rows {
            true => views.runs(query.source).await?.runs,
            false => runs.clone(),
        };
        if current.newest_complete() == runs.newest_complete() {
            return Ok(HistoryPage {
                days: page_days,
                next,
                runs,
            });
        }
        runs = current;
    }
    Err(Error::Unavailable {
        operation: "reading daily counts".to_owned(),
        reason: "batch runs kept completing during the read; try again".to_owned(),
    })
}

/// Reads the newest rows of each key, newest first, up to the first with a published count.
///
/// # Errors
/// Those of the store.
pub async fn read_newest_rows(
    counts: &dyn CountsRead,
    job: &str,
    keys: &[&[u8]],
    published: &PublishedRuns,
) -> Result<Vec<Vec<DayRow>>> {
    let mut rows_by_key: Vec<Vec<DayRow>> = vec![Vec::new(); keys.len()];
    let mut unfinished: Vec<usize> = (0..keys.len()).collect();
    while !unfinished.is_empty() {
        let build_request = |index: &usize| {
            let last = rows_by_key.get(*index).and_then(|rows| rows.last());
            let key = keys.get(*index).copied().unwrap_or_default();
            (key, last.map_or(Day::MAX, |row| row.day))
        };
        let requests: Vec<(&[u8], Day)> = unfinished.iter().map(build_request).collect();
        let rows = counts.read_last_days(job, &requests).await?;
        let mut remaining = Vec::new();
        for (index, row) in unfinished.into_iter().zip(rows) {
            let (Some(rows), Some(row)) = (rows_by_key.get_mut(index), row) else {
                continue;
            };
            rows.push(row);
            if published.published_count(&row).is_none() {
                remaining.push(index);
            }
        }
        unfinished = remaining;
    }
    Ok(rows_by_key)
}

/// One try to read a history.
struct HistoryReader<'a> {
    counts: &'a dyn CountsRead,
    query: HistoryQuery<'a>,
    published: PublishedRuns,
    /// True if a row without a published count was read: its run is in progress, or completed
    /// meanwhile.
    has_unpublished_rows: bool,
}

impl HistoryReader<'_> {
    async fn read(
        &mut self,
        days: &Range<Day>,
        limit: usize,
    ) -> Result<(Vec<DayCount>, Option<Day>)> {
        let empty = (Vec::new(), None);
        let Some(last) = self.find_last_run().await? else {
            return Ok(empty);
        };
        let run = self.find_last_before(RUNS_KEY, days.start).await?;
        let run = run.filter(|(_, run)| run.epoch > 0);
        let first = match run {
            Some(_) => Some(days.start),
            None => self.find_first_run(days).await?,
        };
        let end = days.end.min(last.saturating_add(1));
        let Some(first) = first.filter(|first| *first < end) else {
            return Ok(empty);
        };
        let bound = i64::from(first) + i64::try_from(limit).unwrap_or(i64::MAX - i64::from(end));
        let page_end = Day::try_from(bound).map_or(end, |bound| bound.min(end));
        let (job, range) = (self.query.job, first..page_end);
        let rows_max = usize::try_from(page_end - first).unwrap_or(usize::MAX);
        let (runs, rows) = futures::try_join!(
            self.counts
                .read_days(job, RUNS_KEY, range.clone(), rows_max),
            self.counts
                .read_days(job, self.query.key, range.clone(), rows_max)
        )?;
        let count = self.find_last_before(self.query.key, first).await?;
        let mut runs = DailyValues::new(run.map(|(_, run)| run), self.list_published(&runs));
        let mut counts =
            DailyValues::new(count.map(|(_, count)| count), self.list_published(&rows));
        let filled = range.map(|day| DayCount {
            day,
            count: counts.advance_to(day).map_or(0, |counted| counted.count),
            epoch: runs.advance_to(day).map_or(0, |counted| counted.epoch),
        });
        Ok((filled.collect(), (page_end < end).then_some(page_end)))
    }

    /// The day of the newest run. A repaired row of a run that was never published repeats the
    /// previous count.
    async fn find_last_run(&mut self) -> Result<Option<Day>> {
        let mut last = self.find_last_before(RUNS_KEY, Day::MAX).await?;
        while let Some((day, run)) = last {
            match self.find_last_before(RUNS_KEY, day).await? {
                Some((day, before)) if before.epoch == run.epoch => last = Some((day, before)),
                _ => return Ok(Some(day)),
            }
        }
        Ok(None)
    }

    /// The last row with a published count before a day.
    async fn find_last_before(&mut self, key: &[u8], day: Day) -> Result<Option<(Day, RunCount)>> {
        let mut end_day = day;
        loop {
            let request = [(key, end_day)];
            let row = self.counts.read_last_days(self.query.job, &request).await?;
            let Some(row) = row.into_iter().flatten().next() else {
                return Ok(None);
            };
            if let Some(counted) = self.published.published_count(&row) {
                return Ok(Some((row.day, counted)));
            }
            self.has_unpublished_rows = true;
            end_day = row.day;
        }
    }

    /// The day of the first run in a range.
    async fn find_first_run(&mut self, days: &Range<Day>) -> Result<Option<Day>> {
        let mut from = days.start;
        loop {
            let range = from..days.end;
            let rows = self
                .counts
                .read_days(self.query.job, RUNS_KEY, range, FIRST_ROWS);
            let rows = rows.await?;
            let runs = self.list_published(&rows);
            if let Some((day, _)) = runs.iter().find(|(_, run)| run.epoch > 0) {
                return Ok(Some(*day));
            }
            match rows.last() {
                Some(last) if rows.len() == FIRST_ROWS => from = last.day.saturating_add(1),
                _ => return Ok(None),
            }
        }
    }

    fn list_published(&mut self, rows: &[DayRow]) -> Vec<(Day, RunCount)> {
        let mut counts = Vec::with_capacity(rows.len());
        for row in rows {
            match self.published.published_count(row) {
                Some(counted) => counts.push((row.day, counted)),
                None => self.has_unpublished_rows = true,
            }
        }
        counts
    }
}

/// The valid value of each day.
struct DailyValues {
    current: Option<RunCount>,
    changes: std::iter::Peekable<std::vec::IntoIter<(Day, RunCount)>>,
}

impl DailyValues {
    fn new(current: Option<RunCount>, changes: Vec<(Day, RunCount)>) -> Self {
        Self {
            current,
            changes: changes.into_iter().peekable(),
        }
    }

    /// Returns the value of a day; calls must be in ascending order.
    fn advance_to(&mut self, day: Day) -> Option<RunCount> {
        while let Some((_, counted)) = self.changes.next_if(|(from, _)| *from <= day) {
            self.current = Some(counted);
        }
        self.current
    }
}
