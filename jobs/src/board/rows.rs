//! Encodes the rows of a board query for stores.

use arrow::array::{ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use schemas::key::KeyShape;

use super::Board;
use crate::job::Job;
use crate::{Error, Result};

/// The rows of boards, by column.
#[derive(Debug, Clone)]
pub struct BoardRows {
    /// Encoded keys.
    pub keys: BinaryArray,
    /// Encoded boards; empty if a key has one board.
    pub boards: BinaryArray,
    /// Encoded members.
    pub members: BinaryArray,
    /// Encoded scores, whose byte order is the rank order; empty for a board without ranks.
    pub scores: BinaryArray,
    /// Encoded payloads.
    pub payloads: BinaryArray,
    /// The number of source rows of each entry.
    pub weights: Int64Array,
}

impl BoardRows {
    /// Encodes rows with the columns of [`Job::schema`].
    ///
    /// # Errors
    /// [`Error::Rows`] if a required column is null, or a weight is negative.
    pub fn encode(job: &Job<Board>, rows: &RecordBatch) -> Result<Self> {
        let rows_error = |reason: String| Error::Rows {
            job: job.name().to_owned(),
            reason,
        };
        let mut columns = rows.columns();
        let mut encode_next = |shape: &KeyShape| {
            let (next, rest) = columns.split_at(shape.0.len().min(columns.len()));
            columns = rest;
            let next: &[ArrayRef] = next;
            shape
                .encode_rows(next, rows.num_rows())
                .map_err(|error| rows_error(error.to_string()))
        };
        let keys = encode_next(job.key())?;
        let boards = encode_next(job.board_columns())?;
        let members = encode_next(job.member())?;
        let scores = encode_next(job.score())?;
        let payloads = encode_next(job.payload())?;
        let weights = match columns.first() {
            Some(weights) => weights.as_primitive::<Int64Type>().clone(),
            None => Int64Array::from(vec![1; rows.num_rows()]),
        };
        if weights.values().iter().any(|weight| *weight < 0) {
            return Err(rows_error("a weight is negative".to_owned()));
        }
        Ok(Self {
            keys,
            boards,
            members,
            scores,
            payloads,
            weights,
        })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.values().len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
