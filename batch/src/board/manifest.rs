//! Which rows a run computed for a view of boards.

use std::collections::BTreeSet;

use schemas::seam::{Cut, Epoch};
use serde::{Deserialize, Serialize};

use crate::results::Manifest;

/// A file of a result: rows of a stretch of keys, in the order of key, board, score and member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResultFile {
    pub(crate) path: String,
    pub(crate) row_groups: usize,
    pub(crate) rows: u64,
}

/// The result of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoardManifest {
    pub(crate) view: String,
    pub(crate) epoch: Epoch,
    /// The name of the result: its epoch and something that no other try has.
    pub(crate) result: String,
    pub(crate) cuts: Vec<Cut>,
    /// The keys that it is about; all if there is no list.
    pub(crate) keys: Option<BTreeSet<i64>>,
    /// For each file of the snapshot: the files of its rows. No two stretches share a key.
    pub(crate) stretches: Vec<Vec<ResultFile>>,
    /// Rows of all keys of the view once it is published.
    pub(crate) view_rows: Option<u64>,
}

impl BoardManifest {
    /// Rows of the keys that it is about.
    pub(crate) fn rows(&self) -> u64 {
        self.stretches.iter().flatten().map(|file| file.rows).sum()
    }
}

impl Manifest for BoardManifest {
    fn view(&self) -> &str {
        &self.view
    }

    fn result(&self) -> &str {
        &self.result
    }

    fn files(&self) -> BTreeSet<String> {
        let files = self.stretches.iter().flatten();
        files.map(|file| file.path.clone()).collect()
    }
}
