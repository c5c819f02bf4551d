//! What a restoration looks at: which columns of a view, which keys, which time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::{and, filter_record_batch};
use arrow::datatypes::{Int64Type, TimestampMillisecondType};
use jobs::{BUCKET, COUNT, Job};
use schemas::json_value;
use schemas::key::{KeyColumn, KeyKind, KeyShape, KeyValue};
use schemas::time::{BucketWidth, UnixSeconds};
use serde_json::{Map, Value};
use stores::erasures::SuppressedPeople;
use xxhash_rust::xxh3::xxh3_64;

use super::request::ReconcileRequest;
use crate::{Error, Result};

const DAY_SECONDS: UnixSeconds = 86_400;

/// Columns of a view, by which its rows are added up and compared, and which rows.
#[derive(Debug)]
pub(crate) struct Scope {
    /// The columns: those of the view, or fewer.
    pub(crate) grain: KeyShape,
    /// Their places among the view's columns.
    places: Vec<usize>,
    /// The bucket's place among the view's columns, and its width.
    bucket: Option<(usize, BucketWidth)>,
    range: (Option<UnixSeconds>, Option<UnixSeconds>),
    wanted: Vec<Wanted>,
    /// Keys whose hash is below it; nothing for all.
    sample_below: Option<u64>,
    /// Of whom nothing may be said that comes from elsewhere.
    suppressed: Arc<SuppressedPeople>,
    /// How many lines of a file were of these.
    left_out: AtomicU64,
}

/// The values of one column that are asked for.
#[derive(Debug)]
struct Wanted {
    /// Its place among the view's columns, and among those that are compared.
    place: usize,
    in_grain: Option<usize>,
    ints: HashSet<i64>,
    texts: HashSet<String>,
    null: bool,
}

impl Scope {
    /// What a request asks for of a view. `grain` names the columns that are compared; nothing for all.
    ///
    /// # Errors
    /// [`Error::Request`] names a column that the view lacks, a value that is none of its column, a range of
    /// a view without time.
    pub(crate) fn of(
        job: &Job,
        request: &ReconcileRequest,
        grain: Option<&BTreeSet<String>>,
    ) -> Result<Self> {
        let all: Vec<&KeyColumn> = job.group().0.iter().chain(&job.row().0).collect();
        let is_kept = |column: &KeyColumn| grain.is_none_or(|grain| grain.contains(&column.name));
        let kept = all.iter().enumerate().filter(|(_, c)| is_kept(c));
        let (places, columns): (Vec<usize>, Vec<KeyColumn>) = kept
            .map(|(place, column)| (place, (*column).clone()))
            .unzip();
        let place = |name: &str| all.iter().position(|column| column.name == name);
        let bucket = place(BUCKET).map(|place| (place, job.bucket()));
        let range = (request.from, request.to);
        if let (Some(from), Some(to)) = range
            && from >= to
        {
            return Err(Error::Request("--from must be before --to".to_owned()));
        }
        if bucket.is_none() && range != (None, None) {
            return Err(Error::Request(format!(
                "{} has one row per key for all time, so --from and --to do not apply: use a view by month, day or hour, or omit them",
                job.name()
            )));
        }
        let mut wanted = Vec::new();
        for (name, values) in &request.keys {
            let column = place(name).and_then(|place| Some((place, *all.get(place)?)));
            let Some((place, column)) = column.filter(|(_, column)| column.name != BUCKET) else {
                let known = all.iter().map(|column| column.name.as_str());
                let known: Vec<&str> = known.filter(|name| *name != BUCKET).collect();
                return Err(Error::Request(format!(
                    "--keys {name}: {} has no column with this name; it has {}",
                    job.name(),
                    known.join(", ")
                )));
            };
            let in_grain = places.iter().position(|kept| *kept == place);
            if in_grain.is_none() {
                return Err(Error::Request(format!(
                    "--keys {name}: the file has no column {name:?}, so its lines cannot be selected"
                )));
            }
            wanted.push(Wanted {
                in_grain,
                ..Wanted::of(column, place, values)?
            });
        }
        let sample_below = match request.sample {
            Some(part) if !(part > 0.0 && part <= 1.0) => {
                return Err(Error::Request(format!(
                    "--sample {part}: expected a fraction of the keys, above 0 and up to 1"
                )));
            }
            Some(part) if part < 1.0 => Some(below(part)),
            _ => None,
        };
        Ok(Self {
            grain: KeyShape(columns),
            places,
            bucket,
            range,
            wanted,
            sample_below,
            suppressed: Arc::default(),
            left_out: AtomicU64::new(0),
        })
    }

