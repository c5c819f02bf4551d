//! Boards: what can be asked of them, a consistent read, and the shape of the answer.

pub(crate) mod answer;
pub(crate) mod cached;
pub(crate) mod earlier;
pub(crate) mod entries;
pub(crate) mod explained;
pub(crate) mod lookups;
pub(crate) mod question;
pub(crate) mod read;

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::{Board, Catalog, Job, Layers};

/// The boards of a catalog by the name under which they are served. Only views that both layers keep
/// can be answered from.
pub(crate) fn all(catalog: &Catalog) -> BTreeMap<String, Arc<Job<Board>>> {
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
