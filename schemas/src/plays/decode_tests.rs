use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use proptest::prelude::*;

use super::super::identities;
use super::*;

const GOOD: &str = r#"{"event_id":"e1","track_id":1,"owner_id":2,"kind":"play","at":"2026-11-21T09:30:00Z"}"#;

fn decode(lines: &[&[u8]]) -> Decoded {
    let lines = lines.iter().zip(10_i64..).map(|(bytes, offset)| Line {
        offset,
        logged_at_ms: 5,
        bytes,
    });
    Decoder::new(3).decode(lines).unwrap()
}

fn reason(line: &str) -> String {
    let decoded = decode(&[line.as_bytes()]);
    assert_eq!(decoded.events.num_rows(), 0, "{line} was taken");
    decoded.rejected[0].reason.clone()
}

fn with(field: &str, value: &str) -> String {
    let mut play: serde_json::Map<String, serde_json::Value> = serde_json::from_str(GOOD).unwrap();
    play.insert(field.to_owned(), serde_json::from_str(value).unwrap());
    serde_json::to_string(&play).unwrap()
}

fn without(field: &str) -> String {
    let mut play: serde_json::Map<String, serde_json::Value> = serde_json::from_str(GOOD).unwrap();
    play.remove(field);
    serde_json::to_string(&play).unwrap()
}

#[test]
fn every_field_arrives() {
    let line = r#"{"event_id":"é\u0000\n","track_id":-1,"owner_id":9223372036854775807,"listener_id":7,
        "country":"DE","referrer":"","app_id":0,"kind":"download","at":"1969-12-31T23:59:59.9999999+01:00",
        "amount":-3,"unknown":{"deep":[1,2]}}"#;
    let decoded = decode(&[line.as_bytes()]);
    assert_eq!(decoded.rejected, vec![]);
    let events = decoded.events;
    let int = |name: &str| events[name].as_primitive::<Int64Type>().value(0);
    let text = |name: &str| events[name].as_string::<i32>().value(0).to_owned();
    assert_eq!(int("offset"), 10);
    assert_eq!(int("track_id"), -1);
    assert_eq!(int("owner_id"), i64::MAX);
    assert_eq!(int("listener_id"), 7);
    assert_eq!(int("app_id"), 0);
    assert_eq!(int("amount"), -3);
    assert_eq!(text("event_id"), "é\0\n");
    assert_eq!(text("country"), "DE");
    assert_eq!(text("referrer"), "");
    assert_eq!(text("kind"), "download");
    let at = events["at"].as_primitive::<TimestampMicrosecondType>().value(0);
    assert_eq!(at, -3_600_000_001);
}

#[test]
fn absent_and_null_options_are_null_and_amount_is_one() {
    let nulls = with("listener_id", "null");
    let decoded = decode(&[GOOD.as_bytes(), nulls.as_bytes()]);
    assert_eq!(decoded.events.num_rows(), 2);
    for name in ["listener_id", "country", "referrer", "app_id"] {
        assert_eq!(decoded.events[name].null_count(), 2, "{name}");
    }
    assert_eq!(decoded.events["amount"].as_primitive::<Int64Type>().value(1), 1);
}

#[test]
fn bad_lines_say_why_and_the_rest_is_taken() {
    let bad = without("track_id");
    let decoded = decode(&[GOOD.as_bytes(), bad.as_bytes(), b"", GOOD.as_bytes()]);
    assert_eq!(decoded.events.num_rows(), 2);
    let offsets = decoded.events["offset"].as_primitive::<Int64Type>();
    assert_eq!(offsets.values(), &[10, 13]);
    let indices: Vec<usize> = decoded.rejected.iter().map(|r| r.index).collect();
    assert_eq!(indices, [1, 2]);
}

