//! The view of a board job: its shape, and the encoding of its keys.

use std::collections::{BTreeSet, HashSet};

use jobs::{Board, Job};
use schemas::key::KeyValue;
use stores::views::{BoardShape, ViewShape};

use crate::{Error, Result};

pub(crate) fn view_shape(job: &Job<Board>) -> ViewShape {
    ViewShape::Board(BoardShape {
        view: job.view().to_owned(),
        key: job.key().clone(),
        boards: job.board_columns().clone(),
        member: job.member().clone(),
        score: job.score().clone(),
        payload: job.payload().clone(),
    })
}

pub(crate) fn encode_key(job: &Job<Board>, key: i64) -> Result<Vec<u8>> {
    let key = job.key().encode_values(&[KeyValue::Int(key)]);
    key.map_err(|e| Error::fault("encoding a key", e))
}

/// Encodes keys of boards.
pub(super) fn encode_keys(job: &Job<Board>, keys: &BTreeSet<i64>) -> Result<HashSet<Vec<u8>>> {
    let encoded = keys.iter().map(|key| encode_key(job, *key));
    encoded.collect()
}
