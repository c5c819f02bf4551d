//! Authorizations as the article on connected athletes tells of them: a few applications have very many,
//! and most have hardly any.
//!
//! Each application has its exact share, whatever the seed, and its authorizations are spread evenly over
//! all: which one stands where is computed, so nothing is kept for it.

use super::draw::{as_f64, as_id};
use super::request::Request;

/// What part of all the largest applications have: one divided by these.
const LARGEST: [u64; 5] = [5, 20, 20, 20, 20];
/// What numbers are mixed by.
const ODD: [u64; 3] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
];

/// Which application and which athlete each authorization is of.
#[derive(Debug)]
pub(super) struct Article {
    rows: u64,
    /// Where each row stands among those that are put in the order of applications, and where the first one
    /// is looked for.
    order: Shuffle,
    first: u64,
    applications: u64,
    /// Those that have some of the rest, after the largest ones, and how many all of them have.
    middle: (u64, u64),
    athletes: Shuffle,
}

impl Article {
    pub(super) fn new(request: &Request) -> Self {
        let (rows, applications) = (request.rows.max(1), request.applications.max(1));
        let largest = LARGEST.len() as u64;
        let of_largest: u64 = LARGEST.iter().map(|part| rows / part).sum();
        let ones = (applications / 2).min(rows - of_largest);
        Self {
            rows,
            order: Shuffle::new(rows),
            first: request.seed % rows,
            applications,
            middle: (
                applications.saturating_sub(largest + applications / 2),
                rows - of_largest - ones,
            ),
            athletes: Shuffle::new(request.athletes.max(1)),
        }
    }

    /// The application and the athlete of an authorization, by its number from 1 on.
    pub(super) fn pair(&self, number: i64) -> (i64, i64) {
        let place = self.first.wrapping_add(number.unsigned_abs()) % self.rows;
        let row = self.order.at(place);
        let athlete = self.athletes.at(row % self.athletes.count);
        let application = self.application(row).min(self.applications);
        (application.cast_signed(), athlete.cast_signed() + 1)
    }

    /// The application that has the row, of those in the order of applications.
    fn application(&self, mut row: u64) -> u64 {
        for (part, id) in LARGEST.into_iter().zip(1..) {
            if row < self.rows / part {
                return id;
            }
            row -= self.rows / part;
        }
        let largest = LARGEST.len() as u64;
        let (middle, rest) = self.middle;
        if row >= rest {
            return self.applications - self.applications / 2 + 1 + (row - rest);
        }
        if middle == 0 {
            return 1;
        }
        // All up to one of them have as many as a square root grows.
        let part = as_f64(row) / as_f64(rest);
        let place = as_id(part * part * as_f64(middle)).unsigned_abs();
        largest + 1 + place.min(middle - 1)
    }
}

/// The numbers below a count in another order, each once: as if drawn by lot, and nothing is kept for it.
#[derive(Debug, Clone, Copy)]
struct Shuffle {
    count: u64,
    bits: u32,
}

impl Shuffle {
    /// The numbers below `count`, which is not 0.
    const fn new(count: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self { count, bits }
    }

    /// What stands in a place.
    const fn at(self, place: u64) -> u64 {
        let mut at = self.mixed(place);
        // Mixing leads through a circle of numbers, to which the place belongs: so to one below the count.
        while at >= self.count {
            at = self.mixed(at);
        }
        at
    }

    /// Multiplying by an odd number can be undone, and so can adding the upper half to the lower one.
    const fn mixed(self, number: u64) -> u64 {
        let mask = u64::MAX.unbounded_shr(u64::BITS - self.bits);
        let half = self.bits / 2 + 1;
        let mut mixed = number;
        let mut round = 0;
        while round < ODD.len() {
            mixed = mixed.wrapping_mul(ODD[round]) & mask;
            mixed ^= mixed.unbounded_shr(half);
            round += 1;
        }
        mixed
    }
}
