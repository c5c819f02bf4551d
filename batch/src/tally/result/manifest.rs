//! Which rows a view has after a run.

use std::collections::{BTreeMap, BTreeSet};

use schemas::seam::{Cut, Epoch};
use schemas::time::UnixSeconds;
use serde::{Deserialize, Serialize};

use crate::results::Manifest;

/// Row groups of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) file: String,
    /// The first row group, and the one after the last.
    pub(crate) row_groups: (usize, usize),
}

/// Where the rows of one stretch of time are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) segments: Vec<Segment>,
    pub(crate) rows: u64,
    /// The sum of the counts.
    pub(crate) total: i128,
    /// Of each nullable dimension, how many rows have none.
    pub(crate) nulls: BTreeMap<String, u64>,
}

/// Pieces of a result with their starts, ascending.
pub(crate) type Pieces<'a> = Vec<(&'a UnixSeconds, &'a Piece)>;

/// The result of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewManifest {
    pub(crate) view: String,
    pub(crate) epoch: Epoch,
    /// The name of the result: its epoch and something that no other try has.
    pub(crate) result: String,
    pub(crate) cuts: Vec<Cut>,
    /// By start: every piece that has rows.
    pub(crate) pieces: BTreeMap<UnixSeconds, Piece>,
    /// The pieces that the run computed.
    pub(crate) touched: BTreeSet<UnixSeconds>,
}

impl ViewManifest {
    /// Its pieces among some.
    pub(crate) fn among(&self, starts: &BTreeSet<UnixSeconds>) -> Pieces<'_> {
        let pieces = self.pieces.iter();
        pieces.filter(|(start, _)| starts.contains(start)).collect()
    }
}

impl Manifest for ViewManifest {
    fn view(&self) -> &str {
        &self.view
    }

    fn result(&self) -> &str {
        &self.result
    }

    fn files(&self) -> BTreeSet<String> {
        let segments = self.pieces.values().flat_map(|piece| &piece.segments);
        segments.map(|segment| segment.file.clone()).collect()
    }
}
