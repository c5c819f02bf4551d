//! Distributes times over days and hours as people are active.

use showcase::activity;

use super::random_draws::{to_f64, to_i64};

const HOUR_MS: i64 = 3_600_000;

/// A time range in which each hour has the weight of its activity.
#[derive(Debug, Clone)]
pub(crate) struct TimeDistribution {
    from_ms: i64,
    end_ms: i64,
    /// Start of each interval, and the total weight before it.
    intervals: Vec<(i64, f64)>,
    total_weight: f64,
}

impl TimeDistribution {
    /// The time range from `from_ms` to `end_ms`, exclusive.
    pub(crate) fn new(from_ms: i64, end_ms: i64) -> Self {
        let mut intervals = Vec::new();
        let mut total_weight = 0.0;
        let mut start_ms = from_ms;
        // Long ranges use longer intervals to bound their number.
        let hours = (end_ms - from_ms) / HOUR_MS;
        let width_ms = HOUR_MS * (hours / 100_000 + 1);
        while start_ms < end_ms {
            intervals.push((start_ms, total_weight));
            let next_ms = ((start_ms.div_euclid(width_ms) + 1) * width_ms).min(end_ms);
            total_weight += to_f64((next_ms - start_ms).unsigned_abs()) * activity(start_ms);
            start_ms = next_ms;
        }
        Self {
            from_ms,
            end_ms,
            intervals,
            total_weight,
        }
    }

    /// Time of row `index` of `count`; times never decrease.
    pub(crate) fn time_at(&self, index: u64, count: u64) -> i64 {
        let fraction = to_f64(index) / to_f64(count.max(1));
        let weight = fraction * self.total_weight;
        let after = self
            .intervals
            .partition_point(|(_, weight_before)| *weight_before <= weight);
        let Some((start_ms, weight_before)) = self.intervals.get(after.saturating_sub(1)) else {
            return self.from_ms;
        };
        let offset_ms = to_i64((weight - weight_before) / activity(*start_ms));
        (start_ms + offset_ms).clamp(self.from_ms, self.end_ms - 1)
    }
}
