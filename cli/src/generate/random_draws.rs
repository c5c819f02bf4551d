//! Draws random values from skewed and weighted distributions.
//!
//! Multiplications replace other floating-point functions where possible, so that every machine
//! draws the same values.

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

/// Zipf-like distribution of ids from 1 on: the frequency of id n is about n^-(1 - 1/root). Drawn
/// by inversion.
#[derive(Debug, Clone, Copy)]
pub(super) struct SkewedIds {
    root: i32,
    /// The root of the exclusive end of the ids, minus one.
    root_span: f64,
    id_max: i64,
}

impl SkewedIds {
    /// Ids 1 to `count`. A negative `root` gives a stronger skew than 1/n.
    pub(super) fn new(count: u64, root: i32) -> Self {
        Self {
            root,
            root_span: to_f64(count + 1).powf(1.0 / f64::from(root)) - 1.0,
            id_max: count.cast_signed(),
        }
    }

    pub(super) fn draw(self, rng: &mut StdRng) -> i64 {
        let id = (1.0 + rng.random::<f64>() * self.root_span).powi(self.root);
        to_i64(id).clamp(1, self.id_max)
    }
}

/// Weighted choice among values with weights per thousand; the rest is no value.
#[derive(Debug, Clone)]
pub(super) struct WeightedChoice<T>(Vec<Option<T>>);

impl<T: Copy> WeightedChoice<T> {
    pub(super) fn new(weights: &[(T, u32)]) -> Self {
        let mut values: Vec<Option<T>> = weights
            .iter()
            .flat_map(|(value, weight)| (0..*weight).map(move |_| Some(*value)))
            .collect();
        values.resize(values.len().max(1_000), None);
        Self(values)
    }

    pub(super) fn draw(&self, rng: &mut StdRng) -> Option<T> {
        self.value_at(rng.random_range(0..self.0.len().max(1)))
    }

    /// The value at a quantile, 0 to 1.
    pub(super) fn value_at_quantile(&self, quantile: f64) -> Option<T> {
        self.value_at(to_usize(quantile * to_f64(self.0.len() as u64)))
    }

    fn value_at(&self, index: usize) -> Option<T> {
        self.0.get(index).copied().flatten()
    }
}

/// Returns a fixed pseudorandom value from 0 to 1 for `number`, independent of earlier draws, so
/// that inputs of different sources are consistent.
pub(super) fn hash_to_fraction(number: u64) -> f64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    to_f64(mixed >> 11) / to_f64(1 << 53)
}

/// Draws true with the given probability.
pub(super) fn draw_bool(rng: &mut StdRng, probability: f64) -> bool {
    rng.random::<f64>() < probability
}

/// Draws one of the values.
pub(super) fn choose<T: Copy, const N: usize>(rng: &mut StdRng, values: &[T; N]) -> T {
    const { assert!(N > 0, "no values to draw from") };
    values[rng.random_range(0..N)]
}

/// Converts milliseconds since the Unix epoch.
pub(super) fn timestamp_from_ms(time_ms: i64) -> Timestamp {
    Timestamp::from_millisecond(time_ms).unwrap_or_default()
}

/// Converts a count to a floating-point number.
pub(super) fn to_f64(n: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "drawn values need not be exact")]
    {
        n as f64
    }
}

/// Truncates to an integer.
pub(super) fn to_i64(x: f64) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "drawn from a range of integers"
    )]
    {
        x as i64
    }
}

/// Truncates to an index.
pub(super) fn to_usize(x: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "drawn from a range of indexes"
    )]
    {
        x as usize
    }
}
