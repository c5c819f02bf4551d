//! Bounds of the parts of a dump, estimated from PostgreSQL's statistics of keys (`pg_stats`): the
//! most common keys with their frequencies, and a histogram of the others. The statistics may be
//! outdated, so they only decide the size of parts.

use std::collections::HashMap;

use sqlx::postgres::PgConnection;

use crate::sql::connection::Sql;
use crate::sql::decode::GroupedSource;
use crate::sql::dump_parts::{KEYS_PER_PART, Part};

/// The server's statistics of the keys of a table. All frequencies are fractions of the rows of the
/// table.
#[derive(Debug, Default)]
pub(super) struct KeyStatistics {
    /// The frequencies of the most common keys.
    common: HashMap<i64, f64>,
    /// Bounds between which the other rows are divided evenly.
    histogram: Vec<i64>,
    /// The number of distinct keys; if negative, as a fraction of the rows.
    distinct: f64,
}

/// The location of rows relative to a key: after the previous key and before this one, or at this
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Location {
    Before,
    At,
}

type StatisticsRow = (Option<Vec<i64>>, Option<Vec<f32>>, Option<Vec<i64>>, f32);

/// Reads the statistics of the keys, if there are any.
pub(super) async fn read_statistics(
    connection: &mut PgConnection,
    source: GroupedSource,
) -> Sql<Option<KeyStatistics>> {
    let row: Option<StatisticsRow> = sqlx::query_as(
        "SELECT most_common_vals::text::bigint[], most_common_freqs,
                histogram_bounds::text::bigint[], n_distinct
         FROM pg_stats WHERE schemaname = current_schema() AND tablename = $1 AND attname = $2
         ORDER BY inherited DESC LIMIT 1",
    )
    .bind(source.table())
    .bind(source.key_column())
    .fetch_optional(connection)
    .await?;
    let Some((values, frequencies, histogram, distinct)) = row else {
        return Ok(None);
    };
    let values = values.unwrap_or_default().into_iter();
    let frequencies = frequencies.unwrap_or_default().into_iter().map(f64::from);
    Ok(Some(KeyStatistics {
        common: values.zip(frequencies).collect(),
        histogram: histogram.unwrap_or_default(),
        distinct: f64::from(distinct),
    }))
}

impl KeyStatistics {
    /// The fraction of the rows whose keys are not common.
    fn uncommon_fraction(&self) -> f64 {
        (1.0 - self.common.values().sum::<f64>()).max(0.0)
    }

    /// Estimates the fraction of `rows` rows that have a key.
    pub(super) fn estimate_key_fraction(&self, key: i64, rows: f64) -> f64 {
        if let Some(frequency) = self.common.get(&key) {
            return *frequency;
        }
        let distinct = if self.distinct < 0.0 {
            -self.distinct * rows
        } else {
            self.distinct
        };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let uncommon_keys = distinct - self.common.len() as f64;
        self.uncommon_fraction() / uncommon_keys.max(1.0)
    }

    /// Finds bounds of ranges with about the given fraction of the rows each. A key with more rows
    /// is a range by itself.
    pub(super) fn find_range_bounds(&self, fraction: f64) -> Vec<i64> {
        /// Tolerance for rounding errors of sums.
        const TOLERANCE: f64 = 1.000_001;
        let mut bounds: Vec<i64> = Vec::new();
        let mut range_fraction = 0.0;
        let mut steps = self.list_steps(fraction).into_iter().peekable();
        while let Some((key, location, step_fraction)) = steps.next() {
            match location {
                Location::Before => {
                    range_fraction += step_fraction;
                    // After the last step, the statistics know no more keys.
                    if range_fraction * TOLERANCE >= fraction && steps.peek().is_some() {
                        bounds.push(key);
                        range_fraction = 0.0;
                    }
                }
                Location::At => {
                    let sum = range_fraction + step_fraction;
                    if range_fraction > 0.0 && sum > fraction * TOLERANCE {
                        bounds.push(key);
                        range_fraction = 0.0;
                    }
                    range_fraction += step_fraction;
                    if range_fraction > fraction * TOLERANCE {
                        bounds.extend(key.checked_add(1));
                        range_fraction = 0.0;
                    }
                }
            }
        }
        bounds.dedup();
        bounds
    }

