//! Results: the rows of every view as Parquet, in pieces of time, named by manifests.
//!
//! A piece holds one bucket of [`jobs::Job::time_partition`] (a day, a month, all time) wholly, its rows in
//! the order of their keys. A manifest names the place of every piece of a view, those that a run
//! left alone in the files of the runs before. Which result a table holds is recorded beside the
//! table; without that record a manifest says nothing.

mod diff;
mod manifest;
mod merge;
mod read;
mod sort;
mod write;

pub(crate) use diff::Diff;
pub(crate) use manifest::{Piece, Pieces, ViewManifest};
pub(crate) use merge::{merge, takes_room};
pub(crate) use read::RowStream;
pub(crate) use sort::Sorter;
pub(crate) use write::{PieceWriter, Written};
