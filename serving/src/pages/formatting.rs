//! Formats numbers, times and percentages for pages.

use askama::Template;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

/// A number with commas between thousands.
pub(crate) fn number(value: impl Into<i128>) -> String {
    let value: i128 = value.into();
    let digits = value.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0 {
        text.push('\u{2212}');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in few characters, for axes.
pub(crate) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        at if at >= 1e9 => (value / 1e9, "G"),
        at if at >= 1e6 => (value / 1e6, "M"),
        at if at >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        0.0 => "0 %".to_owned(),
        at if at < 0.1 => "< 0.1 %".to_owned(),
        at if at < 10.0 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// Time of an effort.
pub(crate) fn duration(seconds: i64) -> String {
    let (hours, rest) = (seconds / 3_600, seconds % 3_600);
    match hours {
        0 => format!("{}:{:02}", rest / 60, rest % 60),
        _ => format!("{hours}:{:02}:{:02}", rest / 60, rest % 60),
    }
}

/// Duration of a computation.
pub(crate) fn elapsed(seconds: f64) -> String {
    match seconds {
        at if at < 1.0 => format!("{:.0} ms", at * 1e3),
        at if at < 100.0 => format!("{at:.1} s"),
        at if at < 5_400.0 => format!("{:.0} min", at / 60.0),
        at => format!("{:.1} h", at / 3_600.0),
    }
}

/// A time as an HTML element, readable by machines and people.
#[derive(Debug, Clone, PartialEq, Eq, Template)]
#[template(
    ext = "html",
    source = "<time datetime=\"{{ iso }}\">{{ text }}</time>"
)]
pub(crate) struct Moment {
    pub(crate) iso: String,
    pub(crate) text: String,
}

impl Moment {
    /// Formats an RFC 3339 time in a zone; shows other text unchanged.
    pub(crate) fn new(iso: &str, zone: &TimeZone) -> Self {
        let text = iso.parse::<Timestamp>().map_or_else(
            |_| iso.to_owned(),
            |at| {
                let at = at.to_zoned(zone.clone());
                at.strftime("%-d %b %Y, %H:%M:%S %Z").to_string()
            },
        );
        Self {
            iso: iso.to_owned(),
            text,
        }
    }

    pub(crate) fn utc(iso: &str) -> Self {
        Self::new(iso, &TimeZone::UTC)
    }
}

/// Relative change of a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) text: String,
    /// up, down or same.
    pub(crate) class: &'static str,
    pub(crate) arrow: &'static str,
}

impl Change {
    pub(crate) fn new(change: f64) -> Self {
        let (class, arrow, sign) = match change {
            at if at > 0.0 => ("up", "▲", "+"),
            at if at < 0.0 => ("down", "▼", "\u{2212}"),
            _ => ("same", "=", ""),
        };
        Self {
            text: format!("{sign}{}", percent(change.abs())),
            class,
            arrow,
        }
    }
}

/// Text of a breakdown's key.
pub(crate) fn key(value: &Value) -> String {
    match value {
        Value::Null => "(none)".to_owned(),
        Value::String(text) if text.is_empty() => "(empty)".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_numbers_and_durations() {
        for (value, text) in [
            (0_i64, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (-1_234_567, "\u{2212}1,234,567"),
            (i64::MIN, "\u{2212}9,223,372,036,854,775,808"),
        ] {
            assert_eq!(number(value), text);
        }
        for (value, text) in [
            (0.0, "0"),
            (950.0, "950"),
            (1_500.0, "1.5k"),
            (2e6, "2M"),
            (-3e9, "-3G"),
        ] {
            assert_eq!(short(value), text);
        }
        for (value, text) in [
            (0.0, "0 %"),
            (0.0004, "< 0.1 %"),
            (0.056, "5.6 %"),
            (0.5, "50 %"),
            (12.0, "1200 %"),
        ] {
            assert_eq!(percent(value), text);
        }
        for (value, text) in [(5, "0:05"), (61, "1:01"), (3_725, "1:02:05")] {
            assert_eq!(duration(value), text);
        }
        for (value, text) in [
            (0.25, "250 ms"),
            (12.34, "12.3 s"),
            (600.0, "10 min"),
            (7_200.0, "2.0 h"),
        ] {
            assert_eq!(elapsed(value), text);
        }
    }

    #[test]
    fn changes_have_a_sign_and_a_direction() {
        let shown = |change| {
            let change = Change::new(change);
            (change.text, change.class)
        };
        assert_eq!(shown(0.5), ("+50 %".to_owned(), "up"));
        assert_eq!(shown(-0.031), ("\u{2212}3.1 %".to_owned(), "down"));
        assert_eq!(shown(0.0), ("0 %".to_owned(), "same"));
    }

    #[test]
    fn formats_times_in_a_zone() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let moment = Moment::new("2026-07-01T10:00:00Z", &berlin);
        assert_eq!(moment.text, "1 Jul 2026, 12:00:00 CEST");
        assert_eq!(Moment::utc("soon").text, "soon");
    }
}
