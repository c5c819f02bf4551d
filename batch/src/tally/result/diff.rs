//! What differs between a new piece, the published one, and those that may have been published in
//! part.

use std::cmp::Ordering;

use stores::archive::Archive;

use super::manifest::Piece;
use super::read::Cursor;
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

/// Walks the rows that may have to be written, in the order of their keys.
pub(crate) struct Diff {
    now: Cursor,
    before: Cursor,
    dirty: Vec<Cursor>,
    group: Vec<u8>,
    row: Vec<u8>,
    /// Rows that were the same everywhere.
    pub(crate) same: u64,
}

impl Diff {
    pub(crate) async fn open(
        archive: &Archive,
        now: Option<&Piece>,
        before: Option<&Piece>,
        dirty: impl Iterator<Item = Option<&Piece>>,
    ) -> Result<Self> {
        let mut cursors = Vec::new();
        for piece in dirty {
            cursors.push(Cursor::open(archive, piece).await?);
        }
        Ok(Self {
            now: Cursor::open(archive, now).await?,
            before: Cursor::open(archive, before).await?,
            dirty: cursors,
            group: Vec::new(),
            row: Vec::new(),
            same: 0,
        })
    }

    /// Goes to the next row that differs; its keys are then [`Diff::key`].
    pub(crate) async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if !self.find_least() {
                return Ok(None);
            }
            let key = (self.group.as_slice(), self.row.as_slice());
            let now = take(&mut self.now, key).await?;
            let before = take(&mut self.before, key).await?;
            let mut clean = true;
            for cursor in &mut self.dirty {
                let other = take(cursor, key).await?;
                clean &= other == before;
            }
            if now == before && clean {
                self.same += 1;
                continue;
            }
            return Ok(Some(Change { now, before }));
        }
    }

    /// The group key and the row key of the last change.
    pub(crate) fn key(&self) -> (&[u8], &[u8]) {
        (&self.group, &self.row)
    }

    /// Finds the least key at which any cursor stands.
    fn find_least(&mut self) -> bool {
        let cursors = [&self.now, &self.before].into_iter().chain(&self.dirty);
        let least = cursors
            .filter_map(Cursor::at)
            .map(|(group, row, _)| (group, row))
            .min();
        let Some((group, row)) = least else {
            return false;
        };
        self.group.clear();
        self.group.extend_from_slice(group);
        self.row.clear();
        self.row.extend_from_slice(row);
        true
    }
}

/// The count at the key if the cursor stands there; it then goes on.
async fn take(cursor: &mut Cursor, key: (&[u8], &[u8])) -> Result<Option<i64>> {
    let found = match cursor.at() {
        Some((group, row, count)) if (group, row).cmp(&key) == Ordering::Equal => count,
        _ => return Ok(None),
    };
    cursor.advance().await?;
    Ok(Some(found))
}
