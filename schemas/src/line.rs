//! JSON lines: the rules that all sources share.
//!
//! This module owns the limits of a line, the reasons of rejections, and the strict form of
//! instants. It knows no source: names of fields and expectations are parameters.

use std::borrow::Cow;
use std::ops::Range;

use jiff::civil::{Date, DateTime, Time};
use jiff::{Span, Timestamp};
use serde::Deserialize;

use crate::json_error;

/// The maximum length of a line.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The range of times of events and rows, in seconds since the Unix epoch: the years 1678 to 2261.
/// The query engine uses 64-bit nanoseconds when it assigns a time to its bucket.
pub(crate) const INSTANT_SECONDS: Range<i64> = -9_214_560_000..9_214_646_400;

/// The maximum number of characters of a reason.
pub(crate) const REASON_CHARS_MAX: usize = 400;

/// The reason for a record without a value: a Kafka tombstone, which is read as an empty value.
pub(crate) const NO_VALUE: &str = "the value is null or empty (a tombstone deletes nothing here)";

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
const NANO_DIGITS: usize = 9;
const DAY_SECONDS: i64 = 86_400;
const US_PER_SECOND: i64 = 1_000_000;

/// A text that is borrowed from the line unless it has escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Parses the JSON object of a line. `expected` is the advice for a line that is not an object.
///
/// # Errors
/// The reason, with the name of the field; not clipped.
pub(crate) fn parse_object<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    expected: &str,
) -> Result<T, String> {
    if bytes.len() > LINE_BYTES_MAX {
        return Err(format!(
            "the line is too long: at most {LINE_BYTES_MAX} bytes are accepted"
        ));
    }
    if bytes.is_empty() {
        return Err(format!("{NO_VALUE}: {expected}"));
    }
    // Some editors write a byte order mark at the beginning of a file.
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    // A derived decoder also accepts an array of the fields' values; a line must be an object.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(describe_non_object(bytes, expected));
    }
    json_error::decode(bytes)
}

/// Trims lines ([`trim_line`]) and skips blank ones. Each line has its number.
pub fn skip_blank_lines<'a>(
    lines: impl Iterator<Item = (u64, &'a [u8])>,
) -> impl Iterator<Item = (u64, &'a [u8])> {
    lines
        .map(|(number, line)| (number, trim_line(line)))
        .filter(|(_, line)| !line.is_empty())
}

/// Removes leading and trailing whitespace. A line with only a byte order mark is blank.
///
/// A line that exceeds the limit, even if already truncated, is returned unchanged, so that it is
/// rejected as too long.
#[must_use]
pub fn trim_line(line: &[u8]) -> &[u8] {
    if line.len() > LINE_BYTES_MAX {
        return line;
    }
    let text = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    if text.trim_ascii().is_empty() {
        return &[];
    }
    line.trim_ascii()
}

/// Limits the length of a reason, which may quote long input.
pub(crate) fn clip_reason(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS_MAX) {
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// Checks that a text has no NUL, which PostgreSQL cannot store.
///
/// # Errors
/// The text contains NUL.
pub(crate) fn check_no_nul(field: &str, text: &str) -> Result<(), String> {
    match text.find('\0') {
        None => Ok(()),
        Some(index) => Err(format!(
            "{field}: contains a NUL character (U+0000) at byte {index}, which not every store can hold"
        )),
    }
}

/// Checks the form of the field `country`. Unassigned codes are accepted: ISO 3166 reserves `AA`,
/// `QM` to `QZ`, `XA` to `XZ` and `ZZ` for users, and the list of countries changes.
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

/// Parses an RFC 3339 instant to microseconds; finer digits are truncated. The form is checked
/// first, because the parser of the time library accepts other forms and fewer digits.
pub(crate) fn parse_instant_us(field: &str, text: &str) -> Result<i64, String> {
    let invalid = |detail: &str| {
        format!(
            "{field}: {text:?} is not an RFC 3339 instant such as \"2026-11-21T09:30:00Z\"{detail}"
        )
    };
    let Some(fraction) = find_fraction(text.as_bytes()) else {
        return Err(invalid(""));
    };
    let parsed = match (
        text.get(..fraction.start + NANO_DIGITS),
        text.get(fraction.end..),
    ) {
        (Some(truncated), Some(offset)) if fraction.len() > NANO_DIGITS => {
            format!("{truncated}{offset}").parse()
        }
        _ => text.parse(),
    };
    let outside_years =
        || format!("{field}: {text:?} is not a time between the years 1678 and 2261");
    let instant: Timestamp = parsed.map_err(|_: jiff::Error| {
        // The range of the parser ends within the year 9999.
        match text.get(..19).map(str::parse::<DateTime>) {
            Some(Ok(time)) if !(1678..2262).contains(&time.year()) => outside_years(),
            _ => invalid(describe_impossible_part(text)),
        }
    })?;
    // A leap second ends a UTC day; it counts as the second before.
    let is_leap_second = text.get(17..19) == Some("60");
    if is_leap_second && instant.as_second().rem_euclid(DAY_SECONDS) != DAY_SECONDS - 1 {
        return Err(invalid(
            ": only the last minute of a UTC day can have a second 60",
        ));
    }
    if !INSTANT_SECONDS.contains(&instant.as_second()) {
        return Err(outside_years());
    }
    i64::try_from(instant.as_nanosecond().div_euclid(1000)).map_err(|_| invalid(": out of range"))
}

/// Describes which part of an instant in RFC 3339 form does not exist.
fn describe_impossible_part(text: &str) -> &'static str {
    let part = |range: Range<usize>| text.get(range).unwrap_or_default();
    if part(0..10).parse::<Date>().is_err() {
        ": the calendar has no such day"
    } else if part(11..19).parse::<Time>().is_err() {
        ": the clock has no such hour, minute or second"
    } else {
        ": the offset from UTC is not possible"
    }
}

