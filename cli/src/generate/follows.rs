//! Generates follows. Athletes with small ids follow many and have many followers.

use std::ops::Not;

use rand::rngs::StdRng;
use serde::Serialize;

use super::entities::{EntityGenerator, RowPosition};
use super::fault::Fault;
use super::pairs::{PairCounts, PairGenerator};
use super::random_draws::{SkewedIds, draw_bool};
use super::request::GenerateRequest;

/// An athlete who follows another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Follow {
    follower_id: i64,
    followed_id: i64,
    #[serde(rename = "deleted", skip_serializing_if = "Not::not")]
    is_deleted: bool,
}

/// Generator of follows.
#[derive(Debug)]
pub(super) struct FollowGenerator {
    pairs: PairGenerator,
    followed: SkewedIds,
}

impl FollowGenerator {
    /// Creates the generator of a request.
    ///
    /// # Errors
    /// More follows than distinct pairs.
    pub(super) fn new(request: &GenerateRequest) -> anyhow::Result<Self> {
        let athletes = (request.athletes, "athletes");
        let counts = PairCounts {
            pairs: request.row_count,
            firsts: athletes,
            seconds: athletes,
            are_same_kind: true,
        };
        Ok(Self {
            pairs: PairGenerator::new(counts)?,
            followed: SkewedIds::new(request.athletes, 3),
        })
    }
}

impl EntityGenerator for FollowGenerator {
    type Row = Follow;

    const FAULTS: &'static [Fault] = &[
        Fault::Truncated,
        Fault::NotJson,
        Fault::quoted("follower_id"),
        Fault::fractional("followed_id"),
        Fault::Missing("follower_id"),
        Fault::Missing("followed_id"),
        Fault::huge("followed_id"),
    ];

    fn generate(&mut self, _position: RowPosition, rng: &mut StdRng) -> Follow {
        let followed = self.followed;
        let (follower_id, followed_id) = self.pairs.next_pair(rng, |rng| followed.draw(rng));
        Follow {
            follower_id,
            followed_id,
            is_deleted: draw_bool(rng, 0.01),
        }
    }

    fn edit(&self, follow: &mut Follow, _rng: &mut StdRng) {
        follow.is_deleted = !follow.is_deleted;
    }
}
