//! Clubs: which athlete is in which. Clubs with small numbers have many members.

use rand::Rng;
use rand::rngs::StdRng;

use super::draw::happens;
use super::entities::{Make, Place};
use super::fault::Fault;
use super::pairs::{Extent, Pairs};
use super::request::Request;
use super::rows::{Record, Sink};

/// That an athlete is in a club.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Membership {
    club_id: i64,
    athlete_id: i64,
    is_deleted: bool,
}

impl Record for Membership {
    fn put(&self, sink: &mut impl Sink) {
        sink.put("club_id", self.club_id.into());
        sink.put("athlete_id", self.athlete_id.into());
        sink.put("deleted", self.is_deleted.then_some(true).into());
    }
}

/// Makes memberships.
#[derive(Debug)]
pub(super) struct Clubs {
    pairs: Pairs,
    athletes: i64,
}

impl Clubs {
    /// # Errors
    /// More memberships than there can be.
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

impl Make for Clubs {
    type Row = Membership;

    const FAULTS: &'static [Fault] = &[
        Fault::CutOff,
        Fault::NoJson,
        Fault::quoted("club_id"),
        Fault::fractional("athlete_id"),
        Fault::missing("club_id"),
        Fault::missing("athlete_id"),
        Fault::huge("athlete_id"),
    ];

    fn make(&mut self, _place: Place, rng: &mut StdRng) -> Membership {
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
