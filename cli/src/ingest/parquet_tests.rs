use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array,
    Int64Array, NullArray, RecordBatch, StringArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt64Array,
};
use clap::Parser;
use indicatif::ProgressBar;
use parquet::arrow::ArrowWriter;
use schemas::entities::{Entity, parse};
use schemas::plays::check_line;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::args::{Cli, Command};
use crate::generate::generate;

fn write_file(columns: Vec<(&str, ArrayRef)>) -> File {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(tempfile::tempfile().unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn text_array(values: [&str; 2]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn plays() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("kind", text_array(["play", "stream"])),
        ("event_id", text_array(["a", "b"])),
        ("track_id", Arc::new(Int32Array::from(vec![1, 2]))),
        ("owner_id", Arc::new(UInt64Array::from(vec![7, u64::MAX]))),
        (
            "country",
            Arc::new(StringArray::from(vec![Some("DE"), None])),
        ),
        (
            "at",
            Arc::new(TimestampMillisecondArray::from(vec![
                1_500,
                i64::MAX / 2_000,
            ])),
        ),
        ("other", Arc::new(Float64Array::from(vec![1.0, 2.0]))),
    ]
}

/// Reads the lines of rows, and the reasons of unreadable ones.
fn read_rows(source: Source, file: File) -> anyhow::Result<BTreeMap<u64, Result<String, String>>> {
    let mut rows = BTreeMap::new();
    read(file, source, &mut |chunk| {
        let lines = chunk.lines().map(|(row, bytes)| (row, bytes.to_vec()));
        rows.extend(lines.map(|(row, bytes)| (row, Ok(String::from_utf8(bytes).unwrap()))));
        rows.extend(
            chunk
                .unreadable()
                .map(|(row, reason, _)| (row, Err(reason))),
        );
        true
    })?;
    Ok(rows)
}

fn read_lines(source: Source, file: File) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    read(file, source, &mut |chunk| {
        lines.extend(
            chunk
                .lines()
                .map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap()),
        );
        true
    })?;
    Ok(lines)
}

#[test]
fn rows_become_lines() {
    let rows = read_rows(Source::Plays, write_file(plays())).unwrap();
    assert_eq!(rows.len(), 2);
    let first = rows[&1].as_ref().unwrap();
    assert_eq!(check_line(first.as_bytes()), Ok(7));
    let event: Value = serde_json::from_str(first).unwrap();
    assert_eq!(event["at"], "1970-01-01T00:00:01.5Z");
    assert_eq!(event["country"], "DE");
    assert!(event.get("other").is_none());
    let reason = rows[&2].as_ref().unwrap_err();
    assert!(
        reason.contains("between the years 1678 and 2261"),
        "{reason}"
    );
}

/// An invalid value rejects only its own row in the middle of a batch.
#[test]
fn an_invalid_value_rejects_only_its_row() {
    let count = 20_000_i64;
    let bad = 10_000;
    let number: Vec<i64> = (0..count).collect();
    let texts = number.iter().map(|n| match *n == bad {
        true => b"caf\xe9 \"\x01".to_vec(),
        false => n.to_string().into_bytes(),
    });
    let ids: Vec<Vec<u8>> = texts.collect();
    let times = number
        .iter()
        .map(|n| if *n == bad + 1 { i64::MAX } else { *n });
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("event_id", Arc::new(BinaryArray::from_iter_values(&ids))),
        ("track_id", Arc::new(Int64Array::from(number.clone()))),
        ("owner_id", Arc::new(Int64Array::from(number.clone()))),
        ("kind", Arc::new(StringArray::from(vec!["play"; ids.len()]))),
        (
            "at",
            Arc::new(TimestampMillisecondArray::from_iter_values(times)),
        ),
    ];
    let mut unreadable = Vec::new();
    let mut accepted = 0;
    read(write_file(columns), Source::Plays, &mut |chunk| {
        accepted += chunk
            .lines()
            .filter(|(_, line)| check_line(line).is_ok())
            .count();
        unreadable.extend(chunk.unreadable());
        true
    })
    .unwrap();
    assert_eq!(accepted, 19_998);
    let [(first, text_reason, raw), (second, time_reason, _)] = unreadable.as_slice() else {
        panic!("{unreadable:?}");
    };
    assert_eq!((*first, *second), (10_001, 10_002));
    assert_eq!(
        text_reason,
        "event_id: the text is not UTF-8 from byte 4 on"
    );
    let expected = b"{\"event_id\":\"caf\xe9 \\\"\\u0001\",\"track_id\":10000";
    assert!(
        raw.starts_with(expected),
        "{:?}",
        raw.escape_ascii().to_string()
    );
    assert_eq!(
        time_reason,
        "at: 9223372036854775807000 µs since 1970 is not a time between the years 1678 and 2261"
    );
}

