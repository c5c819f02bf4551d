//! Explains a board: reads its published version alone, and counts the changes by live states.

use jobs::board::{BoardSnapshot, KeyBoards, MemberEntries, RankedEntry};
use schemas::seam::{self, Epoch};
use stores::board_cache::BoardSelection;
use stores::live::LiveStates;
use stores::views::Head as StoredHead;
use xxhash_rust::xxh3::xxh3_128;

use super::explanation::{BoardExplanation, ExplainedVersion, MemberState};
use super::reader::{BoardReader, StoredNodes, live_states};
use super::reading::{BoardReading, covers_member};
use crate::read_error::ReadError;

impl BoardReader<'_> {
    /// Explains the board of a key.
    pub(super) async fn explain(
        &self,
        boards: &KeyBoards,
        nodes: &StoredNodes<'_>,
        newest: Epoch,
        states: &LiveStates,
        head: Option<&StoredHead>,
    ) -> Result<BoardExplanation, ReadError> {
        let section = self.section()?;
        let board = boards.board(nodes, &section.board).await?;
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
        let BoardSelection::Around { member, .. } = &self.question.want else {
            return Ok(explanation);
        };
        let base = seam::base(head.map_or(0, |head| head.epoch), newest);
        explanation.states = member_states(states, member, &section.board, base)?;
        if self.question.members.is_none() && section.filters.is_empty() {
            explanation.before = board.rank_breakdown(member).await?;
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
        let alone = KeyBoards::from_version(&head.root, score_bytes)
            .map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let BoardReading {
            sum,
            member_index,
            rows,
            ..
        } = self.read_board(&alone, nodes, &self.question.want).await?;
        Ok(ExplainedVersion {
            epoch: head.epoch,
            published_at_us: head.stamp_us,
            earlier: head.earlier.as_ref().map(|earlier| earlier.epoch),
            name: format!("{:032x}", xxh3_128(&head.root)),
            total: sum.count,
            member: member_index.zip(rows.into_iter().next()),
        })
    }

    /// Number of rows within the filters that newer states removed and added.
    async fn count_overlay(
        &self,
        board: &BoardSnapshot<'_, StoredNodes<'_>>,
    ) -> Result<(u64, u64), ReadError> {
        let section = self.section()?;
        if self.question.members.is_none() && section.filters.is_empty() {
            let (removed, added) = board.live_sums();
            return Ok((removed.count, added.count));
        }
        let members = self.encoded_members()?;
        let is_covered = |member: &[u8]| covers_member(members.as_deref(), member);
        let removed = board.removed_entries(is_covered).await?;
        let added = board.added().iter();
        let added = added
            .filter(|row| is_covered(&row.member))
            .cloned()
            .collect();
        let removed = self.filter_rows(&section, removed)?.len() as u64;
        Ok((removed, self.filter_rows(&section, added)?.len() as u64))
    }
}

/// The live states of a member on a board, in the order of epochs; those up to `base` are not
/// effective.
fn member_states(
    states: &LiveStates,
    member: &[u8],
    board: &[u8],
    base: Epoch,
) -> Result<Vec<MemberState>, ReadError> {
    let mut found = Vec::new();
    for state in live_states(states).filter(|state| state.member == member) {
        let bytes = state.state.map(MemberEntries::decode).transpose();
        let decoded = bytes.map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let entry = decoded.as_ref().and_then(|decoded| decoded.entry(board));
        found.push(MemberState {
            partition: state.partition,
            epoch: state.epoch,
            is_newer: state.epoch > base,
            is_effective: false,
            row: entry.map(|entry| RankedEntry {
                member: member.to_vec(),
                score: entry.score.clone(),
                payload: entry.payload.clone(),
                weight: entry.weight,
            }),
        });
    }
    found.sort_by_key(|state| (state.epoch, state.partition));
    if let Some(last) = found.last_mut() {
        last.is_effective = last.is_newer;
    }
    Ok(found)
}
