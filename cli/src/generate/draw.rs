//! Draws random values from skewed and weighted distributions.
//!
//! It uses only multiplications where possible, so that every machine draws the same values.

use jiff::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;

/// Countries with weights per thousand; the rest has no country.
pub(super) const COUNTRIES: [(&str, u32); 32] = [
    ("US", 210),
    ("GB", 95),
    ("DE", 90),
    ("BR", 70),
    ("FR", 60),
    ("IN", 55),
    ("CA", 40),
    ("MX", 38),
    ("NL", 32),
    ("AU", 30),
    ("ES", 28),
    ("IT", 27),
    ("PL", 22),
    ("SE", 18),
    ("JP", 17),
    ("ID", 16),
    ("TR", 15),
    ("AR", 13),
    ("PT", 11),
    ("BE", 10),
    ("CH", 10),
    ("AT", 9),
    ("IE", 8),
    ("ZA", 8),
    ("NP", 6),
    ("NZ", 6),
    ("NO", 6),
    ("DK", 5),
    ("FI", 5),
    ("CL", 4),
    ("CO", 4),
    ("EG", 3),
];

/// Zipf-like distribution of ranks from 1 on: the frequency of rank r is about r^-(1 - 1/root). Drawn by inversion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skewed {
    root: i32,
    /// The root of the largest value, minus one.
    reach: f64,
    last: i64,
}

impl Skewed {
    /// Ranks 1 to `count`. A negative `root` gives a stronger skew than 1/r.
    pub(super) fn new(count: u64, root: i32) -> Self {
        Self {
            root,
            reach: as_f64(count + 1).powf(1.0 / f64::from(root)) - 1.0,
            last: count.cast_signed(),
        }
    }

    pub(super) fn draw(self, rng: &mut StdRng) -> i64 {
        let drawn = (1.0 + rng.random::<f64>() * self.reach).powi(self.root);
        as_id(drawn).clamp(1, self.last)
    }
}

/// Weighted choice among values with weights per thousand; the rest is no value.
#[derive(Debug, Clone)]
pub(super) struct WeightedChoice<T>(Vec<Option<T>>);

impl<T: Copy> WeightedChoice<T> {
    pub(super) fn new(weights: &[(T, u32)]) -> Self {
        let mut lots: Vec<Option<T>> = weights
            .iter()
            .flat_map(|(value, weight)| (0..*weight).map(move |_| Some(*value)))
            .collect();
        lots.resize(lots.len().max(1_000), None);
        Self(lots)
    }

    pub(super) fn draw(&self, rng: &mut StdRng) -> Option<T> {
        self.lot(rng.random_range(0..self.0.len().max(1)))
    }

    /// The value at a quantile, 0 to 1.
    pub(super) fn at(&self, part: f64) -> Option<T> {
        self.lot(as_index(part * as_f64(self.0.len() as u64)))
    }

    fn lot(&self, position: usize) -> Option<T> {
        self.0.get(position).copied().flatten()
    }
}

/// A fixed pseudorandom value from 0 to 1 for `number`, independent of earlier draws. It makes inputs of different sources
/// consistent.
pub(super) fn hash_fraction(number: u64) -> f64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    as_f64(mixed >> 11) / as_f64(1 << 53)
}

/// True with the given probability.
pub(super) fn happens(rng: &mut StdRng, probability: f64) -> bool {
    rng.random::<f64>() < probability
}

/// Draws one of the values.
pub(super) fn choose<T: Copy, const N: usize>(rng: &mut StdRng, values: &[T; N]) -> T {
    const { assert!(N > 0, "no values to draw from") };
    values[rng.random_range(0..N)]
}

/// The instant at milliseconds after the Unix epoch.
pub(super) fn instant(at_ms: i64) -> Timestamp {
    Timestamp::from_millisecond(at_ms).unwrap_or_default()
}

pub(super) fn as_f64(n: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "drawn values need not be exact")]
    {
        n as f64
    }
}

pub(super) fn as_id(x: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "drawn from a range of ids")]
    {
        x as i64
    }
}

pub(super) fn as_index(x: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "drawn from a range of indexes"
    )]
    {
        x as usize
    }
}
