//! Tests of Avro records: they follow the rules of lines, independently of adjacent records.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use proptest::prelude::*;

use super::super::{DecodedPlays, Decoder, Line, check_line};
use super::*;

const OURS: u32 = 7;
const JSON: &[u8] =
    br#"{"event_id":"j","track_id":1,"owner_id":2,"kind":"play","at":"2026-11-21T09:30:00Z"}"#;
/// 2026-11-21T09:30:00Z
const AT_US: i64 = 1_795_253_400_000_000;

/// A builder of encoded records.
#[derive(Clone, Default)]
struct Avro(Vec<u8>);

impl Avro {
    fn new(schema: u32) -> Self {
        Self([&[0][..], &schema.to_be_bytes()].concat())
    }

    fn long(mut self, value: i64) -> Self {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            self.0.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        self.0.push(rest.to_le_bytes()[0]);
        self
    }

    fn text(self, text: &str) -> Self {
        let mut record = self.long(i64::try_from(text.len()).unwrap());
        record.0.extend(text.as_bytes());
        record
    }

    fn null(self) -> Self {
        self.long(0)
    }

    fn some(self) -> Self {
        self.long(1)
    }
}

fn play(id: &str, kind: &str, at_us: i64) -> Vec<u8> {
    let head = Avro::new(OURS).text(id).long(-5).long(i64::MAX).null();
    let tail = head.some().text("DE").some().text("").some().long(0);
    tail.text(kind).long(at_us).some().long(-3).0
}

fn good(id: &str) -> Vec<u8> {
    play(id, "download", AT_US)
}

fn writers(schemas: &[(u32, &str)]) -> WriterSchemas {
    let mut writers = WriterSchemas::default();
    writers.insert(OURS, Ok(SCHEMA.into()));
    for (id, schema) in schemas {
        writers.insert(*id, Ok((*schema).into()));
    }
    writers
}

fn decode(records: &[&[u8]], writers: &WriterSchemas) -> DecodedPlays {
    let lines: Vec<_> = (10_i64..)
        .zip(records)
        .map(|(offset, bytes)| Line {
            offset,
            logged_at_ms: 5,
            bytes,
        })
        .collect();
    Decoder::new(3).decode_records(lines, writers).unwrap()
}

fn ids(events: &RecordBatch) -> Vec<&str> {
    events["event_id"]
        .as_string::<i32>()
        .iter()
        .flatten()
        .collect()
}

fn reason(record: &[u8], writers: &WriterSchemas) -> String {
    let decoded = decode(&[record, &good("after")], writers);
    assert_eq!(ids(&decoded.events), ["after"]);
    decoded.rejected[0].reason.clone()
}

/// Returns our schema with another type of a field.
fn with(field: &str, declared: &str) -> String {
    let mut schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
    for schema_field in schema["fields"].as_array_mut().unwrap() {
        if schema_field["name"] == field {
            schema_field["type"] = serde_json::from_str(declared).unwrap();
            schema_field.as_object_mut().unwrap().remove("default");
        }
    }
    schema.to_string()
}

#[test]
fn decodes_all_fields() {
    let decoded = decode(&[&good("é\u{1}")], &writers(&[]));
    assert_eq!(decoded.rejected, vec![]);
    let events = decoded.events;
    let int = |name: &str| events[name].as_primitive::<Int64Type>().value(0);
    let text = |name: &str| events[name].as_string::<i32>().value(0).to_owned();
    assert_eq!(int("offset"), 10);
    assert_eq!(int("track_id"), -5);
    assert_eq!(int("owner_id"), i64::MAX);
    assert_eq!(events["listener_id"].null_count(), 1);
    assert_eq!(text("event_id"), "é\u{1}");
    assert_eq!(text("country"), "DE");
    assert_eq!(text("referrer"), "");
    assert_eq!(int("app_id"), 0);
    assert_eq!(text("kind"), "download");
    assert_eq!(int("amount"), -3);
    let at = events["at"].as_primitive::<TimestampMicrosecondType>();
    assert_eq!(at.value(0), AT_US);
}

