//! Counts by day: what a run keeps of how many members each key has.
//!
//! The day is that of the run's cut, in UTC, and never earlier than that of a run before. What is
//! written stands there before the boards themselves, and all of it before the run is complete.

use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use jobs::board::Sheet;
use jobs::{Board, Job};
use schemas::seam::Epoch;
use schemas::source::Source;
use stores::counts::{
    Counted, CountsWrite, Day, DayRow, Published, RUNS, day_of, newest_rows, to_write,
};
use stores::views::ViewsWrite;
use tokio_util::sync::CancellationToken;

use crate::pages::pages;
use crate::run::go_on;
use crate::{BatchPorts, Error, Result};

/// Keys that are listed at once.
const LIST_KEYS: usize = 4_000;
/// Keys that are looked at in one step.
const KEYS_MAX: usize = 500;

/// Keeps the counts of one job for a run.
#[derive(Debug)]
pub(crate) struct History {
    counts: Arc<dyn CountsWrite>,
    job: String,
    day: Day,
    epoch: Epoch,
    stamp_us: i64,
    published: Published,
    /// Whether another try may still be writing.
    is_doubtful: bool,
    /// Whether the run before kept the counts too: then those that this one does not look at stand.
    is_continued: bool,
}

impl History {
    /// Begins to keep the counts of a job; nothing if the job does not want that.
    pub(crate) async fn begin(
        ports: &BatchPorts,
        job: &Job<Board>,
        (source, epoch, stamp_us): (Source, Epoch, i64),
        is_doubtful: bool,
    ) -> Result<Option<Self>> {
        if !job.keeps_counts() {
            return Ok(None);
        }
        let views = &ports.views;
        let published = Published::of(&views.runs(source).await?.runs);
        let story = views.story(source, epoch).await?;
        let story = story.ok_or_else(|| Error::Fault(format!("run {epoch} has no record")))?;
        let counts = Arc::clone(&ports.counts);
        let runs = newest_rows(&*counts, job.name(), &[RUNS], &published).await?;
        let last = runs.iter().flatten().next_back();
        let last = last.and_then(|row| Some((row.day, published.seen(row)?)));
        let cut = day_of(story.started_at_ms);
        Ok(Some(Self {
            counts,
            job: job.name().to_owned(),
            day: last.map_or(cut, |(day, _)| cut.max(day)),
            epoch,
            stamp_us,
            is_doubtful,
            is_continued: last.is_some_and(|(_, run)| run.epoch == published.newest()),
            published,
        }))
    }

    /// Writes what the run found for some keys.
    pub(crate) async fn keep(&self, found: &[(&[u8], u64)]) -> Result<()> {
        for found in found.chunks(KEYS_MAX) {
            self.keep_all(found, self.is_doubtful).await?;
        }
        Ok(())
    }

    async fn keep_all(&self, found: &[(&[u8], u64)], is_doubtful: bool) -> Result<()> {
        let keys: Vec<&[u8]> = found.iter().map(|(key, _)| *key).collect();
        let newest = newest_rows(&*self.counts, &self.job, &keys, &self.published).await?;
        let mut rows: Vec<(&[u8], DayRow)> = Vec::new();
        for ((key, count), newest) in found.iter().zip(newest) {
            let counted = Counted {
                epoch: self.epoch,
                count: *count,
            };
            let now = (self.day, counted);
            let new = to_write(&newest, now, &self.published, is_doubtful);
            rows.extend(new.into_iter().map(|row| (*key, row)));
        }
        Ok(self
            .counts
            .write_days(&self.job, self.stamp_us, &rows)
            .await?)
    }

    /// Ends with the note that the run has kept the counts. `has_all` says that it went through all keys.
    pub(crate) async fn end(
        &self,
        views: &dyn ViewsWrite,
        job: &Job<Board>,
        has_all: bool,
        stop: &CancellationToken,
    ) -> Result<()> {
        if !has_all && !self.is_continued {
            self.keep_others(views, job, stop).await?;
        }
        go_on(stop)?;
        self.keep_all(&[(RUNS, 0)], true).await
    }

    /// Goes through all keys that there are, since the run before did not keep their counts.
    async fn keep_others(
        &self,
        views: &dyn ViewsWrite,
        job: &Job<Board>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let read = |after| views.keys(job.view(), after, LIST_KEYS);
        let mut pages = pin!(pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            for keys in keys.chunks(KEYS_MAX) {
                go_on(stop)?;
                let counts = members(views, job, keys).await?;
                let found = keys.iter().map(Vec::as_slice).zip(counts);
                let found: Vec<(&[u8], u64)> = found
                    .filter_map(|(key, count)| Some((key, count?)))
                    .collect();
                self.keep(&found).await?;
            }
        }
        Ok(())
    }
}

/// How many members some keys have by their heads; nothing where a head can't be read.
async fn members(
    views: &dyn ViewsWrite,
    job: &Job<Board>,
    keys: &[Vec<u8>],
) -> Result<Vec<Option<u64>>> {
    let heads = views.heads(job.view(), keys).await?.unwrap_or_default();
    let has_scores = !job.score().0.is_empty();
    let count = |root: &[u8]| Some(Sheet::open(root, has_scores).ok()?.rows());
    let heads = heads.into_iter();
    Ok(heads.map(|head| count(&head?.root)).collect())
}
