//! Explanation of a value: the rows that contribute to it, each with its batch value and the later
//! live counts by epoch.

use std::collections::BTreeMap;

use jobs::merge::{LiveDelta, MergedRow};
use schemas::key::{KeyError, KeyValue};
use schemas::seam::Epoch;

use crate::layered_count::LayeredCount;
use crate::plan::ViewScan;

/// Maximum rows that are listed; the sums include all rows.
const LISTED_ROWS_MAX: usize = 1_000;

/// The parts of a value.
#[derive(Debug, Clone, Default)]
pub(crate) struct ValueExplanation {
    /// The value.
    pub(crate) sum: LayeredCount,
    /// Sums of batch rows by the epoch that wrote them.
    pub(crate) batch: BTreeMap<Epoch, PartialSum>,
    /// Sums of live deltas by epoch.
    pub(crate) live: BTreeMap<Epoch, PartialSum>,
    /// The first rows, in the order of views and keys.
    pub(crate) rows: Vec<ExplainedRow>,
    /// Total number of rows.
    pub(crate) rows_total: u64,
}

/// Sum of several rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PartialSum {
    pub(crate) count: i128,
    /// Number of rows.
    pub(crate) rows: u64,
}

/// A row that contributes to a value.
#[derive(Debug, Clone)]
pub(crate) struct ExplainedRow {
    pub(crate) job: String,
    /// Columns and values: those of the group, then those of the row.
    pub(crate) key: Vec<(String, KeyValue)>,
    pub(crate) count: i128,
    /// Value of the batch row, and the epoch of the run that wrote it.
    pub(crate) batch: Option<(i128, Epoch)>,
    /// Later live counts by epoch.
    pub(crate) live: Vec<(Epoch, i128)>,
}

impl ValueExplanation {
    /// Adds a row of a scan; `live` are the deltas that it was merged with, in key order.
    ///
    /// # Errors
    /// [`KeyError`] if the key does not decode.
    pub(crate) fn add(
        &mut self,
        scan: &ViewScan,
        value: &MergedRow<'_>,
        live: &[LiveDelta<'_>],
    ) -> Result<(), KeyError> {
        self.sum.add(value);
        self.rows_total += 1;
        let batch = value.row_epoch.filter(|_| value.has_batch);
        let batch = batch.map(|epoch| (value.batch_count, epoch));
        if let Some((count, epoch)) = batch {
            self.batch.entry(epoch).or_default().add(count);
        }
        let first = live.partition_point(|delta| delta.key < value.key);
        let deltas_of_key = live.iter().skip(first);
        let deltas_of_key = deltas_of_key.take_while(|delta| delta.key == value.key);
        let mut epochs: BTreeMap<Epoch, i128> = BTreeMap::new();
        for delta in deltas_of_key.filter(|delta| delta.epoch > value.base_epoch) {
            *epochs.entry(delta.epoch).or_default() += i128::from(delta.count);
        }
        for (epoch, count) in &epochs {
            self.live.entry(*epoch).or_default().add(*count);
        }
        if self.rows.len() < LISTED_ROWS_MAX {
            let job = &scan.job;
            let group = job.group().0.iter().zip(scan.group.iter().cloned());
            let row_values = job.row().decode_values(value.key)?;
            let columns = group.chain(job.row().0.iter().zip(row_values));
            self.rows.push(ExplainedRow {
                job: job.name().to_owned(),
                key: columns
                    .map(|(column, value)| (column.name.clone(), value))
                    .collect(),
                count: value.count,
                batch,
                live: epochs.into_iter().collect(),
            });
        }
        Ok(())
    }

    /// Approximate memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let epochs = self.batch.len() + self.live.len();
        let columns: usize = self.rows.iter().map(|row| row.key.len()).sum();
        epochs * size_of::<(Epoch, PartialSum)>()
            + self.rows.len() * size_of::<ExplainedRow>()
            + columns * (size_of::<(String, KeyValue)>() + 16)
    }
}

impl PartialSum {
    const fn add(&mut self, count: i128) {
        self.count += count;
        self.rows += 1;
    }
}
