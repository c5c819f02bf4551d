//! Publishing: only what differs from the published result, and what a run that died may have
//! written.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::Array;
use schemas::seam::Epoch;
use schemas::source::Source;
use schemas::time::UnixSeconds;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;
use stores::views::{AggregateShape, NewRows, ViewsWrite};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::compute::View;
use super::fingerprint::Fingerprint;
use super::result::{Diff, ViewManifest};
use crate::{Error, Result};

/// Rows of a view that were written, and those that stayed as they were.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) written: u64,
    pub(crate) skipped: u64,
    /// Every change, if that was wanted.
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl Published {
    /// Adds what became of other rows of the view.
    pub(crate) fn add(&mut self, other: Self) {
        self.written += other.written;
        self.skipped += other.skipped;
        match (&mut self.fingerprint, other.fingerprint) {
            (Some(all), Some(other)) => all.add_all(&other),
            (all @ None, other) => *all = other,
            (Some(_), None) => {}
        }
    }
}

/// As what rows are published.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Edition {
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    /// Rows in one step.
    pub(crate) rows_max: usize,
}

/// Publishes rows of results.
#[derive(Debug, Clone)]
pub(crate) struct Publisher {
    pub(crate) views: Arc<dyn ViewsWrite>,
    pub(crate) archive: Archive,
    pub(crate) edition: Edition,
    pub(crate) stop: CancellationToken,
}

/// Chunks that are on their way to the store at once: while one is written, the next ones are made.
const AT_ONCE: usize = 2;

/// Rows of a view on their way to the store.
struct Sending<'a> {
    publisher: &'a Publisher,
    view: &'a View,
    under_way: JoinSet<stores::Result<()>>,
    rows: u64,
}

impl<'a> Sending<'a> {
    fn new(publisher: &'a Publisher, view: &'a View) -> Self {
        Self {
            publisher,
            view,
            under_way: JoinSet::new(),
            rows: 0,
        }
    }

    /// Sends a chunk once there is room for it, and empties it.
    async fn send(&mut self, chunk: &mut Vec<NewRow>) -> Result<()> {
        self.arrived(AT_ONCE - 1).await?;
        if self.publisher.stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        let mut chunk = std::mem::take(chunk);
        self.rows += chunk.len() as u64;
        let Edition {
            source,
            epoch,
            stamp_us,
            ..
        } = self.publisher.edition;
        let views = Arc::clone(&self.publisher.views);
        let table = self.view.table.clone();
        self.under_way.spawn(async move {
            let rows = new_rows(&mut chunk);
            drop(chunk);
            views.publish(source, &table, epoch, stamp_us, &rows).await
        });
        Ok(())
    }

    /// Waits until no more chunks are under way than so many.
    async fn arrived(&mut self, left: usize) -> Result<()> {
        while self.under_way.len() > left
            && let Some(ended) = self.under_way.join_next().await
        {
            ended.map_err(|e| Error::fault("publishing ended", e))??;
        }
        Ok(())
    }

    /// Waits until all rows are written, and answers how many these were.
    async fn finish(mut self) -> Result<u64> {
        self.arrived(0).await?;
        match self.publisher.stop.is_cancelled() {
            true => Err(Error::Stopped),
            false => Ok(self.rows),
        }
    }
}

impl Publisher {
    /// Publishes some pieces of a view, and notes every change in a fingerprint if one is wanted.
    pub(crate) async fn publish(
        &self,
        view: &View,
        new: &ViewManifest,
        pieces: &BTreeSet<UnixSeconds>,
        with_fingerprint: bool,
    ) -> Result<Published> {
        let mut fingerprint = with_fingerprint.then(Fingerprint::new);
        let mut chunk: Vec<NewRow> = Vec::new();
        let mut sending = Sending::new(self, view);
        let mut diff = diff_of(&self.archive, view, new, pieces).await?;
        while let Some(change) = diff.next().await? {
            let (start, group, row) = diff.key();
            if let Some(fingerprint) = &mut fingerprint {
                fingerprint.batch(group, row, change.delta());
            }
            let time = view.job.table_partition().floor(start);
            chunk.push((
                AggregateShape::encode_partition_key(time, group),
                row.to_vec(),
                change.now,
            ));
            if chunk.len() >= self.edition.rows_max {
                sending.send(&mut chunk).await?;
            }
        }
        if !chunk.is_empty() || sending.rows == 0 {
            // Once even without rows: a run that was overtaken must hear it.
            sending.send(&mut chunk).await?;
        }
        Ok(Published {
            written: sending.finish().await?,
            skipped: diff.same,
            fingerprint,
        })
    }

    /// Makes a marker of every row that was not written, once all others are: no event gives it. Answers how many
    /// these are.
    pub(crate) async fn take_out(&self, view: &View) -> Result<u64> {
        let mut sending = Sending::new(self, view);
        let mut after: Option<(Vec<u8>, Vec<u8>)> = None;
        let Edition {
            stamp_us, rows_max, ..
        } = self.edition;
        loop {
            let keys = self
                .views
                .rows_before(&view.table, stamp_us, after, rows_max)
                .await?;
            let Some(last) = keys.rows.len().checked_sub(1) else {
                return sending.finish().await;
            };
            after = Some((
                keys.partitions.value(last).to_vec(),
                keys.rows.value(last).to_vec(),
            ));
            let markers = keys.partitions.iter().zip(keys.rows.iter());
            let mut chunk = markers
                .filter_map(|(part, row)| Some((part?.to_vec(), row?.to_vec(), None)))
                .collect();
            sending.send(&mut chunk).await?;
        }
    }
}

/// A row to be published: the partition of the table, the row's key, and its count unless no event
/// gives it any more.
pub(crate) type NewRow = (Vec<u8>, Vec<u8>, Option<i64>);

/// Rows in the order of the table, which is not the order of the pieces where a partition of the table
/// holds several of them.
pub(crate) fn new_rows(rows: &mut [NewRow]) -> NewRows {
    if !rows.is_sorted() {
        rows.sort_unstable();
    }
    NewRows {
        partitions: rows.iter().map(|(part, _, _)| Some(part)).collect(),
        rows: rows.iter().map(|(_, row, _)| Some(row)).collect(),
        counts: rows.iter().map(|(_, _, count)| *count).collect(),
    }
}

/// What differs in some touched pieces of a view.
pub(crate) async fn diff_of(
    archive: &Archive,
    view: &View,
    new: &ViewManifest,
    pieces: &BTreeSet<UnixSeconds>,
) -> Result<Diff> {
    let before = view.published.as_ref();
    let before = before.map(|old| old.among(pieces)).unwrap_or_default();
    let dirty = view.dirty.iter().map(|other| {
        let touched: BTreeSet<UnixSeconds> = other.touched.intersection(pieces).copied().collect();
        let rows = other.among(&touched);
        (touched, rows)
    });
    Diff::open(archive, new.among(pieces), before, dirty.collect()).await
}
