//! The manifest of a board result.

use std::collections::BTreeSet;

use schemas::seam::{Cut, Epoch};
use serde::{Deserialize, Serialize};

use crate::results::Manifest;

/// A file of a result: rows of a key range, ordered by key, board, score and member.
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
    /// The name of the result: its epoch and a unique id.
    pub(crate) result: String,
    pub(crate) cuts: Vec<Cut>,
    /// The computed keys; `None` if all.
    pub(crate) keys: Option<BTreeSet<i64>>,
    /// The result files for each file of the snapshot. Snapshot files share no keys.
    #[serde(rename = "stretches")]
    pub(crate) key_ranges: Vec<Vec<ResultFile>>,
    /// The rows of all keys of the view after publishing.
    pub(crate) view_rows: Option<u64>,
}

impl BoardManifest {
    /// Returns the rows of the computed keys.
    pub(crate) fn rows(&self) -> u64 {
        self.key_ranges.iter().flatten().map(|file| file.rows).sum()
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
        let files = self.key_ranges.iter().flatten();
        files.map(|file| file.path.clone()).collect()
    }
}
