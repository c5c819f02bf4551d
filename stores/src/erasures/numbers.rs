//! Finds whole numbers in bytes of unknown form. It accepts false positives, and misses no number
//! in one of these forms.
//!
//! In text: decimal digits of any script, after any character and of either sign; leading zeros;
//! decimal and exponent forms (`4711.0`, `4.711e3`); groups of three digits (`4,711`); escapes of
//! JSON, URLs and XML (`\u0034`, `%34`, `&#52;`), also nested. In binary: text in it, UTF-16 with
//! ASCII digits as well, and integers and floats of Avro and integers of Protocol Buffers. Not:
//! Base64, hexadecimal digits, number words, and compressed or encrypted bytes.

use std::borrow::Cow;

/// Escaped text is unescaped at most this many times.
const NESTED_MAX: usize = 8;
/// The longest text of a 64-bit number without its sign.
const DIGITS_MAX: usize = 19;
/// The longest encoding of a 64-bit number as a variable-length integer.
const VARINT_BYTES_MAX: usize = 10;
/// The number of digits in a group after a separator.
const GROUP_DIGITS: usize = 3;
/// The largest integer range that an `f64` holds exactly.
const EXACT_F64_MAX: f64 = 9_007_199_254_740_992.0;
/// The largest integer range that an `f32` holds exactly.
const EXACT_F32_MAX: f32 = 16_777_216.0;

/// The zeros of Unicode's decimal digits (category Nd) beyond ASCII; the other nine follow each.
const DIGIT_ZEROS: [u32; 65] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6,
    0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50,
    0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// Returns whether bytes are text: UTF-8, possibly cut off in a character, without control
/// characters but whitespace.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    let is_utf8 = match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    let is_control = |byte: &u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    is_utf8 && !bytes.iter().any(is_control)
}

/// Returns whether any number in a text passes a test.
pub(super) fn any_in_text(text: &[u8], passes: &impl Fn(i64) -> bool) -> bool {
    let mut text = Cow::Borrowed(text);
    for _ in 0..=NESTED_MAX {
        if any_in_digits(&to_ascii_digits(&text), passes) {
            return true;
        }
        match unescape(&text) {
            Some(inner) => text = Cow::Owned(inner),
            None => return false,
        }
    }
    false
}

/// Returns whether any number in binary data passes a test.
pub(super) fn any_in_binary(bytes: &[u8], passes: &impl Fn(i64) -> bool) -> bool {
    if any_in_text(bytes, passes) {
        return true;
    }
    let is_utf16 = bytes.contains(&0) && {
        let text: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
        any_in_text(&text, passes)
    };
    is_utf16
        || (0..bytes.len()).any(|from| {
            let tail = bytes.get(from..).unwrap_or_default();
            let varint = parse_varint(tail).is_some_and(|value| {
                let zigzag = (value >> 1).cast_signed() ^ -((value & 1).cast_signed());
                passes(zigzag) || passes(value.cast_signed())
            });
            varint || parse_f32(tail).is_some_and(passes) || parse_f64(tail).is_some_and(passes)
        })
}

fn parse_varint(bytes: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(7 * index).ok()?)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn parse_f32(bytes: &[u8]) -> Option<i64> {
    let value = f32::from_le_bytes(*bytes.first_chunk()?);
    (value.abs() <= EXACT_F32_MAX).then(|| to_whole_number(value.into()))?
}

fn parse_f64(bytes: &[u8]) -> Option<i64> {
    to_whole_number(f64::from_le_bytes(*bytes.first_chunk()?))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the value is whole and exact"
)]
fn to_whole_number(value: f64) -> Option<i64> {
    (value.abs() <= EXACT_F64_MAX && value.fract() == 0.0).then_some(value as i64)
}

/// Converts decimal digits of other scripts to ASCII, and removes invisible characters.
fn to_ascii_digits(text: &[u8]) -> Cow<'_, [u8]> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut ascii = String::with_capacity(text.len());
    for char in String::from_utf8_lossy(text).chars() {
        match char {
            '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => {}
            '\u{a0}' | '\u{2009}' | '\u{202f}' => ascii.push(' '),
            '\u{ff0c}' | '\u{66c}' => ascii.push(','),
            '\u{ff0e}' | '\u{66b}' => ascii.push('.'),
            '\u{2019}' => ascii.push('\''),
            char => ascii.push(to_ascii_digit(char).unwrap_or(char)),
        }
    }
    Cow::Owned(ascii.into_bytes())
}

fn to_ascii_digit(char: char) -> Option<char> {
    let code = u32::from(char);
    let index = DIGIT_ZEROS
        .partition_point(|zero| *zero <= code)
        .checked_sub(1)?;
    char::from_digit(code - DIGIT_ZEROS.get(index)?, 10)
}

/// Returns whether any number in ASCII digits passes a test.
fn any_in_digits(text: &[u8], passes: &impl Fn(i64) -> bool) -> bool {
    let mut tail = text;
    loop {
        let Some(start) = tail.iter().position(u8::is_ascii_digit) else {
            return false;
        };
        let (digit_run, after) = split_digits(tail.get(start..).unwrap_or_default());
        if any_sign_passes(digit_run, passes)
            || scale_digits(digit_run, after).is_some_and(|digits| any_sign_passes(&digits, passes))
            || any_in_groups(digit_run, after, passes)
        {
            return true;
        }
        tail = after;
    }
}

