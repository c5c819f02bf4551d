//! Where the parts of a dump begin and end, by what PostgreSQL has counted of the keys (`pg_stats`): keys
//! that are frequent, with how frequent they are, and a histogram of the others. It may be old, so
//! it only decides how much is read at once.

use std::collections::HashMap;

use sqlx::postgres::PgConnection;

use crate::sql::connection::Sql;
use crate::sql::decode::Grouped;
use crate::sql::dump::{KEYS_AT_ONCE, Part};

/// What the server has counted of the keys of a table. Frequencies are shares of all rows.
#[derive(Debug, Default)]
pub(super) struct Counted {
    frequent: HashMap<i64, f64>,
    /// Values between which lie as many of the other rows each.
    histogram: Vec<i64>,
    /// How many different keys; a share of the rows, if it is negative.
    different: f64,
}

/// Where rows lie: between the key before and this one, or at this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lies {
    Before,
    At,
}

type CountedRow = (Option<Vec<i64>>, Option<Vec<f32>>, Option<Vec<i64>>, f32);

/// What is known of the keys, if there is anything.
pub(super) async fn counted(connection: &mut PgConnection, of: Grouped) -> Sql<Option<Counted>> {
    let row: Option<CountedRow> = sqlx::query_as(
        "SELECT most_common_vals::text::bigint[], most_common_freqs,
                histogram_bounds::text::bigint[], n_distinct
         FROM pg_stats WHERE schemaname = current_schema() AND tablename = $1 AND attname = $2
         ORDER BY inherited DESC LIMIT 1",
    )
    .bind(of.table())
    .bind(of.key())
    .fetch_optional(connection)
    .await?;
    let Some((values, frequencies, histogram, different)) = row else {
        return Ok(None);
    };
    let values = values.unwrap_or_default().into_iter();
    let frequencies = frequencies.unwrap_or_default().into_iter().map(f64::from);
    Ok(Some(Counted {
        frequent: values.zip(frequencies).collect(),
        histogram: histogram.unwrap_or_default(),
        different: f64::from(different),
    }))
}

impl Counted {
    /// What share of the rows have other keys than the frequent ones.
    fn others(&self) -> f64 {
        (1.0 - self.frequent.values().sum::<f64>()).max(0.0)
    }

    /// What share of the rows a key has, of so many rows.
    pub(super) fn weight(&self, key: i64, rows: f64) -> f64 {
        if let Some(frequency) = self.frequent.get(&key) {
            return *frequency;
        }
        let different = if self.different < 0.0 {
            -self.different * rows
        } else {
            self.different
        };
        #[expect(clippy::cast_precision_loss, reason = "a guess")]
        let others = different - self.frequent.len() as f64;
        self.others() / others.max(1.0)
    }

    /// Keys at which ranges end that have about a share of the rows each. A key that has more is a range
    /// alone.
    pub(super) fn ends(&self, share: f64) -> Vec<i64> {
        /// Sums of many small shares are a little off.
        const ABOUT: f64 = 1.000_001;
        let mut ends: Vec<i64> = Vec::new();
        let mut heavy = 0.0;
        let mut weights = self.weights(share).into_iter().peekable();
        while let Some((key, lies, weight)) = weights.next() {
            match lies {
                Lies::Before => {
                    heavy += weight;
                    // Nothing is known of what comes after the last one.
                    if heavy * ABOUT >= share && weights.peek().is_some() {
                        ends.push(key);
                        heavy = 0.0;
                    }
                }
                Lies::At => {
                    if heavy > 0.0 && heavy + weight > share * ABOUT {
                        ends.push(key);
                        heavy = 0.0;
                    }
                    heavy += weight;
                    if heavy > share * ABOUT {
                        ends.extend(key.checked_add(1));
                        heavy = 0.0;
                    }
                }
            }
        }
        ends.dedup();
        ends
    }

