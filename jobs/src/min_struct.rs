//! `min` of a struct: the smallest row of a group.
//!
//! The best effort of an athlete is `min(named_struct('elapsed_time', elapsed_time, 'id', id, …))`.
//! Fields are compared in order; the fields after the deciding one are carried along. The engine's
//! own `min` holds an array for each group and compares rows with kernels, which takes most of a
//! run on ten million rows. This one holds eight bytes of each of the first two fields, and the
//! position of the row. A null field sorts after all values. A null struct does not count.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DynComparator, StructArray, make_comparator,
};
use arrow::compute::{SortOptions, cast, interleave, nullif};
use arrow::datatypes::{DataType, FieldRef, Float64Type, Int64Type};

use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::functions_aggregate::min_max::min_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF,
    Signature, StatisticsArgs,
};

/// Rows are compacted when they exceed twice the groups by this number.
const SPARE_ROWS_MAX: usize = 1 << 16;

/// The engine's `min` with a faster implementation for structs.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct MinFunction {
    engine_min: Arc<AggregateUDF>,
}

/// Creates the function that replaces the engine's `min`.
pub(crate) fn min_function() -> AggregateUDF {
    AggregateUDF::new_from_impl(MinFunction {
        engine_min: min_udaf(),
    })
}

fn is_struct(args: &AccumulatorArgs<'_>) -> bool {
    matches!(args.return_field.data_type(), DataType::Struct(_))
}

impl AggregateUDFImpl for MinFunction {
    fn name(&self) -> &str {
        self.engine_min.name()
    }

    fn signature(&self) -> &Signature {
        self.engine_min.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.engine_min.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if is_struct(&args) {
            return Ok(Box::new(MinRow::new(args.return_field.data_type())));
        }
        self.engine_min.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.engine_min.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        is_struct(&args) || self.engine_min.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        if is_struct(&args) {
            return Ok(Box::new(MinRows::new(args.return_field.data_type())));
        }
        self.engine_min.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        self.engine_min.create_sliding_accumulator(args)
    }

    fn is_descending(&self) -> Option<bool> {
        self.engine_min.is_descending()
    }

    fn value_from_stats(&self, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.engine_min.value_from_stats(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.engine_min.order_sensitivity()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.engine_min.coerce_types(types)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// A prefix that orders most rows. If two prefixes are equal, the rows themselves are compared.
type Prefix = [u64; 2];

/// The position of a row: the index of its array, and the row in the array.
type RowIndex = (u32, u32);

/// The smallest row of each group.
struct MinRows {
    /// An array with one null struct, then the arrays with the smallest rows.
    arrays: Vec<StructArray>,
    /// The number of rows in the arrays.
    rows: usize,
    array_bytes: usize,
    prefixes: Vec<Prefix>,
    /// The row of each group, or [`NO_ROW`].
    row_indexes: Vec<RowIndex>,
}

const NO_ROW: RowIndex = (0, 0);

impl MinRows {
    fn new(data_type: &DataType) -> Self {
        let null = match data_type {
            DataType::Struct(fields) => StructArray::new_null(fields.clone(), 1),
            _ => StructArray::new_empty_fields(1, None),
        };
        Self {
            arrays: vec![null],
            rows: 0,
            array_bytes: 0,
            prefixes: Vec::new(),
            row_indexes: Vec::new(),
        }
    }

    fn update(&mut self, rows: &StructArray, groups: &[usize], group_count: usize) -> Result<()> {
        self.prefixes.resize(group_count, [u64::MAX; 2]);
        self.row_indexes.resize(group_count, NO_ROW);
        let prefixes = compute_prefixes(rows)?;
        let array_index = u32::try_from(self.arrays.len())
            .map_err(|_| internal_datafusion_err!("too many batches in one group by"))?;
        self.arrays.push(rows.clone());
        // Created on demand, because most rows differ in their prefixes.
        let mut comparators: Vec<Option<DynComparator>> = Vec::new();
        comparators.resize_with(self.arrays.len(), || None);
        let mut is_needed = false;
        for ((row, group), prefix) in groups.iter().enumerate().zip(prefixes) {
            if rows.is_null(row) {
                continue;
            }
            let (Some(row_index), Some(least)) = (
                self.row_indexes.get_mut(*group),
                self.prefixes.get_mut(*group),
            ) else {
                continue;
            };
            let is_less = *row_index == NO_ROW
                || prefix < *least
                || (prefix == *least && {
                    let (array, old_row) = (row_index.0 as usize, row_index.1 as usize);
                    comparator_for(&mut comparators, &self.arrays, rows, array)?(row, old_row)
                        .is_lt()
                });
            if is_less {
                *least = prefix;
                *row_index = (array_index, u32::try_from(row).unwrap_or(u32::MAX));
                is_needed = true;
            }
        }
        if !is_needed {
            self.arrays.pop();
            return Ok(());
        }
        self.rows += rows.len();
        self.array_bytes += rows.to_data().get_slice_memory_size()?;
        if self.rows > 2 * self.row_indexes.len() + SPARE_ROWS_MAX {
            self.compact()?;
        }
        Ok(())
    }

    /// Copies the smallest rows into one array and drops all other rows.
    fn compact(&mut self) -> Result<()> {
        let rows = self.emit(self.row_indexes.len())?;
        let groups = rows.len();
        let null = self.arrays.swap_remove(0);
        self.array_bytes = rows.to_data().get_slice_memory_size()?;
        self.rows = groups;
        self.row_indexes = (0..groups)
            .map(|row| match rows.is_null(row) {
                true => NO_ROW,
                false => (1, u32::try_from(row).unwrap_or(u32::MAX)),
            })
            .collect();
        self.arrays = vec![null, rows];
        Ok(())
    }

    /// Returns the rows of the first groups.
    fn emit(&self, groups: usize) -> Result<StructArray> {
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| array as _).collect();
        let row_indexes: Vec<(usize, usize)> = self
            .row_indexes
            .iter()
            .take(groups)
            .map(|(array, row)| (*array as usize, *row as usize))
            .collect();
        Ok(interleave(&arrays, &row_indexes)?.as_struct().clone())
    }
}

/// Returns the comparator of new rows with the rows of an array, and creates it if necessary.
fn comparator_for<'a>(
    comparators: &'a mut [Option<DynComparator>],
    arrays: &[StructArray],
    rows: &StructArray,
    array: usize,
) -> Result<&'a DynComparator> {
    let missing = || internal_datafusion_err!("a row index has no array");
    let slot = comparators.get_mut(array).ok_or_else(missing)?;
    if slot.is_none() {
        let nulls_last = SortOptions {
            descending: false,
            nulls_first: false,
        };
        let array = arrays.get(array).ok_or_else(missing)?;
        *slot = Some(make_comparator(rows, array, nulls_last)?);
    }
    slot.as_ref().ok_or_else(missing)
}

