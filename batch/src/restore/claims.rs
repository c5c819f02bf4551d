//! Expected counts from a file: CSV, JSON lines or Parquet.
//!
//! A line names columns of the view and what is expected. Which columns it names is how finely the view is compared:
//! what the file does not tell apart is added up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, RecordBatch};
use arrow::compute::kernels::cmp::neq;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jobs::{BUCKET, Job};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::shown;
use schemas::time::Width;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::scope::Scope;
use super::sides::{Side, Sides};
use crate::run::go_on;
use crate::{Error, Result};

/// The column with the expected count.
const EXPECTED: &str = "expected";
/// Lines that go on together.
const BLOCK_ROWS: usize = 8_192;
/// Up to here every whole number has a floating-point number of its own.
const FLOAT_EXACT_MAX: u64 = 1 << 53;

/// A file of expected counts, open.
pub(crate) struct Claims {
    /// What it is called where something is wrong with it.
    name: String,
    columns: Columns,
    lines: Lines,
}

/// Which columns it has.
struct Columns {
    /// Those of the view, in the view's order, each with its own name for it.
    of_view: Vec<(KeyColumn, String)>,
    /// Its name for the expected count.
    expected: String,
    bucket: Width,
}

enum Lines {
    /// With the places of the columns, and that of the count.
    Csv(Box<csv::Reader<File>>, Vec<usize>, usize),
    Json(BufReader<File>),
    Parquet(Box<ParquetRecordBatchReader>),
}

/// A line's values in the order of the columns, and its count.
type Line = (Vec<KeyValue>, i64);

impl Claims {
    /// Opens a file; its ending tells its format. `rename` says by the file's name of a column which one it is.
    ///
    /// # Errors
    /// [`Error::Request`] for a file that can't be read, another format, columns that the view lacks.
    pub(crate) fn open(
        (path, name): (PathBuf, String),
        job: &Job,
        rename: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let wrong = |what: String| Error::Request(format!("{name}: {what}"));
        let open = || File::open(&path).map_err(|error| wrong(error.to_string()));
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        let (names, lines): (Vec<String>, _) = match extension.to_ascii_lowercase().as_str() {
            "csv" => {
                let mut reader = csv::Reader::from_reader(open()?);
                let header = reader.headers().map_err(|e| wrong(e.to_string()))?;
                let names = header.iter().map(str::to_owned).collect();
                (names, Lines::Csv(Box::new(reader), Vec::new(), 0))
            }
            "jsonl" | "ndjson" | "json" => {
                let mut first = String::new();
                let unmarked = || unmarked(open()?).map_err(|error| wrong(error.to_string()));
                let mut reader = unmarked()?;
                let read = reader.read_line(&mut first);
                read.map_err(|e| wrong(e.to_string()))?;
                if first.trim().is_empty() {
                    return Err(nothing_in(&name));
                }
                let Once(object) = serde_json::from_str(&first).map_err(|e| {
                    wrong(format!("line 1: {e}; expected a JSON object on each line"))
                })?;
                (object.keys().cloned().collect(), Lines::Json(unmarked()?))
            }
            "parquet" => {
                let builder = ParquetRecordBatchReaderBuilder::try_new(open()?);
                let builder = builder.map_err(|e| wrong(e.to_string()))?;
                let fields = builder.schema().fields().iter();
                let names = fields.map(|field| field.name().clone()).collect();
                let reader = builder.with_batch_size(BLOCK_ROWS).build();
                (
                    names,
                    Lines::Parquet(Box::new(reader.map_err(|e| wrong(e.to_string()))?)),
                )
            }
            _ => {
                return Err(wrong(
                    "expected counts come as .csv, .jsonl or .parquet".to_owned(),
                ));
            }
        };
        let columns = columns_of(job, &names, rename).map_err(wrong)?;
        let place = |name: &str| names.iter().position(|found| found == name).unwrap_or(0);
        let lines = match lines {
            Lines::Csv(reader, ..) => {
                let places = columns.of_view.iter().map(|(_, own)| place(own)).collect();
                Lines::Csv(reader, places, place(&columns.expected))
            }
            other => other,
        };
        Ok(Self {
            name,
            columns,
            lines,
        })
    }

