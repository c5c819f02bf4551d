//! The text of one edge of a range: a date, or an instant in RFC 3339.
//!
//! It owns the grammar, which is narrower than the time library's: what is documented is accepted
//! and nothing else. It must not know zones or periods.

use jiff::Timestamp;
use jiff::civil::Date;

use super::bucket::{QUARTER_SECONDS, Seconds};

/// What a user wrote as an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// A date: its first instant, in a zone that is given elsewhere.
    Date(Date),
    /// An instant on a quarter of an hour.
    Instant(Seconds),
}

/// Why a text is no moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It looks like neither.
    Shape,
    /// It names a day that the calendar doesn't have.
    Day,
    /// It names a time that the clock doesn't have, or one beyond the calendar.
    Time,
    /// The instant is between quarters of an hour; this is it, in UTC.
    OffQuarter(String),
}

/// Reads a date, `2026-07-01`, of the years 0001 to 9999.
pub(super) fn parse_date(text: &str) -> Result<Date, Flaw> {
    if !fits(text.as_bytes(), b"0000-00-00") {
        return Err(Flaw::Shape);
    }
    let date: Date = text.parse().map_err(|_| Flaw::Day)?;
    if date.year() < 1 {
        Err(Flaw::Day)
    } else {
        Ok(date)
    }
}

/// Reads a date or an instant such as `2026-07-01T09:15:00+02:00`. A plus that came through a URL
/// as a space is taken as the plus it was.
pub(super) fn parse(text: &str) -> Result<Moment, Flaw> {
    if text.len() == 10 {
        return parse_date(text).map(Moment::Date);
    }
    let text = with_plus(text);
    if !is_instant(text.as_bytes()) {
        return Err(Flaw::Shape);
    }
    parse_date(&text[..10])?;
    let instant: Timestamp = text.parse().map_err(|_| Flaw::Time)?;
    if instant
        .as_nanosecond()
        .rem_euclid(i128::from(QUARTER_SECONDS) * 1_000_000_000)
        != 0
    {
        return Err(Flaw::OffQuarter(instant.to_string()));
    }
    Ok(Moment::Instant(instant.as_second()))
}

/// The text with a space where the sign of its offset belongs made a plus.
fn with_plus(text: &str) -> String {
    match text.rsplit_once(' ') {
        Some((time, offset)) if time.len() >= 19 && fits(offset.as_bytes(), b"00:00") => {
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
    fits(time, b"0000-00-00T00:00:00")
        && fraction != 1
        && match &rest[fraction..] {
            [b'Z' | b'z'] => true,
            [b'+' | b'-', offset @ ..] => fits(offset, b"00:00") && offset < b"24".as_slice(),
            _ => false,
        }
}

/// Whether a text is like the pattern, in which 0 is any digit and T may also be t or a space.
fn fits(text: &[u8], pattern: &[u8]) -> bool {
    text.len() == pattern.len()
        && text.iter().zip(pattern).all(|(byte, like)| match like {
            b'0' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b't' | b' '),
            _ => byte == like,
        })
}

#[cfg(test)]
#[path = "moment_tests.rs"]
mod tests;
