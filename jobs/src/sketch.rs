//! Distinct counts: a sketch whose cells are rows of an aggregate view.
//!
//! The hash of a value gives one of [`REGISTERS`] registers and, by its trailing zeros, a rank.
//! Both together are its *cell* (Flajolet and Martin, "Probabilistic Counting Algorithms for Data
//! Base Applications", 1985). The set of occupied cells gives the number of distinct values,
//! independent of their frequency.
//!
//! A view that counts by cell is an ordinary aggregate view. Its rows are additive in both layers,
//! and a cell whose count returns to zero is no longer occupied. Sketches of several days or groups
//! are merged by the union of their cells, never summed.
//!
//! The estimate is the number with the maximum likelihood for the occupied cells, if values arrive
//! as a Poisson process. It needs no corrections for small or large numbers.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use xxhash_rust::xxh3::xxh3_64;

/// The name of the SQL function.
pub const FUNCTION: &str = "sketch_cell";
/// Number of registers. The error decreases with their square root.
pub const REGISTERS: usize = 1 << REGISTER_BITS;

const REGISTER_BITS: u32 = 10;
/// Number of ranks. Together with the registers they cover more values than there are integers.
const RANKS: u32 = 64 - REGISTER_BITS;
/// Distance between the cells of two registers.
const STRIDE: i64 = 64;
/// Bisection steps: more than a double has digits.
const STEPS: usize = 128;

/// Returns the column with the cells of the values of `column`: `listener_cell` for `listener_id`.
#[must_use]
pub fn cell_column(column: &str) -> String {
    format!("{}_cell", column.strip_suffix("_id").unwrap_or(column))
}

/// Returns whether a column holds cells.
#[must_use]
pub fn is_cell_column(column: &str) -> bool {
    column.ends_with("_cell")
}

/// Computes the cell of a value. It is stored and must never change.
#[must_use]
pub fn compute_cell(value: i64) -> i64 {
    let hash = xxh3_64(&value.to_le_bytes());
    let register = hash % REGISTERS as u64;
    // The bit above the ranks is always set, so that there is a last rank.
    let rank = (hash >> REGISTER_BITS | 1 << (RANKS - 1)).trailing_zeros();
    register.cast_signed() * STRIDE + i64::from(rank)
}

/// Computes the cells of an array of values; null stays null.
pub(crate) fn map_to_cells(values: &Int64Array) -> Int64Array {
    values.unary(compute_cell)
}

/// An estimated number of distinct values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The most likely number.
    pub count: f64,
    /// The standard error relative to the number. Two of three estimates are closer than this.
    pub relative_error: f64,
}

/// Estimates the number of distinct values from the occupied cells.
#[must_use]
pub fn estimate(cells: impl IntoIterator<Item = i64>) -> Estimate {
    let mut occupied = [0_u32; RANKS as usize];
    for cell in cells {
        let rank = usize::try_from(cell.rem_euclid(STRIDE)).unwrap_or_default();
        if let Some(occupied) = occupied.get_mut(rank) {
            *occupied += 1;
        }
    }
    if occupied.iter().all(|occupied| *occupied == 0) {
        return Estimate {
            count: 0.0,
            relative_error: 0.0,
        };
    }
    // The slope of the likelihood is strictly decreasing, so bisection finds its zero.
    let slope = |count: f64| -> f64 {
        cell_probabilities()
            .zip(occupied)
            .map(|(probability, occupied)| {
                let expected = count * probability;
                let unoccupied = REGISTERS as f64 - f64::from(occupied);
                probability * (f64::from(occupied) / expected.exp_m1() - unoccupied)
            })
            .sum()
    };
    let (mut low, mut high) = (0.5_f64, 2_f64.powi(64));
    for _ in 0..STEPS {
        let middle = (low * high).sqrt();
        if slope(middle) > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    let count = low;
    let information: f64 = cell_probabilities()
        .map(|probability| {
            REGISTERS as f64 * probability * probability / (count * probability).exp_m1()
        })
        .sum();
    // The model treats the number of values as random. It is not, so its variance is subtracted.
    let variance = (1.0 / information - count).max(0.0);
    Estimate {
        count,
        relative_error: variance.sqrt() / count,
    }
}

/// Returns by rank the probability that a value falls into a given register's cell of that rank.
fn cell_probabilities() -> impl Iterator<Item = f64> {
    (1..=RANKS).map(|rank| {
        let halvings = rank.min(RANKS - 1);
        0.5_f64.powi(halvings.cast_signed()) / REGISTERS as f64
    })
}

/// Creates the SQL function.
pub(crate) fn sketch_cell_function() -> ScalarUDF {
    create_udf(
        FUNCTION,
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(evaluate),
    )
}

fn evaluate(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let [values] = arrays.as_slice() else {
        return exec_err!("{FUNCTION} takes one argument, not {}", arrays.len());
    };
    let cells: ArrayRef = Arc::new(map_to_cells(values.as_primitive::<Int64Type>()));
    Ok(ColumnarValue::Array(cells))
}

#[cfg(test)]
#[path = "sketch_tests.rs"]
mod tests;