    /// The same, which leaves out what a file says of those who are suppressed: events and rows don't name them.
    pub(crate) fn without(self, suppressed: Arc<SuppressedPeople>) -> Self {
        Self { suppressed, ..self }
    }

    /// What a person should know of lines that were left out.
    pub(crate) fn left_out(&self) -> Option<String> {
        let lines = self.left_out.load(Ordering::Relaxed);
        (lines > 0)
            .then(|| format!("skipped {lines} lines of the file with listeners who were erased"))
    }

    /// Whether a key is of somebody who is suppressed.
    fn is_of_erased(&self, values: &[KeyValue]) -> bool {
        let mut columns = self.grain.0.iter().zip(values);
        columns.any(|(column, value)| match value {
            KeyValue::Int(id) => {
                column.name == "listener_id" && self.suppressed.contains_listener(*id)
            }
            _ => false,
        })
    }

    /// Whether rows may be in it that events of a UTC day give (days since 1970-01-01).
    pub(crate) fn has_day(&self, day: i64) -> bool {
        let Some((_, width)) = self.bucket else {
            return true;
        };
        let (from, to) = self.range;
        let first = width.floor(day * DAY_SECONDS);
        let last = width.floor((day + 1) * DAY_SECONDS - 1);
        from.is_none_or(|from| last >= from) && to.is_none_or(|to| first < to)
    }

    /// Whether all rows of a view are in it, by all their columns.
    pub(crate) fn is_all_of(&self, job: &Job) -> bool {
        let columns = job.group().0.len() + job.row().0.len();
        self.places.iter().copied().eq(0..columns) && self.has_all_rows()
    }

    /// Whether all rows of a view are in it, by whichever columns.
    pub(crate) fn has_all_rows(&self) -> bool {
        self.range == (None, None) && self.wanted.is_empty()
    }

    /// The rows of a view that are in it.
    pub(crate) fn rows(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        match self.asked(batch)? {
            None => Ok(batch.clone()),
            Some(asked) => {
                filter_record_batch(batch, &asked).map_err(|e| Error::fault("leaving rows out", e))
            }
        }
    }

    /// Which rows of a view are in it; nothing if all are.
    pub(crate) fn asked(&self, batch: &RecordBatch) -> Result<Option<BooleanArray>> {
        let mut kept: Option<BooleanArray> = None;
        let mut demand = |more: BooleanArray| -> Result<()> {
            kept = Some(match &kept {
                None => more,
                Some(kept) => and(kept, &more).map_err(|e| Error::fault("leaving rows out", e))?,
            });
            Ok(())
        };
        if let Some((place, _)) = self.bucket
            && self.range != (None, None)
        {
            demand(self.in_range(batch.column(place)))?;
        }
        for wanted in &self.wanted {
            demand(wanted.among(batch.column(wanted.place)))?;
        }
        Ok(kept)
    }

    fn in_range(&self, buckets: &ArrayRef) -> BooleanArray {
        let (from, to) = self.range;
        let starts = buckets.as_primitive::<TimestampMillisecondType>();
        let within = |millis: i64| {
            let at = millis.div_euclid(1000);
            from.is_none_or(|from| at >= from) && to.is_none_or(|to| at < to)
        };
        starts
            .iter()
            .map(|at| Some(at.is_some_and(within)))
            .collect()
    }

    /// Whether it has a key of the columns that are compared.
    pub(crate) fn has_claim(&self, values: &[KeyValue]) -> bool {
        let (from, to) = self.range;
        let is_time = |value: &KeyValue| match value {
            KeyValue::Time(at) => {
                from.is_none_or(|from| *at >= from) && to.is_none_or(|to| *at < to)
            }
            _ => true,
        };
        let is_wanted = |wanted: &Wanted| {
            let value = wanted.in_grain.and_then(|place| values.get(place));
            value.is_some_and(|value| wanted.has(value))
        };
        let is_asked = values.iter().all(is_time) && self.wanted.iter().all(is_wanted);
        if is_asked && self.is_of_erased(values) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        is_asked
    }

