//! Distinct pairs, for memberships and follows.
//!
//! Pairs are ordered by the id of their first member. Members with small ids are in many pairs.

use std::collections::HashSet;

use rand::rngs::StdRng;

use super::draw::{as_f64, as_id};
use crate::failure::usage;

/// Attempts to draw an unused second member; after these, the next unused one is chosen.
const TRIES: u32 = 8;

/// Numbers of pairs and members.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Number of pairs.
    pub(super) pairs: u64,
    /// Number and name of first members.
    pub(super) firsts: (u64, &'static str),
    /// Number and name of second members.
    pub(super) seconds: (u64, &'static str),
    /// True if both members are of one kind: a member is never paired with itself.
    pub(super) of_one_kind: bool,
}

/// Generator of distinct pairs.
#[derive(Debug)]
pub(super) struct Pairs {
    extent: Extent,
    /// Maximum pairs of a first member.
    most: u64,
    first: u64,
    /// Remaining pairs of the first member.
    left: u64,
    handed_out: u64,
    taken: HashSet<i64>,
}

impl Pairs {
    /// # Errors
    /// More pairs than are possible.
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
                "{of} give at most {possible} distinct rows, not {}; use fewer --rows or more --{}",
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

    /// The next pair, up to the requested number. `draw` draws its second member, from 1 on.
    pub(super) fn next(
        &mut self,
        rng: &mut StdRng,
        draw: impl Fn(&mut StdRng) -> i64,
    ) -> (i64, i64) {
        debug_assert!(self.handed_out < self.extent.pairs, "no pairs left");
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

    /// Pairs of this first member and all before it. They grow like a square root, so that the first members have many.
    fn due(&self) -> u64 {
        let (firsts, _) = self.extent.firsts;
        if self.first >= firsts {
            return self.extent.pairs;
        }
        let part = (as_f64(self.first) / as_f64(firsts)).sqrt();
        as_id(part * as_f64(self.extent.pairs)).unsigned_abs()
    }
}