/// Every unit rounds down to microseconds like lines, and none overflows.
#[test]
fn times_of_all_units_are_those_of_lines() {
    let ids: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4]));
    let (min, max) = (i64::MIN, i64::MAX);
    let units: [(ArrayRef, [&str; 2]); 4] = [
        (
            Arc::new(TimestampSecondArray::from(vec![-1, 1, min, max])),
            ["1969-12-31T23:59:59Z", "1970-01-01T00:00:01Z"],
        ),
        (
            Arc::new(TimestampMillisecondArray::from(vec![-1, 1, min, max])),
            ["1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z"],
        ),
        (
            Arc::new(TimestampMicrosecondArray::from(vec![-1, 1, min, max])),
            ["1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00.000001Z"],
        ),
        (
            // 64 bits of nanoseconds end in 2262.
            Arc::new(TimestampNanosecondArray::from(vec![-1, 1_999, min, max])),
            ["1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00.000001Z"],
        ),
    ];
    for (times, expected) in units {
        let columns = |name: &'static str, more: &[&'static str]| {
            let others = more.iter().map(|name| (*name, Arc::clone(&ids)));
            let columns = others.chain([(name, Arc::clone(&times))]);
            write_file(columns.collect())
        };
        let more = [
            "id",
            "segment_id",
            "athlete_id",
            "activity_id",
            "elapsed_time",
        ];
        let efforts = read_rows(Source::Efforts, columns("started_at", &more)).unwrap();
        for (row, time) in (1..).zip(expected) {
            let line = efforts[&row].as_ref().unwrap();
            assert!(
                line.contains(&format!("\"started_at\":\"{time}\"")),
                "{line}"
            );
            assert!(parse(Source::Efforts, line.as_bytes()).is_ok());
        }
        for row in [3, 4] {
            let reason = match &efforts[&row] {
                Ok(line) => parse(Source::Efforts, line.as_bytes()).unwrap_err(),
                Err(reason) => reason.clone(),
            };
            let range = "is not a time between the years 1678 and 2261";
            assert!(
                reason.starts_with("started_at: ") && reason.ends_with(range),
                "{reason}"
            );
        }
        // A revocation counts even if its time is out of range.
        let created: ArrayRef = Arc::new(StringArray::from(vec!["2025-01-01T00:00:00Z"; 4]));
        let more = ["id", "application_id", "athlete_id"];
        let others = more.map(|name| (name, Arc::clone(&ids)));
        let columns = others.into_iter();
        let columns = columns.chain([("created_at", created), ("revoked_at", Arc::clone(&times))]);
        let revoked = read_lines(Source::Authorizations, write_file(columns.collect())).unwrap();
        for line in revoked {
            let Ok(Entity::Authorization(row)) = parse(Source::Authorizations, line.as_bytes())
            else {
                panic!("{line}");
            };
            assert!(row.revoked_at_us.is_some(), "{line}");
        }
    }
}

/// The same digits give the same weight in a line and in a decimal column.
#[test]
fn weights_come_back_to_the_last_bit() {
    let weights = [95.0_f64.next_down(), 55.0_f64.next_down(), 0.1 + 0.2, 7e-5];
    let ids: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4]));
    let doubles: ArrayRef = Arc::new(Float64Array::from(weights.to_vec()));
    let read = |column: ArrayRef| {
        let columns = vec![("id", Arc::clone(&ids)), ("weight_kg", column)];
        let lines = read_lines(Source::Athletes, write_file(columns)).unwrap();
        let weight = |line: &String| match parse(Source::Athletes, line.as_bytes()) {
            Ok(Entity::Athlete(athlete)) => athlete.weight_kg.unwrap(),
            other => panic!("{line}: {other:?}"),
        };
        lines.iter().map(weight).collect::<Vec<f64>>()
    };
    assert_eq!(read(doubles), weights);
    let digits: [i128; 4] = [
        9_499_999_999_999_999,
        5_499_999_999_999_999,
        30_000_000_000_000,
        7_000_000_000,
    ];
    let decimals = Decimal128Array::from(digits.to_vec());
    let decimals = decimals.with_precision_and_scale(38, 14).unwrap();
    assert_eq!(
        read(Arc::new(decimals)),
        [weights[0], weights[1], 0.3, 7e-5]
    );
}

