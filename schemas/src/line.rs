//! A JSON line: what every source of lines asks of one, and of the kinds of values that several
//! sources have.
//!
//! It owns the line's own limits, the reasons for which a line is not taken, and the strict form of
//! instants. It must not know any source: the names of fields and what is expected are parameters.

use std::borrow::Cow;
use std::ops::Range;

use jiff::civil::{Date, DateTime, Time};
use jiff::{Span, Timestamp};
use serde::Deserialize;

/// The longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The times that events and rows can have, in seconds since the Unix epoch: from 1678 until 2261.
/// The query engine counts in nanoseconds of 64 bits when it puts a time into its bucket.
pub(crate) const INSTANT_SECONDS: Range<i64> = -9_214_560_000..9_214_646_400;

/// The most characters of a reason.
pub(crate) const REASON_CHARS_MAX: usize = 400;

/// Why a record without a value is not taken: a tombstone of Kafka, which reads as an empty value.
pub(crate) const NO_VALUE: &str = "the value is null or empty (a tombstone deletes nothing here)";

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
const NANO_DIGITS: usize = 9;
const DAY_SECONDS: i64 = 86_400;
const US_PER_SECOND: i64 = 1_000_000;

/// A text, borrowed from the line unless it has escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The one JSON object of a line. `expected` is what a line that is something else is told.
///
/// # Errors
/// What is wrong with the line, and with which field; not clipped.
pub(crate) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8], expected: &str) -> Result<T, String> {
    if bytes.len() > LINE_BYTES_MAX {
        return Err(format!(
            "the line is too long: at most {LINE_BYTES_MAX} bytes are taken"
        ));
    }
    if bytes.is_empty() {
        return Err(format!("{NO_VALUE}: {expected}"));
    }
    // Some editors put a byte order mark at the beginning of a file.
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    // A derived decoder takes an array in the place of an object; a line must be an object.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(not_an_object(bytes, expected));
    }
    serde_json::from_slice(bytes).map_err(|_| explain::<T>(bytes))
}

/// Lines with their numbers: each as [`trimmed`] gives it, and blank ones are passed over.
pub fn without_blanks<'a>(
    lines: impl Iterator<Item = (u64, &'a [u8])>,
) -> impl Iterator<Item = (u64, &'a [u8])> {
    lines
        .map(|(number, line)| (number, trimmed(line)))
        .filter(|(_, line)| !line.is_empty())
}

/// A line without the blanks around it; a byte order mark alone is blank, too. A line that exceeds the
/// limit is returned unchanged, even where it is already cut off, so that it is rejected as too long.
#[must_use]
pub fn trimmed(line: &[u8]) -> &[u8] {
    if line.len() > LINE_BYTES_MAX {
        return line;
    }
    let text = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    if text.trim_ascii().is_empty() {
        return &[];
    }
    line.trim_ascii()
}

