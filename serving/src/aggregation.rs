//! Sums merged rows by time segment and by the values of one column.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use jobs::merge::{LiveDelta, MergedRow};
use jobs::sketch::{Estimate, cell_column, compute_cell, estimate};
use schemas::key::{KeyError, KeyValue};
use schemas::time::{BucketSpan, BucketWidth, UnixSeconds};

use crate::explanation::ValueExplanation;
use crate::layered_count::LayeredCount;
use crate::plan::ViewScan;
use crate::stats_query::{StatsQuery, TimeSegments};

/// Sums by time segment and, if requested, by key.
#[derive(Debug, Clone)]
pub(crate) enum Aggregation {
    /// One sum per segment.
    Segments(Vec<LayeredCount>),
    /// The sums of the first two segments for each value of a column.
    Keys(KeyedSums),
    /// One sketch per segment.
    Sketches(Vec<Sketch>),
    /// The rows that make up the sum of the first segment.
    Rows(Box<ValueExplanation>),
}

/// The cells that distinct values occupy, and the layers that contributed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sketch {
    counts: HashMap<i64, i128>,
    layers: LayeredCount,
}

impl Sketch {
    fn add(&mut self, cell: i64, value: &MergedRow<'_>) {
        *self.counts.entry(cell).or_default() += value.count;
        self.layers.add(value);
    }

    /// Estimates the number of distinct values. Values whose events were all corrected to zero do
    /// not count.
    pub(crate) fn estimate(&self) -> Estimate {
        let occupied = self.counts.iter().filter(|(_, count)| **count > 0);
        estimate(occupied.map(|(cell, _)| *cell))
    }

    pub(crate) const fn layers(&self) -> &LayeredCount {
        &self.layers
    }
}

/// The sums of the first two segments.
pub(crate) type PeriodPair = [LayeredCount; 2];

/// Sums by the value of a column.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyedSums {
    ints: HashMap<i64, PeriodPair>,
    texts: HashMap<String, PeriodPair>,
    null: Option<PeriodPair>,
}

impl KeyedSums {
    fn sum_mut(&mut self, key: RowValue<'_>, segment: usize) -> Option<&mut LayeredCount> {
        let pair = match key {
            RowValue::Null => self.null.get_or_insert_default(),
            RowValue::Int(n) => self.ints.entry(n).or_default(),
            // Look up first: most texts exist already and need no copy.
            RowValue::Text(text) if self.texts.contains_key(text) => self.texts.get_mut(text)?,
            RowValue::Text(text) => self.texts.entry(text.to_owned()).or_default(),
        };
        pair.get_mut(segment)
    }

    #[cfg(test)]
    pub(crate) fn insert(&mut self, key: &KeyValue, pair: PeriodPair) {
        match key {
            KeyValue::Int(n) | KeyValue::Time(n) | KeyValue::Instant(n) => {
                self.ints.insert(*n, pair);
            }
            KeyValue::Text(text) => drop(self.texts.insert(text.clone(), pair)),
            KeyValue::Null => self.null = Some(pair),
        }
    }

    /// The keys with their sums, in no particular order.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (KeyValue, PeriodPair)> {
        let ints = self
            .ints
            .into_iter()
            .map(|(n, pair)| (KeyValue::Int(n), pair));
        let texts = self
            .texts
            .into_iter()
            .map(|(text, pair)| (KeyValue::Text(text), pair));
        let null = self.null.map(|pair| (KeyValue::Null, pair));
        ints.chain(texts).chain(null)
    }
}

