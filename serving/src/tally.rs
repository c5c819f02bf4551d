//! Adding merged rows up: by segment of time, and by the values of one column.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use jobs::merge::{LivePart, Merged};
use jobs::sketch::{Estimate, cell, cell_column, estimate};
use schemas::key::{KeyError, KeyValue};
use schemas::provenance::Origin;
use schemas::time::{Seconds, Span, Width};

use crate::explained::Explained;
use crate::plan::Lane;
use crate::question::{Prefer, Question, Segments};

/// A sum, and which layers had a part in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) count: i128,
    /// What of it batch rows hold.
    pub(crate) stored: i128,
    /// What live state had counted more of the events that batch rows hold.
    pub(crate) kept: i128,
    pub(crate) batch: bool,
    pub(crate) live: bool,
    /// Whether a batch row is of a run that is still being published.
    pub(crate) is_ahead: bool,
}

impl Cell {
    pub(crate) fn add(&mut self, value: &Merged<'_>) {
        self.count += value.count;
        self.stored += value.stored;
        self.kept += value.kept;
        self.batch |= value.batch;
        self.live |= value.live;
        self.is_ahead |= value.is_ahead;
    }

    /// The value that is preferred: of all events, what batch rows hold where there are any, or what
    /// was counted live.
    pub(crate) const fn preferred(mut self, prefer: Prefer) -> Self {
        match prefer {
            Prefer::Batch if self.batch => {
                self.count = self.stored;
                self.live = false;
            }
            Prefer::Realtime => {
                self.count += self.kept;
                self.live |= self.batch;
                self.batch = false;
            }
            Prefer::Batch | Prefer::Newest => {}
        }
        self
    }

    /// Notes that the layers of another one had a part in it.
    pub(crate) const fn see(&mut self, other: &Self) {
        self.batch |= other.batch;
        self.live |= other.live;
        self.is_ahead |= other.is_ahead;
    }

    /// Whether any event gave it.
    pub(crate) const fn is_seen(&self) -> bool {
        self.batch || self.live || self.kept != 0
    }

    pub(crate) const fn origin(&self, epoch: u64) -> Origin {
        Origin::of(self.batch, self.live, epoch)
    }
}

/// Sums by segment of time and, where it was asked for, by key.
#[derive(Debug, Clone)]
pub(crate) enum Tally {
    /// One sum a segment.
    Segments(Vec<Cell>),
    /// For each value of a column the sums of the first two segments.
    Keys(Keys),
    /// One sketch a segment.
    Sketches(Vec<Sketch>),
    /// Of the first segment, the rows that its sum is made of.
    Rows(Box<Explained>),
}

/// Which cells different values take, and which layers had a part in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sketch {
    counts: HashMap<i64, i128>,
    layers: Cell,
}

impl Sketch {
    fn add(&mut self, cell: i64, value: &Merged<'_>) {
        *self.counts.entry(cell).or_default() += value.count;
        self.layers.add(value);
    }

    /// How many different values there are. One whose events corrections took back is none.
    pub(crate) fn estimate(&self) -> Estimate {
        let taken = self.counts.iter().filter(|(_, count)| **count > 0);
        estimate(taken.map(|(cell, _)| *cell))
    }

    pub(crate) const fn layers(&self) -> &Cell {
        &self.layers
    }
}

/// The sums of the first two segments.
pub(crate) type Pair = [Cell; 2];

/// Sums by the value of a column.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    ints: HashMap<i64, Pair>,
    texts: HashMap<String, Pair>,
    null: Option<Pair>,
}

impl Keys {
    fn cell(&mut self, key: Key<'_>, segment: usize) -> Option<&mut Cell> {
        let pair = match key {
            Key::Null => self.null.get_or_insert_default(),
            Key::Int(n) => self.ints.entry(n).or_default(),
            // Looked up first: most texts are there already, and need no copy.
            Key::Text(text) if self.texts.contains_key(text) => self.texts.get_mut(text)?,
            Key::Text(text) => self.texts.entry(text.to_owned()).or_default(),
        };
        pair.get_mut(segment)
    }

    #[cfg(test)]
    pub(crate) fn put(&mut self, key: &KeyValue, pair: Pair) {
        match key {
            KeyValue::Int(n) | KeyValue::Time(n) | KeyValue::Instant(n) => {
                self.ints.insert(*n, pair);
            }
            KeyValue::Text(text) => drop(self.texts.insert(text.clone(), pair)),
            KeyValue::Null => self.null = Some(pair),
        }
    }