    /// Keys, which ascend, each with the share of the rows that are there, or between it and the one
    /// before. None but a frequent key has more than half a share.
    fn weights(&self, share: f64) -> Vec<(i64, Lies, f64)> {
        let frequent = self.frequent.iter();
        let mut weights: Vec<(i64, Lies, f64)> = frequent
            .map(|(key, weight)| (*key, Lies::At, *weight))
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "a guess")]
        let of_one = self.others() / self.histogram.len().saturating_sub(1).max(1) as f64;
        // A piece of the histogram that holds much is taken apart, as if its keys lay evenly.
        let parts = (of_one / share * 2.0).ceil().clamp(1.0, 1024.0);
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
                let at = i128::from(low) + distance * part / parts;
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    reason = "between two keys"
                )]
                weights.push((at as i64, Lies::Before, of_one / parts as f64));
            }
        }
        weights.sort_unstable_by_key(|(key, lies, _)| (*key, *lies));
        weights
    }
}

/// The ranges between some ends, which ascend.
pub(super) fn ranges(ends: &[i64]) -> Vec<Part> {
    let mut from = None;
    let mut ranges = Vec::with_capacity(ends.len() + 1);
    for end in ends {
        let before = Some(*end);
        ranges.push(Part::Range { from, before });
        from = before;
    }
    ranges.push(Part::Range { from, before: None });
    ranges
}

/// Keys that have about a share of the rows together, each as many as its weight says.
pub(super) fn shares(keys: &[i64], weight: impl Fn(i64) -> f64, share: f64) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut some, mut heavy) = (Vec::new(), 0.0);
    for key in keys {
        let more = weight(*key);
        let is_full = heavy + more > share || some.len() == KEYS_AT_ONCE;
        if is_full && !some.is_empty() {
            parts.push(Part::Keys(std::mem::take(&mut some)));
            heavy = 0.0;
        }
        some.push(*key);
        heavy += more;
    }
    parts.push(Part::Keys(some));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(frequent: &[(i64, f64)], histogram: Vec<i64>) -> Counted {
        Counted {
            frequent: frequent.iter().copied().collect(),
            histogram,
            different: -0.5,
        }
    }

    #[test]
    fn ranges_end_where_about_a_share_is_reached() {
        let even = of(&[], (0..=100).map(|n| n * 10).collect());
        assert_eq!(even.ends(0.25), [250, 500, 750]);
        let coarse = of(&[], vec![0, 1000]);
        assert_eq!(coarse.ends(0.25).len(), 3);
        let nothing = of(&[], Vec::new());
        assert!(nothing.ends(0.1).is_empty());
        let far = of(&[], vec![i64::MIN, i64::MAX]);
        assert_eq!(far.ends(0.25).len(), 3);
    }

    #[test]
    fn a_hot_key_is_a_range_alone() {
        let hot = of(&[(500, 0.6)], (0..=40).map(|n| n * 25).collect());
        let ends = hot.ends(0.2);
        let at = ends.iter().position(|end| *end == 500).expect("an end");
        assert_eq!(ends.get(at + 1), Some(&501), "{ends:?}");
        assert!(ends.is_sorted(), "{ends:?}");
        let only = of(&[(7, 1.0)], Vec::new());
        assert_eq!(only.ends(0.1), [8]);
        let last = of(&[(i64::MAX, 1.0)], Vec::new());
        assert!(last.ends(0.1).is_empty());
    }

    #[test]
    fn few_keys_are_one_part_and_hot_ones_are_apart() {
        let hot = of(&[(5, 0.5)], Vec::new());
        let weight = |key| hot.weight(key, 1000.0);
        assert_eq!(shares(&[1, 2, 3], weight, 0.1).len(), 1);
        let parts = shares(&[1, 5, 9], weight, 0.1);
        let apart = [1, 5, 9].map(|key| Part::Keys(vec![key]));
        assert_eq!(parts, apart);
        let keys: Vec<i64> = (0..10_000).collect();
        assert_eq!(shares(&keys, |_| 0.0, 0.1).len(), 5);
    }
}