    /// The names of the view's columns that it has.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let columns = self.columns.of_view.iter();
        columns.map(|(column, _)| column.name.clone()).collect()
    }

    /// Adds what is expected to the sides. This reads the disk and waits for it.
    ///
    /// # Errors
    /// [`Error::Request`] names line, column and what is expected there.
    pub(crate) fn add(
        self,
        (scope, sides): (&Scope, &Sides),
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut block = Block::default();
        let Self {
            name,
            columns,
            lines,
        } = self;
        let mut lines_read = 0_u64;
        let mut take = |number: usize, line: Result<Line, String>| -> Result<()> {
            lines_read += 1;
            let wrong = |what: String| {
                Error::Request(format!(
                    "{name}: line {number}: {what}. Nothing was compared"
                ))
            };
            let (values, count) = line.map_err(wrong)?;
            if scope.has_claim(&values) {
                let key = scope.grain.encode_values(&values);
                block
                    .keys
                    .append_value(key.map_err(|e| wrong(e.to_string()))?);
                block.counts.push(count);
            }
            if block.counts.len() == BLOCK_ROWS {
                go_on(stop)?;
                block.send(sides)?;
            }
            Ok(())
        };
        let columns = &columns;
        match lines {
            Lines::Csv(mut reader, places, expected) => {
                for record in reader.records() {
                    let record = record.map_err(|e| {
                        Error::Request(format!("{name}: {e}. Nothing was compared"))
                    })?;
                    let number = record.position().map_or(0, csv::Position::line);
                    let number = usize::try_from(number).unwrap_or(usize::MAX);
                    take(number, csv_line(columns, &record, (&places, expected)))?;
                }
            }
            Lines::Json(reader) => {
                for (number, line) in (1..).zip(reader.lines()) {
                    let line = line.map_err(|e| e.to_string());
                    if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
                        continue;
                    }
                    take(number, line.and_then(|line| json_line(columns, &line)))?;
                }
            }
            Lines::Parquet(reader) => {
                let mut number = 1;
                for batch in *reader {
                    let lines = batch
                        .map_err(|e| e.to_string())
                        .and_then(|batch| parquet_lines(columns, &batch));
                    for line in lines.unwrap_or_else(|what| vec![Err(what)]) {
                        take(number, line)?;
                        number += 1;
                    }
                }
            }
        }
        if lines_read == 0 {
            return Err(nothing_in(&name));
        }
        block.send(sides)
    }
}

/// A file without the mark that some programs begin a text with.
fn unmarked(file: File) -> std::io::Result<BufReader<File>> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let mut reader = BufReader::new(file);
    if reader.fill_buf()?.starts_with(MARK) {
        reader.consume(MARK.len());
    }
    Ok(reader)
}

/// A JSON object that says each name once: of two values nobody could say which one is meant.
struct Once(Map<String, Value>);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Names)
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Once;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Once, A::Error> {
        let mut object = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("{name:?} is there twice")));
            }
            object.insert(name, value);
        }
        Ok(Once(object))
    }
}

fn nothing_in(name: &str) -> Error {
    Error::Request(format!(
        "{name}: there is no line in it, so it is not known what is expected"
    ))
}

/// Lines that wait to go on.
#[derive(Default)]
struct Block {
    keys: BinaryBuilder,
    counts: Vec<i64>,
}

impl Block {
    fn send(&mut self, sides: &Sides) -> Result<()> {
        let (keys, counts) = (self.keys.finish(), std::mem::take(&mut self.counts));
        let lines = Int64Array::from(vec![1; counts.len()]);
        sides.add_keyed(Side::Claimed, &keys, &Int64Array::from(counts))?;
        sides.add_keyed(Side::ClaimedLines, &keys, &lines)
    }
}

/// The view's columns that a file names, in the view's order.
fn columns_of(
    job: &Job,
    names: &[String],
    rename: &BTreeMap<String, String>,
) -> Result<Columns, String> {
    let all = || job.group().0.iter().chain(&job.row().0);
    let known: Vec<&str> = all().map(|column| column.name.as_str()).collect();
    let known = known.join(", ");
    if let Some(name) = rename.keys().find(|name| !names.contains(name)) {
        return Err(format!(
            "--rename {name}: there is no such column; there are {}",
            names.join(", ")
        ));
    }
    let meant = |name: &String| rename.get(name).unwrap_or(name).clone();
    let all_meant: Vec<String> = names.iter().map(meant).collect();
    let own = |name: &str| {
        let place = all_meant.iter().position(|meant| meant == name)?;
        names.get(place).cloned()
    };
    let Some(expected) = own(EXPECTED) else {
        return Err(format!(
            "there is no column {EXPECTED:?} with what is expected; the others name columns of {}: {known}",
            job.name()
        ));
    };
    for (place, name) in all_meant.iter().enumerate() {
        if all_meant.iter().skip(place + 1).any(|other| other == name) {
            return Err(format!("the column {name:?} is there twice"));
        }
        if name != EXPECTED && !all().any(|column| column.name == *name) {
            return Err(format!(
                "{} has no column {name:?}; it has {known}",
                job.name()
            ));
        }
    }
    let named = |column: &KeyColumn| Some((column.clone(), own(&column.name)?));
    Ok(Columns {
        of_view: all().filter_map(named).collect(),
        expected,
        bucket: job.bucket(),
    })
}

