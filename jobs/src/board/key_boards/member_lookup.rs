//! Looks up the entries of single members.

use super::{KeyBoards, ReadError, after_prefix, rank_key};
use crate::board::member_entries::{BoardEntry, MemberEntries};
use crate::tree::{Item, Nodes, Tree};

/// The boards of a member, with its score on each.
type BoardScores = Vec<(Vec<u8>, Vec<u8>)>;

impl KeyBoards {
    /// The entries of members on all boards of the key, without ranks. All members share one
    /// descent of each tree. For boards without scores, only the boards listed with a member are
    /// searched.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn member_entries<N: Nodes>(
        &self,
        nodes: &N,
        members: &[(Vec<u8>, Vec<Vec<u8>>)],
    ) -> Result<Vec<MemberEntries>, ReadError<N::Error>> {
        let live = members.iter().map(|(member, _)| self.live.get(member));
        let mut states: Vec<Option<MemberEntries>> = live.map(Option::<&_>::cloned).collect();
        let missing = members.iter().zip(&states);
        let missing = missing.filter(|(_, state)| state.is_none());
        let missing: Vec<_> = missing.map(|(member, _)| member).collect();
        let found = self.find_members_in_version(nodes, &missing).await?;
        let unset = states.iter_mut().filter(|state| state.is_none());
        for (state, entries) in unset.zip(found) {
            *state = Some(MemberEntries { entries });
        }
        Ok(states.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Looks up members in the version.
    async fn find_members_in_version<N: Nodes>(
        &self,
        nodes: &N,
        members: &[&(Vec<u8>, Vec<Vec<u8>>)],
    ) -> Result<Vec<Vec<BoardEntry>>, ReadError<N::Error>> {
        let Some(version) = self.version.as_ref().filter(|_| !members.is_empty()) else {
            return Ok(Vec::new());
        };
        let found: Vec<BoardScores> = match &version.by_member {
            Some(tree) => find_by_member(tree, nodes, members).await?,
            None => {
                let without_score = |board: &Vec<u8>| (board.clone(), Vec::new());
                let boards = members.iter().map(|(_, boards)| boards.iter());
                boards
                    .map(|listed| listed.map(without_score).collect())
                    .collect()
            }
        };
        let keys: Vec<Vec<u8>> = members
            .iter()
            .zip(&found)
            .flat_map(|((member, _), found)| {
                found.iter().map(move |board_score| (member, board_score))
            })
            .map(|(member, (board, score))| rank_key(board, score, member))
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut items = version.by_rank.get(nodes, &keys).await?.into_iter();
        let mut all = Vec::with_capacity(members.len());
        for found in found {
            let mut entries = Vec::with_capacity(found.len());
            for (board, score) in found {
                match items.next().flatten() {
                    Some(item) => entries.push(BoardEntry {
                        board,
                        score,
                        payload: item.value().to_vec(),
                        weight: item.weight(),
                    }),
                    None if version.by_member.is_none() => {}
                    None => {
                        let what = "the trees by rank and by member have different entries";
                        return Err(ReadError::Damaged(what.to_owned()));
                    }
                }
            }
            all.push(entries);
        }
        Ok(all)
    }

    /// Replaces the entries of a member with newer ones.
    pub fn set_live(&mut self, member: &[u8], state: MemberEntries) {
        self.live.insert(member.to_vec(), state);
    }
}

/// Looks up the boards and scores of members in the tree by member.
async fn find_by_member<N: Nodes>(
    tree: &Tree,
    nodes: &N,
    members: &[&(Vec<u8>, Vec<Vec<u8>>)],
) -> Result<Vec<BoardScores>, ReadError<N::Error>> {
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
        // `ranks` has just read the same leaves.
        let items = tree.slice(nodes, from, length).await?;
        let of_item = |item: &Item| {
            let board = item.key().strip_prefix(member.as_slice())?;
            Some((board.to_vec(), item.value().to_vec()))
        };
        all.push(items.iter().filter_map(of_item).collect());
    }
    Ok(all)
}