#[test]
fn invalid_files_are_rejected_as_a_whole() {
    let without = plays()
        .into_iter()
        .filter(|(name, _)| *name != "at")
        .collect();
    let error = read_lines(Source::Plays, write_file(without))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("column at is missing"), "{error}");
    let mut wrong = plays();
    wrong[2].1 = Arc::new(Float64Array::from(vec![1.0, 2.0]));
    let error = read_lines(Source::Plays, write_file(wrong))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("column track_id is Float64, not an integer"),
        "{error}"
    );
    let mut broken = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut broken, b"{\"event_id\":1}\n").unwrap();
    assert!(
        read_lines(Source::Plays, broken)
            .unwrap_err()
            .to_string()
            .contains("not a Parquet file")
    );
}

#[test]
fn rows_before_damage_are_read() {
    let rows = 8_192;
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..rows));
    let columns = [("club_id", Arc::clone(&ids)), ("athlete_id", ids)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    for _ in 0..2 {
        writer.write(&batch).unwrap();
        writer.flush().unwrap();
    }
    let (offset, _) = writer.flushed_row_groups()[1].column(0).byte_range();
    let mut bytes = writer.into_inner().unwrap();
    let offset = usize::try_from(offset).unwrap();
    bytes[offset..offset + 16].fill(0xff);
    let mut damaged = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut damaged, &bytes).unwrap();
    let mut chunk_sizes = Vec::new();
    let outcome = read(damaged, Source::Clubs, &mut |chunk| {
        chunk_sizes.push(chunk.lines().count());
        true
    });
    let message = outcome.unwrap_err().to_string();
    assert_eq!(message, "cannot read rows 8193 to 16384");
    assert_eq!(chunk_sizes, [8_192]);
}

fn generate_file(line: &str, extension: &str) -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("generated").with_extension(extension);
    let line = format!("backstitch generate {line} --seed 3 -o {}", path.display());
    let Command::Generate(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
        panic!("{line}");
    };
    generate(&args, &ProgressBar::hidden(), &CancellationToken::new()).unwrap();
    File::open(path).unwrap()
}

#[test]
fn generated_lines_and_generated_columns_are_the_same_rows() {
    for source in Source::ALL {
        let line = format!("{source} --rows 3000 --duplicates 0.1 --late 0.1");
        let from_columns = read_lines(source, generate_file(&line, "parquet")).unwrap();
        let from_lines = std::io::read_to_string(generate_file(&line, "jsonl")).unwrap();
        assert_eq!(from_columns.len(), 3_000);
        for (column, line) in from_columns.iter().zip(from_lines.lines()) {
            if source == Source::Plays {
                let fields: [Value; 2] = [column, line].map(|x| serde_json::from_str(x).unwrap());
                assert_eq!(fields[0], fields[1]);
                check_line(column.as_bytes()).unwrap();
            } else {
                let rows = [column, line].map(|line| parse(source, line.as_bytes()).unwrap());
                assert_eq!(rows[0], rows[1]);
            }
        }
    }
}

#[test]
fn malformed_generated_columns_become_dead_letters() {
    for source in Source::ALL {
        let line = format!("{source} --rows 1000 --malformed 1");
        for line in read_lines(source, generate_file(&line, "parquet")).unwrap() {
            let is_rejected = match source {
                Source::Plays => check_line(line.as_bytes()).is_err(),
                _ => parse(source, line.as_bytes()).is_err(),
            };
            assert!(is_rejected, "{source}: {line}");
        }
    }
}

fn athletes() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("id", Arc::new(Int32Array::from(vec![1, 2, 3]))),
        ("name", Arc::new(NullArray::new(3))),
        (
            "weight_kg",
            Arc::new(Float32Array::from(vec![Some(72.5), None, Some(f32::NAN)])),
        ),
        (
            "deleted",
            Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        ),
        (
            "disqualified",
            Arc::new(BooleanArray::from(vec![Some(true), None, None])),
        ),
        ("version", Arc::new(NullArray::new(3))),
    ]
}

#[test]
fn numbers_and_booleans_are_read() {
    let lines = read_lines(Source::Athletes, write_file(athletes())).unwrap();
    let row = |index: usize| parse(Source::Athletes, lines[index].as_bytes());
    let Ok(Entity::Athlete(first)) = row(0) else {
        panic!("{lines:?}");
    };
    assert_eq!((first.weight_kg, first.is_deleted), (Some(72.5), true));
    let Ok(Entity::Athlete(second)) = row(1) else {
        panic!("{lines:?}");
    };
    assert_eq!((second.weight_kg, second.is_deleted), (None, false));
    assert!(first.is_disqualified && !second.is_disqualified);
    let reason = row(2).unwrap_err();
    assert!(reason.starts_with("weight_kg must be a number"), "{reason}");
}