fn csv_line(
    columns: &Columns,
    record: &csv::StringRecord,
    (places, expected): (&[usize], usize),
) -> Result<Line, String> {
    let values = columns
        .of_view
        .iter()
        .zip(places)
        .map(|((column, _), place)| {
            let text = record.get(*place).unwrap_or_default();
            match text.is_empty() && column.nullable {
                true => Ok(KeyValue::Null),
                false => of_text((column, columns.bucket), text),
            }
        });
    let count = record.get(expected).unwrap_or_default();
    let count = count.trim().parse().map_err(|_| not_a_count(count))?;
    Ok((values.collect::<Result<_, _>>()?, count))
}

fn json_line(columns: &Columns, line: &str) -> Result<Line, String> {
    let Once(object) =
        serde_json::from_str(line).map_err(|e| format!("{e}; expected a JSON object"))?;
    let is_known =
        |name: &str| name == columns.expected || columns.of_view.iter().any(|(_, own)| own == name);
    if let Some(name) = object.keys().find(|name| !is_known(name)) {
        return Err(format!(
            "{name:?} is not in the first line: all lines have the same columns"
        ));
    }
    let values = columns.of_view.iter().map(|(column, own)| {
        let value = object.get(own).unwrap_or(&Value::Null);
        of_json((column, columns.bucket), value)
    });
    let count = object.get(&columns.expected).unwrap_or(&Value::Null);
    let count = count
        .as_i64()
        .ok_or_else(|| not_a_count(&count.to_string()))?;
    Ok((values.collect::<Result<_, _>>()?, count))
}

fn parquet_lines(
    columns: &Columns,
    batch: &RecordBatch,
) -> Result<Vec<Result<Line, String>>, String> {
    let column = |name: &str, to: &DataType| -> Result<ArrayRef, String> {
        let column = batch
            .column_by_name(name)
            .ok_or_else(|| format!("no column {name:?}"))?;
        exactly(name, column, to)
    };
    let counts = column(&columns.expected, &DataType::Int64)?;
    let arrays = columns.of_view.iter().map(|(of, own)| {
        let is_text = batch
            .column_by_name(own)
            .is_some_and(|found| found.data_type().is_string());
        let micros = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        match of.kind {
            KeyKind::Int => column(own, &DataType::Int64),
            KeyKind::Time | KeyKind::Instant if !is_text => column(own, &micros),
            KeyKind::Text | KeyKind::Time | KeyKind::Instant => column(own, &DataType::Utf8),
        }
    });
    let arrays: Vec<ArrayRef> = arrays.collect::<Result<_, _>>()?;
    let line = |row: usize| -> Result<Line, String> {
        let values = columns
            .of_view
            .iter()
            .zip(&arrays)
            .map(|((column, _), array)| {
                of_json((column, columns.bucket), &shown::value(array, row))
            });
        let count = shown::value(&counts, row);
        let count = count
            .as_i64()
            .ok_or_else(|| not_a_count(&count.to_string()))?;
        Ok((values.collect::<Result<_, _>>()?, count))
    };
    Ok((0..counts.len()).map(line).collect())
}

/// A column as another type, if each of its values is the same there.
fn exactly(name: &str, column: &ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    let from = column.data_type();
    let is_alike = match to {
        DataType::Int64 => from.is_numeric() || from.is_string(),
        DataType::Timestamp(..) => from.is_temporal(),
        _ => from.is_string() || matches!(from, DataType::Binary | DataType::Dictionary(..)),
    };
    if !is_alike {
        return Err(format!("{name} is of the type {from}, which is not {to}"));
    }
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let wrong = |e: ArrowError| format!("{name}: {e}");
    let values = cast_with_options(column, to, &options).map_err(wrong)?;
    let is_rounded = from.is_floating() || from.is_decimal() || from.is_temporal();
    if is_rounded && values.data_type() != from {
        let back = cast_with_options(&values, from, &options).map_err(wrong)?;
        let differs = neq(&back, column).map_err(wrong)?;
        if let Some(row) =
            (0..differs.len()).find(|row| differs.is_valid(*row) && differs.value(*row))
        {
            let found = array_value_to_string(column, row).map_err(wrong)?;
            return Err(format!("{name} is {found}, which is not exactly {to}"));
        }
    }
    if from.is_floating()
        && let Some(values) = values.as_primitive_opt::<Int64Type>()
        && let Some(value) = values
            .iter()
            .flatten()
            .find(|v| v.unsigned_abs() > FLOAT_EXACT_MAX)
    {
        return Err(format!(
            "{name} is {value} as a floating-point number, which is not exact beyond {FLOAT_EXACT_MAX}: write it as an integer"
        ));
    }
    Ok(values)
}

