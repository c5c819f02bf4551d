//! Kinds of reasons: reasons without their values, so that similar dead letters are counted
//! together.

/// The maximum length of a kind. Reasons may quote input.
const CHARS_MAX: usize = 200;
/// Replaces a number, or any other word that begins with a digit.
const NUMBER: char = 'N';
/// Replaces quoted text.
const QUOTED: char = '…';
/// Introduces an expectation, which is equal in all reasons of a kind.
const EXPECTATIONS: [&str; 8] = [
    "; ",
    " must be ",
    " is not ",
    " such as ",
    ", as ",
    "at most ",
    "expected ",
    "missing field ",
];
/// Ends an expectation.
const EXPECTATION_ENDS: [&str; 3] = [": ", " (", "; got "];

/// Returns the kind of a reason, at most 200 characters.
///
/// Numbers and times become `N`, and text in quotes (`"`, `'` or a backquote) becomes `…`. So the
/// reasons `line 7: "DE1" is no country` and `line 12: "x" is no country` both have the kind
/// `line N: "…" is no country`. Expectations stay, as do names with numbers such as `ISO 3166` and
/// `64-bit`. The position within JSON is removed.
#[must_use]
pub fn reason_kind(reason: &str) -> String {
    let mut kind = String::new();
    let mut rest = reason;
    let mut previous_char = None;
    let mut is_expectation = false;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = skip_json_position(rest) {
            (rest, is_expectation) = (after, false);
            continue;
        }
        let is_inside_word = previous_char.is_some_and(|c: char| c.is_alphanumeric() || c == '_');
        let starts_here = |text: &&str| rest.starts_with(*text);
        if is_expectation {
            is_expectation = !EXPECTATION_ENDS.iter().any(&starts_here);
        } else if !(is_inside_word && first.is_alphanumeric())
            && let Some(text) = EXPECTATIONS.into_iter().find(starts_here)
        {
            kind.push_str(text);
            rest = rest.get(text.len()..).unwrap_or_default();
            (previous_char, is_expectation) = (text.chars().next_back(), true);
            continue;
        }
        let value_bytes = match first {
            _ if is_expectation => None,
            '"' | '`' | '\'' if !is_inside_word || first == '"' => quoted_len(rest, first),
            '0'..='9' if !is_inside_word && !is_part_of_name(&kind, rest) => Some(number_len(rest)),
            _ => None,
        };
        let consumed_bytes = match value_bytes {
            Some(bytes) if first.is_ascii_digit() => {
                drop_sign(&mut kind);
                kind.push(NUMBER);
                bytes
            }
            Some(bytes) => {
                kind.extend([first, QUOTED, first]);
                bytes
            }
            None => {
                kind.push(first);
                first.len_utf8()
            }
        };
        let (consumed, remaining) = rest.split_at(consumed_bytes);
        previous_char = consumed.chars().next_back();
        rest = remaining;
    }
    match kind.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => {
            kind.truncate(end);
            kind.push(QUOTED);
            kind
        }
        None => kind,
    }
}

/// Returns the text after a position in JSON that begins here: ` (column 17)`, ` (line 2, column
/// 17)` or, in dead letters of earlier versions, ` at line 1 column 17`.
fn skip_json_position(text: &str) -> Option<&str> {
    let after_digits = |text: &str| {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        (end > 0).then_some(end)
    };
    if let Some(text) = text.strip_prefix(" at line ") {
        let text = text.get(after_digits(text)?..)?.strip_prefix(" column ")?;
        return text.get(after_digits(text)?..);
    }
    let text = text.strip_prefix(" (")?;
    let text = match text.strip_prefix("line ") {
        Some(text) => text.get(after_digits(text)?..)?.strip_prefix(", ")?,
        None => text,
    };
    let text = text.strip_prefix("column ")?;
    text.get(after_digits(text)?..)?.strip_prefix(')')
}

/// Returns whether the number that begins here belongs to a name: `ISO 3166`, `alpha-2`, `64-bit`.
fn is_part_of_name(before: &str, text: &str) -> bool {
    let is_standard = ["ISO ", "RFC "].iter().any(|name| before.ends_with(name));
    let word_before = before
        .strip_suffix('-')
        .and_then(|word| word.chars().next_back());
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let word_after = after.strip_prefix('-').and_then(|word| word.chars().next());
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    is_standard || is_letter(word_before) || is_letter(word_after)
}

/// Returns the bytes of the quoted text that begins here, with its quotes; none if it has no end.
fn quoted_len(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((index, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        // An apostrophe within a word does not end a quotation.
        let is_end = c == quote && (quote != '\'' || !next.is_some_and(char::is_alphanumeric));
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if quote == '"' => is_escaped = true,
            _ if is_end => return Some(index + c.len_utf8()),
            _ => {}
        }
    }
    None
}

