//! Tests of rejected lines: the reason names the field.

use proptest::prelude::*;

use super::*;
use crate::line::{LINE_BYTES_MAX, REASON_CHARS_MAX};

/// Every field of every source, with its source's line.
fn all_fields() -> Vec<(Source, &'static str, String)> {
    let mut all = Vec::new();
    for (source, line, optional) in LINES {
        let optional = optional.split(' ').map(str::to_owned);
        let names = fields(line)
            .into_iter()
            .map(|(name, _)| name)
            .chain(optional);
        all.extend(names.map(|name| (source, line, name)));
    }
    all
}

fn without(line: &str, field: &str) -> String {
    let mut rest = fields(line);
    rest.remove(field).unwrap();
    serde_json::to_string(&rest).unwrap()
}

#[test]
fn a_required_field_must_be_present() {
    for (source, line, _) in LINES {
        for field in fields(line).keys() {
            check_reason(
                source,
                &without(line, field),
                &[&format!("the required field {field} is missing")],
            );
            check_reason(
                source,
                &with(line, field, "null"),
                &[&format!("{field} must be "), "null"],
            );
        }
    }
}

#[test]
fn a_wrong_type_names_its_field() {
    for (source, line, field) in all_fields() {
        for value in ["[]", "{}", "[1]", "1.5"] {
            if (field.as_str(), value) != ("weight_kg", "1.5") {
                let reason = reason(source, &with(line, &field, value));
                assert!(reason.starts_with(&field), "{reason}");
            }
        }
    }
    for (source, line, _) in LINES {
        for id in fields(line).keys().filter(|field| field.ends_with("id")) {
            for value in ["5.0", "\"5\"", "true", "9223372036854775808", "1e2"] {
                let expected = format!("{id} must be an integer");
                check_reason(source, &with(line, id, value), &[&expected]);
            }
        }
        let twice = format!("{},{}", line.trim_end_matches('}'), &line[1..]);
        check_reason(source, &twice, &["occurs more than once"]);
    }
}

/// Source, field, value, and a part of the reason.
const IMPOSSIBLE: &str = r#"
    efforts         elapsed_time      0                       seconds from 1 to 9007199254740991
    efforts         elapsed_time      -1                      -1 is not
    efforts         elapsed_time      9007199254740992        9007199254740992 is not
    efforts         elapsed_time      60.0                    the number
    efforts         started_at        "2013-05-06"            RFC 3339
    efforts         started_at        "2013-05-06T12:00:00"   RFC 3339
    efforts         started_at        "2013-02-30T12:00:00Z"  2013-02-30
    efforts         started_at        "1677-12-31T23:59:59Z"  between the years 1678 and 2261
    efforts         started_at        "2262-01-01T00:00:00Z"  between the years 1678 and 2261
    efforts         started_at        1367883000              integer
    efforts         visibility        "followers"             "followers" is neither "everyone" nor
    efforts         visibility        ""                      nor "only_me"
    efforts         deleted           1                       boolean
    efforts         deleted           "true"                  boolean
    efforts         version           "1"                     string
    efforts         tz                1                       integer
    athletes        name              7                       integer
    athletes        name              "a\u0000b"              NUL character (U+0000) at byte 1
    athletes        gender            "f"                     "f" is none of "F", "M" and "X"
    athletes        gender            ""                      none of
    athletes        birth_year        0                       0 is not a year from 1 to 9999
    athletes        birth_year        10000                   10000 is not
    athletes        birth_year        "1984"                  string
    athletes        birth_year        1984.0                  the number 1984.0
    athletes        weight_kg         0                       more than 0
    athletes        weight_kg         -0.0                    more than 0
    athletes        weight_kg         1e-400                  more than 0
    athletes        weight_kg         -70                     -70
    athletes        weight_kg         1000.1                  1000.1 is not more than 0 and at most 1000
    athletes        weight_kg         1e308                   1e308 is not
    athletes        weight_kg         "70"                    string
    athletes        country           "nl"                    ISO 3166
    athletes        country           "NLD"                   "NLD" is not
    clubs           deleted           0                       boolean
    follows         version           true                    boolean
    authorizations  created_at        "now"                   "now" is not an RFC 3339 instant
    authorizations  revoked_at        ""                      RFC 3339
    authorizations  revoked_at        false                   boolean
    applications    name              "\u0000"                NUL character
    applications    owner             "x\u0000"               NUL character
    applications    owner             true                    64-bit integer; got true
    applications    owner             1.0                     64-bit integer
    applications    owner             18446744073709551616    64-bit integer
    applications    athlete_capacity  -1                      -1 is not from 0 to 9007199254740991
    applications    athlete_capacity  9007199254740992        9007199254740992 is not
    applications    athlete_capacity  2.0                     the number 2.0