/// Checks an instant in microseconds since the Unix epoch.
///
/// # Errors
/// The instant is outside the accepted range.
pub(crate) fn check_instant_us(field: &str, at_us: i64) -> Result<(), String> {
    if INSTANT_SECONDS.contains(&at_us.div_euclid(US_PER_SECOND)) {
        return Ok(());
    }
    Err(out_of_range_reason(field, i128::from(at_us)))
}

/// Returns the reason for an instant that is out of range, in microseconds since the Unix epoch.
#[must_use]
pub fn out_of_range_reason(field: &str, at_us: i128) -> String {
    format!("{field}: {at_us} µs since 1970 is not a time between the years 1678 and 2261")
}

/// Formats an instant in microseconds since the Unix epoch as RFC 3339. Returns `None` outside the
/// years 0000 to 9999, which RFC 3339 cannot express.
#[must_use]
pub fn format_instant_us(at_us: i128) -> Option<String> {
    let day_us = i128::from(DAY_SECONDS * US_PER_SECOND);
    let days = i64::try_from(at_us.div_euclid(day_us)).ok()?;
    let in_day_us = i64::try_from(at_us.rem_euclid(day_us)).ok()?;
    let date = Date::constant(1970, 1, 1).checked_add(Span::new().try_days(days).ok()?);
    let date = date.ok().filter(|date| date.year() >= 0)?;
    let time = Time::midnight().checked_add(Span::new().try_microseconds(in_day_us).ok()?);
    Some(format!("{}Z", date.to_datetime(time.ok()?)))
}

/// Parses an RFC 3339 instant as [`parse_instant_us`] does, but clamps one outside the accepted
/// range to its first or last instant.
pub(crate) fn parse_instant_us_clamped(field: &str, text: &str) -> Result<i64, String> {
    let exact = parse_instant_us(field, text);
    if exact.is_ok() || find_fraction(text.as_bytes()).is_none() {
        return exact;
    }
    let Some(Ok(time)) = text.get(..19).map(str::parse::<DateTime>) else {
        return exact;
    };
    let seconds = match time.year() {
        ..1678 => INSTANT_SECONDS.start,
        2262.. => INSTANT_SECONDS.end - 1,
        _ => return exact,
    };
    Ok(seconds * US_PER_SECOND)
}

fn describe_non_object(bytes: &[u8], expected: &str) -> String {
    match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => format!("not a JSON object: {expected}"),
        Err(error) => json_error::describe(&error),
    }
}

/// Returns the range of the fraction's digits, which may be empty, if the text has the form of an
/// instant.
fn find_fraction(bytes: &[u8]) -> Option<Range<usize>> {
    let are_digits = |range: Range<usize>| {
        bytes
            .get(range)
            .is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let is_one_of =
        |index: usize, allowed: &[u8]| bytes.get(index).is_some_and(|b| allowed.contains(b));
    let has_date_and_time = are_digits(0..4)
        && is_one_of(4, b"-")
        && are_digits(5..7)
        && is_one_of(7, b"-")
        && are_digits(8..10)
        && is_one_of(10, b"Tt ")
        && are_digits(11..13)
        && is_one_of(13, b":")
        && are_digits(14..16)
        && is_one_of(16, b":")
        && are_digits(17..19);
    if !has_date_and_time {
        return None;
    }
    let mut fraction = 19..19;
    if is_one_of(19, b".") {
        let rest = bytes.get(20..)?;
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if length == 0 {
            return None;
        }
        fraction = 20..20 + length;
    }
    let end = fraction.end;
    let is_complete = if is_one_of(end, b"Zz") {
        bytes.len() == end + 1
    } else {
        is_one_of(end, b"+-")
            && are_digits(end + 1..end + 3)
            && bytes.get(end + 1..end + 3) < Some(b"24")
            && is_one_of(end + 3, b":")
            && are_digits(end + 4..end + 6)
            && bytes.len() == end + 6
    };
    is_complete.then_some(fraction)
}
