//! Generates memberships of clubs. Clubs with small ids have many members.

use std::ops::Not;

use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::entities::{EntityGenerator, RowPosition};
use super::fault::Fault;
use super::pairs::{PairCounts, PairGenerator};
use super::random_draws::draw_bool;
use super::request::GenerateRequest;

/// Membership of an athlete in a club.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Membership {
    club_id: i64,
    athlete_id: i64,
    #[serde(rename = "deleted", skip_serializing_if = "Not::not")]
    is_deleted: bool,
}

/// Generator of memberships.
#[derive(Debug)]
pub(super) struct MembershipGenerator {
    pairs: PairGenerator,
    athlete_count: i64,
}

impl MembershipGenerator {
    /// Creates the generator of a request.
    ///
    /// # Errors
    /// More memberships than distinct pairs.
    pub(super) fn new(request: &GenerateRequest) -> anyhow::Result<Self> {
        let counts = PairCounts {
            pairs: request.row_count,
            firsts: (request.clubs, "clubs"),
            seconds: (request.athletes, "athletes"),
            are_same_kind: false,
        };
        Ok(Self {
            pairs: PairGenerator::new(counts)?,
            athlete_count: request.athletes.cast_signed(),
        })
    }
}

impl EntityGenerator for MembershipGenerator {
    type Row = Membership;

    const FAULTS: &'static [Fault] = &[
        Fault::Truncated,
        Fault::NotJson,
        Fault::quoted("club_id"),
        Fault::fractional("athlete_id"),
        Fault::Missing("club_id"),
        Fault::Missing("athlete_id"),
        Fault::huge("athlete_id"),
    ];

    fn generate(&mut self, _position: RowPosition, rng: &mut StdRng) -> Membership {
        let id_max = self.athlete_count.max(1);
        let (club_id, athlete_id) = self
            .pairs
            .next_pair(rng, |rng| rng.random_range(1..=id_max));
        Membership {
            club_id,
            athlete_id,
            is_deleted: draw_bool(rng, 0.01),
        }
    }

    fn edit(&self, membership: &mut Membership, _rng: &mut StdRng) {
        membership.is_deleted = !membership.is_deleted;
    }
}