#[test]
fn reasons_name_field_and_fault() {
    let cases: &[(String, &[&str])] = &[
        (without("event_id"), &["missing field", "event_id"]),
        (without("at"), &["missing field", "`at`"]),
        (with("track_id", "\"5\""), &["track_id", "string"]),
        (with("track_id", "1.5"), &["track_id", "floating point"]),
        (with("owner_id", "9223372036854775808"), &["owner_id", "9223372036854775808"]),
        (with("owner_id", "null"), &["owner_id", "null"]),
        (with("owner_id", "true"), &["owner_id", "boolean"]),
        (with("listener_id", "[]"), &["listener_id", "sequence"]),
        (with("event_id", "7"), &["event_id", "integer"]),
        (with("event_id", "\"\""), &["event_id", "0 bytes"]),
        (with("country", "\"usa\""), &["country", "usa"]),
        (with("country", "\"\""), &["country"]),
        (with("country", "\"de\""), &["country", "de"]),
        (with("kind", "\"stream\""), &["kind", "stream", "download"]),
        (with("amount", "1000000000001"), &["amount", "1000000000001"]),
        (with("amount", "1e3"), &["amount", "floating point"]),
        (with("at", "\"2026-02-30T00:00:00Z\""), &["at", "2026-02-30"]),
        (with("at", "\"2026-13-01T00:00:00Z\""), &["at", "2026-13-01"]),
        (with("at", "\"2026-01-01T25:00:00Z\""), &["at", "T25"]),
        (with("at", "\"2026-01-01T00:00:00\""), &["at", "RFC 3339"]),
        (with("at", "\"2026-01-01\""), &["at", "RFC 3339"]),
        (with("at", "\"20260101T000000Z\""), &["at", "RFC 3339"]),
        (with("at", "\"2026-01-01T00:00:00.Z\""), &["at", "RFC 3339"]),
        (with("at", "\"2026-01-01T00:00:00+01:00[Europe/Berlin]\""), &["at", "RFC 3339"]),
        (with("at", "1767225600"), &["at", "integer"]),
        (format!("{GOOD}{GOOD}"), &["more than one"]),
        (GOOD[..40].to_owned(), &["not JSON", "EOF"]),
        (r#"["e1",1,2,null,"DE",null,null,"play","2026-11-21T09:30:00Z",1]"#.to_owned(), &["object"]),
        ("null".to_owned(), &["object"]),
        (" ".to_owned(), &["not JSON"]),
        ("\u{feff}{}".to_owned(), &["not JSON"]),
        (GOOD.replacen('{', r#"{"event_id":"twice","#, 1), &["duplicate field", "event_id"]),
        (with("referrer", &format!("\"{}\"", "r".repeat(20_000))), &["referrer", "20000"]),
    ];
    for (line, words) in cases {
        let reason = reason(line);
        for word in *words {
            assert!(reason.contains(word), "{line}\n  gives {reason:?}\n  without {word:?}");
        }
    }
}

#[test]
fn text_that_is_no_utf8_is_refused() {
    let mut line = GOOD.as_bytes().to_vec();
    line[14] = 0xff;
    let decoded = decode(&[&line]);
    assert_eq!(decoded.rejected.len(), 1);
}

#[test]
fn the_same_event_by_owner_id_and_time() {
    let other_track = with("track_id", "77");
    let other_zone = with("at", "\"2026-11-21T10:30:00+01:00\"");
    let other_time = with("at", "\"2026-11-21T09:30:01Z\"");
    let other_owner = with("owner_id", "3");
    let lines = [GOOD, &other_track, &other_zone, &other_time, &other_owner];
    let bytes: Vec<&[u8]> = lines.iter().map(|l| l.as_bytes()).collect();
    let ids = identities(&decode(&bytes).events);
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[0], ids[2]);
    assert_ne!(ids[0], ids[3]);
    assert_ne!(ids[0], ids[4]);
}

proptest! {
    /// Whatever comes is taken or refused with a reason, never a panic.
    #[test]
    fn no_line_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), cut in 0_usize..90) {
        let cut_good = &GOOD.as_bytes()[..cut.min(GOOD.len())];
        for line in [&bytes[..], cut_good] {
            let decoded = decode(&[line]);
            prop_assert_eq!(decoded.events.num_rows() + decoded.rejected.len(), 1);
        }
    }
}
