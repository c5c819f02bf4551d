//! The states of single members: what was there before a change.

use super::{ReadError, Standings, after_prefix, rank_key};
use crate::board::state::{GroupState, Place};
use crate::tree::{Item, Nodes, Tree};

/// What a tree has of a member: boards with scores.
type Found = Vec<(Vec<u8>, Vec<u8>)>;

impl Standings {
    /// Everything that members have on the boards of the key, without their order: one way down each
    /// tree, however many they are. Where boards have no scores, only those are looked at that stand
    /// beside a member.
    ///
    /// # Errors
    /// Those of the store, and of what it holds.
    pub async fn states<N: Nodes>(
        &self,
        nodes: &N,
        members: &[(Vec<u8>, Vec<Vec<u8>>)],
    ) -> Result<Vec<GroupState>, ReadError<N::Error>> {
        let live = members.iter().map(|(member, _)| self.live.get(member));
        let mut states: Vec<Option<GroupState>> = live.map(Option::<&_>::cloned).collect();
        let asked = members.iter().zip(&states);
        let asked = asked.filter(|(_, state)| state.is_none());
        let asked: Vec<_> = asked.map(|(member, _)| member).collect();
        let stored = self.stored(nodes, &asked).await?;
        let missing = states.iter_mut().filter(|state| state.is_none());
        for (state, places) in missing.zip(stored) {
            *state = Some(GroupState { places });
        }
        Ok(states.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// What the sheet has of members.
    async fn stored<N: Nodes>(
        &self,
        nodes: &N,
        members: &[&(Vec<u8>, Vec<Vec<u8>>)],
    ) -> Result<Vec<Vec<Place>>, ReadError<N::Error>> {
        let Some(sheet) = self.sheet.as_ref().filter(|_| !members.is_empty()) else {
            return Ok(Vec::new());
        };
        let found: Vec<Found> = match &sheet.by_member {
            Some(tree) => by_member(tree, nodes, members).await?,
            None => {
                let without_score = |board: &Vec<u8>| (board.clone(), Vec::new());
                let boards = members.iter().map(|(_, boards)| boards.iter());
                boards.map(|of| of.map(without_score).collect()).collect()
            }
        };
        let keys: Vec<Vec<u8>> = members
            .iter()
            .zip(&found)
            .flat_map(|((member, _), found)| found.iter().map(move |of| (member, of)))
            .map(|(member, (board, score))| rank_key(board, score, member))
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut items = sheet.by_rank.get(nodes, &keys).await?.into_iter();
        let mut all = Vec::with_capacity(members.len());
        for found in found {
            let mut places = Vec::with_capacity(found.len());
            for (board, score) in found {
                match items.next().flatten() {
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
            all.push(places);
        }
        Ok(all)
    }

    /// Puts a newer state of a member in the place of what it has.
    pub fn put(&mut self, member: &[u8], state: GroupState) {
        self.live.insert(member.to_vec(), state);
    }
}

/// Boards and scores of members, from the tree in their order.
async fn by_member<N: Nodes>(
    tree: &Tree,
    nodes: &N,
    members: &[&(Vec<u8>, Vec<Vec<u8>>)],
) -> Result<Vec<Found>, ReadError<N::Error>> {
    let ends: Vec<Option<Vec<u8>>> = members.iter().map(|(m, _)| after_prefix(m)).collect();
    let keys = members.iter().zip(&ends);
    let keys: Vec<&[u8]> = keys
        .flat_map(|((member, _), end)| std::iter::once(member.as_slice()).chain(end.as_deref()))
        .collect();
    let mut ranks = tree.ranks(nodes, &keys).await?.into_iter();
    let mut all = Vec::with_capacity(members.len());
    for ((member, _), end) in members.iter().zip(&ends) {
        let from = ranks.next().map_or(0, |sum| sum.count);
        let to = match end {
            Some(_) => ranks.next().unwrap_or_default().count,
            None => tree.sum().count,
        };
        let length = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
        // Its leaves were read just now.
        let items = tree.slice(nodes, from, length).await?;
        let of_item = |item: &Item| {
            let board = item.key().strip_prefix(member.as_slice())?;
            Some((board.to_vec(), item.value().to_vec()))
        };
        all.push(items.iter().filter_map(of_item).collect());
    }
    Ok(all)
}
