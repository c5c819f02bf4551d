//! Reasons without what is different from letter to letter, so that like ones can be counted.

/// A kind has at most so many characters: reasons may hold what others wrote.
const CHARS_MAX: usize = 200;
/// What stands for a number, or for anything else that begins with a digit.
const NUMBER: char = 'N';
/// What stands between quotes.
const QUOTED: char = '…';
/// What an expectation follows: text that is the same in all reasons of a kind.
const EXPECTATIONS: [&str; 7] = [
    "; ",
    " is not ",
    " such as ",
    ", as ",
    "at most ",
    "expected ",
    "missing field ",
];
/// What ends an expectation.
const EXPECTATION_ENDS: [&str; 2] = [": ", " ("];

/// The kind of a reason: numbers and times in it are `N`, and what stands in quotes (`"`, `'` or a
/// backquote) is `…`. So `line 7: "DE1" is no country` and `line 12: "x" is no country` are both
/// `line N: "…" is no country`. What was expected stays as it is, as do names with numbers such as `ISO 3166` and
/// `64-bit`; the place within JSON is left out. At most 200 characters.
#[must_use]
pub fn kind_of(reason: &str) -> String {
    let mut kind = String::new();
    let mut rest = reason;
    let mut before = None;
    let mut is_expectation = false;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = without_place(rest) {
            (rest, is_expectation) = (after, false);
            continue;
        }
        let inside = before.is_some_and(|c: char| c.is_alphanumeric() || c == '_');
        let begins = |text: &&str| rest.starts_with(*text);
        if is_expectation {
            is_expectation = !EXPECTATION_ENDS.iter().any(&begins);
        } else if !(inside && first.is_alphanumeric())
            && let Some(text) = EXPECTATIONS.into_iter().find(begins)
        {
            kind.push_str(text);
            rest = rest.get(text.len()..).unwrap_or_default();
            (before, is_expectation) = (text.chars().next_back(), true);
            continue;
        }
        let taken = match first {
            _ if is_expectation => None,
            '"' | '`' | '\'' if !inside || first == '"' => quoted(rest, first),
            '0'..='9' if !inside && !is_of_name(&kind, rest) => Some(number(rest)),
            _ => None,
        };
        let taken_bytes = match taken {
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
        let (done, more) = rest.split_at(taken_bytes);
        before = done.chars().next_back();
        rest = more;
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

/// The text after a place in JSON that begins here, as in ` at line 1 column 17`.
fn without_place(text: &str) -> Option<&str> {
    let after_digits = |text: &str| {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        (end > 0).then_some(end)
    };
    let text = text.strip_prefix(" at line ")?;
    let text = text.get(after_digits(text)?..)?.strip_prefix(" column ")?;
    text.get(after_digits(text)?..)
}

/// Whether the number that begins here belongs to a name: `ISO 3166`, `alpha-2`, `64-bit`.
fn is_of_name(before: &str, text: &str) -> bool {
    let is_standard = ["ISO ", "RFC "].iter().any(|name| before.ends_with(name));
    let of_word = before
        .strip_suffix('-')
        .and_then(|word| word.chars().next_back());
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let word = after.strip_prefix('-').and_then(|word| word.chars().next());
    is_standard || of_word.is_some_and(char::is_alphabetic) || word.is_some_and(char::is_alphabetic)
}

/// How many bytes a quoted text has that begins here, with its quotes; nothing where it does not end.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        // An apostrophe within a word ends nothing.
        let ends = c == quote && (quote != '\'' || !next.is_some_and(char::is_alphanumeric));
        match c {
            _ if escaped => escaped = false,
            '\\' if quote == '"' => escaped = true,
            _ if ends => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    None
}

/// How many bytes a number has that begins here, or a time such as 2026-03-01T00:00:00Z.
fn number(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        let joins = matches!(c, '.' | ':' | '-' | '+') && next.is_some_and(|c| c.is_ascii_digit());
        if !c.is_alphanumeric() && !joins {
            return at;
        }
    }
    text.len()
}

/// Takes away a sign that belongs to the number that follows, and no hyphen.
fn drop_sign(kind: &mut String) {
    let Some(unsigned) = kind.strip_suffix('-') else {
        return;
    };
    let is_sign = match unsigned.chars().next_back() {
        None => true,
        Some(before) => before.is_whitespace() || "([{=:,<>/".contains(before),
    };
    if is_sign {
        kind.truncate(unsigned.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_left_out_of_a_kind() {
        for (reason, kind) in [
            ("", ""),
            ("kind: missing", "kind: missing"),
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
        ] {
            assert_eq!(kind_of(reason), kind, "{reason}");
        }
    }

    #[test]
    fn a_kind_is_short_and_its_own_kind() {
        let long = kind_of(&"é".repeat(1_000));
        assert_eq!(long.chars().count(), CHARS_MAX + 1);
        for reason in [
            "-7 of \"a\" at 'b'",
            "x `y` 2026-01-01",
            "can't",
            "a: 7 is not 8; 9 or \"x\": 3",
        ] {
            let kind = kind_of(reason);
            assert_eq!(kind_of(&kind), kind);
        }
    }
}