/// Computes the prefix of each row.
fn compute_prefixes(rows: &StructArray) -> Result<Vec<Prefix>> {
    let mut prefixes = vec![[0; 2]; rows.len()];
    for (index, column) in rows.columns().iter().take(2).enumerate() {
        let set = |prefixes: &mut [Prefix], row: usize, value: u64| {
            if let Some(prefix) = prefixes.get_mut(row).and_then(|row| row.get_mut(index)) {
                *prefix = value;
            }
        };
        let kind = column.data_type();
        if kind.is_integer() && *kind != DataType::UInt64 || kind.is_temporal() {
            let column = cast(column, &DataType::Int64)?;
            let column = column.as_primitive::<Int64Type>();
            for (row, value) in column.values().iter().enumerate() {
                set(&mut prefixes, row, value.cast_unsigned() ^ (1 << 63));
            }
        } else if kind.is_floating() {
            let column = cast(column, &DataType::Float64)?;
            let column = column.as_primitive::<Float64Type>();
            for (row, value) in column.values().iter().enumerate() {
                // The total order of floats is the order of their bits, reversed below zero.
                let bits = value.to_bits();
                let flip = if bits >> 63 == 1 { u64::MAX } else { 1 << 63 };
                set(&mut prefixes, row, bits ^ flip);
            }
        } else {
            break;
        }
        for row in (0..column.len()).filter(|row| column.is_null(*row)) {
            set(&mut prefixes, row, u64::MAX);
        }
    }
    // A null and the largest number have the same first prefix, so the second one must not decide.
    if let Some(column) = rows.columns().first() {
        for (row, prefix) in prefixes.iter_mut().enumerate() {
            if column.is_null(row) {
                *prefix = [u64::MAX; 2];
            }
        }
    }
    Ok(prefixes)
}

impl GroupsAccumulator for MinRows {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        group_count: usize,
    ) -> Result<()> {
        let [rows] = self.convert_to_state(values, filter)?.try_into().map_err(
            |values: Vec<ArrayRef>| internal_datafusion_err!("min of {} values", values.len()),
        )?;
        self.update(rows.as_struct(), groups, group_count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = match emit_to {
            EmitTo::All => self.row_indexes.len(),
            EmitTo::First(groups) => groups,
        };
        let rows = self.emit(groups)?;
        emit_to.take_needed(&mut self.prefixes);
        emit_to.take_needed(&mut self.row_indexes);
        if self.row_indexes.is_empty() {
            self.arrays.truncate(1);
            (self.rows, self.array_bytes) = (0, 0);
        }
        Ok(Arc::new(rows))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        group_count: usize,
    ) -> Result<()> {
        self.update_batch(values, groups, None, group_count)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(filter) = filter else {
            return Ok(values.to_vec());
        };
        // Rows that the filter rejects, or for which it is null.
        let rejected: BooleanArray = filter
            .iter()
            .map(|passes| Some(passes != Some(true)))
            .collect();
        let filtered = values.iter().map(|rows| Ok(nullif(rows, &rejected)?));
        filtered.collect()
    }

    fn size(&self) -> usize {
        self.array_bytes
            + self.prefixes.capacity() * size_of::<Prefix>()
            + self.row_indexes.capacity() * size_of::<RowIndex>()
    }
}

/// The smallest of all rows.
struct MinRow {
    rows: MinRows,
}

impl MinRow {
    fn new(data_type: &DataType) -> Self {
        Self {
            rows: MinRows::new(data_type),
        }
    }
}

impl std::fmt::Debug for MinRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MinRow").finish_non_exhaustive()
    }
}

impl Accumulator for MinRow {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |rows| rows.len());
        self.rows.update_batch(values, &vec![0; rows], None, 1)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.rows.row_indexes.resize(1, NO_ROW);
        ScalarValue::try_from_array(&self.rows.emit(1)?, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.rows.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

#[cfg(test)]
#[path = "min_struct_tests.rs"]
mod tests;
