//! Distribution of authorizations as in Strava's article on connected athletes: a few applications
//! have very many, most have hardly any.
//!
//! Each application has its exact share for every seed, and its authorizations are spread evenly
//! over all rows. The position of each is computed, so it needs no memory.

use super::random_draws::{to_f64, to_i64};
use super::request::GenerateRequest;

/// Shares of the largest applications: 1 / divisor of all authorizations.
const LARGEST_DIVISORS: [u64; 5] = [5, 20, 20, 20, 20];
/// Odd multipliers that permute numbers.
const MULTIPLIERS: [u64; 3] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
];

/// Assigns an application and an athlete to each authorization.
#[derive(Debug)]
pub(super) struct ArticleDistribution {
    row_count: u64,
    /// Permutation from the order of output to the order of applications.
    rows: Permutation,
    first_row: u64,
    applications: u64,
    /// Number of applications that are neither among the largest nor have a single authorization.
    middle_applications: u64,
    /// Number of their authorizations.
    middle_rows: u64,
    athletes: Permutation,
}

impl ArticleDistribution {
    pub(super) fn new(request: &GenerateRequest) -> Self {
        let (row_count, applications) = (request.row_count.max(1), request.applications.max(1));
        let largest_applications = LARGEST_DIVISORS.len() as u64;
        let largest_rows: u64 = LARGEST_DIVISORS
            .iter()
            .map(|divisor| row_count / divisor)
            .sum();
        let single_rows = (applications / 2).min(row_count - largest_rows);
        Self {
            row_count,
            rows: Permutation::new(row_count),
            first_row: request.seed % row_count,
            applications,
            middle_applications: applications
                .saturating_sub(largest_applications + applications / 2),
            middle_rows: row_count - largest_rows - single_rows,
            athletes: Permutation::new(request.athletes.max(1)),
        }
    }

    /// Returns application and athlete of an authorization by its number, from 1 on.
    pub(super) fn assign_pair(&self, number: i64) -> (i64, i64) {
        let position = self.first_row.wrapping_add(number.unsigned_abs()) % self.row_count;
        let row = self.rows.permute(position);
        let athlete = self.athletes.permute(row % self.athletes.count);
        let application = self.find_application(row).min(self.applications);
        (application.cast_signed(), athlete.cast_signed() + 1)
    }

    /// Finds the application of a row in the order of applications.
    fn find_application(&self, mut row: u64) -> u64 {
        for (divisor, id) in LARGEST_DIVISORS.into_iter().zip(1..) {
            if row < self.row_count / divisor {
                return id;
            }
            row -= self.row_count / divisor;
        }
        if row >= self.middle_rows {
            return self.applications - self.applications / 2 + 1 + (row - self.middle_rows);
        }
        if self.middle_applications == 0 {
            return 1;
        }
        // Cumulative counts grow like a square root.
        let fraction = to_f64(row) / to_f64(self.middle_rows);
        let index = to_i64(fraction * fraction * to_f64(self.middle_applications)).unsigned_abs();
        LARGEST_DIVISORS.len() as u64 + 1 + index.min(self.middle_applications - 1)
    }
}

/// A pseudorandom permutation of the numbers below a count, computed without memory.
#[derive(Debug, Clone, Copy)]
struct Permutation {
    count: u64,
    bits: u32,
}

impl Permutation {
    /// A permutation of the numbers below `count`, which is not 0.
    const fn new(count: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self { count, bits }
    }

    /// Returns the number at an index.
    const fn permute(self, index: u64) -> u64 {
        let mut number = self.mix(index);
        // Mixing permutes a larger range. Following its cycle from the index ends at a number below
        // the count.
        while number >= self.count {
            number = self.mix(number);
        }
        number
    }

    /// Multiplication by an odd number and adding the upper half to the lower one are both
    /// invertible.
    const fn mix(self, number: u64) -> u64 {
        let mask = u64::MAX.unbounded_shr(u64::BITS - self.bits);
        let half = self.bits / 2 + 1;
        let mut mixed = number;
        let mut round = 0;
        while round < MULTIPLIERS.len() {
            mixed = mixed.wrapping_mul(MULTIPLIERS[round]) & mask;
            mixed ^= mixed.unbounded_shr(half);
            round += 1;
        }
        mixed
    }
}
