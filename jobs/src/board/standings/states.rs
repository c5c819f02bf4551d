//! The states of single members: what was there before a change.

use super::{ReadError, Standings, after_prefix, rank_key};
use crate::board::state::{GroupState, Place};
use crate::tree::{Item, Nodes};

impl Standings {
    /// Everything that a member has on the boards of the key, without their order. Where boards have
    /// no scores, only `boards` are looked at.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn state<N: Nodes>(
        &self,
        nodes: &N,
        member: &[u8],
        boards: &[Vec<u8>],
    ) -> Result<GroupState, ReadError<N::Error>> {
        if let Some(state) = self.live.get(member) {
            return Ok(state.clone());
        }
        let Some(sheet) = &self.sheet else {
            return Ok(GroupState::default());
        };
        let found: Vec<(Vec<u8>, Vec<u8>)> = match &sheet.by_member {
            None => {
                let boards = boards.iter();
                boards.map(|board| (board.clone(), Vec::new())).collect()
            }
            Some(tree) => {
                let after = after_prefix(member);
                let keys = std::iter::once(member).chain(after.as_deref());
                let keys: Vec<&[u8]> = keys.collect();
                let mut ranks = tree.ranks(nodes, &keys).await?.into_iter();
                let from = ranks.next().map_or(0, |sum| sum.count);
                let to = ranks.next().unwrap_or_else(|| tree.sum()).count;
                let length = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
                let items = tree.slice(nodes, from, length).await?;
                let of_item = |item: &Item| {
                    let board = item.key().strip_prefix(member)?;
                    Some((board.to_vec(), item.value().to_vec()))
                };
                items.iter().filter_map(of_item).collect()
            }
        };
        let keys: Vec<Vec<u8>> = found
            .iter()
            .map(|(board, score)| rank_key(board, score, member))
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let items = sheet.by_rank.get(nodes, &keys).await?;
        let mut places = Vec::with_capacity(found.len());
        for ((board, score), item) in found.into_iter().zip(items) {
            match item {
                Some(item) => places.push(Place {
                    board,
                    score,
                    payload: item.value().to_vec(),
                    weight: item.weight(),
                }),
                None if sheet.by_member.is_none() => {}
                None => {
                    let what = "the two orders of a board do not hold the same rows";
                    return Err(ReadError::Damaged(what.to_owned()));
                }
            }
        }
        Ok(GroupState { places })
    }

    /// Puts a newer state of a member in the place of what it has.
    pub fn put(&mut self, member: &[u8], state: GroupState) {
        self.live.insert(member.to_vec(), state);
    }
}
