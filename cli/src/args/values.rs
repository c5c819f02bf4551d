//! Parsers of argument values.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::civil::Date;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use schemas::source::Source;

/// Creates the parser of a source name.
pub(super) fn source_parser() -> impl TypedValueParser<Value = Source> {
    PossibleValuesParser::new(Source::ALL.map(Source::name)).try_map(|name| name.parse::<Source>())
}

/// Parses a fraction, 0 to 1.
pub(super) fn parse_fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("expected a fraction from 0 to 1, such as 0.01".to_owned()),
    }
}

/// Creates the parser of a duration within `range`, such as `90d`, `24h` or `1h 30m`. A plain number counts `unit`s, as it did before
/// durations had units.
pub(super) fn duration_parser(
    unit: Duration,
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let duration = match text.parse::<u32>() {
            Ok(count) => unit.checked_mul(count),
            Err(_) => text.parse::<Span>().ok().and_then(to_exact_duration),
        };
        duration
            .filter(|duration| range.contains(duration))
            .ok_or_else(|| {
                let format =
                    |bound: &Duration| SignedDuration::try_from(*bound).map(|d| format!("{d:#}"));
                match (format(range.start()), format(range.end())) {
                    (Ok(min), Ok(max)) => {
                        format!("expected a duration from {min} to {max}, such as 90m or 24h")
                    }
                    _ => "expected a duration, such as 90m or 24h".to_owned(),
                }
            })
    }
}

/// Returns the length of a span whose days have 24 hours. Months and years have no fixed length.
fn to_exact_duration(span: Span) -> Option<Duration> {
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(exact).ok()
}

/// Parses an instant, or a date as its midnight in UTC; in milliseconds since the Unix epoch.
pub(super) fn parse_instant(text: &str) -> Result<i64, String> {
    let parsed = text.parse::<Timestamp>().or_else(|_| {
        text.parse::<Date>()
            .and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC))
            .map(|zoned| zoned.timestamp())
    });
    parsed
        .map(Timestamp::as_millisecond)
        .map_err(|_| "expected an RFC 3339 instant or a date, such as 2026-01-01".to_owned())
}

/// Parses a date.
pub(super) fn parse_date(text: &str) -> Result<Date, String> {
    let is_plain = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let date = is_plain.then(|| text.parse::<Date>().ok()).flatten();
    date.ok_or_else(|| "expected a date, such as 2026-01-01".to_owned())
}

/// A future time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// In milliseconds since the Unix epoch.
    At(i64),
    /// After a duration.
    After(Duration),
}

impl Expiry {
    /// Returns the time in milliseconds since the Unix epoch.
    pub(crate) fn to_time_ms(self, now_ms: i64) -> i64 {
        match self {
            Self::At(time_ms) => time_ms,
            Self::After(duration) => {
                now_ms.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
            }
        }
    }
}

/// Parses an instant, a date, or a duration such as `90d`, at most a hundred years.
pub(super) fn parse_expiry(text: &str) -> Result<Expiry, String> {
    let range = Duration::from_secs(60)..=36_500 * super::DAY;
    let span = text.parse::<Span>().ok().and_then(to_exact_duration);
    if let Some(duration) = span.filter(|duration| range.contains(duration)) {
        return Ok(Expiry::After(duration));
    }
    parse_instant(text).map(Expiry::At).map_err(|_| {
        "expected an RFC 3339 instant, a date or a duration, such as 2027-01-01 or 90d".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_count_the_default_unit() {
        let hour = Duration::from_secs(3_600);
        let parse = duration_parser(hour, Duration::ZERO..=48 * hour);
        for (text, hours) in [
            ("24", 24),
            ("24h", 24),
            ("2d", 48),
            ("60m", 1),
            ("0", 0),
            ("1h 60m", 2),
        ] {
            assert_eq!(parse(text), Ok(hours * hour), "{text}");
        }
        for text in ["49", "3d", "-1h", "1 month", "", "soon", "99999999999"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("such as"), "{text}: {error}");
        }
    }

    #[test]
    fn expiries_are_instants_dates_or_durations() {
        assert_eq!(
            parse_expiry("90d"),
            Ok(Expiry::After(90 * super::super::DAY))
        );
        assert_eq!(parse_expiry("1970-01-02"), Ok(Expiry::At(86_400_000)));
        assert_eq!(parse_expiry("1970-01-01T00:00:01Z"), Ok(Expiry::At(1_000)));
        for text in ["0d", "90", "d", "200 years", "40000d"] {
            assert!(parse_expiry(text).is_err(), "{text}");
        }
        assert_eq!(Expiry::After(super::super::DAY).to_time_ms(1), 86_400_001);
    }
}
