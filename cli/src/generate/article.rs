//! Distribution of authorizations as in Strava's article on connected athletes: a few applications have very many, most
//! have hardly any.
//!
//! Each application has its exact share for every seed, and its authorizations are spread evenly over all rows. The
//! position of each is computed, so it needs no memory.

use super::draw::{as_f64, as_id};
use super::request::Request;

/// Shares of the largest applications: one divided by these.
const LARGEST: [u64; 5] = [5, 20, 20, 20, 20];
/// Odd multipliers that permute numbers.
const ODD: [u64; 3] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
];

/// Assigns an application and an athlete to each authorization.
#[derive(Debug)]
pub(super) struct Article {
    rows: u64,
    /// Permutation from rows to rows in the order of applications, and the one to find athletes.
    order: Shuffle,
    first: u64,
    applications: u64,
    /// Number of applications that share the rest, and their total.
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

    /// Application and athlete of an authorization by its number, from 1 on.
    pub(super) fn pair(&self, number: i64) -> (i64, i64) {
        let position = self.first.wrapping_add(number.unsigned_abs()) % self.rows;
        let row = self.order.at(position);
        let athlete = self.athletes.at(row % self.athletes.count);
        let application = self.application(row).min(self.applications);
        (application.cast_signed(), athlete.cast_signed() + 1)
    }

    /// Application of a row in the order of applications.
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
        // Cumulative counts grow like a square root.
        let part = as_f64(row) / as_f64(rest);
        let position = as_id(part * part * as_f64(middle)).unsigned_abs();
        largest + 1 + position.min(middle - 1)
    }
}

/// A pseudorandom permutation of the numbers below a count, computed without memory.
#[derive(Debug, Clone, Copy)]
struct Shuffle {
    count: u64,
    bits: u32,
}

impl Shuffle {
    /// A permutation of the numbers below `count`, which is not 0.
    const fn new(count: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self { count, bits }
    }

    /// The number at an index.
    const fn at(self, position: u64) -> u64 {
        let mut at = self.mixed(position);
        // Mixing permutes a larger range. Following its cycle from the index ends at a number below the count.
        while at >= self.count {
            at = self.mixed(at);
        }
        at
    }

    /// Multiplication by an odd number and adding the upper half to the lower one are both invertible.
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
