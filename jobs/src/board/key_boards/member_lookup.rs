//! Looks up the entries of single members.

use super::{KeyBoards, ReadError, TREES_DIFFER, after_prefix, rank_key};
use crate::board::member_entries::{BoardEntry, MemberEntries};
use crate::tree::{Item, NodeReader, Tree};

/// The boards of a member, with its score on each.
type BoardScores = Vec<(Vec<u8>, Vec<u8>)>;

impl KeyBoards {
    /// Finds the entries of members on all boards of the key, without ranks. All members share one
    /// descent of each tree. For boards without scores, only the boards listed with a member are
    /// searched.
    ///
    /// # Errors
    /// Those of the store, and corrupt data.
    pub async fn member_entries<N: NodeReader>(
        &self,
        nodes: &N,
        members: &[(Vec<u8>, Vec<Vec<u8>>)],
    ) -> Result<Vec<MemberEntries>, ReadError<N::Error>> {
        let live = members.iter().map(|(member, _)| self.live.get(member));
        let mut member_entries: Vec<Option<MemberEntries>> =
            live.map(Option::<&_>::cloned).collect();
        let missing = members.iter().zip(&member_entries);
        let missing = missing.filter(|(_, entries)| entries.is_none());
        let missing: Vec<_> = missing.map(|(member, _)| member).collect();
        let version_entries = self.find_members_in_version(nodes, &missing).await?;
        let unset = member_entries
            .iter_mut()
            .filter(|entries| entries.is_none());
        for (unset, entries) in unset.zip(version_entries) {
            *unset = Some(MemberEntries { entries });
        }
        Ok(member_entries
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect())
    }

    /// Looks up members in the version.
    async fn find_members_in_version<N: NodeReader>(
        &self,
        nodes: &N,
        members: &[&(Vec<u8>, Vec<Vec<u8>>)],
    ) -> Result<Vec<Vec<BoardEntry>>, ReadError<N::Error>> {
        let Some(version) = self.version.as_ref().filter(|_| !members.is_empty()) else {
            return Ok(Vec::new());
        };
        let board_scores: Vec<BoardScores> = match &version.by_member {
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
            .zip(&board_scores)
            .flat_map(|((member, _), scores)| {
                scores.iter().map(move |board_score| (member, board_score))
            })
            .map(|(member, (board, score))| rank_key(board, score, member))
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut items = version.by_rank.get(nodes, &keys).await?.into_iter();
        let mut all = Vec::with_capacity(members.len());
        for scores in board_scores {
            let mut entries = Vec::with_capacity(scores.len());
            for (board, score) in scores {
                match items.next().flatten() {
                    Some(item) => entries.push(BoardEntry {
                        board,
                        score,
                        payload: item.value().to_vec(),
                        weight: item.weight(),
                    }),
                    None if version.by_member.is_none() => {}
                    None => {
                        return Err(ReadError::Damaged(TREES_DIFFER.to_owned()));
                    }
                }
            }
            all.push(entries);
        }
        Ok(all)
    }

    /// Replaces the entries of a member with newer ones.
    pub fn set_live(&mut self, member: &[u8], entries: MemberEntries) {
        self.live.insert(member.to_vec(), entries);
    }
}

/// Looks up the boards and scores of members in the tree by member.
async fn find_by_member<N: NodeReader>(
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
        let board_score = |item: &Item| {
            let board = item.key().strip_prefix(member.as_slice())?;
            Some((board.to_vec(), item.value().to_vec()))
        };
        all.push(items.iter().filter_map(board_score).collect());
    }
    Ok(all)
}
