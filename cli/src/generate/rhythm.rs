//! Distributes events over days and hours as people are awake.

use showcase::activity;

use super::draw::{as_f64, as_id};

const HOUR_MS: i64 = 3_600_000;

/// A time range with weights by day and hour.
#[derive(Debug, Clone)]
pub(crate) struct Rhythm {
    from_ms: i64,
    until_ms: i64,
    /// Start of each interval, and the total weight before it.
    pieces: Vec<(i64, f64)>,
    weight: f64,
}

impl Rhythm {
    /// The time range from `from_ms` to `until_ms`, exclusive.
    pub(crate) fn new(from_ms: i64, until_ms: i64) -> Self {
        let mut pieces = Vec::new();
        let mut weight = 0.0;
        let mut at = from_ms;
        // Long ranges use longer intervals to bound their number.
        let hours = (until_ms - from_ms) / HOUR_MS;
        let width = HOUR_MS * (hours / 100_000 + 1);
        while at < until_ms {
            pieces.push((at, weight));
            let next = ((at.div_euclid(width) + 1) * width).min(until_ms);
            weight += as_f64((next - at).unsigned_abs()) * activity(at);
            at = next;
        }
        Self {
            from_ms,
            until_ms,
            pieces,
            weight,
        }
    }

    /// Time of event `index` of `count`; times never decrease.
    pub(crate) fn at(&self, index: u64, count: u64) -> i64 {
        let part = as_f64(index) / as_f64(count.max(1));
        let target = part * self.weight;
        let piece = self.pieces.partition_point(|(_, before)| *before <= target);
        let Some((begin, before)) = self.pieces.get(piece.saturating_sub(1)) else {
            return self.from_ms;
        };
        let into = as_id((target - before) / activity(*begin));
        (begin + into).clamp(self.from_ms, self.until_ms - 1)
    }
}