    /// The keys with their sums, in no order.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (KeyValue, Pair)> {
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

impl Tally {
    pub(crate) fn new(question: &Question, segments: usize) -> Self {
        if question.explains {
            Self::Rows(Box::default())
        } else if question.distinct.is_some() {
            Self::Sketches(vec![Sketch::default(); segments])
        } else if question.by.is_some() {
            Self::Keys(Keys::default())
        } else {
            Self::Segments(vec![Cell::default(); segments])
        }
    }

    /// How much memory it takes, in bytes, about.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Segments(cells) => cells.len() * size_of::<Cell>(),
            Self::Rows(explained) => explained.bytes(),
            Self::Keys(keys) => {
                let texts: usize = keys.texts.keys().map(String::len).sum();
                let entries = keys.ints.len() + keys.texts.len() + 1;
                texts + entries * (size_of::<Pair>() + size_of::<String>())
            }
            Self::Sketches(sketches) => {
                let cells: usize = sketches.iter().map(|sketch| sketch.counts.len()).sum();
                sketches.len() * size_of::<Sketch>() + cells * size_of::<(i64, i128)>()
            }
        }
    }

    /// Adds the rows of a lane that the question is about.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not decode.
    pub(crate) fn add(
        &mut self,
        lane: &Lane,
        question: &Question,
        segments: &Segments,
        (values, live): (&[Merged<'_>], &[LivePart<'_>]),
    ) -> Result<(), KeyError> {
        if values.is_empty() {
            return Ok(());
        }
        let columns = Columns::of(lane, question, values, &[])?;
        for (row, value) in values.iter().enumerate() {
            let bucket = columns.bucket(row);
            if !bucket.is_none_or(|at| is_within(&lane.spans, at)) || !columns.passes(row) {
                continue;
            }
            let Some(segment) = segments.index_of(bucket) else {
                continue;
            };
            let cell = match self {
                Self::Segments(cells) => cells.get_mut(segment),
                Self::Keys(keys) => keys.cell(columns.key(row), segment),
                Self::Rows(explained) => {
                    if segment == 0 {
                        explained.add(lane, value, live)?;
                    }
                    continue;
                }
                Self::Sketches(sketches) => {
                    if let (Some(sketch), Some(cell)) =
                        (sketches.get_mut(segment), columns.cell(row))
                    {
                        sketch.add(cell, value);
                    }
                    continue;
                }
            };
            if let Some(cell) = cell {
                cell.add(value);
            }
        }
        Ok(())
    }
}

/// The value that a row counts for.
#[derive(Debug, Clone, Copy)]
enum Key<'a> {
    Null,
    Int(i64),
    Text(&'a str),
}

/// Decoded row keys, with what the question wants of them.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    /// Those that are wanted.
    columns: Vec<Option<ArrayRef>>,
    has_bucket: bool,
    filters: Vec<(usize, &'a KeyValue)>,
    by: By<'a>,
    /// The column with the value of which different ones are counted, and whether it is a cell already.
    distinct: Option<(usize, bool)>,
}

#[derive(Debug)]
enum By<'a> {
    Nothing,
    Group(&'a KeyValue),
    Column(usize),
}

