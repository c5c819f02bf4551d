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

use arrow::array::{BinaryBuilder, Int64Array};
use arrow::datatypes::{DataType, Schema};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jobs::{BUCKET, Job};
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::line::format_instant_us;
use schemas::time::BucketWidth;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use stores::parquet_values::{self, ParquetInput, ParquetRows, RowReader};
use tokio_util::sync::CancellationToken;

use super::scope::Scope;
use super::side::Side;
use super::sides::Sides;
use crate::lease::check_stop;
use crate::{Error, Result};

/// The column with the expected count.
const EXPECTED: &str = "expected";
/// Lines that go on together.
const BLOCK_ROWS: usize = 8_192;
/// Up to here every whole number has a floating-point number of its own.
const FLOAT_EXACT_MAX: f64 = 9_007_199_254_740_992.0;

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
    bucket: BucketWidth,
}

enum Lines {
    /// With the places of the columns, and that of the count.
    Csv(Box<csv::Reader<File>>, Vec<usize>, usize),
    Json(BufReader<File>),
    Parquet(Box<RowReader>),
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
        if open()?.metadata().is_ok_and(|file| file.len() == 0) {
            return Err(nothing_in(&name));
        }
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        let (names, lines): (Vec<String>, _) = match extension.to_ascii_lowercase().as_str() {
            "csv" => {
                let mut reader = csv::Reader::from_reader(open()?);
                let header = reader.headers().map_err(|e| wrong(e.to_string()))?;
                if header.is_empty() {
                    return Err(nothing_in(&name));
                }
                let names = header.iter().map(str::to_owned).collect();
                (names, Lines::Csv(Box::new(reader), Vec::new(), 0))
            }
            "jsonl" | "ndjson" | "json" => {
                let unmarked = || unmarked(open()?).map_err(|error| wrong(error.to_string()));
                let is_filled = |line: &std::io::Result<String>| {
                    line.as_ref().map_or(true, |line| !line.trim().is_empty())
                };
                let mut lines = (1..).zip(unmarked()?.lines());
                let Some((number, first)) = lines.find(|(_, line)| is_filled(line)) else {
                    return Err(nothing_in(&name));
                };
                let first = first.map_err(|e| wrong(e.to_string()))?;
                let Once(object) = serde_json::from_str(&first).map_err(|e| {
                    let number: u64 = number;
                    wrong(format!(
                        "line {number}: {e}; expected a JSON object on each line"
                    ))
                })?;
                (object.keys().cloned().collect(), Lines::Json(unmarked()?))
            }
            "parquet" => {
                let input = ParquetInput::open(open()?).map_err(|e| wrong(e.to_string()))?;
                let fields = input.schema().fields().iter();
                let names: Vec<String> = fields.map(|field| field.name().clone()).collect();
                let columns = columns_of(job, &names, rename).map_err(wrong)?;
                expect_types(&columns, input.schema()).map_err(wrong)?;
                let own = columns.of_view.iter().map(|(_, own)| own.as_str());
                let own: Vec<&str> = own.chain([columns.expected.as_str()]).collect();
                let reader = input.read(&own).map_err(|e| wrong(e.to_string()))?;
                (names, Lines::Parquet(Box::new(reader)))
            }
            _ => {
                return Err(wrong(
                    "expected counts must be in a .csv, .jsonl or .parquet file".to_owned(),
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
                check_stop(stop)?;
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
                for rows in *reader {
                    let rows = match rows {
                        Ok(rows) => rows,
                        Err(error) => return take(number, Err(error.to_string())),
                    };
                    for row in 0..rows.count() {
                        take(number, parquet_line(columns, &rows, row))?;
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

/// A file without the byte order mark that some programs begin a text with.
pub(super) fn unmarked(file: File) -> std::io::Result<BufReader<File>> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let mut reader = BufReader::new(file);
    if reader.fill_buf()?.starts_with(MARK) {
        reader.consume(MARK.len());
    }
    Ok(reader)
}

/// A JSON object that has each name once: of two values it would be unknown which one is meant.
pub(super) struct Once(pub(super) Map<String, Value>);

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
                return Err(A::Error::custom(format!("{name:?} occurs twice")));
            }
            object.insert(name, value);
        }
        Ok(Once(object))
    }
}

fn nothing_in(name: &str) -> Error {
    Error::Request(format!(
        "{name} is empty: it needs at least one line of expected counts"
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
            "--rename {name}: unknown column; the file has {}",
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
            "there is no column {EXPECTED:?} with the expected values; the others name columns of {}: {known}",
            job.name()
        ));
    };
    for (place, name) in all_meant.iter().enumerate() {
        if all_meant.iter().skip(place + 1).any(|other| other == name) {
            return Err(format!("the column {name:?} occurs twice"));
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
            "{name:?} is not in the first line: all lines must have the same columns"
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

/// Refuses columns of Parquet whose type cannot hold what the view has there.
fn expect_types(columns: &Columns, schema: &Schema) -> Result<(), String> {
    let of_view = columns.of_view.iter();
    let of_view = of_view.map(|(column, own)| (own, column.kind));
    for (name, kind) in of_view.chain([(&columns.expected, KeyKind::Int)]) {
        let Some((_, field)) = schema.column_with_name(name) else {
            continue;
        };
        let found = match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let is_text = found.is_string()
            || matches!(
                found,
                DataType::Binary | DataType::LargeBinary | DataType::BinaryView
            );
        let (is_alike, expected) = match kind {
            KeyKind::Int => (found.is_numeric() || is_text, "a 64-bit integer"),
            KeyKind::Text => (is_text, "a text"),
            KeyKind::Time | KeyKind::Instant => (
                is_text
                    || matches!(
                        found,
                        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64
                    ),
                "an instant or a date",
            ),
        };
        if !is_alike && *found != DataType::Null {
            return Err(format!(
                "{name} is of the type {found}, which is not {expected}"
            ));
        }
    }
    Ok(())
}

/// A row of Parquet. The expected count is its last column.
fn parquet_line(columns: &Columns, rows: &ParquetRows, row: usize) -> Result<Line, String> {
    let of_view = columns.of_view.iter().enumerate();
    let values = of_view.map(|(place, (column, _))| {
        let value = parquet_value(column, rows.value(place, row))?;
        of_json((column, columns.bucket), &value)
    });
    let values = values.collect::<Result<_, _>>()?;
    let count = rows.value(columns.of_view.len(), row);
    let count = whole(&columns.expected, &count)?.ok_or_else(|| not_a_count("null"))?;
    Ok((values, count))
}

/// A value of Parquet as JSON, where that is exactly the same.
fn parquet_value(
    column: &KeyColumn,
    value: parquet_values::ParquetValue<'_>,
) -> Result<Value, String> {
    use parquet_values::ParquetValue as Stored;
    let name = &column.name;
    Ok(match (column.kind, value) {
        (_, Stored::Null) => Value::Null,
        (KeyKind::Int, value) => whole(name, &value)?.map_or(Value::Null, Value::from),
        (_, Stored::Text(text)) => text.into(),
        (_, Stored::Bytes(_)) => return Err(format!("{name} is not UTF-8")),
        (KeyKind::Time | KeyKind::Instant, Stored::Instant(nanos)) => {
            let at_us = parquet_values::floor_to_micros(nanos);
            match format_instant_us(at_us).filter(|_| at_us * 1_000 == nanos) {
                Some(text) => text.into(),
                None => {
                    return Err(format!(
                        "{name} is {nanos} ns since 1970, which is not {}",
                        kind_of(column)
                    ));
                }
            }
        }
        (_, value) => {
            return Err(format!(
                "{name} is {value:?}, which is not {}",
                kind_of(column)
            ));
        }
    })
}

/// A whole number, if the value is exactly one.
fn whole(name: &str, value: &parquet_values::ParquetValue<'_>) -> Result<Option<i64>, String> {
    use parquet_values::ParquetValue as Stored;
    let wrong = |shown: &str| format!("{name} is {shown}, not a 64-bit integer");
    let number = match value {
        Stored::Null => return Ok(None),
        Stored::Int(number) => Some(*number),
        Stored::Unsigned(number) => i64::try_from(*number).ok(),
        Stored::Text(text) => text.trim().parse().ok(),
        Stored::Decimal(digits) => {
            let (number, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let is_whole = fraction.bytes().all(|digit| digit == b'0');
            is_whole.then(|| number.parse().ok()).flatten()
        }
        Stored::Number(number) if number.fract() != 0.0 || !number.is_finite() => None,
        Stored::Number(number) if number.abs() > FLOAT_EXACT_MAX => {
            return Err(format!(
                "{name} is {number} as a floating-point number, which is not exact beyond {FLOAT_EXACT_MAX}: write it as an integer"
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is whole and within the range"
        )]
        Stored::Number(number) => Some(*number as i64),
        Stored::Bool(_) | Stored::Bytes(_) | Stored::Instant(_) | Stored::Other(_) => None,
    };
    let shown = || match value {
        Stored::Unsigned(number) => number.to_string(),
        Stored::Number(number) => number.to_string(),
        Stored::Decimal(digits) => digits.clone(),
        Stored::Text(text) => format!("{text:?}"),
        other => format!("{other:?}"),
    };
    number.map(Some).ok_or_else(|| wrong(&shown()))
}

fn not_a_count(found: &str) -> String {
    format!("{EXPECTED} is {found}, not a 64-bit integer")
}

fn of_json((column, bucket): (&KeyColumn, BucketWidth), value: &Value) -> Result<KeyValue, String> {
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

fn of_text((column, bucket): (&KeyColumn, BucketWidth), text: &str) -> Result<KeyValue, String> {
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
                    "{} is {text:?}, which is not the start of a bucket of the view (UTC)",
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
        .map_err(|e| Error::fault("reading the expected values ended", e))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_once() {
        let of = |line: &str| serde_json::from_str::<Once>(line).map(|Once(object)| object);
        assert_eq!(of(r#"{"a":1,"b":{"a":2}}"#).expect("an object").len(), 2);
        let twice = of(r#"{"a":1,"b":2,"a":3}"#).expect_err("a occurs twice");
        assert!(twice.to_string().contains("\"a\" occurs twice"), "{twice}");
        assert!(of("[1]").is_err());
    }

    #[test]
    fn values_of_parquet_are_exact_or_refused() {
        use parquet_values::ParquetValue as Stored;
        for (value, expected) in [
            (Stored::Null, Some(None)),
            (Stored::Int(-7), Some(Some(-7))),
            (Stored::Unsigned(1 << 63), None),
            (Stored::Number(3.0), Some(Some(3))),
            (Stored::Number(3.5), None),
            (Stored::Number(f64::NAN), None),
            (Stored::Number(9_007_199_254_740_994.0), None),
            (Stored::Decimal("-12.000".to_owned()), Some(Some(-12))),
            (Stored::Decimal("12.001".to_owned()), None),
            (Stored::Text(" 5 "), Some(Some(5))),
            (Stored::Text("5.0"), None),
            (Stored::Bytes(b"\xff"), None),
            (Stored::Bool(true), None),
        ] {
            assert_eq!(whole("n", &value).ok(), expected, "{value:?}");
        }
        let bucket = KeyColumn {
            name: BUCKET.to_owned(),
            kind: KeyKind::Time,
            nullable: false,
        };
        let second = 1_000_000_000;
        for (nanos, expected) in [
            (-second, Some("1969-12-31T23:59:59Z")),
            (-1, None),
            (1_001, None),
            // The year 9999, and what only 64 bits of seconds hold.
            (253_402_214_400 * second, Some("9999-12-31T00:00:00Z")),
            (i128::from(i64::MAX) * second, None),
        ] {
            let value = parquet_value(&bucket, Stored::Instant(nanos)).ok();
            assert_eq!(value, expected.map(Value::from), "{nanos}");
        }
        // No bucket begins then: it is refused, and never another year.
        let late = Value::from("9999-12-31T00:00:00Z");
        let late = of_json((&bucket, BucketWidth::Day), &late);
        assert!(late.is_err_and(|why| why.contains("9999-12-31")));
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
