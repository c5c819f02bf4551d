//! Tests of accepted and rejected lines.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use proptest::prelude::*;

use super::super::event_identities;
use super::*;

const GOOD: &str =
    r#"{"event_id":"e1","track_id":1,"owner_id":2,"kind":"play","at":"2026-11-21T09:30:00Z"}"#;

fn decode(lines: &[&[u8]]) -> DecodedPlays {
    let lines = lines.iter().zip(10_i64..).map(|(bytes, offset)| Line {
        offset,
        logged_at_ms: 5,
        bytes,
    });
    Decoder::new(3).decode(lines).unwrap()
}

fn reason(line: &str) -> String {
    let decoded = decode(&[line.as_bytes()]);
    assert_eq!(decoded.events.num_rows(), 0, "{line} was accepted");
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
fn all_fields_are_decoded() {
    let line = r#"{"event_id":"é\u0001\n","track_id":-1,"owner_id":9223372036854775807,"listener_id":7,
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
    assert_eq!(text("event_id"), "é\u{1}\n");
    assert_eq!(text("country"), "DE");
    assert_eq!(text("referrer"), "");
    assert_eq!(text("kind"), "download");
    let at = events["at"]
        .as_primitive::<TimestampMicrosecondType>()
        .value(0);
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
    assert_eq!(
        decoded.events["amount"]
            .as_primitive::<Int64Type>()
            .value(1),
        1
    );
}

#[test]
fn rejects_invalid_lines_and_accepts_the_rest() {
    let bad = without("track_id");
    let with_byte_order_mark = format!("\u{feff}{GOOD}");
    let decoded = decode(&[
        with_byte_order_mark.as_bytes(),
        bad.as_bytes(),
        b"",
        GOOD.as_bytes(),
    ]);
    assert_eq!(decoded.events.num_rows(), 2);
    let offsets = decoded.events["offset"].as_primitive::<Int64Type>();
    assert_eq!(offsets.values(), &[10, 13]);
    let indices: Vec<usize> = decoded.rejected.iter().map(|r| r.index).collect();
    assert_eq!(indices, [1, 2]);
}

#[test]
fn reasons_name_field_and_fault() {
    let cases: &[(String, &[&str])] = &[
        (without("event_id"), &["required field event_id is missing"]),
        (without("at"), &["required field at is missing"]),
        (with("track_id", "\"5\""), &["track_id", "string"]),
        (
            with("track_id", "1.5"),
            &["track_id must be an integer; got the number 1.5"],
        ),
        (
            with("owner_id", "9223372036854775808"),
            &["owner_id", "9223372036854775808"],
        ),
        (with("owner_id", "null"), &["owner_id", "null"]),
        (with("owner_id", "true"), &["owner_id", "boolean"]),
        (with("listener_id", "[]"), &["listener_id", "an array"]),
        (with("event_id", "7"), &["event_id", "integer"]),
        (with("event_id", "\"\""), &["event_id", "0 bytes"]),
        (with("country", "\"usa\""), &["country", "usa"]),
        (with("country", "\"\""), &["country"]),
        (with("country", "\"de\""), &["country", "de"]),
        (with("kind", "\"stream\""), &["kind", "stream", "download"]),
        (
            with("amount", "1000000000001"),
            &["amount", "1000000000001"],
        ),
        (with("amount", "1e3"), &["amount", "number 1000"]),
        (
            with("at", "\"2026-02-30T00:00:00Z\""),
            &["at", "2026-02-30"],
        ),
        (
            with("at", "\"2026-13-01T00:00:00Z\""),
            &["at", "2026-13-01"],
        ),
    ];
    assert_reasons(cases);
}

#[test]
fn reasons_name_faults_of_times_and_of_json() {
    let cases: &[(String, &[&str])] = &[
        (with("at", "\"2026-01-01T25:00:00Z\""), &["at", "T25"]),
        (with("at", "\"2026-01-01T00:00:00\""), &["at", "RFC 3339"]),
        (with("at", "\"2026-01-01\""), &["at", "RFC 3339"]),
        (with("at", "\"20260101T000000Z\""), &["at", "RFC 3339"]),
        (with("at", "\"2026-01-01T00:00:00.Z\""), &["at", "RFC 3339"]),
        (
            with("at", "\"2026-01-01T00:00:00+01:00[Europe/Berlin]\""),
            &["at", "RFC 3339"],
        ),
        (with("at", "1767225600"), &["at", "integer"]),
        (format!("{GOOD}{GOOD}"), &["more than one"]),
        (GOOD[..40].to_owned(), &["not JSON", "the text ends"]),
        (
            r#"["e1",1,2,null,"DE",null,null,"play","2026-11-21T09:30:00Z",1]"#.to_owned(),
            &["object"],
        ),
        ("null".to_owned(), &["object"]),
        (" ".to_owned(), &["not JSON"]),
        (String::new(), &["the value is null"]),
        ("\u{feff}{}".to_owned(), &["is missing"]),
        (format!("\u{feff}\u{feff}{GOOD}"), &["not JSON"]),
        (
            GOOD.replacen('{', r#"{"event_id":"twice","#, 1),
            &["the field event_id occurs more than once"],
        ),
        (
            with("referrer", &format!("\"{}\"", "r".repeat(20_000))),
            &["referrer", "20000"],
        ),
    ];
    assert_reasons(cases);
}

/// Asserts that the reason of each line contains its words.
fn assert_reasons(cases: &[(String, &[&str])]) {
    for (line, words) in cases {
        let reason = reason(line);
        for word in *words {
            assert!(
                reason.contains(word),
                "{line}\n  gives {reason:?}\n  without {word:?}"
            );
        }
    }
}

#[test]
fn rejects_nul_characters_and_late_times() {
    for (line, expected) in [
        (
            with("event_id", r#""a\u0000b""#),
            "event_id: contains a NUL character (U+0000) at byte 1",
        ),
        (
            with("referrer", r#""\u0000""#),
            "referrer: contains a NUL character (U+0000) at byte 0",
        ),
        (
            with("at", r#""9999-12-31T23:59:59.9Z""#),
            r#"at: "9999-12-31T23:59:59.9Z" is not a time between the years 1678 and 2261"#,
        ),
    ] {
        let reason = reason(&line);
        assert!(reason.starts_with(expected), "{line}: {reason}");
    }
}

#[test]
fn rejects_text_that_is_not_utf8() {
    let mut line = GOOD.as_bytes().to_vec();
    line[14] = 0xff;
    let decoded = decode(&[&line]);
    assert_eq!(decoded.rejected.len(), 1);
}

#[test]
fn events_are_equal_by_owner_id_and_time() {
    let other_track = with("track_id", "77");
    let other_zone = with("at", "\"2026-11-21T10:30:00+01:00\"");
    let other_time = with("at", "\"2026-11-21T09:30:01Z\"");
    let other_owner = with("owner_id", "3");
    let lines = [GOOD, &other_track, &other_zone, &other_time, &other_owner];
    let bytes: Vec<&[u8]> = lines.iter().map(|l| l.as_bytes()).collect();
    let ids = event_identities(&decode(&bytes).events);
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[0], ids[2]);
    assert_ne!(ids[0], ids[3]);
    assert_ne!(ids[0], ids[4]);
}

/// Returns the instant of a line in microseconds, or the reason of the rejection.
fn decode_at(text: &str) -> Result<i64, String> {
    let line = with("at", &format!("{text:?}"));
    let decoded = decode(&[line.as_bytes()]);
    match decoded.rejected.into_iter().next() {
        Some(rejected) => Err(rejected.reason),
        None => Ok(decoded.events["at"]
            .as_primitive::<TimestampMicrosecondType>()
            .value(0)),
    }
}

#[test]
fn a_fraction_has_any_number_of_digits_and_counts_to_the_microsecond() {
    let second = decode_at("2026-01-01T00:00:00Z").unwrap();
    for (fraction, micros) in [
        (".5", 500_000),
        (".000001", 1),
        (".0000019", 1),
        (".123456789", 123_456),
        (".1234567899999999999999", 123_456),
    ] {
        let at = format!("2026-01-01T01:00:00{fraction}+01:00");
        assert_eq!(decode_at(&at), Ok(second + micros), "{at}");
    }
}

#[test]
fn a_leap_second_counts_in_the_second_before_and_ends_a_day() {
    let last = decode_at("2016-12-31T23:59:59Z").unwrap();
    for at in [
        "2016-12-31T23:59:60Z",
        "2017-01-01T00:59:60+01:00",
        "2016-12-31T15:59:60-08:00",
    ] {
        assert_eq!(decode_at(at), Ok(last), "{at}");
    }
    for at in [
        "2026-01-01T12:00:60Z",
        "2017-01-01T00:59:60Z",
        "2016-12-31T23:59:61Z",
    ] {
        assert!(decode_at(at).unwrap_err().contains("second"), "{at}");
    }
}

#[test]
fn times_outside_the_range_are_rejected() {
    assert_eq!(
        decode_at("1678-01-01T00:00:00Z"),
        Ok(-9_214_560_000_000_000)
    );
    assert_eq!(decode_at("2261-12-31T23:59:59Z"), Ok(9_214_646_399_000_000));
    for at in [
        "0001-01-01T00:00:00Z",
        "1677-12-31T23:59:59Z",
        "2262-01-01T00:00:00Z",
        "9999-12-30T21:59:59Z",
        "9999-12-31T23:59:59Z",
        "-001-01-01T00:00:00Z",
        "-000001-01-01T00:00:00Z",
        "+10000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "0000-00-00T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T23:60:00Z",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+23:60",
        "2026-01-01T00:00:00+0100",
        "2026-01-01T00:00:00 01:00",
        "２０26-01-01T00:00:00Z",
    ] {
        assert!(decode_at(at).unwrap_err().starts_with("at: "), "{at}");
    }
}

#[test]
fn integers_have_64_bits() {
    for accepted in ["0", "-9223372036854775808", "9223372036854775807"] {
        let line =
            with("owner_id", "1").replace("\"owner_id\":1", &format!("\"owner_id\":{accepted}"));
        assert_eq!(
            check_line(line.as_bytes()),
            Ok(accepted.parse().unwrap()),
            "{accepted}"
        );
    }
    for refused in [
        "-0",
        "-9223372036854775809",
        "18446744073709551616",
        "1e2",
        "1.0",
        "1e400",
        "-1e400",
        "1e-400",
        "NaN",
        "Infinity",
        "-",
        "01",
        "+1",
        "0x10",
        &"9".repeat(100_000),
    ] {
        let line =
            with("owner_id", "1").replace("\"owner_id\":1", &format!("\"owner_id\":{refused}"));
        assert!(line.contains(refused));
        let reason = reason(&line);
        assert!(
            reason.contains("owner_id") || reason.contains("not JSON"),
            "{reason}"
        );
    }
}

#[test]
fn deep_nesting_is_rejected_or_skipped() {
    let nested = |depth: usize, open: &str, close: &str| {
        [open.repeat(depth), "1".to_owned(), close.repeat(depth)].concat()
    };
    for depth in [10, 130, 100_000] {
        for value in [nested(depth, "[", "]"), nested(depth, r#"{"a":"#, "}")] {
            reason(&value);
            reason(&value[..value.len() / 2]);
            for field in ["event_id", "owner_id", "at", "country", "amount"] {
                reason(&GOOD.replacen('{', &format!("{{\"{field}\":{value},"), 1));
            }
            let unknown = GOOD.replacen('{', &format!("{{\"unknown\":{value},"), 1);
            let decoded = decode(&[unknown.as_bytes()]);
            assert_eq!(decoded.events.num_rows() + decoded.rejected.len(), 1);
        }
    }
}

#[test]
fn rejects_a_line_that_is_too_long() {
    let fill = |length: usize| {
        let padding = " ".repeat(length - GOOD.len());
        format!("{GOOD}{padding}")
    };
    assert_eq!(check_line(fill(LINE_BYTES_MAX).as_bytes()), Ok(2));
    assert!(reason(&fill(LINE_BYTES_MAX + 1)).contains("at most 1048576 bytes"));
}

#[test]
fn a_reason_is_short_for_a_long_value() {
    let long = format!("\"{}\"", "é\\n".repeat(100_000));
    for field in ["kind", "at", "country", "event_id", "referrer", "track_id"] {
        let reason = reason(&with(field, &long));
        assert!(reason.starts_with(field), "{reason}");
        assert!(reason.chars().count() <= REASON_CHARS_MAX + 1, "{reason}");
    }
}

/// Any JSON value.
fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let number = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        ".*".prop_map(Value::from),
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,12})?(Z|[+-][0-9]{2}:[0-9]{2})"
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map(".{0,3}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Checks that each line becomes an event in order, or is rejected with a reason of one line.
fn check_accepted_or_rejected(lines: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let decoded = decode(&lines.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let offsets = decoded.events["offset"].as_primitive::<Int64Type>();
    let accepted = offsets
        .values()
        .iter()
        .map(|offset| usize::try_from(offset - 10).unwrap());
    let rejected = decoded.rejected.iter().map(|rejected| rejected.index);
    prop_assert!(offsets.values().is_sorted());
    let mut all: Vec<usize> = accepted.chain(rejected).collect();
    all.sort_unstable();
    prop_assert_eq!(all, (0..lines.len()).collect::<Vec<_>>());
    for RejectedInput { index, reason } in decoded.rejected {
        prop_assert!(!reason.is_empty() && !reason.contains('\n'), "{}", reason);
        prop_assert_eq!(check_line(&lines[index]), Err(reason));
    }
    Ok(())
}

proptest! {
    /// Any bytes are accepted or rejected with a reason, without a panic.
    #[test]
    fn any_bytes_are_accepted_or_rejected(
        lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..5),
        cut in 0_usize..90,
        (index, byte) in (0..GOOD.len(), any::<u8>()),
    ) {
        let mut damaged = GOOD.as_bytes().to_vec();
        damaged[index] = byte;
        let cut = GOOD.as_bytes()[..cut.min(GOOD.len())].to_vec();
        check_accepted_or_rejected(&[lines, vec![cut, GOOD.into(), damaged]].concat())?;
    }

    /// Any value of a field is accepted or rejected with a reason.
    #[test]
    fn any_value_is_accepted_or_rejected(
        field in prop_oneof![
            Just("event_id"), Just("track_id"), Just("owner_id"), Just("listener_id"),
            Just("country"), Just("referrer"), Just("app_id"), Just("kind"), Just("at"),
            Just("amount"), Just("unknown"),
        ],
        value in json(),
    ) {
        let line = with(field, &value.to_string());
        check_accepted_or_rejected(&[line.into_bytes(), GOOD.into(), value.to_string().into_bytes()])?;
    }

    /// An accepted instant equals its digits.
    #[test]
    fn decodes_instants_exactly(
        (days, second, nanos) in (-110_000_i64..110_000, 0_i64..86_400, 0_i64..1_000_000_000),
        offset_minutes in -1439_i64..1440,
    ) {
        let seconds = days * 86_400 + second;
        let local = Timestamp::from_second(seconds + offset_minutes * 60)
            .map(|local| jiff::tz::TimeZone::UTC.to_datetime(local));
        let Ok(local) = local else { return Ok(()) };
        prop_assume!((1..=9999).contains(&local.year()));
        let (sign, offset) = (if offset_minutes < 0 { '-' } else { '+' }, offset_minutes.abs());
        let text = format!(
            "{local}.{nanos:09}{sign}{:02}:{:02}",
            offset / 60,
            offset % 60,
        );
        if !AT_SECONDS.contains(&seconds) {
            prop_assert!(decode_at(&text).is_err(), "{}", text);
            return Ok(());
        }
        prop_assert_eq!(decode_at(&text), Ok(seconds * 1_000_000 + nanos / 1000), "{}", text);
    }
}
