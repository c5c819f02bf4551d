//! When events happen: by day and hour, as people are awake.

use showcase::busy;

use super::draw::{as_f64, as_id};

const HOUR_MS: i64 = 3_600_000;

/// A stretch of time in which events are spread by day and hour.
#[derive(Debug, Clone)]
pub(crate) struct Rhythm {
    from_ms: i64,
    until_ms: i64,
    /// By piece: where it begins, and the weight of all pieces before it.
    pieces: Vec<(i64, f64)>,
    weight: f64,
}

impl Rhythm {
    /// The time from `from_ms` to just before `until_ms`.
    pub(crate) fn new(from_ms: i64, until_ms: i64) -> Self {
        let mut pieces = Vec::new();
        let mut weight = 0.0;
        let mut at = from_ms;
        // A very long stretch is cut into as few pieces as have a rhythm worth having.
        let hours = (until_ms - from_ms) / HOUR_MS;
        let width = HOUR_MS * (hours / 100_000 + 1);
        while at < until_ms {
            pieces.push((at, weight));
            let next = ((at.div_euclid(width) + 1) * width).min(until_ms);
            weight += as_f64((next - at).unsigned_abs()) * busy(at);
            at = next;
        }
        Self {
            from_ms,
            until_ms,
            pieces,
            weight,
        }
    }

    /// When event `index` of `count` happens. Later events never happen earlier.
    pub(crate) fn at(&self, index: u64, count: u64) -> i64 {
        let part = as_f64(index) / as_f64(count.max(1));
        let target = part * self.weight;
        let piece = self.pieces.partition_point(|(_, before)| *before <= target);
        let Some((begin, before)) = self.pieces.get(piece.saturating_sub(1)) else {
            return self.from_ms;
        };
        let into = as_id((target - before) / busy(*begin));
        (begin + into).clamp(self.from_ms, self.until_ms - 1)
    }
}
