//! Pairs that are all different: who is in which club, and who follows whom.
//!
//! They come by their first member, in the order of its ids: those with small ids are in many
//! pairs.

use std::collections::HashSet;

use rand::rngs::StdRng;

use super::draw::{as_f64, as_id};
use crate::failure::usage;

/// Tries to draw a second member that is not taken before the next free one is.
const TRIES: u32 = 8;

/// How many pairs, of how many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Pairs.
    pub(super) pairs: u64,
    /// First members, and what they are called.
    pub(super) firsts: (u64, &'static str),
    /// Second members, and what they are called.
    pub(super) seconds: (u64, &'static str),
    /// Whether the members are of one kind: then nobody is paired with itself.
    pub(super) of_one_kind: bool,
}

/// Different pairs.
#[derive(Debug)]
pub(super) struct Pairs {
    extent: Extent,
    /// Pairs that a first member can be in.
    most: u64,
    first: u64,
    /// Pairs that are still to come of the first member.
    left: u64,
    handed_out: u64,
    taken: HashSet<i64>,
}

impl Pairs {
    /// # Errors
    /// More pairs than there can be.
    pub(super) fn new(extent: Extent) -> anyhow::Result<Self> {
        let most = extent.seconds.0.saturating_sub(extent.of_one_kind.into());
        let possible = most.saturating_mul(extent.firsts.0);
        if extent.pairs > possible {
            let (firsts, seconds) = (extent.firsts, extent.seconds);
            let of = if extent.of_one_kind {
                format!("{} {}", seconds.0, seconds.1)
            } else {
                format!("{} {} and {} {}", firsts.0, firsts.1, seconds.0, seconds.1)
            };
            return Err(usage(format!(
                "{of} make {possible} different rows at most, not {}; give fewer --rows or more --{}",
                extent.pairs, seconds.1
            )));
        }
        Ok(Self {
            extent,
            most,
            first: 0,
            left: 0,
            handed_out: 0,
            taken: HashSet::new(),
        })
    }

    /// The next pair; no more than were asked for. Its second member is drawn by `draw`, from 1 on.
    pub(super) fn next(
        &mut self,
        rng: &mut StdRng,
        draw: impl Fn(&mut StdRng) -> i64,
    ) -> (i64, i64) {
        debug_assert!(self.handed_out < self.extent.pairs, "all pairs are out");
        while self.left == 0 {
            self.first += 1;
            self.taken.clear();
            let first = self.first.cast_signed();
            if self.extent.of_one_kind {
                self.taken.insert(first);
            }
            let due = self.due().saturating_sub(self.handed_out);
            self.left = due.min(self.most);
        }
        let mut second = draw(rng);
        for _ in 0..TRIES {
            if !self.taken.contains(&second) {
                break;
            }
            second = draw(rng);
        }
        while !self.taken.insert(second) {
            second = second % self.extent.seconds.0.max(1).cast_signed() + 1;
        }
        self.left -= 1;
        self.handed_out += 1;
        (self.first.cast_signed(), second)
    }

    /// How many pairs there are to be with this first member and those before it: as a square root
    /// grows, so that the first ones have many.
    fn due(&self) -> u64 {
        let (firsts, _) = self.extent.firsts;
        if self.first >= firsts {
            return self.extent.pairs;
        }
        let part = (as_f64(self.first) / as_f64(firsts)).sqrt();
        as_id(part * as_f64(self.extent.pairs)).unsigned_abs()
    }
}
