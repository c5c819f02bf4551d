//! Formats numbers, times and percentages for pages.

use askama::Template;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

/// Formats a number with commas between thousands.
pub(crate) fn format_number(value: impl Into<i128>) -> String {
    let value: i128 = value.into();
    group_digits(&value.unsigned_abs().to_string(), value < 0)
}

/// Inserts commas between thousands, and a sign before a negative number.
fn group_digits(digits: &str, is_negative: bool) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if is_negative {
        text.push('\u{2212}');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun, which is in the plural unless the number is 1.
pub(crate) fn format_quantity(count: impl Into<i128>, noun: &str) -> String {
    let count: i128 = count.into();
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", format_number(count))
}

/// Formats a number in few characters, for axes.
pub(crate) fn format_short_number(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Formats a share in percent.
pub(crate) fn format_percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        0.0 => "0 %".to_owned(),
        size if size < 0.1 => "< 0.1 %".to_owned(),
        size if size < 10.0 => format!("{percent:.1} %"),
        size => format!("{} %", group_digits(&format!("{size:.0}"), percent < 0.0)),
    }
}

/// Formats the time of an effort.
pub(crate) fn format_effort_time(seconds: i64) -> String {
    let (hours, below_hour) = (seconds / 3_600, seconds % 3_600);
    match hours {
        0 => format!("{}:{:02}", below_hour / 60, below_hour % 60),
        _ => format!("{hours}:{:02}:{:02}", below_hour / 60, below_hour % 60),
    }
}

/// Formats the duration of a computation.
pub(crate) fn format_elapsed(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => {
            let text = format!("{s:.1}");
            format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
        }
        s if s < 5_400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3_600.0),
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
            |time| {
                let local_time = time.to_zoned(zone.clone());
                local_time.strftime("%-d %b %Y, %H:%M:%S %Z").to_string()
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

    /// Formats a time in UTC, without the date if it is that of `now`.
    pub(crate) fn utc_near(time: Timestamp, now: &str) -> Self {
        let local_time = time.to_zoned(TimeZone::UTC);
        let mut moment = Self::utc(&time.to_string());
        if now.starts_with(&local_time.date().to_string()) {
            moment.text = local_time.strftime("%H:%M:%S").to_string();
        }
        moment
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
            increase if increase > 0.0 => ("up", "▲", "+"),
            decrease if decrease < 0.0 => ("down", "▼", "\u{2212}"),
            _ => ("same", "=", ""),
        };
        Self {
            text: format!("{sign}{}", format_percent(change.abs())),
            class,
            arrow,
        }
    }
}

/// Formats the key of a breakdown's row.
pub(crate) fn format_key(value: &Value) -> String {
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
            assert_eq!(format_number(value), text);
        }
        for (value, text) in [
            (0.0, "0"),
            (950.0, "950"),
            (1_500.0, "1.5k"),
            (2e6, "2M"),
            (-3e9, "-3G"),
        ] {
            assert_eq!(format_short_number(value), text);
        }
        for (value, text) in [
            (0.0, "0 %"),
            (0.0004, "< 0.1 %"),
            (0.056, "5.6 %"),
            (0.5, "50 %"),
            (12.0, "1,200 %"),
            (-0.5, "\u{2212}50 %"),
        ] {
            assert_eq!(format_percent(value), text);
        }
        for (value, text) in [(5, "0:05"), (61, "1:01"), (3_725, "1:02:05")] {
            assert_eq!(format_effort_time(value), text);
        }
        for (value, text) in [
            (0.25, "250 ms"),
            (4.0, "4 s"),
            (12.34, "12.3 s"),
            (600.0, "10 min"),
            (7_200.0, "2.0 h"),
        ] {
            assert_eq!(format_elapsed(value), text);
        }
    }

    #[test]
    fn nouns_are_in_the_plural_unless_there_is_one() {
        let quantities = [0_u64, 1, 1_234].map(|count| format_quantity(count, "run"));
        assert_eq!(quantities, ["0 runs", "1 run", "1,234 runs"]);
    }

    #[test]
    fn changes_have_a_sign_and_a_direction() {
        let format = |change| {
            let change = Change::new(change);
            (change.text, change.class)
        };
        assert_eq!(format(0.5), ("+50 %".to_owned(), "up"));
        assert_eq!(format(-0.031), ("\u{2212}3.1 %".to_owned(), "down"));
        assert_eq!(format(0.0), ("0 %".to_owned(), "same"));
    }

    #[test]
    fn formats_times_in_a_zone() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        let moment = Moment::new("2026-07-01T10:00:00Z", &berlin);
        assert_eq!(moment.text, "1 Jul 2026, 12:00:00 CEST");
        assert_eq!(Moment::utc("soon").text, "soon");
        let time: Timestamp = "2026-07-01T10:00:00.5Z".parse().unwrap();
        for (now, text) in [
            ("2026-07-01T10:00:01Z", "10:00:00"),
            ("2026-07-02T00:00:00Z", "1 Jul 2026, 10:00:00 UTC"),
        ] {
            assert_eq!(Moment::utc_near(time, now).text, text);
        }
    }
}