    /// The columns that are compared, of rows of the view.
    fn columns(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        let columns = self.places.iter().map(|place| batch.column(*place));
        columns.map(Arc::clone).collect()
    }

    /// By key that is compared, the sum of the counts of those rows that are in it.
    pub(crate) fn sums(&self, rows: &RecordBatch) -> Result<HashMap<Vec<u8>, i64>> {
        let rows = self.rows(rows)?;
        let (keys, counts) = self.keyed(&rows)?;
        let mut sums: HashMap<Vec<u8>, i64> = HashMap::new();
        for (key, count) in keys.iter().flatten().zip(counts.values()) {
            let sum = sums.entry(key.to_vec()).or_default();
            *sum = sum.wrapping_add(*count);
        }
        Ok(sums)
    }

    /// The keys that are compared, of rows of the view with the columns of [`Job::schema`], and their counts.
    pub(crate) fn keyed<'a>(&self, rows: &'a RecordBatch) -> Result<(BinaryArray, &'a Int64Array)> {
        let keys = self
            .grain
            .encode_rows(&self.columns(rows), rows.num_rows())
            .map_err(|e| Error::fault("a key that is compared", e))?;
        let counts = rows.column_by_name(COUNT);
        let counts = counts.and_then(|counts| counts.as_primitive_opt::<Int64Type>());
        let counts = counts.ok_or_else(|| Error::Fault("rows without a count".to_owned()))?;
        Ok((keys, counts))
    }

    /// Whether an encoded key is among those that are looked at.
    pub(crate) fn is_sampled(&self, key: &[u8]) -> bool {
        // Not the hash that divides the keys among files: all of a sample would be in the first of them.
        self.sample_below
            .is_none_or(|below| xxh3_64(key).swap_bytes() < below)
    }
}

/// That part of what 64 bits can name.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the part is between 0 and 1, and a sample need not be exact"
)]
fn below(part: f64) -> u64 {
    (part * u64::MAX as f64) as u64
}

impl Wanted {
    fn of(column: &KeyColumn, place: usize, values: &[String]) -> Result<Self> {
        let mut wanted = Self {
            place,
            in_grain: None,
            ints: HashSet::new(),
            texts: HashSet::new(),
            null: false,
        };
        for value in values {
            match column.kind {
                _ if value.is_empty() && column.nullable => wanted.null = true,
                KeyKind::Text => {
                    wanted.texts.insert(value.clone());
                }
                _ => {
                    let number = value.parse().map_err(|_| {
                        Error::Request(format!(
                            "--keys {}={value}: expected an integer",
                            column.name
                        ))
                    })?;
                    wanted.ints.insert(number);
                }
            }
        }
        Ok(wanted)
    }

    fn has(&self, value: &KeyValue) -> bool {
        match value {
            KeyValue::Null => self.null,
            KeyValue::Int(int) => self.ints.contains(int),
            KeyValue::Text(text) => self.texts.contains(text),
            KeyValue::Time(_) | KeyValue::Instant(_) => false,
        }
    }

    fn among(&self, column: &ArrayRef) -> BooleanArray {
        if let Some(ints) = column.as_primitive_opt::<Int64Type>() {
            let is_wanted =
                |int: Option<i64>| int.map_or(self.null, |int| self.ints.contains(&int));
            return ints.iter().map(|int| Some(is_wanted(int))).collect();
        }
        let is_wanted =
            |text: Option<&str>| text.map_or(self.null, |text| self.texts.contains(text));
        match column.as_string_opt::<i32>() {
            Some(texts) => texts.iter().map(|text| Some(is_wanted(text))).collect(),
            None => (0..column.len()).map(|_| Some(false)).collect(),
        }
    }
}

/// The key, as column and value.
pub(crate) type Named = BTreeMap<String, KeyValue>;

/// A key of the grain by its columns' names.
pub(crate) fn named(grain: &KeyShape, key: &[u8]) -> Result<Named> {
    let values = grain
        .decode_values(key)
        .map_err(|e| Error::fault("a key that is compared", e))?;
    let names = grain.0.iter().map(|column| column.name.clone());
    Ok(names.zip(values).collect())
}

pub(crate) fn shown_key(key: &Named) -> Map<String, Value> {
    let shown = key.iter();
    shown
        .map(|(name, value): (&String, &KeyValue)| (name.clone(), json_value::from_key(value)))
        .collect()
}