impl Aggregation {
    pub(crate) fn new(query: &StatsQuery, segments: usize) -> Self {
        if query.explains {
            Self::Rows(Box::default())
        } else if query.distinct.is_some() {
            Self::Sketches(vec![Sketch::default(); segments])
        } else if query.by.is_some() {
            Self::Keys(KeyedSums::default())
        } else {
            Self::Segments(vec![LayeredCount::default(); segments])
        }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Segments(sums) => sums.len() * size_of::<LayeredCount>(),
            Self::Rows(explanation) => explanation.memory_bytes(),
            Self::Keys(keys) => {
                let texts: usize = keys.texts.keys().map(String::len).sum();
                let entries = keys.ints.len() + keys.texts.len() + 1;
                texts + entries * (size_of::<PeriodPair>() + size_of::<String>())
            }
            Self::Sketches(sketches) => {
                let cells: usize = sketches.iter().map(|sketch| sketch.counts.len()).sum();
                sketches.len() * size_of::<Sketch>() + cells * size_of::<(i64, i128)>()
            }
        }
    }

    /// Adds the rows of a scan that match the query.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not decode.
    pub(crate) fn add(
        &mut self,
        scan: &ViewScan,
        query: &StatsQuery,
        segments: &TimeSegments,
        values: &[MergedRow<'_>],
        live: &[LiveDelta<'_>],
    ) -> Result<(), KeyError> {
        if values.is_empty() {
            return Ok(());
        }
        let columns = RowColumns::decode(scan, query, values, &[])?;
        for (row, value) in values.iter().enumerate() {
            let bucket = columns.bucket(row);
            if !bucket.is_none_or(|start| is_within(&scan.spans, start)) || !columns.matches(row) {
                continue;
            }
            let Some(segment) = segments.index_of(bucket) else {
                continue;
            };
            let sum = match self {
                Self::Segments(sums) => sums.get_mut(segment),
                Self::Keys(keys) => keys.sum_mut(columns.group_value(row), segment),
                Self::Rows(explanation) => {
                    if segment == 0 {
                        explanation.add(scan, value, live)?;
                    }
                    continue;
                }
                Self::Sketches(sketches) => {
                    if let (Some(sketch), Some(cell)) =
                        (sketches.get_mut(segment), columns.sketch_cell(row))
                    {
                        sketch.add(cell, value);
                    }
                    continue;
                }
            };
            if let Some(sum) = sum {
                sum.add(value);
            }
        }
        Ok(())
    }
}

/// The value of a row that it is grouped by.
#[derive(Debug, Clone, Copy)]
enum RowValue<'a> {
    Null,
    Int(i64),
    Text(&'a str),
}

/// The columns of row keys that a query needs, decoded.
#[derive(Debug)]
pub(crate) struct RowColumns<'a> {
    /// By index of the column; `None` if it is not needed.
    columns: Vec<Option<ArrayRef>>,
    has_bucket: bool,
    filters: Vec<(usize, &'a KeyValue)>,
    grouping: GroupSource<'a>,
    /// Index of the column whose distinct values are counted, and whether it already holds cells.
    distinct: Option<(usize, bool)>,
}

#[derive(Debug)]
enum GroupSource<'a> {
    Ungrouped,
    Group(&'a KeyValue),
    Column(usize),
}

impl<'a> RowColumns<'a> {
    /// Decodes the columns of the row keys of a scan that the query needs, and those in
    /// `additional`.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not decode.
    pub(crate) fn decode(
        scan: &'a ViewScan,
        query: &'a StatsQuery,
        values: &[MergedRow<'_>],
        additional: &[String],
    ) -> Result<Self, KeyError> {
        let row = &scan.job.row().0;
        let index_of_column = |name: &str| row.iter().position(|column| column.name == name);
        let filters: Vec<(usize, &KeyValue)> = query
            .filters
            .iter()
            .filter_map(|(name, value)| Some((index_of_column(name)?, value)))
            .collect();
        let grouping = match &query.by {
            None => GroupSource::Ungrouped,
            Some(name) => {
                let groups = scan.job.group().0.iter().zip(&scan.group);
                let mut group_values = groups.filter(|(column, _)| column.name == *name);
                match group_values.next() {
                    Some((_, value)) => GroupSource::Group(value),
                    None => {
                        index_of_column(name).map_or(GroupSource::Ungrouped, GroupSource::Column)
                    }
                }
            }
        };
        let distinct = query.distinct.as_deref().and_then(|name| {
            let cell = index_of_column(&cell_column(name)).map(|index| (index, true));
            cell.or_else(|| Some((index_of_column(name)?, false)))
        });
        let has_bucket = scan.job.bucket() != BucketWidth::All;
        let group_column = match grouping {
            GroupSource::Column(index) => Some(index),
            GroupSource::Ungrouped | GroupSource::Group(_) => None,
        };
        let distinct_column = distinct.map(|(index, _)| index);
        let indexes = filters.iter().map(|(index, _)| *index);
        let indexes = indexes.chain(has_bucket.then_some(0)).chain(group_column);
        let additional = additional.iter().filter_map(|name| index_of_column(name));
        let indexes: Vec<usize> = indexes.chain(distinct_column).chain(additional).collect();
        let keys = values.iter().map(|value| value.key);
        Ok(Self {
            columns: scan.job.row().decode_columns(keys, &indexes)?,
            has_bucket,
            filters,
            grouping,
            distinct,
        })
    }

    fn column(&self, index: usize) -> Option<&ArrayRef> {
        self.columns.get(index)?.as_ref()
    }

    /// The sketch cell of a row's value, if it has one.
    fn sketch_cell(&self, row: usize) -> Option<i64> {
        let (column, is_cell) = self.distinct?;
        match self.value_at(column, row)? {
            RowValue::Int(value) => Some(if is_cell { value } else { compute_cell(value) }),
            RowValue::Null | RowValue::Text(_) => None,
        }
    }

    /// The start of a row's bucket, if it has one.
    pub(crate) fn bucket(&self, row: usize) -> Option<UnixSeconds> {
        let column = self.column(0).filter(|_| self.has_bucket)?;
        let starts_ms = column.as_primitive_opt::<TimestampMillisecondType>()?;
        Some(starts_ms.value(row).div_euclid(1000))
    }

    /// True if a row matches the filters.
    pub(crate) fn matches(&self, row: usize) -> bool {
        self.filters
            .iter()
            .all(|(column, value)| self.has_value(*column, row, value))
    }

    /// The value of a row by column name.
    pub(crate) fn value(&self, scan: &ViewScan, name: &str, row: usize) -> Option<KeyValue> {
        let column = scan
            .job
            .row()
            .0
            .iter()
            .position(|named| named.name == name)?;
        Some(match self.value_at(column, row)? {
            RowValue::Null => KeyValue::Null,
            RowValue::Int(n) => KeyValue::Int(n),
            RowValue::Text(text) => KeyValue::Text(text.to_owned()),
        })
    }

    /// The value of a row; `None` for columns that were not decoded and for times.
    fn value_at(&self, column: usize, row: usize) -> Option<RowValue<'_>> {
        let column = self.column(column)?;
        if column.is_null(row) {
            return Some(RowValue::Null);
        }
        let int = as_ints(column).map(|ints| RowValue::Int(ints.value(row)));
        int.or_else(|| as_texts(column).map(|texts| RowValue::Text(texts.value(row))))
    }

    fn has_value(&self, column: usize, row: usize, value: &KeyValue) -> bool {
        match (self.value_at(column, row), value) {
            (Some(RowValue::Null), KeyValue::Null) => true,
            (Some(RowValue::Int(row_value)), KeyValue::Int(n)) => row_value == *n,
            (Some(RowValue::Text(row_value)), KeyValue::Text(text)) => row_value == text,
            _ => false,
        }
    }

    fn group_value(&self, row: usize) -> RowValue<'_> {
        match &self.grouping {
            GroupSource::Group(KeyValue::Int(n)) => RowValue::Int(*n),
            GroupSource::Group(KeyValue::Text(text)) => RowValue::Text(text),
            GroupSource::Ungrouped | GroupSource::Group(_) => RowValue::Null,
            GroupSource::Column(column) => self.value_at(*column, row).unwrap_or(RowValue::Null),
        }
    }
}

fn as_ints(column: &ArrayRef) -> Option<&Int64Array> {
    column.as_primitive_opt::<Int64Type>()
}

fn as_texts(column: &ArrayRef) -> Option<&StringArray> {
    column.as_string_opt::<i32>()
}

fn is_within(spans: &[BucketSpan], time: UnixSeconds) -> bool {
    let started_count = spans.partition_point(|span| span.from.is_none_or(|from| from <= time));
    started_count
        .checked_sub(1)
        .and_then(|index| spans.get(index))
        .is_some_and(|span| span.to.is_none_or(|to| time < to))
}

#[cfg(test)]
#[path = "aggregation_tests.rs"]
mod tests;