"#;

#[test]
fn an_impossible_value_names_its_field() {
    for case in IMPOSSIBLE.trim().lines() {
        let parts: Vec<&str> = case
            .split("  ")
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect();
        let &[source, field, value, word] = parts.as_slice() else {
            panic!("{case}")
        };
        let (source, line, _) = LINES
            .into_iter()
            .find(|(candidate, ..)| candidate.name() == source)
            .unwrap();
        let reason = check_reason(source, &with(line, field, value), &[word]);
        assert!(reason.starts_with(field), "{case}: {reason}");
    }
}

#[test]
fn a_name_has_a_maximum_length() {
    let long = json!("n".repeat(NAME_BYTES_MAX + 1)).to_string();
    let longest = json!("n".repeat(NAME_BYTES_MAX)).to_string();
    for (source, line, field) in [
        (Source::Athletes, ATHLETE, "name"),
        (Source::Applications, APPLICATION, "name"),
        (Source::Applications, APPLICATION, "owner"),
    ] {
        let reason = reason(source, &with(line, field, &long));
        let expected = format!("{field}: has 1025 bytes; at most 1024 are accepted");
        assert_eq!(reason, expected);
        assert!(parse(source, with(line, field, &longest).as_bytes()).is_ok());
    }
}

#[test]
fn a_line_is_one_object() {
    for (source, line, _) in LINES {
        let first = line.split('"').nth(1).unwrap();
        let first = if first == "id" { "{\"id\"" } else { first };
        for other in ["null", "1", "[]", "[1,2,3,4,5,6]", "\"{}\""] {
            check_reason(source, other, &["not a JSON object", "one row", first]);
        }
        check_reason(source, "", &["the value is null", "one row", first]);
        for other in [" ", "{", "}", "{]", "\u{feff}\u{feff}{}", "{\"id\":NaN}"] {
            check_reason(source, other, &["not JSON"]);
        }
        check_reason(source, &format!("{line}{line}"), &["more than one"]);
        check_reason(source, &format!("{line} x"), &["more than one"]);
        let fill = |length: usize| format!("{line}{}", " ".repeat(length - line.len()));
        check(source, &fill(LINE_BYTES_MAX), plain(source));
        check_reason(
            source,
            &fill(LINE_BYTES_MAX + 1),
            &["at most 1048576 bytes"],
        );
    }
    check_reason(Source::Plays, EFFORT, &["plays", "events"]);
}

#[test]
fn a_reason_is_short_for_a_long_value() {
    let long = json!("é\n".repeat(100_000));
    for (source, line, field) in all_fields() {
        let value = if field == "owner" {
            json!([long])
        } else {
            long.clone()
        };
        let reason = reason(source, &with(line, &field, &value.to_string()));
        assert!(reason.starts_with(&field), "{reason}");
        assert!(reason.chars().count() <= REASON_CHARS_MAX + 1, "{reason}");
    }
}

proptest! {
    /// Any bytes are accepted or rejected with a reason of one line, without a panic.
    #[test]
    fn any_bytes_are_accepted_or_rejected(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
        (index, byte) in (any::<proptest::sample::Index>(), any::<u8>()),
    ) {
        for (source, line, _) in LINES {
            let mut damaged = line.as_bytes().to_vec();
            let index = index.index(damaged.len());
            damaged[index] = byte;
            for bytes in [bytes.as_slice(), &damaged, &line.as_bytes()[..index]] {
                if let Err(reason) = parse(source, bytes) {
                    prop_assert!(!reason.is_empty() && !reason.contains('\n'), "{}", reason);
                }
            }
        }
    }

    /// Any value of a field is accepted or rejected with a reason that names the field.
    #[test]
    fn any_value_is_accepted_or_rejected(
        number in prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
        ],
        text in ".*",
    ) {
        for (source, line, field) in all_fields() {
            for value in [json!(number), json!(text), json!([text]), json!({"a": number})] {
                let line = with(line, &field, &value.to_string());
                if let Err(reason) = parse(source, line.as_bytes()) {
                    prop_assert!(reason.starts_with(&field) && !reason.contains('\n'), "{}", reason);
                }
            }
        }
    }
}
