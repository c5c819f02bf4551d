//! What differs between new pieces, the published ones, and those that may have been published in
//! part.

use std::collections::BTreeSet;

use schemas::time::UnixSeconds;
use stores::archive::Archive;

use super::manifest::Pieces;
use super::read::{Cursor, RowAt};
use crate::Result;

/// A row that differs. The keys are those of the diff it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// What it is now; nothing if there is no such row any more.
    pub(crate) now: Option<i64>,
    /// What was published; nothing if there was no such row.
    pub(crate) before: Option<i64>,
}

impl Change {
    /// How much the count changed.
    pub(crate) fn delta(self) -> i64 {
        self.now.unwrap_or(0).wrapping_sub(self.before.unwrap_or(0))
    }
}

/// A result that may have been published in part: which pieces it made, and its rows.
struct Dirty {
    touched: BTreeSet<UnixSeconds>,
    rows: Cursor,
}

/// Walks the rows that may have to be written, in the order of time and of their keys.
pub(crate) struct Diff {
    now: Cursor,
    before: Cursor,
    dirty: Vec<Dirty>,
    start: UnixSeconds,
    group: Vec<u8>,
    row: Vec<u8>,
    /// Rows that were the same everywhere.
    pub(crate) same: u64,
}

impl Diff {
    /// Between what the pieces are now and what was published of them. `dirty` are those that may have been
    /// published in part since: which pieces each of them made, and those of them that have rows.
    pub(crate) async fn open(
        archive: &Archive,
        now: Pieces<'_>,
        before: Pieces<'_>,
        dirty: Vec<(BTreeSet<UnixSeconds>, Pieces<'_>)>,
    ) -> Result<Self> {
        let mut others = Vec::new();
        for (touched, pieces) in dirty {
            let rows = Cursor::open(archive, pieces).await?;
            others.push(Dirty { touched, rows });
        }
        Ok(Self {
            now: Cursor::open(archive, now).await?,
            before: Cursor::open(archive, before).await?,
            dirty: others,
            start: 0,
            group: Vec::new(),
            row: Vec::new(),
            same: 0,
        })
    }

    /// Goes to the next row that differs; where it is is then [`Diff::key`].
    pub(crate) async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if !self.find_least() {
                return Ok(None);
            }
            let key = (self.start, self.group.as_slice(), self.row.as_slice());
            let now = take(&mut self.now, key).await?;
            let before = take(&mut self.before, key).await?;
            let mut clean = true;
            for dirty in &mut self.dirty {
                let other = take(&mut dirty.rows, key).await?;
                clean &= other == before || !dirty.touched.contains(&self.start);
            }
            if now == before && clean {
                self.same += 1;
                continue;
            }
            return Ok(Some(Change { now, before }));
        }
    }

    /// The start of the piece, the group key and the row key of the last change.
    pub(crate) fn key(&self) -> RowAt<'_> {
        (self.start, &self.group, &self.row)
    }

    /// Finds the least key at which any cursor stands.
    fn find_least(&mut self) -> bool {
        let dirty = self.dirty.iter().map(|dirty| &dirty.rows);
        let cursors = [&self.now, &self.before].into_iter().chain(dirty);
        let least = cursors.filter_map(Cursor::at).map(|(key, _)| key).min();
        let Some((start, group, row)) = least else {
            return false;
        };
        self.start = start;
        self.group.clear();
        self.group.extend_from_slice(group);
        self.row.clear();
        self.row.extend_from_slice(row);
        true
    }
}

/// The count at the key if the cursor stands there; it then goes on.
async fn take(cursor: &mut Cursor, key: RowAt<'_>) -> Result<Option<i64>> {
    let found = match cursor.at() {
        Some((at, count)) if at == key => count,
        _ => return Ok(None),
    };
    cursor.advance().await?;
    Ok(Some(found))
}
