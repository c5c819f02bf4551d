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
    /// The number of source rows behind each entry.
    pub weights: Int64Array,
}

impl BoardRows {
    /// Encodes rows with the columns of [`Job::schema`].
    ///
    /// # Errors
    /// [`Error::Rows`] if a required column is null, or a weight is negative.
    pub fn encode(job: &Job<Board>, rows: &RecordBatch) -> Result<Self> {
        let wrong = |what: String| Error::Rows {
            job: job.name().to_owned(),
            what,
        };
        let mut columns = rows.columns();
        let mut take = |shape: &KeyShape| {
            let (own, rest) = columns.split_at(shape.0.len().min(columns.len()));
            columns = rest;
            let own: &[ArrayRef] = own;
            shape
                .encode_rows(own, rows.num_rows())
                .map_err(|error| wrong(error.to_string()))
        };
        let keys = take(job.key())?;
        let boards = take(job.board_columns())?;
        let members = take(job.member())?;
        let scores = take(job.score())?;
        let payloads = take(job.payload())?;
        let weights = match columns.first() {
            Some(weights) => weights.as_primitive::<Int64Type>().clone(),
            None => Int64Array::from(vec![1; rows.num_rows()]),
        };
        if weights.values().iter().any(|weight| *weight < 0) {
            return Err(wrong("a weight is negative".to_owned()));
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

    /// The number of rows.
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