/// Returns the bytes of the number that begins here, or of a time such as 2026-03-01T00:00:00Z.
fn number_len(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        let is_joint =
            matches!(c, '.' | ':' | '-' | '+') && next.is_some_and(|c| c.is_ascii_digit());
        if !c.is_alphanumeric() && !is_joint {
            return index;
        }
    }
    text.len()
}

/// Removes the sign of the number that follows, but not a hyphen.
fn drop_sign(kind: &mut String) {
    let Some(unsigned) = kind.strip_suffix('-') else {
        return;
    };
    let is_sign = match unsigned.chars().next_back() {
        None => true,
        Some(previous) => previous.is_whitespace() || "([{=:,<>/".contains(previous),
    };
    if is_sign {
        kind.truncate(unsigned.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS_AND_KINDS: &[(&str, &str)] = &[
        ("", ""),
        ("kind: missing", "kind: missing"),
        (
            r#"track_id must be an integer; got the string "x" (column 33)"#,
            r#"track_id must be an integer; got the string "…""#,
        ),
        (
            "owner_id must be an integer from -2^63 to 2^63 - 1; got the integer 7 (column 9)",
            "owner_id must be an integer from -2^63 to 2^63 - 1; got the integer N",
        ),
        (
            "the required field owner_id is missing (line 2, column 17)",
            "the required field owner_id is missing",
        ),
        (
            "not JSON: expected value at line 1 column 17",
            "not JSON: expected value",
        ),
        (
            r#"tz: "Mars" is not an IANA time zone such as "Europe/Berlin""#,
            r#"tz: "…" is not an IANA time zone such as "Europe/Berlin""#,
        ),
        (r#"a "b\"c" d"#, r#"a "…" d"#),
        (r#"a "b\\" d"#, r#"a "…" d"#),
        (
            "unknown variant `skip`, expected `play` or `download`",
            "unknown variant `…`, expected `play` or `download`",
        ),
        (
            "it can't be read, and 'x y' isn't",
            "it can't be read, and '…' isn't",
        ),
        ("-7 is less than -0.5", "N is less than N"),
        (
            "at=-3: 2026-13-01T00:00:00Z is no time",
            "at=N: N is no time",
        ),
        (
            "a 64-bit integer, alpha-2, utf8",
            "a 64-bit integer, alpha-2, utf8",
        ),
        ("1772712000000µs", "N"),
        ("offset 3.", "offset N."),
        ("3: 4", "N: N"),
        (
            "missing field `owner_id` at line 1 column 40",
            "missing field `owner_id`",
        ),
        (
            r#"owner_id: invalid type: string "7", expected i64 at line 1 column 30"#,
            r#"owner_id: invalid type: string "…", expected i64"#,
        ),
        (
            r#"country: "DE1" is not an ISO 3166 alpha-2 code such as "DE""#,
            r#"country: "…" is not an ISO 3166 alpha-2 code such as "DE""#,
        ),
        (
            r#"at: "x" is not an RFC 3339 instant such as "2026-11-21T09:30:00Z": "x" is bad"#,
            r#"at: "…" is not an RFC 3339 instant such as "2026-11-21T09:30:00Z": "…" is bad"#,
        ),
        (
            "event_id: has 3000 bytes; 1 to 1024 are expected",
            "event_id: has N bytes; 1 to 1024 are expected",
        ),
        (
            "too long: at most 1048576 bytes are taken (the first 9 of 12 bytes are kept)",
            "too long: at most 1048576 bytes are taken (the first N of N bytes are kept)",
        ),
        ("unexpected 7", "unexpected N"),
        (r#"an open "quote 7"#, r#"an open "quote N"#),
        ("ends with \"", "ends with \""),
        ("größer als 7 Ähren", "größer als N Ähren"),
    ];

    #[test]
    fn a_kind_has_no_values() {
        for (reason, kind) in REASONS_AND_KINDS {
            assert_eq!(reason_kind(reason), *kind, "{reason}");
        }
    }

    #[test]
    fn a_kind_is_short_and_stable() {
        let long = reason_kind(&"é".repeat(1_000));
        assert_eq!(long.chars().count(), CHARS_MAX + 1);
        for reason in [
            "-7 of \"a\" at 'b'",
            "x `y` 2026-01-01",
            "can't",
            "a: 7 is not 8; 9 or \"x\": 3",
        ] {
            let kind = reason_kind(reason);
            assert_eq!(reason_kind(&kind), kind);
        }
    }
}
