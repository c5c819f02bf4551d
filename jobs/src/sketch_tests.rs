use std::collections::BTreeSet;

use super::*;

fn estimate_values(values: impl IntoIterator<Item = i64>) -> Estimate {
    let cells: BTreeSet<i64> = values.into_iter().map(compute_cell).collect();
    estimate(cells)
}

#[test]
fn cells_are_unchanged() {
    // Computed by another program. Cells are stored, so other values would corrupt existing data.
    assert_eq!(
        [0, 1, 7, -1, i64::MAX, i64::MIN].map(compute_cell),
        [13_888, 19_329, 43_968, 1_216, 53_632, 38_848]
    );
}

#[test]
fn no_value_and_one_value_are_estimated_exactly() {
    assert_eq!(estimate_values([]).count, 0.0);
    for value in [0, 1, -5, i64::MAX] {
        let estimate = estimate_values([value, value]);
        assert!((estimate.count - 1.0).abs() < 0.01, "{value}: {estimate:?}");
        assert!(estimate.relative_error < 0.05, "{value}: {estimate:?}");
    }
}

#[test]
fn estimates_are_within_the_stated_error() {
    // Means over many sets: estimates have no bias, and the stated error is the real one.
    for count in [3_i64, 30, 300, 3_000, 30_000, 300_000] {
        let sets = if count > 10_000 { 40 } else { 200 };
        let (mut bias, mut square, mut stated) = (0.0, 0.0, 0.0);
        for set in 0..sets {
            let from = 1_000_000_007 * (set + 1);
            let estimated = estimate_values(from..from + count);
            let error = estimated.count / count as f64 - 1.0;
            bias += error;
            square += error * error;
            stated += estimated.relative_error;
        }
        let sets = sets as f64;
        let (bias, real, stated) = (bias / sets, (square / sets).sqrt(), stated / sets);
        assert!(
            bias.abs() < 0.5 * stated.max(0.002),
            "{count}: off by {bias}, stated {stated}"
        );
        // With few values, collisions are so rare that a few hundred sets do not show them.
        let least = if count < 30 { 0.0 } else { 0.6 * stated };
        assert!(
            (least..1.35 * stated).contains(&real),
            "{count}: {real} where {stated} is stated"
        );
        assert!(stated < 0.025, "{count}: {stated}");
    }
}

#[test]
fn a_merged_sketch_equals_the_sketch_of_all_values() {
    let cells = |range: std::ops::Range<i64>| range.map(compute_cell).collect::<BTreeSet<i64>>();
    let (a, b) = (cells(0..700), cells(300..1_000));
    let merged: BTreeSet<i64> = a.union(&b).copied().collect();
    assert_eq!(merged, cells(0..1_000));
}
