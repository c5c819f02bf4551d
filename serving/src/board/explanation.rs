//! Explanation of a board: the published version, the changes by live states, and the live states
//! of one member.

use jobs::board::{BoardSnapshot, KeyBoards, MemberEntries, RankBreakdown, RankedEntry};
use schemas::seam::{self, Epoch};
use stores::board_cache::BoardSelection;
use stores::live::LiveStates;
use stores::views::Head as StoredHead;
use xxhash_rust::xxh3::xxh3_128;

use super::read::{BoardReader, BoardReading, StoredNodes, covers_member, live_states};
use crate::read::ReadError;

/// The parts of a board.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardExplanation {
    /// Newest run of the view.
    pub(crate) newest: Epoch,
    /// The published version of the key's boards; `None` before the first run.
    pub(crate) version: Option<ExplainedVersion>,
    /// Number of rows of the version, within the filters, that newer states removed.
    pub(crate) removed: u64,
    /// Number of rows, within the filters, that newer states added.
    pub(crate) added: u64,
    /// The live states of the member, in the order of epochs.
    pub(crate) states: Vec<MemberState>,
    /// Derivation of the member's rank; only for boards without filters.
    pub(crate) before: Option<RankBreakdown>,
}

/// The published version in an explanation.
#[derive(Debug, Clone)]
pub(crate) struct ExplainedVersion {
    /// The run that last changed the key's boards.
    pub(crate) epoch: Epoch,
    /// When the run published the version.
    pub(crate) published_at_us: Option<i64>,
    /// The run of the stored version of an earlier day.
    pub(crate) earlier: Option<Epoch>,
    /// Identifies the version: a hash of the root.
    pub(crate) name: String,
    /// Number of rows on the version's board within the filters.
    pub(crate) total: u64,
    /// The member's index from 0 and its row.
    pub(crate) member: Option<(u64, RankedEntry)>,
}

/// A live state of a member.
#[derive(Debug, Clone)]
pub(crate) struct MemberState {
    pub(crate) partition: usize,
    pub(crate) epoch: Epoch,
    /// True if the state is newer than the version and the newest run.
    pub(crate) is_newer: bool,
    /// True if the state is the effective one.
    pub(crate) is_effective: bool,
    /// The row; `None` if the state removes the member from the board.
    pub(crate) row: Option<RankedEntry>,
}

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
