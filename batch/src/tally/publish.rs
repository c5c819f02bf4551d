//! Publishing: only what differs from the published result, and what a run that died may have
//! written.

use arrow::array::Array;
use schemas::seam::Epoch;
use schemas::source::Source;
use stores::views::{NewRows, TallyShape};
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
                published.written += self.send(view, &mut chunk, stop).await?;
            }
        }
        published.skipped += diff.same;
        progress.advance(waiting.count() as u64);
        if !chunk.is_empty() || published.written == 0 {
            // Once even without rows: a run that was overtaken must hear it.
            published.written += self.send(view, &mut chunk, stop).await?;
        }
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
        let mut taken_out = 0;
        let mut after: Option<(Vec<u8>, Vec<u8>)> = None;
        loop {
            let (name, views) = (&view.table, &self.ports.views);
            let keys = views
                .rows_before(name, self.stamp_us, after, self.rows_max)
                .await?;
            let Some(last) = keys.rows.len().checked_sub(1) else {
                return Ok(taken_out);
            };
            after = Some((
                keys.parts.value(last).to_vec(),
                keys.rows.value(last).to_vec(),
            ));
            let markers = keys.parts.iter().zip(keys.rows.iter());
            let mut chunk = markers
                .filter_map(|(part, row)| Some((part?.to_vec(), row?.to_vec(), None)))
                .collect();
            taken_out += self.send(view, &mut chunk, stop).await?;
        }
    }

    async fn send(
        &self,
        view: &View,
        chunk: &mut Vec<NewRow>,
        stop: &CancellationToken,
    ) -> Result<u64> {
        let written = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        let rows = new_rows(chunk);
        chunk.clear();
        self.ports
            .views
            .publish(self.source, &view.table, self.epoch, self.stamp_us, &rows)
            .await?;
        if stop.is_cancelled() {
            return Err(Error::Stopped);
        }
        Ok(written)
    }
}

/// A row to be published: the partition of the table, the row's key, and its count unless no event
/// gives it any more.
pub(crate) type NewRow = (Vec<u8>, Vec<u8>, Option<i64>);

/// Rows in the order of the table, which is not the order of the pieces where a partition of the table
/// holds several of them.
pub(crate) fn new_rows(rows: &mut [NewRow]) -> NewRows {
    rows.sort_unstable();
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