#[test]
fn rejected_records_do_not_affect_others() {
    let (a, c, e) = (good("a"), good("c"), good("e"));
    let truncated = &good("t")[..20];
    let twice = [good("x"), good("y")].concat();
    let longer = [good("l"), vec![9]].concat();
    let mut not_utf8 = good("zz");
    not_utf8[6] = 0xc3;
    let other = Avro::new(9).long(1).0;
    let mut writers = writers(&[]);
    writers.insert(9, Err("the registry has no schema 9".to_owned()));
    let records: &[&[u8]] = &[
        &a,
        truncated,
        JSON,
        &c,
        &twice,
        b"{",
        &not_utf8,
        &e,
        &other,
        &[0, 0, 0],
        &longer,
        &a[..5],
        JSON,
    ];
    let decoded = decode(records, &writers);
    assert_eq!(ids(&decoded.events), ["a", "j", "c", "e", "j"]);
    let offsets = decoded.events["offset"].as_primitive::<Int64Type>();
    assert_eq!(offsets.values(), &[10, 12, 13, 17, 22]);
    let words = [
        (1, "schema 7"),
        (4, "more bytes follow"),
        (5, "not JSON"),
        (6, "schema 7"),
        (8, "no schema 9"),
        (9, "3 bytes"),
        (10, "more bytes follow"),
        (11, "end too early"),
    ];
    assert_eq!(decoded.rejected.len(), words.len());
    for (rejected, (index, word)) in decoded.rejected.iter().zip(words) {
        assert_eq!(rejected.index, index);
        assert!(rejected.reason.contains(word), "{}", rejected.reason);
    }
}

#[test]
fn validates_values_like_lines() {
    let line = |field: &str, value: &str| {
        let line = String::from_utf8(JSON.to_vec()).unwrap();
        let value_of_line = line.split(&format!("\"{field}\":")).nth(1).unwrap();
        let value_of_line = value_of_line
            .split(',')
            .next()
            .unwrap()
            .trim_end_matches('}');
        check_line(line.replace(value_of_line, value).as_bytes()).unwrap_err()
    };
    let writers = writers(&[]);
    let long = "x".repeat(2000);
    assert_eq!(
        reason(&play("e", "stream", AT_US), &writers),
        line("kind", "\"stream\"")
    );
    assert_eq!(
        reason(&play("", "play", AT_US), &writers),
        line("event_id", "\"\"")
    );
    assert_eq!(
        reason(&play(&long, "play", AT_US), &writers),
        line("event_id", &format!("{long:?}"))
    );
    assert_eq!(
        reason(&play("a\0", "play", AT_US), &writers),
        line("event_id", r#""a\u0000""#)
    );
    for at_us in [
        i64::MIN,
        i64::MAX,
        -9_214_560_000_000_001,
        9_214_646_400_000_000,
    ] {
        let reason = reason(&play("e", "play", at_us), &writers);
        assert!(reason.contains("between the years 1678"), "{reason}");
    }
    let country = Avro::new(OURS).text("e").long(1).long(2).null().some();
    let country = country
        .text("de")
        .null()
        .null()
        .text("play")
        .long(0)
        .null()
        .0;
    assert!(reason(&country, &writers).starts_with("country: \"de\""));
}

#[test]
fn decodes_records_of_other_writer_schemas() {
    let evolved = r#"{"type":"record","name":"com.example.Event","fields":[
        {"name":"added","type":{"type":"array","items":{"type":"map","values":"bytes"}}},
        {"name":"kind","type":{"type":"string","avro.java.string":"String"}},
        {"name":"at","type":["null",{"type":"string","avro.java.string":"String"}]},
        {"name":"owner_id","type":["long","null"]},
        {"name":"track_id","type":"int"},
        {"name":"more","type":["null","double",{"type":"enum","name":"M","symbols":["A"]}]},
        {"name":"listener_id","type":["int","null"]},
        {"name":"event_id","type":"string"}]}"#;
    let record = |owner: i64| {
        let head = Avro::new(8)
            .long(1)
            .long(1)
            .text("k")
            .text("v")
            .long(0)
            .long(0);
        let head = head.text("play").some().text("2026-11-21T10:30:00+01:00");
        let head = match owner {
            0 => head.long(1),
            owner => head.long(0).long(owner),
        };
        head.long(-7).long(2).long(0).long(0).long(77).text("old").0
    };
    let millis = with("at", r#"{"type":"long","logicalType":"timestamp-millis"}"#);
    let head = Avro::new(9).text("ms").long(1).long(2).null().null().null();
    let in_millis = head.null().text("play").long(AT_US / 1000).null().0;
    let writers = writers(&[(8, evolved), (9, &millis)]);
    let decoded = decode(&[&record(4), &in_millis, &good("g"), &record(0)], &writers);
    assert_eq!(ids(&decoded.events), ["old", "ms", "g"]);
    let int = |name: &str| decoded.events[name].as_primitive::<Int64Type>().clone();
    assert_eq!(int("owner_id").value(0), 4);
    assert_eq!(int("track_id").value(0), -7);
    assert_eq!(int("listener_id").value(0), 77);
    assert!(int("app_id").is_null(0));
    assert_eq!(int("amount").value(0), 1);
    let at = decoded.events["at"].as_primitive::<TimestampMicrosecondType>();
    assert_eq!(at.values(), &[AT_US; 3]);
    assert_eq!(decoded.rejected.len(), 1);
    let reason = &decoded.rejected[0].reason;
    assert!(reason.contains("schema 8"), "{reason}");
}

