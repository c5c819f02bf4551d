//! Tests of the grammar of edges.

use super::*;

fn parse_instant(text: &str) -> UnixSeconds {
    match parse(text) {
        Ok(RangeEdge::Instant(seconds)) => seconds,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn one_instant_has_many_spellings() {
    let expected = 1_782_897_300;
    for text in [
        "2026-07-01T09:15:00Z",
        "2026-07-01t09:15:00z",
        "2026-07-01 09:15:00Z",
        "2026-07-01T09:15:00.000Z",
        "2026-07-01T09:15:00-00:00",
        "2026-07-01T11:15:00+02:00",
        "2026-07-01T11:15:00 02:00",
        "2026-07-01 11:15:00 02:00",
        "2026-07-01T14:55:00+05:40",
        "2026-06-30T22:15:00-11:00",
    ] {
        assert_eq!(parse_instant(text), expected, "{text}");
    }
    assert_eq!(parse_instant("1969-12-31T23:45:00Z"), -900);
}

#[test]
fn a_date_is_ten_characters() {
    let date = jiff::civil::date(2024, 2, 29);
    assert_eq!(parse("2024-02-29"), Ok(RangeEdge::Date(date)));
    assert_eq!(parse_date("2024-02-29"), Ok(date));
    assert_eq!(
        parse_date("2024-02-29T00:00:00Z"),
        Err(EdgeError::Malformed)
    );
}

#[test]
fn distinguishes_malformed_from_nonexistent() {
    for text in [
        "",
        "now",
        "2026",
        "2026-7-1",
        "2026-07",
        "20260701",
        "12026-07-01",
        "+002026-07-01",
        "-002026-01-01",
        "2026-07-01T",
        "2026-07-01T09:15Z",
        "2026-07-01T09:15:00",
        "2026-07-01T09:15:00.Z",
        "2026-07-01T09:15:00,0Z",
        "2026-07-01T09:15:00+02",
        "2026-07-01T09:15:00+0200",
        "2026-07-01T09:15:00+24:00",
        "2026-07-01T09:15:00Z[UTC]",
        "2026-07-01T09:15:00Z ",
        " 2026-07-01",
        "2026/07/01",
        "２０26-07-01",
        "2026-07-01T09:15:0é",
        "1782897300",
    ] {
        assert_eq!(parse(text), Err(EdgeError::Malformed), "{text}");
    }
    for text in [
        "2026-02-30",
        "2026-13-01",
        "2025-02-29",
        "0000-01-01",
        "2026-00-10",
    ] {
        assert_eq!(parse(text), Err(EdgeError::Day), "{text}");
        assert_eq!(
            parse(&format!("{text}T00:00:00Z")),
            Err(EdgeError::Day),
            "{text}"
        );
    }
    for text in [
        "2026-07-01T25:00:00Z",
        "2026-07-01T24:00:00Z",
        "2026-07-01T09:60:00Z",
    ] {
        assert_eq!(parse(text), Err(EdgeError::Time), "{text}");
    }
    assert_eq!(parse("9999-12-31T23:45:00Z"), Err(EdgeError::Time));
}

#[test]
fn instants_are_on_quarters_in_utc() {
    for text in [
        "2026-07-01T09:07:00Z",
        "2026-07-01T09:15:01Z",
        "2026-07-01T09:15:00.000000001Z",
        "2026-07-01T09:15:00+00:01",
        "1969-12-31T23:59:59.5Z",
        "2026-07-01T09:14:60Z",
    ] {
        assert!(
            matches!(parse(text), Err(EdgeError::OffQuarter(_))),
            "{text}: {:?}",
            parse(text)
        );
    }
    let off = Err(EdgeError::OffQuarter("2026-07-01T07:07:00Z".to_owned()));
    assert_eq!(parse("2026-07-01T09:07:00+02:00"), off);
}
