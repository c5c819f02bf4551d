//! Finds the members whose entries differ between two versions of a key.

use std::collections::BTreeMap;

use super::{ReadError, VersionTrees};
use crate::tree::{NodeReader, Tree};

/// Encoded members, with the boards on which their entries differ.
pub type ChangedMembers = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

impl VersionTrees {
    /// Finds the members whose entries differ from an older version, with the boards on which they
    /// differ. Without an older version, all members differ. Returns `None` if more than
    /// `nodes_max` nodes of a level would have to be read.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn find_changed_members<N: NodeReader>(
        &self,
        old: Option<&Self>,
        nodes: &N,
        score_bytes: usize,
        member_bytes: usize,
        nodes_max: usize,
    ) -> Result<Option<ChangedMembers>, ReadError<N::Error>> {
        let old: Option<&Tree> = old.map(|old| &old.by_rank);
        let Some(changes) = self.by_rank.find_changes(old, nodes, nodes_max).await? else {
            return Ok(None);
        };
        let mut changed = ChangedMembers::new();
        for item in changes.iter().flat_map(|c| c.before.iter().chain(&c.after)) {
            let truncated =
                || ReadError::Damaged("the key of a board entry is truncated".to_owned());
            let key = item.key();
            let member_start = key.len().checked_sub(member_bytes).ok_or_else(truncated)?;
            let (board_and_score, member) =
                key.split_at_checked(member_start).ok_or_else(truncated)?;
            let board_bytes = board_and_score
                .len()
                .checked_sub(score_bytes)
                .ok_or_else(truncated)?;
            let board = board_and_score.get(..board_bytes).ok_or_else(truncated)?;
            let boards = changed.entry(member.to_vec()).or_default();
            if !boards.iter().any(|known| known == board) {
                boards.push(board.to_vec());
            }
        }
        Ok(Some(changed))
    }
}