#[test]
fn unsupported_schemas_have_a_reason() {
    let cases = [
        ("\"string\"".to_owned(), "it is not a record"),
        ("{".to_owned(), "it is not an Avro schema"),
        (
            r#"{"type":"record","name":"E","fields":[]}"#.to_owned(),
            "no field event_id",
        ),
        (with("at", "\"long\""), "timestamp-micros"),
        (
            with(
                "at",
                r#"{"type":"long","logicalType":"local-timestamp-micros"}"#,
            ),
            "at",
        ),
        (with("track_id", "\"double\""), "track_id"),
        (with("track_id", r#"["null","int","long"]"#), "track_id"),
        (
            with("kind", r#"{"type":"enum","name":"K","symbols":["play"]}"#),
            "kind",
        ),
        (with("country", "\"Code\""), "country"),
        (
            with("country", r#"{"type":"array","items":"null"}"#),
            "types without bytes",
        ),
    ];
    for (schema, word) in cases {
        let writers = writers(&[(8, &schema)]);
        let reason = reason(&Avro::new(8).long(1).0, &writers);
        assert!(reason.contains("Avro schema 8"), "{reason}");
        assert!(reason.contains(word), "{reason}");
    }
    let mut recursive: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
    recursive["fields"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::json!({"name": "parent", "type": ["null", "Play"], "default": null}));
    let record = Avro(good("r")).null().0;
    let record = [&[0, 0, 0, 0, 8], &record[5..]].concat();
    let decoded = decode(&[&record], &writers(&[(8, &recursive.to_string())]));
    assert_eq!(decoded.events.num_rows() + decoded.rejected.len(), 1);
}

#[test]
fn a_missing_schema_is_an_error() {
    let record = Avro::new(8).long(1).0;
    let line = Line {
        offset: 0,
        logged_at_ms: 0,
        bytes: &record,
    };
    assert!(
        Decoder::new(0)
            .decode_records([line], &writers(&[]))
            .is_err()
    );
}

#[test]
fn many_records_keep_their_order() {
    let names: Vec<String> = (0..5000).map(|n| format!("event {n}")).collect();
    let mut records: Vec<Vec<u8>> = names.iter().map(|name| good(name)).collect();
    for bad in [0, 1023, 1024, 2500, 4999] {
        records[bad].pop();
    }
    let decoded = decode(
        &records.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        &writers(&[]),
    );
    assert_eq!(decoded.rejected.len(), 5);
    let accepted = (0..5000).filter(|n| ![0, 1023, 1024, 2500, 4999].contains(n));
    let accepted: Vec<&str> = accepted.map(|n| names[n].as_str()).collect();
    assert_eq!(ids(&decoded.events), accepted);
}

proptest! {
    /// Valid records are accepted at their index, independently of the records between them.
    #[test]
    fn any_bytes_are_accepted_or_rejected(
        noise in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..8),
        (index, byte) in (5..30_usize, any::<u8>()),
        cut in 5..40_usize,
    ) {
        let mut records: Vec<Vec<u8>> = Vec::new();
        for bytes in noise {
            records.push(good("g"));
            records.push([&[0, 0, 0, 0, 7], bytes.as_slice()].concat());
        }
        let mut damaged = good("g");
        let index = index.min(damaged.len() - 1);
        damaged[index] = byte;
        records.push(damaged);
        records.push(good("g")[..cut.min(good("g").len() - 1)].to_vec());
        let decoded = decode(&records.iter().map(Vec::as_slice).collect::<Vec<_>>(), &writers(&[]));
        prop_assert_eq!(decoded.events.num_rows() + decoded.rejected.len(), records.len());
        let wrong = decoded.rejected.iter().filter(|rejected| records[rejected.index] == good("g")).count();
        prop_assert_eq!(wrong, 0);
        prop_assert_eq!(decoded.rejected.last().map(|rejected| rejected.index), Some(records.len() - 1));
    }
}
