//! Reading the history of a key: a count for every day, gaps filled.

use std::ops::Range;

use schemas::seam::{Epoch, Runs};
use schemas::source::Source;

use super::{Counted, CountsRead, Day, DayRow, Published, RUNS};
use crate::views::ViewsRead;
use crate::{Error, Result};

/// How often a read is begun again since runs were completed meanwhile.
const TRIES: u32 = 5;
/// Rows that are read to find the first run.
const FIRST_ROWS: usize = 64;

/// Whose history is asked for.
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
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
    /// How many members the key had.
    pub count: u64,
    /// The run that says so: the last one of the day, or of the last day before that had one.
    pub epoch: Epoch,
}

/// A part of a history.
#[derive(Debug, Clone)]
pub struct Past {
    /// The days from the first run on up to the day of the last one, ascending and without a gap.
    pub days: Vec<DayCount>,
    /// The first day that is left; nothing where there is none.
    pub next: Option<Day>,
    /// The run records that were read for it.
    pub runs: Runs,
}

/// The history of a key within some days, at most `limit` of them: as of the newest complete run.
///
/// # Errors
/// Those of the stores; [`Error::Unavailable`] if one run after the other is completed meanwhile.
pub async fn past(
    (counts, views): (&dyn CountsRead, &dyn ViewsRead),
    of: History<'_>,
    days: Range<Day>,
    limit: usize,
) -> Result<Past> {
    // Runs first: what they have is there then, unless two later ones have taken its place.
    let mut runs = views.runs(of.source).await?.runs;
    for _ in 0..TRIES {
        let mut reader = Reader {
            counts,
            of,
            published: Published::of(&runs),
            has_hidden: false,
        };
        let (found, next) = reader.read(&days, limit).await?;
        let again = match reader.has_hidden {
            true => views.runs(of.source).await?.runs,
            false => runs.clone(),
        };
        if again.newest() == runs.newest() {
            return Ok(Past {
                days: found,
                next,
                runs,
            });
        }
        runs = again;
    }
    Err(Error::Unavailable {
        what: "reading counts by day".to_owned(),
        why: "one batch run after the other was completed meanwhile; ask again".to_owned(),
    })
}

/// For each key its newest rows, newest first, up to the first of which something is published.
///
/// # Errors
/// Those of the store.
pub async fn newest_rows(
    counts: &dyn CountsRead,
    job: &str,
    keys: &[&[u8]],
    published: &Published,
) -> Result<Vec<Vec<DayRow>>> {
    let mut found: Vec<Vec<DayRow>> = vec![Vec::new(); keys.len()];
    let mut open: Vec<usize> = (0..keys.len()).collect();
    while !open.is_empty() {
        let before = |at: &usize| {
            let last = found.get(*at).and_then(|rows| rows.last());
            let key = keys.get(*at).copied().unwrap_or_default();
            (key, last.map_or(Day::MAX, |row| row.day))
        };
        let asked: Vec<(&[u8], Day)> = open.iter().map(before).collect();
        let rows = counts.last_days(job, &asked).await?;
        let mut still = Vec::new();
        for (at, row) in open.into_iter().zip(rows) {
            let (Some(rows), Some(row)) = (found.get_mut(at), row) else {
                continue;
            };
            rows.push(row);
            if published.seen(&row).is_none() {
                still.push(at);
            }
        }
        open = still;
    }
    Ok(found)
}

/// One try.
struct Reader<'a> {
    counts: &'a dyn CountsRead,
    of: History<'a>,
    published: Published,
    /// Whether a row was met of which nothing is published: of a run under way, or of one that was
    /// completed meanwhile.
    has_hidden: bool,
}

