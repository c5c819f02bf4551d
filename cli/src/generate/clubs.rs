//! Generates memberships of clubs. Clubs with small ids have many members.

use std::ops::Not;

use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::draw::happens;
use super::entities::{RowGenerator, RowPosition};
use super::fault::Fault;
use super::pairs::{Extent, Pairs};
use super::request::Request;

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
pub(super) struct Clubs {
    pairs: Pairs,
    athletes: i64,
}

impl Clubs {
    /// # Errors
    /// More memberships than distinct pairs.
    pub(super) fn new(request: &Request) -> anyhow::Result<Self> {
        let extent = Extent {
            pairs: request.rows,
            firsts: (request.clubs, "clubs"),
            seconds: (request.athletes, "athletes"),
            of_one_kind: false,
        };
        Ok(Self {
            pairs: Pairs::new(extent)?,
            athletes: request.athletes.cast_signed(),
        })
    }
}

impl RowGenerator for Clubs {
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

    fn generate(&mut self, _place: RowPosition, rng: &mut StdRng) -> Membership {
        let athletes = self.athletes.max(1);
        let (club_id, athlete_id) = self.pairs.next(rng, |rng| rng.random_range(1..=athletes));
        Membership {
            club_id,
            athlete_id,
            is_deleted: happens(rng, 0.01),
        }
    }

    fn edit(&self, membership: &mut Membership, _rng: &mut StdRng) {
        membership.is_deleted = !membership.is_deleted;
    }
}
