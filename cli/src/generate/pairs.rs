//! Generates distinct pairs, for memberships and follows.
//!
//! Pairs are ordered by the id of their first member. Members with small ids are in many pairs.

use std::collections::HashSet;

use rand::rngs::StdRng;

use super::random_draws::{to_f64, to_i64};
use crate::failure::usage_error;

/// Maximum attempts to draw an unused second member; after these, the next unused one is chosen.
const SECOND_DRAWS_MAX: u32 = 8;

/// Numbers of pairs and members.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairCounts {
    /// Number of pairs.
    pub(super) pairs: u64,
    /// Number and name of first members.
    pub(super) firsts: (u64, &'static str),
    /// Number and name of second members.
    pub(super) seconds: (u64, &'static str),
    /// True if both members are of one kind: a member is never paired with itself.
    pub(super) are_same_kind: bool,
}

/// Generator of distinct pairs.
#[derive(Debug)]
pub(super) struct PairGenerator {
    counts: PairCounts,
    /// Maximum pairs of a first member.
    pairs_per_first_max: u64,
    first_id: u64,
    /// Remaining pairs of the first member.
    remaining: u64,
    emitted: u64,
    used_second_ids: HashSet<i64>,
}

impl PairGenerator {
    /// Creates the generator.
    ///
    /// # Errors
    /// More pairs than are possible.
    pub(super) fn new(counts: PairCounts) -> anyhow::Result<Self> {
        let pairs_per_first_max = counts.seconds.0.saturating_sub(counts.are_same_kind.into());
        let pairs_max = pairs_per_first_max.saturating_mul(counts.firsts.0);
        if counts.pairs > pairs_max {
            let (firsts, seconds) = (counts.firsts, counts.seconds);
            let members = if counts.are_same_kind {
                format!("{} {}", seconds.0, seconds.1)
            } else {
                format!("{} {} and {} {}", firsts.0, firsts.1, seconds.0, seconds.1)
            };
            return Err(usage_error(format!(
                "{members} give at most {pairs_max} distinct rows, not {}; use fewer --rows or more --{}",
                counts.pairs, seconds.1
            )));
        }
        Ok(Self {
            counts,
            pairs_per_first_max,
            first_id: 0,
            remaining: 0,
            emitted: 0,
            used_second_ids: HashSet::new(),
        })
    }

    /// Generates the next pair, up to the requested number. `draw` draws its second member, from 1
    /// on.
    pub(super) fn next_pair(
        &mut self,
        rng: &mut StdRng,
        draw: impl Fn(&mut StdRng) -> i64,
    ) -> (i64, i64) {
        debug_assert!(self.emitted < self.counts.pairs, "no pairs left");
        while self.remaining == 0 {
            self.first_id += 1;
            self.used_second_ids.clear();
            let first_id = self.first_id.cast_signed();
            if self.counts.are_same_kind {
                self.used_second_ids.insert(first_id);
            }
            let due = self.cumulative_pairs().saturating_sub(self.emitted);
            self.remaining = due.min(self.pairs_per_first_max);
        }
        let mut second_id = draw(rng);
        for _ in 0..SECOND_DRAWS_MAX {
            if !self.used_second_ids.contains(&second_id) {
                break;
            }
            second_id = draw(rng);
        }
        while !self.used_second_ids.insert(second_id) {
            second_id = second_id % self.counts.seconds.0.max(1).cast_signed() + 1;
        }
        self.remaining -= 1;
        self.emitted += 1;
        (self.first_id.cast_signed(), second_id)
    }

    /// Number of pairs up to this first member. It grows like a square root, so that the first
    /// members have many.
    fn cumulative_pairs(&self) -> u64 {
        let (firsts, _) = self.counts.firsts;
        if self.first_id >= firsts {
            return self.counts.pairs;
        }
        let fraction = (to_f64(self.first_id) / to_f64(firsts)).sqrt();
        to_i64(fraction * to_f64(self.counts.pairs)).unsigned_abs()
    }
}