impl Reader<'_> {
    async fn read(
        &mut self,
        days: &Range<Day>,
        limit: usize,
    ) -> Result<(Vec<DayCount>, Option<Day>)> {
        let nothing = (Vec::new(), None);
        let Some(last) = self.last_run().await? else {
            return Ok(nothing);
        };
        let run = self.last_before(RUNS, days.start).await?;
        let run = run.filter(|(_, run)| run.epoch > 0);
        let first = match run {
            Some(_) => Some(days.start),
            None => self.first_run(days).await?,
        };
        let end = days.end.min(last.saturating_add(1));
        let Some(first) = first.filter(|first| *first < end) else {
            return Ok(nothing);
        };
        let page = i64::from(first) + i64::try_from(limit).unwrap_or(i64::MAX - i64::from(end));
        let until = Day::try_from(page).map_or(end, |page| page.min(end));
        let (job, range) = (self.of.job, first..until);
        let rows_max = usize::try_from(until - first).unwrap_or(usize::MAX);
        let (runs, rows) = futures::try_join!(
            self.counts.days(job, RUNS, range.clone(), rows_max),
            self.counts.days(job, self.of.key, range.clone(), rows_max)
        )?;
        let count = self.last_before(self.of.key, first).await?;
        let mut runs = Steps::new(run.map(|(_, run)| run), self.all_seen(&runs));
        let mut counts = Steps::new(count.map(|(_, count)| count), self.all_seen(&rows));
        let filled = range.map(|day| DayCount {
            day,
            count: counts.on(day).map_or(0, |counted| counted.count),
            epoch: runs.on(day).map_or(0, |counted| counted.epoch),
        });
        Ok((filled.collect(), (until < end).then_some(until)))
    }

    /// The day of the newest run. What was put right of a run that was never published says again what
    /// holds since the one before.
    async fn last_run(&mut self) -> Result<Option<Day>> {
        let mut last = self.last_before(RUNS, Day::MAX).await?;
        while let Some((day, run)) = last {
            match self.last_before(RUNS, day).await? {
                Some((day, before)) if before.epoch == run.epoch => last = Some((day, before)),
                _ => return Ok(Some(day)),
            }
        }
        Ok(None)
    }

    /// What is published of the last row before a day that says anything.
    async fn last_before(&mut self, key: &[u8], day: Day) -> Result<Option<(Day, Counted)>> {
        let mut before = day;
        loop {
            let asked = [(key, before)];
            let row = self.counts.last_days(self.of.job, &asked).await?;
            let Some(row) = row.into_iter().flatten().next() else {
                return Ok(None);
            };
            if let Some(counted) = self.published.seen(&row) {
                return Ok(Some((row.day, counted)));
            }
            self.has_hidden = true;
            before = row.day;
        }
    }

    /// The day of the first run within some days.
    async fn first_run(&mut self, days: &Range<Day>) -> Result<Option<Day>> {
        let mut from = days.start;
        loop {
            let asked = from..days.end;
            let rows = self.counts.days(self.of.job, RUNS, asked, FIRST_ROWS);
            let rows = rows.await?;
            let seen = self.all_seen(&rows);
            if let Some((day, _)) = seen.iter().find(|(_, run)| run.epoch > 0) {
                return Ok(Some(*day));
            }
            match rows.last() {
                Some(last) if rows.len() == FIRST_ROWS => from = last.day.saturating_add(1),
                _ => return Ok(None),
            }
        }
    }

    fn all_seen(&mut self, rows: &[DayRow]) -> Vec<(Day, Counted)> {
        let mut seen = Vec::with_capacity(rows.len());
        for row in rows {
            match self.published.seen(row) {
                Some(counted) => seen.push((row.day, counted)),
                None => self.has_hidden = true,
            }
        }
        seen
    }
}

/// What holds from day to day.
struct Steps {
    now: Option<Counted>,
    next: std::iter::Peekable<std::vec::IntoIter<(Day, Counted)>>,
}

impl Steps {
    fn new(now: Option<Counted>, changes: Vec<(Day, Counted)>) -> Self {
        Self {
            now,
            next: changes.into_iter().peekable(),
        }
    }

    /// What holds on a day; days are asked for in their order.
    fn on(&mut self, day: Day) -> Option<Counted> {
        while let Some((_, counted)) = self.next.next_if(|(from, _)| *from <= day) {
            self.now = Some(counted);
        }
        self.now
    }
}