#[test]
fn whole_numbers_are_weights_too_and_ids_are_owners() {
    let mut columns = athletes();
    columns[2].1 = Arc::new(Int32Array::from(vec![70, 71, 72]));
    let weights = read_lines(Source::Athletes, write_file(columns)).unwrap();
    assert!(weights[2].contains("\"weight_kg\":72"), "{weights:?}");
    assert!(parse(Source::Athletes, weights[2].as_bytes()).is_ok());
    let owners: [ArrayRef; 3] = [
        text_array(["ann", "bob"]),
        Arc::new(Int32Array::from(vec![5, 6])),
        Arc::new(UInt64Array::from(vec![5, u64::MAX])),
    ];
    for (owner, second) in
        owners
            .into_iter()
            .zip([Value::from("bob"), Value::from(6), Value::from(u64::MAX)])
    {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int32Array::from(vec![1, 2]))),
            ("name", text_array(["a", "b"])),
            ("owner", owner),
        ];
        let lines = read_lines(Source::Applications, write_file(columns)).unwrap();
        let Ok(Entity::Application(read)) = parse(Source::Applications, lines[1].as_bytes()) else {
            panic!("{lines:?}");
        };
        assert_eq!(read.owner, second);
    }
}

#[test]
fn invalid_columns_of_entities_are_rejected_by_name() {
    let error_of = |columns| {
        read_lines(Source::Athletes, write_file(columns))
            .unwrap_err()
            .to_string()
    };
    let without_id = athletes().split_off(1);
    let error = error_of(without_id);
    assert!(
        error.starts_with("column id is missing;") && error.contains("athletes: id, name,"),
        "{error}"
    );
    for (index, wrong, reason) in [
        (
            0,
            text_array(["1", "2"]),
            "column id is Utf8, not an integer",
        ),
        (
            2,
            text_array(["1", "2"]),
            "column weight_kg is Utf8, not a number",
        ),
        (
            3,
            text_array(["no", "no"]),
            "column deleted is Utf8, not a boolean",
        ),
    ] {
        let mut columns = athletes();
        for (_, column) in &mut columns {
            *column = column.slice(0, 2);
        }
        columns[index].1 = wrong;
        let error = error_of(columns);
        assert!(error.starts_with(reason), "{error}");
    }
    let integers: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let efforts: Vec<(&str, ArrayRef)> = ["id", "segment_id", "athlete_id", "activity_id"]
        .into_iter()
        .chain(["elapsed_time", "started_at"])
        .map(|name| (name, Arc::clone(&integers)))
        .collect();
    let error = read_lines(Source::Efforts, write_file(efforts))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("column started_at is Int32"), "{error}");
}

/// The table of fields agrees with the lines: the same fields are required.
#[test]
fn fields_are_those_of_lines() {
    for source in Source::ALL {
        let accepted = |fields: &Map<String, Value>| {
            let line = serde_json::to_vec(fields).unwrap();
            match source {
                Source::Plays => check_line(&line).map(|_| ()),
                _ => parse(source, &line).map(|_| ()),
            }
        };
        let all: Map<String, Value> = fields(source)
            .iter()
            .map(|field| {
                let value = match (field.kind, field.name) {
                    (FieldKind::Text, "country") => "DE".into(),
                    (FieldKind::Text, "gender") => "F".into(),
                    (FieldKind::Text, "kind") => "play".into(),
                    (FieldKind::Text, "tz") => "Asia/Tokyo".into(),
                    (FieldKind::Text, "visibility") => "only_me".into(),
                    (FieldKind::Text | FieldKind::TextOrInt, _) => "x".into(),
                    (FieldKind::Int, _) => 5.into(),
                    (FieldKind::Number, _) => 5.5.into(),
                    (FieldKind::Time | FieldKind::UnboundedTime, _) => {
                        "2025-01-01T00:00:00Z".into()
                    }
                    (FieldKind::Bool, _) => true.into(),
                };
                (field.name.to_owned(), value)
            })
            .collect();
        assert_eq!(accepted(&all), Ok(()), "{source}");
        for field in fields(source) {
            let mut fields = all.clone();
            fields.remove(field.name);
            assert_eq!(
                accepted(&fields).is_err(),
                field.is_required,
                "{source} {field:?}"
            );
            fields.insert(field.name.to_owned(), Value::Array(Vec::new()));
            assert!(accepted(&fields).is_err(), "{source} knows {field:?}");
        }
    }
}
