//! Counting different values: a sketch whose cells are rows of a tally.
//!
//! A value's hash gives it one of [`REGISTERS`] registers and, by its trailing zeros, a rank: both
//! together are its *cell* (Flajolet and Martin, "Probabilistic Counting Algorithms for Data Base
//! Applications", 1985). Which cells are taken tells how many different values there are, whichever
//! came how often. A view that counts by cell is a tally as any other: its rows add up, live and in
//! the batch, and a cell whose count corrections took back to nothing is no longer taken. Sketches
//! of several days or groups are merged by taking the cells of all: they are never summed.
//!
//! The estimate is the number under which the cells that were seen are likeliest, if values come as
//! a Poisson process: it needs no corrections for small or large numbers.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use xxhash_rust::xxh3::xxh3_64;

/// The function's name in SQL.
pub const FUNCTION: &str = "sketch_cell";
/// How many registers a sketch has: the error falls with their square root.
pub const REGISTERS: usize = 1 << REGISTER_BITS;

const REGISTER_BITS: u32 = 10;
/// Ranks that are told apart: with all of them, more values than there are integers.
const RANKS: u32 = 64 - REGISTER_BITS;
/// Between the registers' cells.
const STRIDE: i64 = 64;
/// Halvings of an interval: more than a double has digits.
const STEPS: usize = 128;

/// The column that holds the cells of the values of `column`: `listener_cell` of `listener_id`.
#[must_use]
pub fn cell_column(column: &str) -> String {
    format!("{}_cell", column.strip_suffix("_id").unwrap_or(column))
}

/// Whether a column holds cells.
#[must_use]
pub fn is_cell_column(column: &str) -> bool {
    column.ends_with("_cell")
}

/// The cell of a value: the same in every layer, and for ever.
#[must_use]
pub fn cell(value: i64) -> i64 {
    let hash = xxh3_64(&value.to_le_bytes());
    let register = hash % REGISTERS as u64;
    // The bit above the ranks is always set, so that there is a last rank.
    let rank = (hash >> REGISTER_BITS | 1 << (RANKS - 1)).trailing_zeros();
    register.cast_signed() * STRIDE + i64::from(rank)
}

/// The cells of an array of values; null where there is none.
pub(crate) fn cells(values: &Int64Array) -> Int64Array {
    values.unary(cell)
}

/// How many different values there are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The likeliest number.
    pub count: f64,
    /// The standard error, as a part of the number: two of three estimates are nearer than this.
    pub relative_error: f64,
}

/// Estimates from the different cells that are taken.
#[must_use]
pub fn estimate(cells: impl IntoIterator<Item = i64>) -> Estimate {
    let mut taken = [0_u32; RANKS as usize];
    for cell in cells {
        let rank = usize::try_from(cell.rem_euclid(STRIDE)).unwrap_or_default();
        if let Some(taken) = taken.get_mut(rank) {
            *taken += 1;
        }
    }
    if taken.iter().all(|taken| *taken == 0) {
        return Estimate {
            count: 0.0,
            relative_error: 0.0,
        };
    }
    // The slope of the likelihood falls all the way, so its zero is found by halving.
    let slope = |count: f64| -> f64 {
        shares()
            .zip(taken)
            .map(|(share, taken)| {
                let here = count * share;
                let free = REGISTERS as f64 - f64::from(taken);
                share * (f64::from(taken) / here.exp_m1() - free)
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
    let information: f64 = shares()
        .map(|share| REGISTERS as f64 * share * share / (count * share).exp_m1())
        .sum();
    // The number of values is not of chance, as the model has it: what that adds is taken away.
    let variance = (1.0 / information - count).max(0.0);
    Estimate {
        count,
        relative_error: variance.sqrt() / count,
    }
}

/// By rank, the part of all values that one register's cell of it takes.
fn shares() -> impl Iterator<Item = f64> {
    (1..=RANKS).map(|rank| {
        let halvings = rank.min(RANKS - 1);
        0.5_f64.powi(halvings.cast_signed()) / REGISTERS as f64
    })
}

/// The SQL function.
pub(crate) fn function() -> ScalarUDF {
    create_udf(
        FUNCTION,
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(of_columns),
    )
}

fn of_columns(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let [values] = arrays.as_slice() else {
        return exec_err!("{FUNCTION} takes one argument, not {}", arrays.len());
    };
    let cells: ArrayRef = Arc::new(cells(values.as_primitive::<Int64Type>()));
    Ok(ColumnarValue::Array(cells))
}

#[cfg(test)]
#[path = "sketch_tests.rs"]
mod tests;
