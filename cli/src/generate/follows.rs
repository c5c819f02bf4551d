//! Generates follows. Athletes with small ids follow many and have many followers.

use std::ops::Not;

use rand::rngs::StdRng;
use serde::Serialize;

use super::draw::{Skewed, happens};
use super::entities::{RowGenerator, RowPosition};
use super::fault::Fault;
use super::pairs::{Extent, Pairs};
use super::request::Request;

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
pub(super) struct Follows {
    pairs: Pairs,
    followed: Skewed,
}

impl Follows {
    /// # Errors
    /// More follows than distinct pairs.
    pub(super) fn new(request: &Request) -> anyhow::Result<Self> {
        let athletes = (request.athletes, "athletes");
        let extent = Extent {
            pairs: request.rows,
            firsts: athletes,
            seconds: athletes,
            of_one_kind: true,
        };
        Ok(Self {
            pairs: Pairs::new(extent)?,
            followed: Skewed::new(request.athletes, 3),
        })
    }
}

impl RowGenerator for Follows {
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

    fn generate(&mut self, _place: RowPosition, rng: &mut StdRng) -> Follow {
        let followed = self.followed;
        let (follower_id, followed_id) = self.pairs.next(rng, |rng| followed.draw(rng));
        Follow {
            follower_id,
            followed_id,
            is_deleted: happens(rng, 0.01),
        }
    }

    fn edit(&self, follow: &mut Follow, _rng: &mut StdRng) {
        follow.is_deleted = !follow.is_deleted;
    }
}
