//! Authorizations as the article on connected athletes tells of them: a few applications have very many,
//! and most have hardly any.
//!
//! Each application has its exact share, whatever the seed, and its authorizations are spread evenly over
//! all: which one stands where is told by multiplying alone, so nothing is kept for it.

use super::draw::{as_f64, as_id};
use super::request::Request;

/// What part of all the largest applications have: one divided by these.
const LARGEST: [u64; 5] = [5, 20, 20, 20, 20];

/// Which application and which athlete each authorization is of.
#[derive(Debug)]
pub(super) struct Article {
    rows: u64,
    /// How far rows that follow each other are apart among those that are put in the order of
    /// applications.
    row_step: u64,
    first_row: u64,
    applications: u64,
    /// Those that have some of the rest, after the largest ones, and how many all of them have.
    middle: (u64, u64),
    athletes: u64,
    athlete_step: u64,
}

impl Article {
    pub(super) fn new(request: &Request) -> Self {
        let (rows, applications) = (request.rows.max(1), request.applications.max(1));
        let largest = LARGEST.len() as u64;
        let of_largest: u64 = LARGEST.iter().map(|part| rows / part).sum();
        let ones = (applications / 2).min(rows - of_largest);
        Self {
            rows,
            row_step: step(rows),
            first_row: request.seed % rows,
            applications,
            middle: (
                applications.saturating_sub(largest + applications / 2),
                rows - of_largest - ones,
            ),
            athletes: request.athletes.max(1),
            athlete_step: step(request.athletes.max(1)),
        }
    }

    /// The application and the athlete of an authorization, by its number from 1 on.
    pub(super) fn pair(&self, number: i64) -> (i64, i64) {
        let row = self.first_row + times(number.unsigned_abs(), self.row_step, self.rows);
        let row = row % self.rows;
        let athlete = times(row, self.athlete_step, self.athletes);
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

/// A step that leads to each of so many places once: about the golden section, so that those which
/// follow each other are far apart.
fn step(places: u64) -> u64 {
    let part = u128::from(places) * 618 / 1_000;
    let mut step = u64::try_from(part).unwrap_or_default().max(1);
    while greatest_divisor(step, places) > 1 {
        step += 1;
    }
    step
}

fn greatest_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// A product, as the rest of a division.
fn times(one: u64, other: u64, of: u64) -> u64 {
    let rest = u128::from(one) * u128::from(other) % u128::from(of);
    u64::try_from(rest).unwrap_or_default()
}