/// A reason may quote what it is about, but not all of it.
pub(crate) fn clip(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS_MAX) {
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// Checks a text that may hold anything but NUL, which PostgreSQL cannot store in a text.
///
/// # Errors
/// The text contains NUL.
pub(crate) fn check_text(field: &str, text: &str) -> Result<(), String> {
    match text.find('\0') {
        None => Ok(()),
        Some(at) => Err(format!(
            "{field}: contains a NUL character (U+0000) at byte {at}, which not every store can hold"
        )),
    }
}

/// Checks the field `country`: its form only. Codes that name no country are accepted: ISO 3166 leaves
/// `AA`, `QM` to `QZ`, `XA` to `XZ` and `ZZ` to users, and the list of countries changes.
///
/// # Errors
/// The text is not two capital letters.
pub(crate) fn check_country(country: &str) -> Result<(), String> {
    if country.len() == 2 && country.bytes().all(|b| b.is_ascii_uppercase()) {
        return Ok(());
    }
    Err(format!(
        "country: {country:?} is not an ISO 3166 alpha-2 code such as \"DE\""
    ))
}

/// An RFC 3339 instant in microseconds; finer digits are cut off. The parser behind it takes more
/// forms than the standard has and fewer digits, so the form is checked first.
pub(crate) fn instant_us(field: &str, text: &str) -> Result<i64, String> {
    let bad = |why: &str| {
        format!(
            "{field}: {text:?} is not an RFC 3339 instant such as \"2026-11-21T09:30:00Z\"{why}"
        )
    };
    let Some(fraction) = fraction_of_instant(text.as_bytes()) else {
        return Err(bad(""));
    };
    let parsed = match (
        text.get(..fraction.start + NANO_DIGITS),
        text.get(fraction.end..),
    ) {
        (Some(kept), Some(offset)) if fraction.len() > NANO_DIGITS => {
            format!("{kept}{offset}").parse()
        }
        _ => text.parse(),
    };
    let beyond = || format!("{field}: {text:?} is not a time between the years 1678 and 2261");
    let instant: Timestamp = parsed.map_err(|error: jiff::Error| {
        // The parser's own range ends inside the year 9999.
        match text.get(..19).map(str::parse::<DateTime>) {
            Some(Ok(at)) if !(1678..2262).contains(&at.year()) => beyond(),
            _ => bad(&format!(": {error}")),
        }
    })?;
    // Leap seconds are the last of a UTC day; they count in the second before.
    let leap = text.get(17..19) == Some("60");
    if leap && instant.as_second().rem_euclid(DAY_SECONDS) != DAY_SECONDS - 1 {
        return Err(bad(
            ": only the last minute of a UTC day can have a second 60",
        ));
    }
    if !INSTANT_SECONDS.contains(&instant.as_second()) {
        return Err(beyond());
    }
    i64::try_from(instant.as_nanosecond().div_euclid(1000)).map_err(|_| bad(": out of range"))
}

/// Checks an instant that is given in microseconds since the Unix epoch.
///
/// # Errors
/// That it is no time that is taken.
pub(crate) fn check_instant_us(field: &str, at_us: i64) -> Result<(), String> {
    if INSTANT_SECONDS.contains(&at_us.div_euclid(US_PER_SECOND)) {
        return Ok(());
    }
    Err(out_of_range(field, i128::from(at_us)))
}

/// The reason for an instant that is out of range, given in microseconds since the Unix epoch.
#[must_use]
pub fn out_of_range(field: &str, at_us: i128) -> String {
    format!("{field}: {at_us} µs since 1970 is not a time between the years 1678 and 2261")
}

/// An instant, given in microseconds since the Unix epoch, as a line writes it; nothing for one outside
/// the years 0000 to 9999, which RFC 3339 cannot write.
#[must_use]
pub fn instant_text(at_us: i128) -> Option<String> {
    let day_us = i128::from(DAY_SECONDS * US_PER_SECOND);
    let days = i64::try_from(at_us.div_euclid(day_us)).ok()?;
    let in_day_us = i64::try_from(at_us.rem_euclid(day_us)).ok()?;
    let date = Date::constant(1970, 1, 1).checked_add(Span::new().try_days(days).ok()?);
    let date = date.ok().filter(|date| date.year() >= 0)?;
    let time = Time::midnight().checked_add(Span::new().try_microseconds(in_day_us).ok()?);
    Some(format!("{}Z", date.to_datetime(time.ok()?)))
}

/// An RFC 3339 instant in microseconds as [`instant_us`], but for one before or after all times that
/// are taken, which is the first or the last of them.
pub(crate) fn instant_us_within(field: &str, text: &str) -> Result<i64, String> {
    let exact = instant_us(field, text);
    if exact.is_ok() || fraction_of_instant(text.as_bytes()).is_none() {
        return exact;
    }
    let Some(Ok(at)) = text.get(..19).map(str::parse::<DateTime>) else {
        return exact;
    };
    let seconds = match at.year() {
        ..1678 => INSTANT_SECONDS.start,
        2262.. => INSTANT_SECONDS.end - 1,
        _ => return exact,
    };
    Ok(seconds * US_PER_SECOND)
}

fn not_an_object(bytes: &[u8], expected: &str) -> String {
    match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => format!("not a JSON object: {expected}"),
        Err(error) => format!("not JSON: {error}"),
    }
}

/// Why a line does not parse: read again, slowly, with the path of the field.
fn explain<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> String {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let error = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(_) => match json.end() {
            Ok(()) => return "not taken".to_owned(),
            Err(error) => return format!("more than one JSON value on the line: {error}"),
        },
        Err(error) => error,
    };
    let path = error.path().to_string();
    let inner = error.into_inner();
    if inner.is_data() && path != "." {
        format!("{path}: {inner}")
    } else if inner.is_data() {
        inner.to_string()
    } else {
        format!("not JSON: {inner}")
    }
}

/// Where the digits of the fraction stand, which may be none, if the text has the form of an
/// instant.
fn fraction_of_instant(bytes: &[u8]) -> Option<Range<usize>> {
    let digits = |range: Range<usize>| {
        bytes
            .get(range)
            .is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|byte| any.contains(byte));
    let date_time = digits(0..4)
        && is(4, b"-")
        && digits(5..7)
        && is(7, b"-")
        && digits(8..10)
        && is(10, b"Tt ")
        && digits(11..13)
        && is(13, b":")
        && digits(14..16)
        && is(16, b":")
        && digits(17..19);
    if !date_time {
        return None;
    }
    let mut fraction = 19..19;
    if is(19, b".") {
        let rest = bytes.get(20..)?;
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if length == 0 {
            return None;
        }
        fraction = 20..20 + length;
    }
    let end = fraction.end;
    let whole = if is(end, b"Zz") {
        bytes.len() == end + 1
    } else {
        is(end, b"+-")
            && digits(end + 1..end + 3)
            && bytes.get(end + 1..end + 3) < Some(b"24")
            && is(end + 3, b":")
            && digits(end + 4..end + 6)
            && bytes.len() == end + 6
    };
    whole.then_some(fraction)
}
