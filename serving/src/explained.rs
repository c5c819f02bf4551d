//! Where a value comes from: the rows that it is made of, each with what its batch row holds and what was counted live since,
//! by epoch.

use std::collections::BTreeMap;

use jobs::merge::{LivePart, Merged};
use schemas::key::{KeyError, KeyValue};
use schemas::seam::Epoch;

use crate::plan::Lane;
use crate::tally::Cell;

/// Rows that are told one by one; all are added up.
const ROWS_MAX: usize = 1_000;

/// What a value is made of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Explained {
    /// All of it.
    pub(crate) cell: Cell,
    /// By epoch that batch rows hold: what they add up to.
    pub(crate) batch: BTreeMap<Epoch, Share>,
    /// By epoch: what was counted live.
    pub(crate) live: BTreeMap<Epoch, Share>,
    /// The first rows, in the order of views and keys.
    pub(crate) rows: Vec<ExplainedRow>,
    /// How many there are.
    pub(crate) rows_all: u64,
}

/// A part of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) count: i128,
    /// Of so many rows.
    pub(crate) rows: u64,
}

/// A row that has a part in a value.
#[derive(Debug, Clone)]
pub(crate) struct ExplainedRow {
    pub(crate) job: String,
    /// Columns and their values: those of the group, then those of the row.
    pub(crate) key: Vec<(String, KeyValue)>,
    pub(crate) count: i128,
    /// What the batch row holds, and the epoch of the run that wrote it.
    pub(crate) batch: Option<(i128, Epoch)>,
    /// By epoch, what was counted since.
    pub(crate) live: Vec<(Epoch, i128)>,
}

impl Explained {
    /// Adds a row of a lane; `live` are the parts that it was merged with, in the order of keys.
    ///
    /// # Errors
    /// [`KeyError`] if the key does not decode.
    pub(crate) fn add(
        &mut self,
        lane: &Lane,
        value: &Merged<'_>,
        live: &[LivePart<'_>],
    ) -> Result<(), KeyError> {
        self.cell.add(value);
        self.rows_all += 1;
        let batch = value.row_epoch.filter(|_| value.batch);
        let batch = batch.map(|epoch| (value.stored, epoch));
        if let Some((count, epoch)) = batch {
            self.batch.entry(epoch).or_default().add(count);
        }
        let from = live.partition_point(|part| part.key < value.key);
        let of_key = live.iter().skip(from);
        let of_key = of_key.take_while(|part| part.key == value.key);
        let mut epochs: BTreeMap<Epoch, i128> = BTreeMap::new();
        for part in of_key.filter(|part| part.epoch > value.base) {
            *epochs.entry(part.epoch).or_default() += i128::from(part.count);
        }
        for (epoch, count) in &epochs {
            self.live.entry(*epoch).or_default().add(*count);
        }
        if self.rows.len() < ROWS_MAX {
            let job = &lane.job;
            let group = job.group().0.iter().zip(lane.group.iter().cloned());
            let row = job.row().decode_values(value.key)?;
            let columns = group.chain(job.row().0.iter().zip(row));
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

    /// How much memory it takes, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        let epochs = self.batch.len() + self.live.len();
        let columns: usize = self.rows.iter().map(|row| row.key.len()).sum();
        epochs * size_of::<(Epoch, Share)>()
            + self.rows.len() * size_of::<ExplainedRow>()
            + columns * (size_of::<(String, KeyValue)>() + 16)
    }
}

impl Share {
    const fn add(&mut self, count: i128) {
        self.count += count;
        self.rows += 1;
    }
}
