//! `min` of a struct: the least row of a group, whole.
//!
//! The best effort of an athlete is `min(named_struct('elapsed_time', elapsed_time, 'id', id, …))`: the
//! fields are compared in their order, and those behind the ones that decide come along. The engine's
//! own holds an array for each group and compares rows by kernels, which on ten million rows takes
//! most of a run; this one holds eight bytes of each of the first two fields and where the row lies.
//! A field that is null comes after all values, and a struct that is null does not count.

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

/// Rows are copied together once so many more are held than there are groups.
const SPARE_ROWS_MAX: usize = 1 << 16;

/// The engine's `min`, but for structs.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Min {
    of_others: Arc<AggregateUDF>,
}

/// `min`, to be registered in place of the engine's.
pub(crate) fn min() -> AggregateUDF {
    AggregateUDF::new_from_impl(Min {
        of_others: min_udaf(),
    })
}

fn is_struct(args: &AccumulatorArgs<'_>) -> bool {
    matches!(args.return_field.data_type(), DataType::Struct(_))
}

impl AggregateUDFImpl for Min {
    fn name(&self) -> &str {
        self.of_others.name()
    }

    fn signature(&self) -> &Signature {
        self.of_others.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.of_others.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if is_struct(&args) {
            return Ok(Box::new(LeastRow::new(args.return_field.data_type())));
        }
        self.of_others.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.of_others.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        is_struct(&args) || self.of_others.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        if is_struct(&args) {
            return Ok(Box::new(LeastRows::new(args.return_field.data_type())));
        }
        self.of_others.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        self.of_others.create_sliding_accumulator(args)
    }

    fn is_descending(&self) -> Option<bool> {
        self.of_others.is_descending()
    }

    fn value_from_stats(&self, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.of_others.value_from_stats(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.of_others.order_sensitivity()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.of_others.coerce_types(types)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// What tells most rows apart: if it is less, the row is; if it is the same, the rows themselves are
/// compared.
type Prefix = [u64; 2];

/// Where a row lies: which of the arrays, and which of its rows.
type Place = (u32, u32);

/// The least row of each group.
struct LeastRows {
    /// A struct that is null, and then those in which the least rows lie.
    arrays: Vec<StructArray>,
    /// How many rows these have.
    rows: usize,
    array_bytes: usize,
    prefixes: Vec<Prefix>,
    /// By group; that of the null for a group that has no row yet.
    places: Vec<Place>,
}

const NOWHERE: Place = (0, 0);

impl LeastRows {
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
            places: Vec::new(),
        }
    }

    fn update(&mut self, rows: &StructArray, groups: &[usize], groups_all: usize) -> Result<()> {
        self.prefixes.resize(groups_all, [u64::MAX; 2]);
        self.places.resize(groups_all, NOWHERE);
        let prefixes = prefixes(rows)?;
        let here = u32::try_from(self.arrays.len())
            .map_err(|_| internal_datafusion_err!("too many batches in one group by"))?;
        self.arrays.push(rows.clone());
        // Made as they are needed: most rows differ in what is compared before.
        let mut comparators: Vec<Option<DynComparator>> = Vec::new();
        comparators.resize_with(self.arrays.len(), || None);
        let mut is_needed = false;
        for ((row, group), prefix) in groups.iter().enumerate().zip(prefixes) {
            if rows.is_null(row) {
                continue;
            }
            let (Some(place), Some(least)) =
                (self.places.get_mut(*group), self.prefixes.get_mut(*group))
            else {
                continue;
            };
            let is_less = *place == NOWHERE
                || prefix < *least
                || (prefix == *least && {
                    let (array, old_row) = (place.0 as usize, place.1 as usize);
                    compare(&mut comparators, &self.arrays, rows, array)?(row, old_row).is_lt()
                });
            if is_less {
                *least = prefix;
                *place = (here, u32::try_from(row).unwrap_or(u32::MAX));
                is_needed = true;
            }
        }
        if !is_needed {
            self.arrays.pop();
            return Ok(());
        }
        self.rows += rows.len();
        self.array_bytes += rows.to_data().get_slice_memory_size()?;
        if self.rows > 2 * self.places.len() + SPARE_ROWS_MAX {
            self.gather()?;
        }
        Ok(())
    }

    /// Copies the rows that are still the least of a group together, and lets go of all others.
    fn gather(&mut self) -> Result<()> {
        let rows = self.emit(self.places.len())?;
        let groups = rows.len();
        let null = self.arrays.swap_remove(0);
        self.array_bytes = rows.to_data().get_slice_memory_size()?;
        self.rows = groups;
        self.places = (0..groups)
            .map(|row| match rows.is_null(row) {
                true => NOWHERE,
                false => (1, u32::try_from(row).unwrap_or(u32::MAX)),
            })
            .collect();
        self.arrays = vec![null, rows];
        Ok(())
    }

    /// The rows of the first groups.
    fn emit(&self, groups: usize) -> Result<StructArray> {
        let arrays: Vec<&dyn Array> = self.arrays.iter().map(|array| array as _).collect();
        let places: Vec<(usize, usize)> = self
            .places
            .iter()
            .take(groups)
            .map(|(array, row)| (*array as usize, *row as usize))
            .collect();
        Ok(interleave(&arrays, &places)?.as_struct().clone())
    }
}

/// The comparison of rows with those of an array.
fn compare<'a>(
    comparators: &'a mut [Option<DynComparator>],
    arrays: &[StructArray],
    rows: &StructArray,
    array: usize,
) -> Result<&'a DynComparator> {
    let missing = || internal_datafusion_err!("a row lies in no array");
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

