//! Parses one edge of a range: a date or an RFC 3339 instant.
//!
//! The grammar is stricter than that of the time library: only documented forms are accepted. Time
//! zones and periods are unknown here.

use jiff::Timestamp;
use jiff::civil::Date;

use super::bucket::{QUARTER_HOUR_SECONDS, UnixSeconds};

/// An edge of a range as a request gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeEdge {
    /// A date, which means its first instant in the zone of the request.
    Date(Date),
    /// An instant on a quarter of an hour.
    Instant(UnixSeconds),
}

/// The reason why a text is not an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EdgeError {
    /// The text has neither form.
    Malformed,
    /// The calendar does not have the day.
    Day,
    /// The clock does not have the time, or it is outside the calendar.
    Time,
    /// The instant, given in UTC, is not on a quarter of an hour.
    OffQuarter(String),
}

/// Parses a date such as `2026-07-01`, in the years 0001 to 9999.
pub(super) fn parse_date(text: &str) -> Result<Date, EdgeError> {
    if !matches_pattern(text.as_bytes(), b"0000-00-00") {
        return Err(EdgeError::Malformed);
    }
    let date: Date = text.parse().map_err(|_| EdgeError::Day)?;
    if date.year() < 1 {
        Err(EdgeError::Day)
    } else {
        Ok(date)
    }
}

/// Parses a date or an instant such as `2026-07-01T09:15:00+02:00`. A space in place of the plus
/// sign is accepted, since URLs decode a plus to a space.
pub(super) fn parse(text: &str) -> Result<RangeEdge, EdgeError> {
    if text.len() == 10 {
        return parse_date(text).map(RangeEdge::Date);
    }
    let text = restore_plus(text);
    if !is_instant(text.as_bytes()) {
        return Err(EdgeError::Malformed);
    }
    parse_date(&text[..10])?;
    let instant: Timestamp = text.parse().map_err(|_| EdgeError::Time)?;
    if instant
        .as_nanosecond()
        .rem_euclid(i128::from(QUARTER_HOUR_SECONDS) * 1_000_000_000)
        != 0
    {
        return Err(EdgeError::OffQuarter(instant.to_string()));
    }
    Ok(RangeEdge::Instant(instant.as_second()))
}

/// Replaces a space in place of the offset's sign by a plus.
fn restore_plus(text: &str) -> String {
    match text.rsplit_once(' ') {
        Some((time, offset))
            if time.len() >= 19 && matches_pattern(offset.as_bytes(), b"00:00") =>
        {
            format!("{time}+{offset}")
        }
        _ => text.to_owned(),
    }
}

fn is_instant(text: &[u8]) -> bool {
    let Some((time, rest)) = text.split_at_checked(19) else {
        return false;
    };
    let fraction = match rest {
        [b'.', digits @ ..] => {
            1 + digits
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count()
        }
        _ => 0,
    };
    matches_pattern(time, b"0000-00-00T00:00:00")
        && fraction != 1
        && match &rest[fraction..] {
            [b'Z' | b'z'] => true,
            [b'+' | b'-', offset @ ..] => {
                matches_pattern(offset, b"00:00") && offset < b"24".as_slice()
            }
            _ => false,
        }
}

/// Returns whether a text matches a pattern. In the pattern, 0 is any digit, and T also matches t
/// and a space.
fn matches_pattern(text: &[u8], pattern: &[u8]) -> bool {
    text.len() == pattern.len()
        && text.iter().zip(pattern).all(|(byte, symbol)| match symbol {
            b'0' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b't' | b' '),
            _ => byte == symbol,
        })
}

#[cfg(test)]
#[path = "range_edge_tests.rs"]
mod tests;
