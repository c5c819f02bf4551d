//! Values of arguments that are more than text.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use jiff::civil::Date;
use schemas::source::Source;

/// A source by its name.
pub(super) fn source() -> impl TypedValueParser<Value = Source> {
    PossibleValuesParser::new(Source::ALL.map(Source::name)).try_map(|name| name.parse::<Source>())
}

/// A part of a whole: 0 to 1.
pub(super) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("a fraction from 0 to 1 is expected, such as 0.01".to_owned()),
    }
}

/// An instant, or a date as its midnight in UTC; in milliseconds since the Unix epoch.
pub(super) fn instant(text: &str) -> Result<i64, String> {
    let parsed = text.parse::<Timestamp>().or_else(|_| {
        text.parse::<Date>()
            .and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC))
            .map(|zoned| zoned.timestamp())
    });
    parsed
        .map(Timestamp::as_millisecond)
        .map_err(|_| "an RFC 3339 instant or a date is expected, such as 2026-01-01".to_owned())
}

/// A date.
pub(super) fn date(text: &str) -> Result<Date, String> {
    let is_plain = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let date = is_plain.then(|| text.parse::<Date>().ok()).flatten();
    date.ok_or_else(|| "a date is expected, such as 2026-01-01".to_owned())
}

/// A moment to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// In milliseconds since the Unix epoch.
    At(i64),
    /// After so many days.
    AfterDays(u32),
}

impl When {
    /// In milliseconds since the Unix epoch.
    pub(crate) fn at_ms(self, now_ms: i64) -> i64 {
        match self {
            Self::At(at_ms) => at_ms,
            Self::AfterDays(days) => now_ms.saturating_add(i64::from(days) * 86_400_000),
        }
    }
}

/// An instant, a date, or a number of days as in `90d`.
pub(super) fn when(text: &str) -> Result<When, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse().ok());
    if let Some(days @ 1..=36_500) = days {
        return Ok(When::AfterDays(days));
    }
    instant(text).map(When::At).map_err(|_| {
        "an RFC 3339 instant, a date or a number of days is expected, such as 2027-01-01 or 90d"
            .to_owned()
    })
}
