//! Whose rows differ between two sheets of a key.

use std::collections::BTreeMap;

use super::{ReadError, Sheet};
use crate::tree::{Nodes, Tree};

/// Members with the boards on which their rows differ, encoded.
pub type ChangedMembers = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

impl Sheet {
    /// The members whose rows differ from an older sheet, with the boards on which they do; all, where there is no older one.
    /// Nothing, if more than `nodes_max` nodes of a level would have to be read of one of them. Boards have scores of
    /// `score_bytes` bytes, members have `member_bytes`.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn changed_members<N: Nodes>(
        &self,
        old: Option<&Self>,
        nodes: &N,
        (score_bytes, member_bytes): (usize, usize),
        nodes_max: usize,
    ) -> Result<Option<ChangedMembers>, ReadError<N::Error>> {
        let old: Option<&Tree> = old.map(|old| &old.by_rank);
        let Some(changes) = self.by_rank.changes(old, nodes, nodes_max).await? else {
            return Ok(None);
        };
        let mut changed = ChangedMembers::new();
        for item in changes.iter().flat_map(|(old, new)| old.iter().chain(new)) {
            let cut = || ReadError::Damaged("a row of a board is cut off".to_owned());
            let key = item.key();
            let rest = key.len().checked_sub(member_bytes).ok_or_else(cut)?;
            let (rest, member) = key.split_at_checked(rest).ok_or_else(cut)?;
            let board = rest.len().checked_sub(score_bytes).ok_or_else(cut)?;
            let board = rest.get(..board).ok_or_else(cut)?;
            let boards = changed.entry(member.to_vec()).or_default();
            if !boards.iter().any(|known| known == board) {
                boards.push(board.to_vec());
            }
        }
        Ok(Some(changed))
    }
}
