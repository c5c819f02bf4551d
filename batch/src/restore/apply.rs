//! Writing rows anew that are not what the events give, and deleting those that lie where none can lie.

use arrow::array::Array;
use jobs::{BUCKET, Job};
use schemas::key::{KeyShape, KeyValue};
use schemas::seam::Epoch;
use std::collections::BTreeMap;
use std::sync::Arc;
use stores::views::AggregateShape;
use tokio_util::sync::CancellationToken;

use super::applied::Applied;
use super::cause::Cause;
use super::collect::Comparison;
use super::report::Weighed;
use super::scope::Scope;
use super::stray::Places;
use crate::batch::Batch;
use crate::lease::check_stop;
use crate::tally::{NewRow, new_rows};
use crate::{BatchPorts, Error, Result};

/// Rows that are written anew.
pub(crate) struct Rewrite<'a> {
    ports: &'a BatchPorts,
    job: Arc<Job>,
    scope: Arc<Scope>,
    table: String,
    epoch: Epoch,
    stamp_us: i64,
    rows_max: usize,
    waiting: Vec<NewRow>,
    /// Where rows are to be deleted.
    strays: Places,
}

impl<'a> Rewrite<'a> {
    /// Takes a stamp that is larger than those of all rows; `newest_us` is the newest among them. Somebody else may have
    /// written as of a time that is yet to come.
    pub(crate) async fn begin(
        batch: &'a Batch,
        comparison: &Comparison,
        newest_us: i64,
    ) -> Result<Self> {
        let (ports, job) = (&batch.ports, &comparison.job);
        let at_ms = ports.clock.now_ms().max(newest_us.div_euclid(1_000) + 1);
        let stamp_us = take_stamp(ports, comparison.epoch, job, at_ms).await?;
        Ok(Self {
            ports,
            job: Arc::clone(job),
            scope: Arc::clone(&comparison.scope),
            table: comparison.table.clone(),
            epoch: comparison.epoch,
            stamp_us,
            rows_max: batch.options.publish_rows.max(1),
            waiting: Vec::new(),
            strays: Places::default(),
        })
    }

    /// Notes a key whose row is to hold what its events give, or to be gone where none can be.
    pub(crate) fn add(&mut self, key: &[u8], weighed: &Weighed) -> Result<()> {
        if weighed.cause.is_some_and(Cause::is_of_stray) {
            return self.strays.add(key);
        }
        let (part, row) = place(&self.job, &self.scope.grain, key)?;
        self.waiting.push((part, row, weighed.events_batch));
        Ok(())
    }

    /// Takes another stamp: by this one readers know rows that they read before, and they may have read some between
    /// it and the rows.
    pub(crate) async fn end(self) -> Result<()> {
        let now_ms = self.ports.clock.now_ms();
        take_stamp(self.ports, self.epoch, &self.job, now_ms).await?;
        Ok(())
    }

    /// Writes what was noted, and says what is done of it as soon as it is.
    pub(crate) async fn send(
        &mut self,
        applied: &mut Applied,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (views, source) = (&self.ports.views, self.job.source());
        let (table, at) = (self.table.as_str(), (self.epoch, self.stamp_us));
        let mut waiting = std::mem::take(&mut self.waiting);
        for some in waiting.chunks_mut(self.rows_max) {
            check_stop(stop)?;
            let rows = new_rows(some);
            views.publish(source, table, at.0, at.1, &rows).await?;
            applied.rows += some.len() as u64;
        }
        for strays in self.strays.take(self.rows_max) {
            check_stop(stop)?;
            views.delete_rows(source, table, at, &strays).await?;
            applied.deleted += strays.rows.len() as u64;
        }
        Ok(())
    }
}

/// A stamp of the run whose rows are there. No result of another name gets into the table: what is written is what its
/// own result holds.
async fn take_stamp(ports: &BatchPorts, epoch: Epoch, job: &Job, at_ms: i64) -> Result<i64> {
    let results = BTreeMap::new();
    let stamp = ports
        .views
        .begin_publishing(job.source(), epoch, &results, at_ms);
    Ok(stamp.await?)
}

/// The partition of the table and the row key of a key with all columns of the view.
fn place(job: &Job, grain: &KeyShape, key: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let fault = |e| Error::fault("a key that is written anew", e);
    let values = grain.decode_values(key).map_err(fault)?;
    let (group, row) = values.split_at(job.group().0.len().min(values.len()));
    let bucket = grain.0.iter().position(|column| column.name == BUCKET);
    let start = match bucket.and_then(|place| values.get(place)) {
        Some(KeyValue::Time(start)) => *start,
        _ => 0,
    };
    let group = job.group().encode_values(group).map_err(fault)?;
    let part = AggregateShape::encode_partition_key(job.table_partition().floor(start), &group);
    Ok((part, job.row().encode_values(row).map_err(fault)?))
}