    /// Lists ascending keys, each with the fraction of the rows at this key, or between it and the
    /// previous one. Only a common key has more than half of `fraction`.
    fn list_steps(&self, fraction: f64) -> Vec<(i64, Location, f64)> {
        let common = self.common.iter();
        let mut steps: Vec<(i64, Location, f64)> = common
            .map(|(key, frequency)| (*key, Location::At, *frequency))
            .collect();
        let buckets = self.histogram.len().saturating_sub(1).max(1);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bucket_fraction = self.uncommon_fraction() / buckets as f64;
        // Large buckets of the histogram are split, assuming evenly distributed keys.
        let parts = (bucket_fraction / fraction * 2.0).ceil().clamp(1.0, 1024.0);
        for bounds in self.histogram.windows(2) {
            let &[low, high] = bounds else {
                continue;
            };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "between 1 and 1024, and a part of the distance"
            )]
            let (parts, distance) = (parts as i128, i128::from(high) - i128::from(low));
            for part in 1..=parts {
                let key = i128::from(low) + distance * part / parts;
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    reason = "between two keys"
                )]
                steps.push((key as i64, Location::Before, bucket_fraction / parts as f64));
            }
        }
        steps.sort_unstable_by_key(|(key, location, _)| (*key, *location));
        steps
    }
}

/// Splits all keys into ranges at ascending bounds.
pub(super) fn split_ranges(bounds: &[i64]) -> Vec<Part> {
    let mut from = None;
    let mut ranges = Vec::with_capacity(bounds.len() + 1);
    for bound in bounds {
        let before = Some(*bound);
        ranges.push(Part::Range { from, before });
        from = before;
    }
    ranges.push(Part::Range { from, before: None });
    ranges
}

/// Splits keys into parts with about the given fraction of the rows each. `key_fraction` returns
/// the fraction of a key.
pub(super) fn split_keys(
    keys: &[i64],
    key_fraction: impl Fn(i64) -> f64,
    fraction: f64,
) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut part, mut part_fraction) = (Vec::new(), 0.0);
    for key in keys {
        let next_fraction = key_fraction(*key);
        let is_full = part_fraction + next_fraction > fraction || part.len() == KEYS_PER_PART;
        if is_full && !part.is_empty() {
            parts.push(Part::Keys(std::mem::take(&mut part)));
            part_fraction = 0.0;
        }
        part.push(*key);
        part_fraction += next_fraction;
    }
    parts.push(Part::Keys(part));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(common: &[(i64, f64)], histogram: Vec<i64>) -> KeyStatistics {
        KeyStatistics {
            common: common.iter().copied().collect(),
            histogram,
            distinct: -0.5,
        }
    }

    #[test]
    fn ranges_have_about_equal_fractions() {
        let even = statistics(&[], (0..=100).map(|n| n * 10).collect());
        assert_eq!(even.find_range_bounds(0.25), [250, 500, 750]);
        let coarse = statistics(&[], vec![0, 1000]);
        assert_eq!(coarse.find_range_bounds(0.25).len(), 3);
        let empty = statistics(&[], Vec::new());
        assert!(empty.find_range_bounds(0.1).is_empty());
        let far = statistics(&[], vec![i64::MIN, i64::MAX]);
        assert_eq!(far.find_range_bounds(0.25).len(), 3);
    }

    #[test]
    fn hot_key_is_a_range_by_itself() {
        let hot = statistics(&[(500, 0.6)], (0..=40).map(|n| n * 25).collect());
        let bounds = hot.find_range_bounds(0.2);
        let index = bounds.iter().position(|bound| *bound == 500);
        let index = index.expect("a bound");
        assert_eq!(bounds.get(index + 1), Some(&501), "{bounds:?}");
        assert!(bounds.is_sorted(), "{bounds:?}");
        let only = statistics(&[(7, 1.0)], Vec::new());
        assert_eq!(only.find_range_bounds(0.1), [8]);
        let last = statistics(&[(i64::MAX, 1.0)], Vec::new());
        assert!(last.find_range_bounds(0.1).is_empty());
    }

    #[test]
    fn few_keys_are_one_part_and_hot_keys_are_separate() {
        let hot = statistics(&[(5, 0.5)], Vec::new());
        let key_fraction = |key| hot.estimate_key_fraction(key, 1000.0);
        assert_eq!(split_keys(&[1, 2, 3], key_fraction, 0.1).len(), 1);
        let parts = split_keys(&[1, 5, 9], key_fraction, 0.1);
        let separate = [1, 5, 9].map(|key| Part::Keys(vec![key]));
        assert_eq!(parts, separate);
        let keys: Vec<i64> = (0..10_000).collect();
        assert_eq!(split_keys(&keys, |_| 0.0, 0.1).len(), 5);
    }
}
