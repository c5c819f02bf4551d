//! Scans all boards of a key, for comparisons.

use super::{KeyBoards, RankedEntry, ReadError, SCAN_ENTRIES, TREES_DIFFER};
use crate::tree::{NodeReader, Tree};

impl KeyBoards {
    /// Calls `visit` with every entry of every board, unsorted. `member_bytes` is the length of a
    /// member. Both trees are read completely, so that missing nodes are detected.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn for_each_entry<N: NodeReader>(
        &self,
        nodes: &N,
        member_bytes: usize,
        mut visit: impl FnMut(&[u8], RankedEntry) + Send,
    ) -> Result<(), ReadError<N::Error>> {
        for (member, live) in &self.live {
            for entry in &live.entries {
                visit(&entry.board, RankedEntry::new(member, entry));
            }
        }
        let Some(version) = &self.version else {
            return Ok(());
        };
        let bytes_after_board = self.score_bytes + member_bytes;
        for_each_item(&version.by_rank, nodes, |key, weight, payload| {
            let Some((board, rest)) =
                key.split_at_checked(key.len().saturating_sub(bytes_after_board))
            else {
                return;
            };
            let Some((score, member)) = rest.split_at_checked(self.score_bytes) else {
                return;
            };
            if !self.live.contains_key(member) {
                let row = RankedEntry {
                    member: member.to_vec(),
                    score: score.to_vec(),
                    payload: payload.to_vec(),
                    weight,
                };
                visit(board, row);
            }
        })
        .await?;
        if let Some(by_member) = &version.by_member {
            if by_member.sum().count != version.by_rank.sum().count {
                return Err(ReadError::Damaged(TREES_DIFFER.to_owned()));
            }
            for_each_item(by_member, nodes, |_, _, _| ()).await?;
        }
        Ok(())
    }

    /// Returns whether a member has a live entry.
    #[must_use]
    pub fn has_live_entry(&self, member: &[u8]) -> bool {
        self.live.contains_key(member)
    }

    /// Returns whether the key has a published version.
    #[must_use]
    pub const fn has_version(&self) -> bool {
        self.version.is_some()
    }
}

async fn for_each_item<N: NodeReader>(
    tree: &Tree,
    nodes: &N,
    mut visit: impl FnMut(&[u8], i64, &[u8]) + Send,
) -> Result<(), ReadError<N::Error>> {
    let (mut next, count) = (0, tree.sum().count);
    while next < count {
        let items = tree.slice(nodes, next, SCAN_ENTRIES).await?;
        if items.is_empty() {
            let reason = "a tree has fewer items than its root says";
            return Err(ReadError::Damaged(reason.to_owned()));
        }
        next += items.len() as u64;
        for item in items {
            visit(item.key(), item.weight(), item.value());
        }
    }
    Ok(())
}
