//! Messages for JSON that does not decode, without the wording of the decoder.
//!
//! `serde_json` describes Rust types (`invalid type: string "x", expected i64`). Every message that
//! a user reads passes through here and describes JSON: `track_id must be an integer; got the
//! string "x" (column 33)`.

use serde::Deserialize;
use serde_json::Error;

/// The longest quoted value, in characters.
const VALUE_CHARS_MAX: usize = 80;

/// Decodes one JSON value.
///
/// # Errors
/// A message that names the field, the expected value and the actual one.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|_| explain::<T>(bytes))
}

/// Decodes again, slowly, to find the path of the invalid field.
fn explain<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> String {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(_) => match json.end() {
            Ok(()) => "not accepted".to_owned(),
            Err(error) => format!("more than one JSON value{}", format_location(&error)),
        },
        // The decoder reports a number in place of an enum's name as a syntax error.
        Err(error) if is_missing_value(error.inner()) && is_json(bytes) => {
            let (path, location) = (error.path().to_string(), format_location(error.inner()));
            format!(
                "{} has a value of another type{location}",
                name_subject(&path)
            )
        }
        Err(error) => describe_at(&error.path().to_string(), error.inner()),
    }
}

/// Returns whether the decoder expected a value and found other text. Other syntax errors, such as
/// a lone surrogate, are errors of the text even if [`is_json`] accepts it.
fn is_missing_value(error: &Error) -> bool {
    error.is_syntax() && error.to_string().starts_with("expected value")
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// Describes an error of a value whose field is unknown.
#[must_use]
pub fn describe(error: &Error) -> String {
    describe_at(".", error)
}

/// Describes an error of the value at `path`; `.` is the whole document.
#[must_use]
pub fn describe_at(path: &str, error: &Error) -> String {
    let text = error.to_string();
    let text = text
        .rfind(" at line ")
        .filter(|_| error.line() > 0)
        .and_then(|end| text.get(..end))
        .unwrap_or(&text);
    let location = format_location(error);
    if !error.is_data() {
        return format!("not JSON: {}{location}", describe_syntax(text));
    }
    describe_mismatch(name_subject(path), text).map_or_else(
        || match path {
            "." => format!("{text}{location}"),
            path => format!("{path}: {text}{location}"),
        },
        |message| format!("{message}{location}"),
    )
}

/// Returns the subject of a message about the value at `path`.
fn name_subject(path: &str) -> &str {
    match path {
        "." => "the value",
        path => path,
    }
}

/// Formats the position of an error, as ` (column 33)`. The line is named only after the first one.
fn format_location(error: &Error) -> String {
    match (error.line(), error.column()) {
        (0, _) => String::new(),
        (1, column) => format!(" (column {column})"),
        (line, column) => format!(" (line {line}, column {column})"),
    }
}

/// Describes a value that does not match its type; none for a message of our own decoders.
fn describe_mismatch(subject: &str, text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix("missing field ") {
        let field = rest.trim_matches('`');
        return Some(match subject {
            "the value" => format!("the required field {field} is missing"),
            subject => format!("{subject}: the required field {field} is missing"),
        });
    }
    if let Some(rest) = text.strip_prefix("duplicate field ") {
        let field = rest.trim_matches('`');
        return Some(format!("the field {field} occurs more than once"));
    }
    if let Some(rest) = text.strip_prefix("invalid type: ") {
        let (value, expected) = rest.rsplit_once(", expected ")?;
        let (value, expected) = (describe_actual(value), describe_expected(expected));
        return Some(format!("{subject} must be {expected}; got {value}"));
    }
    if let Some(rest) = text.strip_prefix("invalid value: ") {
        let (value, expected) = rest.rsplit_once(", expected ")?;
        let expected =
            describe_range(expected).unwrap_or_else(|| describe_expected(expected).to_owned());
        let value = describe_actual(value);
        return Some(format!("{subject} must be {expected}; got {value}"));
    }
    if let Some(rest) = text.strip_prefix("invalid length ") {
        let (length, expected) = rest.rsplit_once(", expected ")?;
        let expected = describe_expected(expected);
        return Some(format!(
            "{subject} must be {expected}; got {length} elements"
        ));
    }
    if let Some(rest) = text.strip_prefix("unknown variant ") {
        let (value, names) = rest.rsplit_once(", expected ")?;
        let (value, names) = (shorten(value.trim_matches('`')), format_choices(names));
        return Some(format!("{subject} must be {names}; got \"{value}\""));
    }
    if let Some(rest) = text.strip_prefix("unknown field ") {
        let (field, names) = rest.rsplit_once(", expected ").unwrap_or((rest, ""));
        let (field, names) = (shorten(field.trim_matches('`')), format_choices(names));
        return Some(match names.as_str() {
            "" => format!("the field {field} is unknown"),
            names => format!("the field {field} is unknown; known fields: {names}"),
        });
    }
    None
}

/// Describes the expected type in terms of JSON.
fn describe_expected(text: &str) -> &str {
    match text {
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "an integer that is not negative",
        "f32" | "f64" => "a number",
        "a borrowed string" | "string" | "str" => "a string",
        "a sequence" => "an array",
        "a map" | "map" => "an object",
        "unit" => "null",
        text if text.starts_with("struct ") || text.starts_with("internally tagged") => "an object",
        text if text.starts_with("tuple ") || text.starts_with("a tuple") => "an array",
        text if text.starts_with("a borrowed byte") => "a string",
        text if text.starts_with("enum ") => "a string",
        text => text,
    }
}

/// Describes the range of an integer type.
fn describe_range(text: &str) -> Option<String> {
    let bits: u32 = text.get(1..)?.parse().ok()?;
    match text.chars().next()? {
        'i' => Some(format!(
            "an integer from -2^{0} to 2^{0} - 1",
            bits.checked_sub(1)?
        )),
        'u' => Some(format!("an integer from 0 to 2^{bits} - 1")),
        _ => None,
    }
}

/// Describes the actual value in terms of JSON.
fn describe_actual(text: &str) -> String {
    match text {
        "sequence" => return "an array".to_owned(),
        "map" => return "an object".to_owned(),
        "null" | "unit value" | "Option value" => return "null".to_owned(),
        _ => {}
    }
    for (kind, name) in [
        ("string ", "string"),
        ("integer `", "integer"),
        ("floating point `", "number"),
        ("boolean `", "boolean"),
    ] {
        if let Some(value) = text.strip_prefix(kind) {
            let value = value.trim_end_matches('`');
            let end = if kind == "string " { "\"" } else { "" };
            return match shorten(value) {
                value if value.ends_with('…') => format!("the {name} {value}{end}"),
                value => format!("the {name} {value}"),
            };
        }
    }
    shorten(text)
}

/// Truncates a long value.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Formats the names of choices with double quotes.
fn format_choices(text: &str) -> String {
    let text = text.strip_prefix("one of ").unwrap_or(text);
    text.replace('`', "\"")
}

/// Describes a syntax error.
fn describe_syntax(text: &str) -> &str {
    match text {
        "EOF while parsing a list" => "the text ends inside an array",
        "EOF while parsing an object" => "the text ends inside an object",
        "EOF while parsing a string" => "the text ends inside a string",
        "EOF while parsing a value" => "the text ends where a value is expected",
        "expected ident" => "only true, false and null can be written without quotes",
        "expected value" => "a value is expected",
        "invalid escape" => "a string has an unknown escape",
        "unexpected end of hex escape" | "lone leading surrogate in hex escape" => {
            "a string has an incomplete \\u escape"
        }
        "invalid unicode code point" => "a string has bytes that are not UTF-8",
        "control character (\\u0000-\\u001F) found while parsing a string" => {
            "a string has a control character that is not escaped"
        }
        "key must be a string" => "the name of a field must be a string in double quotes",
        "trailing characters" => "more text follows the value",
        "trailing comma" => "a comma is followed by no value",
        "number out of range" => "a number is out of range",
        "invalid number" => "a number is not written correctly",
        "recursion limit exceeded" => "values are nested too deeply",
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Row {
        id: i64,
        small: Option<u8>,
        weight: Option<f64>,
        name: Option<String>,
        flag: Option<bool>,
        list: Option<Vec<i64>>,
        inner: Option<Inner>,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Inner {
        at: i64,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Play,
        Download,
    }

    fn message(text: &str) -> String {
        decode::<Row>(text.as_bytes()).expect_err(text)
    }

    const TEXTS_AND_MESSAGES: &[(&str, &str)] = &[
        (
            r#"{"id":"x"}"#,
            r#"id must be an integer; got the string "x" (column 9)"#,
        ),
        (
            r#"{"id":1.5}"#,
            "id must be an integer; got the number 1.5 (column 9)",
        ),
        (
            r#"{"id":null}"#,
            "id must be an integer; got null (column 10)",
        ),
        (
            r#"{"id":true}"#,
            "id must be an integer; got the boolean true (column 10)",
        ),
        (
            r#"{"id":[]}"#,
            "id must be an integer; got an array (column 6)",
        ),
        (
            r#"{"id":{}}"#,
            "id must be an integer; got an object (column 6)",
        ),
        (
            r#"{"id":9223372036854775808}"#,
            "id must be an integer from -2^63 to 2^63 - 1; got the integer 9223372036854775808 (column 25)",
        ),
        (
            r#"{"id":1,"small":-1}"#,
            "small must be an integer from 0 to 2^8 - 1; got the integer -1 (column 18)",
        ),
        (
            r#"{"id":1,"small":"1"}"#,
            r#"small must be an integer that is not negative; got the string "1" (column 19)"#,
        ),
        (
            r#"{"id":1,"weight":"1"}"#,
            r#"weight must be a number; got the string "1" (column 20)"#,
        ),
        (
            r#"{"id":1,"name":7}"#,
            "name must be a string; got the integer 7 (column 16)",
        ),
        (
            r#"{"id":1,"flag":0}"#,
            "flag must be a boolean; got the integer 0 (column 16)",
        ),
        (
            r#"{"id":1,"list":[1,"b"]}"#,
            r#"list[1] must be an integer; got the string "b" (column 21)"#,
        ),
        (
            r#"{"id":1,"list":5}"#,
            "list must be an array; got the integer 5 (column 16)",
        ),
        (
            r#"{"id":1,"inner":5}"#,
            "inner must be an object; got the integer 5 (column 17)",
        ),
        (
            r#"{"id":1,"inner":{}}"#,
            "inner: the required field at is missing (column 18)",
        ),
        (
            r#"{"id":1,"kind":"skip"}"#,
            r#"kind must be "play" or "download"; got "skip" (column 21)"#,
        ),
        ("{}", "the required field id is missing (column 2)"),
        (
            r#"{"id":1,"id":2}"#,
            "the field id occurs more than once (column 12)",
        ),
        (
            r#"{"id":", expected i64"}"#,
            r#"id must be an integer; got the string ", expected i64" (column 22)"#,
        ),
        (
            "{\"id\":1,\n\"name\":7}",
            "name must be a string; got the integer 7 (line 2, column 8)",
        ),
    ];

    #[test]
    fn a_message_names_the_field_the_expected_value_and_the_actual_one() {
        for (text, expected) in TEXTS_AND_MESSAGES {
            assert_eq!(message(text), *expected, "{text}");
        }
        let wrong_type = message(r#"{"id":1,"kind":1}"#);
        assert_eq!(wrong_type, "kind has a value of another type (column 16)");
        let unknown = message(r#"{"id":1,"inner":{"at":1,"b":2}}"#);
        assert!(
            unknown.contains("the field b is unknown; known fields: \"at\""),
            "{unknown}"
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let message = message(&format!(r#"{{"id":"{}"}}"#, "é".repeat(10_000)));
        assert!(
            message.starts_with("id must be an integer; got the string \"é"),
            "{message}"
        );
        assert!(message.ends_with("é…\" (column 20008)"), "{message}");
        assert!(message.chars().count() < 150, "{message}");
    }

    #[test]
    fn text_that_is_not_json_is_described() {
        for (text, expected) in [
            ("", "not JSON: the text ends where a value is expected"),
            ("{", "not JSON: the text ends inside an object (column 1)"),
            (
                r#"{"list":[1"#,
                "not JSON: the text ends inside an array (column 10)",
            ),
            (
                r#"{"id"#,
                "not JSON: the text ends inside a string (column 4)",
            ),
            (r#"{"id":}"#, "not JSON: a value is expected (column 7)"),
            (r#"{"id":nil}"#, "not JSON: only true, false and null"),
            (
                r#"{id:1}"#,
                "not JSON: the name of a field must be a string",
            ),
            (r#"{"id":1,}"#, "not JSON: a comma is followed by no value"),
            (r#"{"id" 1}"#, "not JSON: expected `:` (column 7)"),
            (
                r#"{"name":"\x"}"#,
                "not JSON: a string has an unknown escape",
            ),
            (
                "{\"name\":\"\u{1}\"}",
                "not JSON: a string has a control character",
            ),
            (
                r#"{"list":[1,]}"#,
                "not JSON: a comma is followed by no value",
            ),
            (
                r#"{"id":01}"#,
                "not JSON: a number is not written correctly",
            ),
            (r#"{"id":1} x"#, "more than one JSON value (column 10)"),
            (
                r#"{"name":"\ud800"}"#,
                "not JSON: a string has an incomplete \\u escape",
            ),
            (r#"{"weight":1e999}"#, "not JSON: a number is out of range"),
        ] {
            let message = message(text);
            assert!(message.starts_with(expected), "{text}: {message}");
        }
    }

    /// A new version of the decoder must not bring its own wording to users.
    #[test]
    fn no_wording_of_the_decoder_reaches_a_message() {
        let values = [
            "1", "-1", "1.5", "1e99", "\"a\"", "true", "null", "[]", "{}", "[1]",
        ];
        let names = [
            "id", "small", "weight", "name", "flag", "list", "inner", "kind",
        ];
        for name in names {
            for value in values {
                let text = format!("{{\"{name}\":{value}}}");
                let Err(message) = decode::<Row>(text.as_bytes()) else {
                    continue;
                };
                for word in ["invalid", "expected", "i64", "at line", "map", "not JSON"] {
                    assert!(!message.contains(word), "{text}: {message}");
                }
            }
        }
    }
}
