use jobs::Catalog;

use super::*;
use crate::http::problem::ProblemKind;

fn parse(query: &str, known: &[&str]) -> Result<Params, Problem> {
    let uri = Uri::try_from(format!("/x?{query}")).unwrap();
    Params::parse(&uri, known)
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Problem>, words: &[&str]) {
    let problem = result.unwrap_err();
    assert_eq!(problem.kind(), ProblemKind::BadParameter);
    for word in words {
        assert!(problem.detail().contains(word), "{}", problem.detail());
    }
}

#[test]
fn decodes_parameters() {
    let params = parse(
        "a=x%20y+z&b=%C3%BC&c=&d=%EF%BF%BD",
        &["a", "b", "c", "d", "e"],
    )
    .unwrap();
    assert_eq!(params.get("a"), Some("x y z"));
    assert_eq!(params.get("b"), Some("ü"));
    assert_eq!(params.get("c"), Some(""));
    assert_eq!(params.get("d"), Some("\u{fffd}"));
    assert_eq!(params.get("e"), None);
}

#[test]
fn rejects_unknown_repeated_and_non_utf8_parameters() {
    assert_refused(parse("a=1&colour=red", &["a", "b"]), &["colour", "a, b"]);
    assert_refused(parse("a=1", &[]), &["\"a\"", "none"]);
    assert_refused(parse("a=1&a=1", &["a"]), &["a is repeated"]);
    assert_refused(parse("a=%FF", &["a"]), &["a is not UTF-8"]);
}

#[test]
fn parses_integers_of_digits_only() {
    for (text, expected) in [
        ("0", Some(0)),
        ("-7", Some(-7)),
        ("007", Some(7)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("+7", None),
        (" 7", None),
        ("7.0", None),
        ("1e3", None),
        ("-", None),
        ("", None),
        ("٣", None),
    ] {
        assert_eq!(parse_integer(text), expected, "{text:?}");
    }
}

#[test]
fn parses_filters_by_the_type_of_their_column() {
    let metric = Metric::from_catalog(&Catalog::built_in().unwrap())
        .remove("plays")
        .unwrap();
    let known: Vec<&str> = metric.columns().keys().map(String::as_str).collect();
    let filters = |query: &str| parse(query, &known)?.parse_filters(&metric);
    let parsed = filters("owner_id=-3&country=DE&referrer=&kind=download").unwrap();
    let text = |text: &str| KeyValue::Text(text.to_owned());
    assert_eq!(
        parsed.into_iter().collect::<Vec<_>>(),
        [
            ("country".to_owned(), text("DE")),
            ("kind".to_owned(), text("download")),
            ("owner_id".to_owned(), KeyValue::Int(-3)),
            ("referrer".to_owned(), text("")),
        ]
    );
    assert_refused(
        filters("owner_id=abc"),
        &["owner_id=\"abc\"", "64-bit integer"],
    );
    assert_refused(filters("listener_id="), &["listener_id"]);
    assert_refused(filters("country=de"), &["country=\"de\"", "ISO 3166"]);
    assert_refused(filters("country="), &["country"]);
    assert_refused(
        filters("kind=stream"),
        &["kind=\"stream\"", "play or download"],
    );
}

#[test]
fn checks_limits_and_formats() {
    let limit = |query: &str| parse(query, &["limit"]).unwrap().parse_limit();
    assert_eq!(limit("").unwrap(), 50);
    assert_eq!(limit("limit=1000").unwrap(), 1_000);
    for bad in ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit="] {
        assert_refused(limit(bad), &["limit", "1 to 1000"]);
    }
    let format = |query: &str| parse(query, &["format"]).unwrap().parse_format();
    assert_eq!(format("").unwrap(), Format::Json);
    assert_eq!(format("format=csv").unwrap(), Format::Csv);
    assert_refused(format("format=xml"), &["xml", "json or csv"]);
}

#[test]
fn the_canonical_query_is_equal_for_all_pages() {
    let known = ["a", "b", "limit", "cursor", "format"];
    let canonical = |query: &str| parse(query, &known).unwrap().canonical_query();
    let first = canonical("b=2&a=1&limit=5&cursor=x");
    assert_eq!(first, canonical("a=1&b=2&format=csv"));
    assert_ne!(first, canonical("a=1&b=3"));
    assert_ne!(canonical("a=1%26b%3D2"), canonical("a=1&b=2"));
}

#[test]
fn stored_numbers_leave_room_for_a_successor() {
    for (text, number) in [
        ("0", Some(0)),
        ("9223372036854775806", Some(9_223_372_036_854_775_806)),
        ("9223372036854775807", None),
        ("18446744073709551615", None),
        ("18446744073709551616", None),
        ("-1", None),
        ("x", None),
    ] {
        assert_eq!(parse_stored_number(text), number, "{text}");
    }
}