/// Returns whether the number with these digits, or its negative, passes a test.
fn any_sign_passes(digits: &[u8], passes: &impl Fn(i64) -> bool) -> bool {
    let digits = strip_leading_zeros(digits);
    if digits.len() > DIGITS_MAX {
        return false;
    }
    let digit = |number: i128, digit: &u8| 10 * number + i128::from(digit - b'0');
    let number = digits.iter().fold(0, digit);
    let passes = |number: i128| i64::try_from(number).is_ok_and(passes);
    passes(number) || passes(-number)
}

/// Finds the digits of a whole number in decimal or exponent form.
fn scale_digits(digit_run: &[u8], after: &[u8]) -> Option<Vec<u8>> {
    let (fraction, after) = match after.split_first() {
        Some((b'.', tail)) => split_digits(tail),
        _ => (&[][..], after),
    };
    let exponent = match after.split_first() {
        Some((b'e' | b'E', tail)) => parse_exponent(tail),
        _ => 0,
    };
    if fraction.is_empty() && exponent == 0 {
        return None;
    }
    let point = i64::try_from(digit_run.len())
        .ok()?
        .saturating_add(exponent);
    let all = digit_run.iter().chain(fraction).copied();
    let first = all.clone().position(|digit| digit != b'0')?;
    let all = all.skip(first);
    let point = point.saturating_sub(i64::try_from(first).ok()?);
    let point = usize::try_from(point)
        .ok()
        .filter(|point| *point <= DIGITS_MAX)?;
    let is_whole = all.clone().skip(point).all(|digit| digit == b'0');
    is_whole.then(|| all.chain(std::iter::repeat(b'0')).take(point).collect())
}

/// Parses the exponent after an `e`; 0 if there is none.
fn parse_exponent(text: &[u8]) -> i64 {
    let (sign, text) = match text.split_first() {
        Some((b'-', tail)) => (-1, tail),
        Some((b'+', tail)) => (1, tail),
        _ => (1, text),
    };
    let (digits, _) = split_digits(text);
    let add = |number: i64, digit: &u8| {
        number
            .saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
    };
    sign * digits.iter().fold(0, add)
}

/// Returns whether any number in groups of three digits passes a test.
fn any_in_groups(digit_run: &[u8], mut after: &[u8], passes: &impl Fn(i64) -> bool) -> bool {
    if digit_run.len() > GROUP_DIGITS {
        return false;
    }
    let mut digits = digit_run.to_vec();
    while digits.len() <= DIGITS_MAX {
        let group = match after.split_first() {
            Some((b',' | b'.' | b'_' | b'\'' | b' ', tail)) => split_digits(tail),
            _ => return false,
        };
        if group.0.len() != GROUP_DIGITS {
            return false;
        }
        digits.extend(group.0);
        after = group.1;
        if any_sign_passes(&digits, passes) {
            return true;
        }
    }
    false
}

fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let is_other = |byte: &u8| !byte.is_ascii_digit();
    let end = text.iter().position(is_other).unwrap_or(text.len());
    text.split_at(end)
}

fn strip_leading_zeros(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    digits.get(zeros..).unwrap_or_default()
}

/// Resolves the outermost escapes of a text; `None` if it has none.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut inner = Vec::new();
    let mut tail = text;
    let mut has_escapes = false;
    while let Some(index) = tail.iter().position(|byte| b"\\%&".contains(byte)) {
        let (before, escaped) = tail.split_at(index);
        inner.extend(before);
        let (char, length) = match parse_escape(escaped) {
            Some(unescaped) => {
                has_escapes = true;
                unescaped
            }
            None => (escaped.first().map_or('\0', |byte| char::from(*byte)), 1),
        };
        inner.extend(char.encode_utf8(&mut [0; 4]).as_bytes());
        tail = escaped.get(length..).unwrap_or_default();
    }
    inner.extend(tail);
    has_escapes.then_some(inner)
}

/// Parses an escape at the start. Returns its character and its length.
fn parse_escape(text: &[u8]) -> Option<(char, usize)> {
    let hex = |from: usize, to: usize| parse_number(text.get(from..to)?, 16);
    match text {
        [b'\\', b'u', ..] => {
            let first = u16::try_from(hex(2, 6)?).ok()?;
            if let Some(char) = char::from_u32(first.into()) {
                return Some((char, 6));
            }
            let second = text.get(6..8).filter(|next| *next == b"\\u");
            let second = second.and_then(|_| u16::try_from(hex(8, 12)?).ok());
            let pair = char::decode_utf16([first, second?]).next();
            Some((pair?.ok()?, 12))
        }
        [b'\\', char @ (b'\\' | b'"' | b'/'), ..] => Some((char::from(*char), 2)),
        // A percent sign escapes one byte: digits beyond ASCII take several.
        [b'%', b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..] => decode_percent(text),
        [b'&', b'#', b'x' | b'X', tail @ ..] => {
            decode_reference(tail, 16).map(|(c, length)| (c, length + 3))
        }
        [b'&', b'#', tail @ ..] => decode_reference(tail, 10).map(|(c, length)| (c, length + 2)),
        _ => None,
    }
}

