//! Publishing: only what differs from the published result, and what a run that died may have
//! written.

use std::sync::Arc;

use arrow::array::Array;
use schemas::seam::Epoch;
use schemas::source::Source;
use stores::views::{NewRows, TallyShape};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::compute::View;
use super::drift::Fingerprint;
use super::result::{Diff, ViewManifest};
use crate::{BatchPorts, Error, Progress, Result};

/// Rows of a view that were written, and those that stayed as they were.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Published {
    pub(crate) written: u64,
    pub(crate) skipped: u64,
}

/// Where and as what rows are published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edition<'a> {
    pub(crate) ports: &'a BatchPorts,
    pub(crate) source: Source,
    pub(crate) epoch: Epoch,
    pub(crate) stamp_us: i64,
    /// Rows in one step.
    pub(crate) rows_max: usize,
}

/// Chunks that are on their way to the store at once: while one is written, the next ones are made.
const AT_ONCE: usize = 2;

/// Rows of a view on their way to the store.
struct Sending<'a> {
    edition: &'a Edition<'a>,
    view: &'a View,
    stop: &'a CancellationToken,
    under_way: JoinSet<stores::Result<()>>,
    rows: u64,
}

impl<'a> Sending<'a> {
    fn new(edition: &'a Edition<'a>, view: &'a View, stop: &'a CancellationToken) -> Self {
        Self {
            edition,
            view,
            stop,
            under_way: JoinSet::new(),
            rows: 0,
        }
    }

    /// Sends a chunk once there is room for it, and empties it.
    async fn send(&mut self, chunk: &mut Vec<NewRow>) -> Result<()> {
        self.arrived(AT_ONCE - 1).await?;
        if self.stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        let mut chunk = std::mem::take(chunk);
        self.rows += chunk.len() as u64;
        let Edition {
            source,
            epoch,
            stamp_us,
            ..
        } = *self.edition;
        let views = Arc::clone(&self.edition.ports.views);
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
        match self.stop.is_cancelled() {
            true => Err(Error::Stopped),
            false => Ok(self.rows),
        }
    }
}

impl Edition<'_> {
    /// Publishes a view, and notes every change in the fingerprint if one is wanted.
    pub(crate) async fn publish(
        &self,
        view: &View,
        new: &ViewManifest,
        mut fingerprint: Option<&mut Fingerprint>,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Published> {
        let mut published = Published::default();
        let mut chunk: Vec<NewRow> = Vec::new();
        let mut sending = Sending::new(self, view, stop);
        let mut diff = diff_of(self.ports, view, new).await?;
        let mut waiting = new.touched.iter().peekable();
        while let Some(change) = diff.next().await? {
            let (start, group, row) = diff.key();
            while waiting.next_if(|piece| **piece < start).is_some() {
                progress.advance(1);
            }
            if let Some(fingerprint) = &mut fingerprint {
                fingerprint.batch(group, row, change.delta());
            }
            let time = view.job.partition().floor(start);
            chunk.push((TallyShape::part(time, group), row.to_vec(), change.now));
            if chunk.len() >= self.rows_max {
                sending.send(&mut chunk).await?;
            }
        }
        published.skipped += diff.same;
        progress.advance(waiting.count() as u64);
        if !chunk.is_empty() || sending.rows == 0 {
            // Once even without rows: a run that was overtaken must hear it.
            sending.send(&mut chunk).await?;
        }
        published.written += sending.finish().await?;
        if view.is_unknown {
            published.written += self.take_out(view, stop).await?;
        }
        let touched = new.touched.iter().filter_map(|start| new.pieces.get(start));
        let rows: u64 = touched.map(|piece| piece.rows).sum();
        let all: u64 = new.pieces.values().map(|piece| piece.rows).sum();
        published.skipped += all.saturating_sub(rows);
        Ok(published)
    }

    /// Makes a marker of every row that was not written: no event gives it.
    async fn take_out(&self, view: &View, stop: &CancellationToken) -> Result<u64> {
        let mut sending = Sending::new(self, view, stop);
        let mut after: Option<(Vec<u8>, Vec<u8>)> = None;
        loop {
            let (name, views) = (&view.table, &self.ports.views);
            let keys = views
                .rows_before(name, self.stamp_us, after, self.rows_max)
                .await?;
            let Some(last) = keys.rows.len().checked_sub(1) else {
                return sending.finish().await;
            };
            after = Some((
                keys.parts.value(last).to_vec(),
                keys.rows.value(last).to_vec(),
            ));
            let markers = keys.parts.iter().zip(keys.rows.iter());
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
        parts: rows.iter().map(|(part, _, _)| Some(part)).collect(),
        rows: rows.iter().map(|(_, row, _)| Some(row)).collect(),
        counts: rows.iter().map(|(_, _, count)| *count).collect(),
    }
}

/// What differs in the touched pieces of a view.
pub(crate) async fn diff_of(ports: &BatchPorts, view: &View, new: &ViewManifest) -> Result<Diff> {
    let before = view.published.as_ref();
    let before = before
        .map(|old| old.among(&new.touched))
        .unwrap_or_default();
    let dirty = view.dirty.iter();
    let dirty = dirty.map(|other| (other.touched.clone(), other.among(&other.touched)));
    Diff::open(
        &ports.archive,
        new.among(&new.touched),
        before,
        dirty.collect(),
    )
    .await
}
