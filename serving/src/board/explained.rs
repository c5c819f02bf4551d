//! Why a board is what it is: what the batch layer's edition has, what live states take away of it and put there, and what
//! they say of one member.

use jobs::board::{Before, GroupState, OnBoard, Ranked, Standings};
use schemas::seam::{self, Epoch};
use stores::board_cache::BoardWant;
use stores::live::LiveStates;
use stores::views::Head as StoredHead;
use xxhash_rust::xxh3::xxh3_128;

use super::read::{BoardReading, Reader, StoredNodes, has_member, live_states};
use crate::read::ReadError;

/// What a board is made of.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardExplained {
    /// The newest run of the view.
    pub(crate) newest: Epoch,
    /// What the batch layer made of the key; nothing before a run has.
    pub(crate) edition: Option<Edition>,
    /// Rows of the edition's board within the filters that newer states took away.
    pub(crate) taken_away: u64,
    /// Rows within the filters that newer states put there.
    pub(crate) live: u64,
    /// What live states say of the member, in the order of epochs.
    pub(crate) states: Vec<MemberState>,
    /// How the member's place came about; of boards without filters only.
    pub(crate) before: Option<Before>,
}

/// An edition's part.
#[derive(Debug, Clone)]
pub(crate) struct Edition {
    /// The run that changed the key's boards last.
    pub(crate) epoch: Epoch,
    /// When it published them.
    pub(crate) at_us: Option<i64>,
    /// The run of the edition of an earlier day that is kept beside it.
    pub(crate) earlier: Option<Epoch>,
    /// What tells editions of a key apart: a hash of the root.
    pub(crate) name: String,
    /// Its rows on the board within the filters.
    pub(crate) total: u64,
    /// The member's place on it, from 0 on, and the row.
    pub(crate) found: Option<(u64, Ranked)>,
}

/// What a live state says of a member on the board.
#[derive(Debug, Clone)]
pub(crate) struct MemberState {
    pub(crate) partition: usize,
    pub(crate) epoch: Epoch,
    /// Whether it is newer than the edition and the newest run.
    pub(crate) is_newer: bool,
    /// Whether it is the one that counts.
    pub(crate) is_in_force: bool,
    /// The row; nothing where the member is not on the board by it.
    pub(crate) row: Option<Ranked>,
}

impl Reader<'_> {
    /// Explains a board of a key of which this was read.
    pub(super) async fn explained(
        &self,
        (standings, nodes): (&Standings, &StoredNodes<'_>),
        (newest, states, head): (Epoch, &LiveStates, Option<&StoredHead>),
    ) -> Result<BoardExplained, ReadError> {
        let section = self.section()?;
        let on_board = standings.board(nodes, &section.board).await?;
        let (taken_away, live) = self.overlay(&on_board).await?;
        let mut explained = BoardExplained {
            newest,
            taken_away,
            live,
            ..BoardExplained::default()
        };
        if let Some(head) = head {
            let edition = self.edition(head, nodes).await?;
            explained.edition = Some(edition);
        }
        let BoardWant::Around { member, .. } = &self.question.want else {
            return Ok(explained);
        };
        let base = seam::base(head.map_or(0, |head| head.epoch), newest);
        explained.states = states_of(states, member, &section.board, base)?;
        if self.question.members.is_none() && section.tests.is_empty() {
            explained.before = on_board.before(member).await?;
        }
        Ok(explained)
    }

    /// The edition alone, with the same board and filters.
    async fn edition(
        &self,
        head: &StoredHead,
        nodes: &StoredNodes<'_>,
    ) -> Result<Edition, ReadError> {
        let score_bytes = 8 * self.job.score().0.len();
        let alone = Standings::of_sheet(&head.root, score_bytes)
            .map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let BoardReading {
            sum, found, rows, ..
        } = self.board(&alone, nodes, &self.question.want).await?;
        Ok(Edition {
            epoch: head.epoch,
            at_us: head.stamp_us,
            earlier: head.earlier.as_ref().map(|earlier| earlier.epoch),
            name: format!("{:032x}", xxh3_128(&head.root)),
            total: sum.count,
            found: found.zip(rows.into_iter().next()),
        })
    }

    /// How many rows newer states take away and put there, of those that the filters let through.
    async fn overlay(
        &self,
        on_board: &OnBoard<'_, StoredNodes<'_>>,
    ) -> Result<(u64, u64), ReadError> {
        let section = self.section()?;
        if self.question.members.is_none() && section.tests.is_empty() {
            let (taken_away, live) = on_board.live();
            return Ok((taken_away.count, live.count));
        }
        let members = self.members()?;
        let is_asked = |member: &[u8]| has_member(members.as_deref(), member);
        let taken_away = on_board.taken_away(is_asked).await?;
        let live = on_board.added().iter();
        let live = live.filter(|row| is_asked(&row.member)).cloned().collect();
        let taken_away = self.passing(&section, taken_away)?.len() as u64;
        Ok((taken_away, self.passing(&section, live)?.len() as u64))
    }
}

/// What live states say of a member on a board, in the order of epochs; those up to `base` do not count.
fn states_of(
    states: &LiveStates,
    member: &[u8],
    board: &[u8],
    base: Epoch,
) -> Result<Vec<MemberState>, ReadError> {
    let mut found = Vec::new();
    for state in live_states(states).filter(|state| state.member == member) {
        let bytes = state.state.map(GroupState::decode).transpose();
        let decoded = bytes.map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let place = decoded.as_ref().and_then(|decoded| decoded.on(board));
        found.push(MemberState {
            partition: state.partition,
            epoch: state.epoch,
            is_newer: state.epoch > base,
            is_in_force: false,
            row: place.map(|place| Ranked {
                member: member.to_vec(),
                score: place.score.clone(),
                payload: place.payload.clone(),
                weight: place.weight,
            }),
        });
    }
    found.sort_by_key(|state| (state.epoch, state.partition));
    if let Some(last) = found.last_mut() {
        last.is_in_force = last.is_newer;
    }
    Ok(found)
}
