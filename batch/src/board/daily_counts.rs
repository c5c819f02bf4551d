//! Counts by day: a run stores the number of members of each key.
//!
//! The day is that of the run's cut in UTC, and never earlier than that of a previous run. Counts
//! are written before the boards themselves, and all of them before the run is complete.

use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use jobs::board::VersionTrees;
use jobs::{Board, Job};
use schemas::seam::Epoch;
use schemas::source::Source;
use stores::counts::{
    CountsWrite, Day, DayRow, PublishedRuns, RUNS_KEY, RunCount, day_from_ms, plan_rows,
    read_newest_rows,
};
use stores::views::ViewsWrite;
use tokio_util::sync::CancellationToken;

use crate::lease::check_stop;
use crate::pages::stream_pages;
use crate::{BatchPorts, Error, Result};

/// Keys per list request.
const LIST_KEYS: usize = 4_000;
/// Maximum keys per read and write.
const KEYS_MAX: usize = 500;

/// Writes the counts of one job for a run.
#[derive(Debug)]
pub(crate) struct CountWriter {
    counts: Arc<dyn CountsWrite>,
    job: String,
    day: Day,
    epoch: Epoch,
    stamp_us: i64,
    published: PublishedRuns,
    /// True if an earlier attempt may still be writing.
    is_dirty: bool,
    /// True if the previous run stored counts too; then unvisited keys stay valid.
    follows_previous: bool,
}

impl CountWriter {
    /// Starts writing the counts of a job; `None` if its counts are not stored.
    pub(crate) async fn begin(
        ports: &BatchPorts,
        job: &Job<Board>,
        source: Source,
        epoch: Epoch,
        stamp_us: i64,
        is_dirty: bool,
    ) -> Result<Option<Self>> {
        if !job.records_daily_counts() {
            return Ok(None);
        }
        let views = &ports.views;
        let published = PublishedRuns::from_runs(&views.runs(source).await?.runs);
        let run = views.run_details(source, epoch).await?;
        let run = run.ok_or_else(|| Error::Fault(format!("run {epoch} has no record")))?;
        let counts = Arc::clone(&ports.counts);
        let runs = read_newest_rows(&*counts, job.name(), &[RUNS_KEY], &published).await?;
        let last = runs.iter().flatten().next_back();
        let last = last.and_then(|row| Some((row.day, published.published_count(row)?)));
        let cut_day = day_from_ms(run.started_at_ms);
        Ok(Some(Self {
            counts,
            job: job.name().to_owned(),
            day: last.map_or(cut_day, |(day, _)| cut_day.max(day)),
            epoch,
            stamp_us,
            is_dirty,
            follows_previous: last.is_some_and(|(_, run)| run.epoch == published.newest()),
            published,
        }))
    }

    /// Writes the counts of some keys.
    pub(crate) async fn write(&self, counts: &[(&[u8], u64)]) -> Result<()> {
        for counts in counts.chunks(KEYS_MAX) {
            self.write_chunk(counts, self.is_dirty).await?;
        }
        Ok(())
    }

    async fn write_chunk(&self, counts: &[(&[u8], u64)], is_dirty: bool) -> Result<()> {
        let keys: Vec<&[u8]> = counts.iter().map(|(key, _)| *key).collect();
        let newest = read_newest_rows(&*self.counts, &self.job, &keys, &self.published).await?;
        let mut rows: Vec<(&[u8], DayRow)> = Vec::new();
        for ((key, count), newest) in counts.iter().zip(newest) {
            let counted = RunCount {
                epoch: self.epoch,
                count: *count,
            };
            let new = plan_rows(&newest, self.day, counted, &self.published, is_dirty);
            rows.extend(new.into_iter().map(|row| (*key, row)));
        }
        Ok(self
            .counts
            .write_days(&self.job, self.stamp_us, &rows)
            .await?)
    }

    /// Records that the run has stored its counts. `has_all` is true if all keys were written.
    pub(crate) async fn end(
        &self,
        views: &dyn ViewsWrite,
        job: &Job<Board>,
        has_all: bool,
        stop: &CancellationToken,
    ) -> Result<()> {
        if !has_all && !self.follows_previous {
            self.write_other_keys(views, job, stop).await?;
        }
        check_stop(stop)?;
        self.write_chunk(&[(RUNS_KEY, 0)], true).await
    }

    /// Writes the counts of all keys, since the previous run did not store them.
    async fn write_other_keys(
        &self,
        views: &dyn ViewsWrite,
        job: &Job<Board>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let read = |after| views.keys(job.view(), after, LIST_KEYS);
        let mut pages = pin!(stream_pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            for keys in keys.chunks(KEYS_MAX) {
                check_stop(stop)?;
                let counts = count_members(views, job, keys).await?;
                let counts = keys.iter().map(Vec::as_slice).zip(counts);
                let counts: Vec<(&[u8], u64)> = counts
                    .filter_map(|(key, count)| Some((key, count?)))
                    .collect();
                self.write(&counts).await?;
            }
        }
        Ok(())
    }
}

/// Returns the number of members of keys according to their heads; `None` for an unreadable head.
async fn count_members(
    views: &dyn ViewsWrite,
    job: &Job<Board>,
    keys: &[Vec<u8>],
) -> Result<Vec<Option<u64>>> {
    let heads = views.heads(job.view(), keys).await?.unwrap_or_default();
    let has_scores = !job.score().0.is_empty();
    let count = |root: &[u8]| Some(VersionTrees::open(root, has_scores).ok()?.entry_count());
    let heads = heads.into_iter();
    Ok(heads.map(|head| count(&head?.root)).collect())
}
