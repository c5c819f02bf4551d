//! Boards: divisions and windows, consistent reads, and answers.

pub(crate) mod answer;
mod cached;
pub(crate) mod divisions;
pub(crate) mod earlier;
pub(crate) mod entries;
mod explain;
pub(crate) mod explanation;
pub(crate) mod lookup_batcher;
pub(crate) mod read;
pub(crate) mod reader;
pub(crate) mod reading;
pub(crate) mod recent_reads;

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::{Board, Catalog, Job, Layers};

/// The boards of a catalog by their public names. Only views that both layers store can be served.
pub(crate) fn from_catalog(catalog: &Catalog) -> BTreeMap<String, Arc<Job<Board>>> {
    let mut boards = BTreeMap::new();
    for job in catalog.boards() {
        if job.layers() == Layers::Both {
            boards
                .entry(job.board().to_owned())
                .or_insert_with(|| Arc::clone(job));
        }
    }
    boards
}