/// Decodes a character of one to four percent-encoded bytes.
fn decode_percent(text: &[u8]) -> Option<(char, usize)> {
    let mut bytes = Vec::new();
    for escape in text.chunks(3).take(4) {
        let [b'%', digits @ ..] = escape else {
            return None;
        };
        bytes.push(u8::try_from(parse_number(digits, 16).filter(|_| digits.len() == 2)?).ok()?);
        if let Ok(char) = std::str::from_utf8(&bytes) {
            return Some((char.chars().next()?, 3 * bytes.len()));
        }
    }
    None
}

/// Decodes a numeric reference of XML without its prefix. Returns the character and the length.
fn decode_reference(text: &[u8], radix: u32) -> Option<(char, usize)> {
    let end = text
        .iter()
        .take(DIGITS_MAX)
        .position(|byte| *byte == b';')?;
    Some((
        char::from_u32(parse_number(text.get(..end)?, radix)?)?,
        end + 1,
    ))
}

fn parse_number(digits: &[u8], radix: u32) -> Option<u32> {
    let text = std::str::from_utf8(digits).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| u32::from_str_radix(text, radix).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the text contains the number.
    fn has(text: impl AsRef<[u8]>, number: i64) -> bool {
        any_in_text(text.as_ref(), &|candidate| candidate == number)
    }

    #[test]
    fn a_number_is_found_in_every_form_of_text() {
        for text in [
            "4711",
            "user-4711",
            "user\u{2212}4711",
            "user/4711?x",
            "user%2D4711",
            "user_4711_x",
            "+4711",
            "4711-",
            "\"4711\"",
            "000000000000000000000000004711",
            "4711.0",
            "4711.000",
            "47110e-1",
            "4.711e3",
            "4.711E+3",
            "0.0004711e+07",
            "471100.0e-2",
            "4,711",
            "4.711,00",
            "4 711",
            "4\u{202f}711",
            "4_711",
            "4'711",
            "\\u0034711",
            "\\\\u0034711",
            "\\\\\\\\u00347\\\\\\\\u00311",
            "\\ud835\\udfd2711",
            "%34711",
            "%2534%37%31%31",
            "%EF%BC%94711",
            "&#52;711",
            "&#x34;711",
            "\u{ff14}\u{ff17}\u{ff11}\u{ff11}",
            "\u{664}\u{667}\u{661}\u{661}",
            "47\u{200b}11",
        ] {
            assert!(has(text, 4711), "{text}");
        }
        for text in [
            "47110 14711",
            "47.11",
            "711e1",
            "4.7111e3",
            "4,7111",
            "47 11",
            "%347110",
            "\\u347110",
            "&#52711;",
            "47,11",
            "%",
            "\\u00",
            "&#;",
            "4e99999999999999999999",
        ] {
            assert!(!has(text, 4711), "{text}");
        }
        assert!(has("-4711", -4711) && has("4711", -4711));
        assert!(has("-9223372036854775808", i64::MIN) && has("9223372036854775807", i64::MAX));
        assert!(has("9.223372036854775807e18", i64::MAX));
        assert!(has("0.00", 0) && !has("18446744073709551616", 0));
    }

    #[test]
    fn a_number_is_found_in_every_form_of_binary() {
        let check = |bytes: &[u8], expected: bool| {
            assert_eq!(
                any_in_binary(bytes, &|id| id == 4711),
                expected,
                "{bytes:?}"
            );
        };
        check(&[0, 0xce, 0x49, 1], true);
        check(&[0, 0xe7, 0x24, 1], true);
        check(&[0, 0xcf, 0x49, 1], false);
        check(&[&[1][..], &4711_f64.to_le_bytes()].concat(), true);
        check(&[&[1][..], &4711_f32.to_le_bytes()].concat(), true);
        check(&4711.5_f64.to_le_bytes(), false);
        let utf16 = |text: &str| {
            text.encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect::<Vec<u8>>()
        };
        check(&utf16("id=4711;"), true);
        check(&utf16("id=4712;"), false);
        check(b"\x01user-4711", true);
        check(&[0xff; 32], false);
    }

    #[test]
    fn zeros_are_in_order() {
        assert!(DIGIT_ZEROS.is_sorted());
        assert_eq!(to_ascii_digit('\u{669}'), Some('9'));
        assert_eq!(to_ascii_digit('\u{66a}'), None);
    }

    /// A digit next to a number makes another number of it, and so may an escape.
    const BESIDE: &str = r"[^\pN\\%&]*";

    proptest::proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(bytes: Vec<u8>) {
            any_in_binary(&bytes, &|_| false);
        }

        #[test]
        fn every_number_is_found_in_any_surroundings(number: i64, before in BESIDE, after in BESIDE) {
            let text = format!("{before}{number}{after}");
            proptest::prop_assert!(has(&text, number), "{}", text);
        }
    }
}
