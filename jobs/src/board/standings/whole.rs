//! All boards of a key, read whole: to compare them with what they should be.

use super::{Ranked, ReadError, SCAN_ROWS, Standings};
use crate::tree::{Nodes, Tree};

impl Standings {
    /// Hands all rows of all boards to `take`, each with its board, in no order. Members have `member_bytes` bytes.
    /// Both orders of the boards are read to their ends, so whatever is missing of them is found.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn each_row<N: Nodes>(
        &self,
        nodes: &N,
        member_bytes: usize,
        mut take: impl FnMut(&[u8], Ranked) + Send,
    ) -> Result<(), ReadError<N::Error>> {
        for (member, state) in &self.live {
            for place in &state.places {
                take(&place.board, Ranked::of(member, place));
            }
        }
        let Some(sheet) = &self.sheet else {
            return Ok(());
        };
        let after_board = self.score_bytes + member_bytes;
        each_item(&sheet.by_rank, nodes, |key, weight, payload| {
            let Some((board, rest)) = key.split_at_checked(key.len().saturating_sub(after_board))
            else {
                return;
            };
            let Some((score, member)) = rest.split_at_checked(self.score_bytes) else {
                return;
            };
            if !self.live.contains_key(member) {
                let row = Ranked {
                    member: member.to_vec(),
                    score: score.to_vec(),
                    payload: payload.to_vec(),
                    weight,
                };
                take(board, row);
            }
        })
        .await?;
        if let Some(by_member) = &sheet.by_member {
            if by_member.sum().count != sheet.by_rank.sum().count {
                let what = "the two orders of a board do not hold the same rows";
                return Err(ReadError::Damaged(what.to_owned()));
            }
            each_item(by_member, nodes, |_, _, _| ()).await?;
        }
        Ok(())
    }

    /// Whether what a member has is of a newer state.
    #[must_use]
    pub fn is_live(&self, member: &[u8]) -> bool {
        self.live.contains_key(member)
    }

    /// Whether the batch layer has made anything of the key.
    #[must_use]
    pub const fn has_edition(&self) -> bool {
        self.sheet.is_some()
    }
}

async fn each_item<N: Nodes>(
    tree: &Tree,
    nodes: &N,
    mut take: impl FnMut(&[u8], i64, &[u8]) + Send,
) -> Result<(), ReadError<N::Error>> {
    let (mut next, count) = (0, tree.sum().count);
    while next < count {
        let items = tree.slice(nodes, next, SCAN_ROWS).await?;
        if items.is_empty() {
            let what = "a tree holds fewer items than it says";
            return Err(ReadError::Damaged(what.to_owned()));
        }
        next += items.len() as u64;
        for item in items {
            take(item.key(), item.weight(), item.value());
        }
    }
    Ok(())
}
