//! Explains a board: reads its published version alone, and counts the changes by live entries.

use jobs::board::{BoardSnapshot, KeyBoards, MemberEntries, RankedEntry};
use schemas::seam::{self, Epoch};
use stores::board_cache::BoardSelection;
use stores::boards::{StoredNodes, iter_live_entries};
use stores::live::LiveEntries;
use stores::views::Head as StoredHead;
use xxhash_rust::xxh3::xxh3_128;

use super::explanation::{BoardExplanation, ExplainedLiveEntry, ExplainedVersion};
use super::reader::BoardReader;
use super::reading::{BoardReading, covers_member};
use crate::read_error::ReadError;

impl BoardReader<'_> {
    /// Explains the board of a key.
    pub(super) async fn explain(
        &self,
        boards: &KeyBoards,
        nodes: &StoredNodes<'_>,
        newest: Epoch,
        live_entries: &LiveEntries,
        head: Option<&StoredHead>,
    ) -> Result<BoardExplanation, ReadError> {
        let filtered_board = self.encode_board()?;
        let board = boards.open_board(nodes, &filtered_board.board).await?;
        let (removed, added) = self.count_overlay(&board).await?;
        let mut explanation = BoardExplanation {
            newest,
            removed,
            added,
            ..BoardExplanation::default()
        };
        if let Some(head) = head {
            let version = self.explain_version(head, nodes).await?;
            explanation.version = Some(version);
        }
        let BoardSelection::Around { member, .. } = &self.request.selection else {
            return Ok(explanation);
        };
        let base_epoch = seam::base_epoch(head.map_or(0, |head| head.epoch), newest);
        explanation.live_entries =
            collect_live_entries(live_entries, member, &filtered_board.board, base_epoch)?;
        if self.request.members.is_none() && filtered_board.filters.is_empty() {
            explanation.rank_breakdown = board.explain_rank(member).await?;
        }
        Ok(explanation)
    }

    /// Reads the published version alone, with the same board and filters.
    async fn explain_version(
        &self,
        head: &StoredHead,
        nodes: &StoredNodes<'_>,
    ) -> Result<ExplainedVersion, ReadError> {
        let score_bytes = 8 * self.job.score().0.len();
        let version_boards = KeyBoards::from_version(&head.root, score_bytes)
            .map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let BoardReading {
            sum,
            member_index,
            rows,
            ..
        } = self
            .read_board(&version_boards, nodes, &self.request.selection)
            .await?;
        Ok(ExplainedVersion {
            epoch: head.epoch,
            published_at_us: head.stamp_us,
            earlier: head.earlier.as_ref().map(|earlier| earlier.epoch),
            name: format!("{:032x}", xxh3_128(&head.root)),
            total: sum.count,
            member: member_index.zip(rows.into_iter().next()),
        })
    }

    /// Counts the rows within the filters that newer live entries removed and added.
    async fn count_overlay(
        &self,
        board: &BoardSnapshot<'_, StoredNodes<'_>>,
    ) -> Result<(u64, u64), ReadError> {
        let filtered_board = self.encode_board()?;
        if self.request.members.is_none() && filtered_board.filters.is_empty() {
            let (removed, added) = board.live_sums();
            return Ok((removed.count, added.count));
        }
        let members = self.encode_requested_members()?;
        let is_covered = |member: &[u8]| covers_member(members.as_deref(), member);
        let removed = board.removed_entries(is_covered).await?;
        let added = board.added().iter();
        let added = added
            .filter(|row| is_covered(&row.member))
            .cloned()
            .collect();
        let removed = self.filter_rows(&filtered_board, removed)?.len() as u64;
        Ok((
            removed,
            self.filter_rows(&filtered_board, added)?.len() as u64,
        ))
    }
}

/// Collects the live entries of a member on a board, in the order of epochs; those up to
/// `base_epoch` are not effective.
fn collect_live_entries(
    live_entries: &LiveEntries,
    member: &[u8],
    board: &[u8],
    base_epoch: Epoch,
) -> Result<Vec<ExplainedLiveEntry>, ReadError> {
    let mut explained = Vec::new();
    for live in iter_live_entries(live_entries).filter(|live| live.member == member) {
        let entries = live.entries.map(MemberEntries::decode).transpose();
        let entries = entries.map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let entry = entries.as_ref().and_then(|entries| entries.entry(board));
        explained.push(ExplainedLiveEntry {
            partition: live.partition,
            epoch: live.epoch,
            is_newer: live.epoch > base_epoch,
            is_effective: false,
            row: entry.map(|entry| RankedEntry {
                member: member.to_vec(),
                score: entry.score.clone(),
                payload: entry.payload.clone(),
                weight: entry.weight,
            }),
        });
    }
    explained.sort_by_key(|live| (live.epoch, live.partition));
    if let Some(last) = explained.last_mut() {
        last.is_effective = last.is_newer;
    }
    Ok(explained)
}