impl<'a> Columns<'a> {
    /// Decodes the keys of a lane's rows: the columns that the question is about, and those `besides`.
    ///
    /// # Errors
    /// [`KeyError`] if a key does not decode.
    pub(crate) fn of(
        lane: &'a Lane,
        question: &'a Question,
        values: &[Merged<'_>],
        besides: &[String],
    ) -> Result<Self, KeyError> {
        let row = &lane.job.row().0;
        let place = |name: &str| row.iter().position(|column| column.name == name);
        let filters: Vec<(usize, &KeyValue)> = question
            .filters
            .iter()
            .filter_map(|(name, value)| Some((place(name)?, value)))
            .collect();
        let by = match &question.by {
            None => By::Nothing,
            Some(name) => {
                let groups = lane.job.group().0.iter().zip(&lane.group);
                let mut of_group = groups.filter(|(column, _)| column.name == *name);
                match of_group.next() {
                    Some((_, value)) => By::Group(value),
                    None => place(name).map_or(By::Nothing, By::Column),
                }
            }
        };
        let distinct = question.distinct.as_deref().and_then(|name| {
            let cell = place(&cell_column(name)).map(|at| (at, true));
            cell.or_else(|| Some((place(name)?, false)))
        });
        let has_bucket = lane.job.bucket() != Width::All;
        let of_by = match by {
            By::Column(at) => Some(at),
            By::Nothing | By::Group(_) => None,
        };
        let of_distinct = distinct.map(|(at, _)| at);
        let wanted = filters.iter().map(|(at, _)| *at);
        let wanted = wanted.chain(has_bucket.then_some(0)).chain(of_by);
        let besides = besides.iter().filter_map(|name| place(name));
        let wanted: Vec<usize> = wanted.chain(of_distinct).chain(besides).collect();
        let keys = values.iter().map(|value| value.key);
        Ok(Self {
            columns: lane.job.row().decode_some(keys, &wanted)?,
            has_bucket,
            filters,
            by,
            distinct,
        })
    }

    fn column(&self, at: usize) -> Option<&ArrayRef> {
        self.columns.get(at)?.as_ref()
    }

    /// The cell that a row's value takes, where it has one.
    fn cell(&self, row: usize) -> Option<i64> {
        let (at, is_cell) = self.distinct?;
        match self.at(at, row)? {
            Key::Int(value) => Some(if is_cell { value } else { cell(value) }),
            Key::Null | Key::Text(_) => None,
        }
    }

    /// The start of a row's bucket, where it has one.
    pub(crate) fn bucket(&self, row: usize) -> Option<Seconds> {
        let column = self.column(0).filter(|_| self.has_bucket)?;
        let millis = column.as_primitive_opt::<TimestampMillisecondType>()?;
        Some(millis.value(row).div_euclid(1000))
    }

    /// Whether a row is one that the question is about.
    pub(crate) fn passes(&self, row: usize) -> bool {
        self.filters
            .iter()
            .all(|(column, value)| self.value_is(*column, row, value))
    }

    /// A value of a row by the name of its column.
    pub(crate) fn value(&self, lane: &Lane, name: &str, row: usize) -> Option<KeyValue> {
        let at = lane
            .job
            .row()
            .0
            .iter()
            .position(|column| column.name == name)?;
        Some(match self.at(at, row)? {
            Key::Null => KeyValue::Null,
            Key::Int(n) => KeyValue::Int(n),
            Key::Text(text) => KeyValue::Text(text.to_owned()),
        })
    }

    /// A value of a row; nothing of a column that is not wanted, and of a time.
    fn at(&self, column: usize, row: usize) -> Option<Key<'_>> {
        let column = self.column(column)?;
        if column.is_null(row) {
            return Some(Key::Null);
        }
        let int = ints(column).map(|ints| Key::Int(ints.value(row)));
        int.or_else(|| texts(column).map(|texts| Key::Text(texts.value(row))))
    }

    fn value_is(&self, column: usize, row: usize, value: &KeyValue) -> bool {
        match (self.at(column, row), value) {
            (Some(Key::Null), KeyValue::Null) => true,
            (Some(Key::Int(own)), KeyValue::Int(n)) => own == *n,
            (Some(Key::Text(own)), KeyValue::Text(text)) => own == text,
            _ => false,
        }
    }

    fn key(&self, row: usize) -> Key<'_> {
        match &self.by {
            By::Group(KeyValue::Int(n)) => Key::Int(*n),
            By::Group(KeyValue::Text(text)) => Key::Text(text),
            By::Nothing | By::Group(_) => Key::Null,
            By::Column(at) => self.at(*at, row).unwrap_or(Key::Null),
        }
    }
}

fn ints(column: &ArrayRef) -> Option<&Int64Array> {
    column.as_primitive_opt::<Int64Type>()
}

fn texts(column: &ArrayRef) -> Option<&StringArray> {
    column.as_string_opt::<i32>()
}

fn is_within(spans: &[Span], at: Seconds) -> bool {
    let begun = spans.partition_point(|span| span.from.is_none_or(|from| from <= at));
    begun
        .checked_sub(1)
        .and_then(|last| spans.get(last))
        .is_some_and(|span| span.to.is_none_or(|to| at < to))
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