/// The prefix of each row.
fn prefixes(rows: &StructArray) -> Result<Vec<Prefix>> {
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
                // The order of all floats: that of their bits, backwards below zero.
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
    // The largest number is no null: if the first field looks alike, the second says nothing yet.
    if let Some(column) = rows.columns().first() {
        for (row, prefix) in prefixes.iter_mut().enumerate() {
            if column.is_null(row) {
                *prefix = [u64::MAX; 2];
            }
        }
    }
    Ok(prefixes)
}

impl GroupsAccumulator for LeastRows {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        groups_all: usize,
    ) -> Result<()> {
        let [rows] = self.convert_to_state(values, filter)?.try_into().map_err(
            |values: Vec<ArrayRef>| internal_datafusion_err!("min of {} values", values.len()),
        )?;
        self.update(rows.as_struct(), groups, groups_all)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = match emit_to {
            EmitTo::All => self.places.len(),
            EmitTo::First(groups) => groups,
        };
        let rows = self.emit(groups)?;
        emit_to.take_needed(&mut self.prefixes);
        emit_to.take_needed(&mut self.places);
        if self.places.is_empty() {
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
        groups_all: usize,
    ) -> Result<()> {
        self.update_batch(values, groups, None, groups_all)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(filter) = filter else {
            return Ok(values.to_vec());
        };
        // Whatever the filter does not let through, also where it is null.
        let out: BooleanArray = filter
            .iter()
            .map(|passes| Some(passes != Some(true)))
            .collect();
        let filtered = values.iter().map(|rows| Ok(nullif(rows, &out)?));
        filtered.collect()
    }

    fn size(&self) -> usize {
        self.array_bytes
            + self.prefixes.capacity() * size_of::<Prefix>()
            + self.places.capacity() * size_of::<Place>()
    }
}

/// The least of all rows.
struct LeastRow {
    rows: LeastRows,
}

impl LeastRow {
    fn new(data_type: &DataType) -> Self {
        Self {
            rows: LeastRows::new(data_type),
        }
    }
}

impl std::fmt::Debug for LeastRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeastRow").finish_non_exhaustive()
    }
}

impl Accumulator for LeastRow {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |rows| rows.len());
        self.rows.update_batch(values, &vec![0; rows], None, 1)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.rows.places.resize(1, NOWHERE);
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
