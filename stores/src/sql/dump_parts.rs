//! The parts of a dump from a server, and the batches that reading a part sends.

use std::vec;

use arrow::array::RecordBatch;
use tokio::sync::mpsc::Sender;

use super::connection::{OwnedConnection, Sql};
use super::decode::{DecodeRow, RowBuilder};
use crate::Result;

/// Upper limit of the keys of a part.
pub(crate) const KEYS_PER_PART: usize = 2048;

/// The rows that one statement of a dump reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// A range of keys; `None` is no bound.
    Range {
        from: Option<i64>,
        before: Option<i64>,
    },
    /// A list of ascending keys.
    Keys(Vec<i64>),
}

pub(crate) const ALL_KEYS: Part = Part::Range {
    from: None,
    before: None,
};

/// The parts that no connection has started.
#[derive(Debug)]
pub(crate) enum Parts {
    /// A list of parts.
    List(vec::IntoIter<Part>),
    /// Ranges of `rows` rows or of one key, from the key `from` on, or from the first key. The end
    /// of each range is looked up in the index when the range starts.
    Scan { from: Option<i64>, rows: u64 },
}

impl Parts {
    pub(crate) fn from_list(parts: Vec<Part>) -> Self {
        Self::List(parts.into_iter())
    }

    /// Counts the connections that the parts can use, at most `max`.
    pub(crate) fn count_connections(&self, max: u32) -> usize {
        let max = usize::try_from(max).unwrap_or(usize::MAX).max(1);
        match self {
            Self::List(parts) => max.min(parts.len()),
            Self::Scan { .. } => max,
        }
    }
}

/// The snapshot of a dump, and its parts.
#[derive(Debug)]
pub(crate) struct DumpSnapshot {
    /// Connections that see the snapshot.
    pub(crate) connections: Vec<OwnedConnection>,
    pub(crate) parts: Parts,
}

/// A batch of a part, or `None` at its end. A part whose channel closes without the end was
/// aborted.
pub(super) type PartItem = Result<Option<RecordBatch>>;

/// Sends the rows of a part as batches.
#[derive(Debug)]
pub(crate) struct PartSink {
    pub(super) batch_rows: usize,
    pub(super) columns: RowBuilder,
    pub(super) sender: Sender<PartItem>,
}

impl PartSink {
    /// Adds a row. Returns false if the stream was dropped, so that no more rows are needed.
    pub(crate) async fn push(&mut self, row: &(impl DecodeRow + Sync)) -> Sql<bool> {
        self.columns.push(row)?;
        if self.columns.len() < self.batch_rows {
            return Ok(true);
        }
        self.flush().await
    }

    pub(super) async fn flush(&mut self) -> Sql<bool> {
        if self.columns.len() == 0 {
            return Ok(true);
        }
        let batch = self.columns.finish()?;
        Ok(self.sender.send(Ok(Some(batch))).await.is_ok())
    }
}
