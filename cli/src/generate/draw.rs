//! How values are drawn: skewed as in life, or by weights.
//!
//! Drawn with multiplications alone where it can be, so that every machine draws the same.

use jiff::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;

/// Countries and how many of a thousand people are from there; the rest are from nowhere.
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

/// Ranks from 1 on, as Zipf's law has them: rank r is drawn about as often as r to the power of
/// -(1 - 1/root). Drawn by inversion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skewed {
    root: i32,
    /// The root of the largest value, less one.
    reach: f64,
    last: i64,
}

impl Skewed {
    /// Ranks 1 to `count`. A negative `root` is a skew beyond that of 1/r.
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

/// Lots, so that drawing one at random gives each value its weight of a thousand, and nothing the
/// rest.
#[derive(Debug, Clone)]
pub(super) struct Urn<T>(Vec<Option<T>>);

impl<T: Copy> Urn<T> {
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

    /// The lot at that part of the urn, 0 to 1.
    pub(super) fn at(&self, part: f64) -> Option<T> {
        self.lot(as_index(part * as_f64(self.0.len() as u64)))
    }

    fn lot(&self, place: usize) -> Option<T> {
        self.0.get(place).copied().flatten()
    }
}

/// A number from 0 to 1 that is told by `number`: the same whenever it is asked, whatever was drawn
/// before. So different inputs fit together.
pub(super) fn told_by(number: u64) -> f64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    as_f64(mixed >> 11) / as_f64(1 << 53)
}

/// Whether something happens that happens with that probability.
pub(super) fn happens(rng: &mut StdRng, probability: f64) -> bool {
    rng.random::<f64>() < probability
}

/// One of the values.
pub(super) fn one_of<T: Copy, const N: usize>(rng: &mut StdRng, values: &[T; N]) -> T {
    const { assert!(N > 0, "there is nothing to draw") };
    values[rng.random_range(0..N)]
}

/// The instant so many milliseconds after the Unix epoch.
pub(super) fn instant(at_ms: i64) -> Timestamp {
    Timestamp::from_millisecond(at_ms).unwrap_or_default()
}

pub(super) fn as_f64(n: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "what is drawn need not be exact"
    )]
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