fn not_a_count(found: &str) -> String {
    format!("{EXPECTED} is {found}, not a 64-bit integer")
}

fn of_json((column, bucket): (&KeyColumn, Width), value: &Value) -> Result<KeyValue, String> {
    match (value, column.kind) {
        (Value::Null, _) if column.nullable => Ok(KeyValue::Null),
        (Value::Null, _) => Err(format!("{} is missing", column.name)),
        (Value::String(text), KeyKind::Text) => Ok(KeyValue::Text(text.clone())),
        (Value::String(text), KeyKind::Time | KeyKind::Instant) => of_text((column, bucket), text),
        (Value::Number(number), KeyKind::Int) => number
            .as_i64()
            .map(KeyValue::Int)
            .ok_or_else(|| format!("{} is {number}, not a 64-bit integer", column.name)),
        (value, _) => Err(format!(
            "{} is {value}, not {}",
            column.name,
            kind_of(column)
        )),
    }
}

fn of_text((column, bucket): (&KeyColumn, Width), text: &str) -> Result<KeyValue, String> {
    let wrong = || format!("{} is {text:?}, not {}", column.name, kind_of(column));
    match column.kind {
        KeyKind::Text => Ok(KeyValue::Text(text.to_owned())),
        KeyKind::Int => text.trim().parse().map(KeyValue::Int).map_err(|_| wrong()),
        KeyKind::Time | KeyKind::Instant => {
            let instant = text.parse::<Timestamp>().or_else(|_| {
                // A date is its midnight, and a time without a zone is meant in UTC, as databases give it.
                let local = text.parse::<DateTime>()?;
                Ok::<_, jiff::Error>(local.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp())
            });
            let instant = instant.map_err(|_| wrong())?;
            let seconds = instant.as_second();
            let is_start = instant.subsec_nanosecond() == 0
                && (column.name != BUCKET || bucket.floor(seconds) == seconds);
            match is_start {
                true => Ok(KeyValue::Time(seconds)),
                false => Err(format!(
                    "{} is {text:?}, where no bucket of the view begins (UTC)",
                    column.name
                )),
            }
        }
    }
}

const fn kind_of(column: &KeyColumn) -> &'static str {
    match column.kind {
        KeyKind::Int => "a 64-bit integer",
        KeyKind::Text => "a text",
        KeyKind::Time | KeyKind::Instant => "an instant such as 2026-03-01T00:00:00Z, or a date",
    }
}

/// Reads a file on a thread where one may wait.
pub(crate) async fn add_claims(
    claims: Claims,
    scope: &Arc<Scope>,
    sides: &Arc<Sides>,
    stop: &CancellationToken,
) -> Result<()> {
    let (scope, sides, stop) = (Arc::clone(scope), Arc::clone(sides), stop.clone());
    tokio::task::spawn_blocking(move || claims.add((&scope, &sides), &stop))
        .await
        .map_err(|e| Error::fault("reading what is expected ended", e))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_once() {
        let of = |line: &str| serde_json::from_str::<Once>(line).map(|Once(object)| object);
        assert_eq!(of(r#"{"a":1,"b":{"a":2}}"#).expect("an object").len(), 2);
        let twice = of(r#"{"a":1,"b":2,"a":3}"#).expect_err("a is there twice");
        assert!(
            twice.to_string().contains("\"a\" is there twice"),
            "{twice}"
        );
        assert!(of("[1]").is_err());
    }

    #[test]
    fn the_mark_of_a_text_is_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        for text in ["\u{feff}{}\n", "{}\n"] {
            std::fs::write(&path, text).expect("a file");
            let file = File::open(&path).expect("a file");
            let lines = unmarked(file).expect("a reader").lines();
            let lines: Vec<String> = lines.collect::<Result<_, _>>().expect("lines");
            assert_eq!(lines, ["{}"]);
        }
    }
}
