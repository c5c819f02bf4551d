//! Table of the keys that differ most between the two sides of a comparison.

use askama::Template;
use serde_json::Value;

use super::formatting::format_number;

/// Differing keys.
#[derive(Debug, Template)]
#[template(path = "differences.html")]
pub(crate) struct Differences {
    rows: Vec<DifferenceRow>,
}

#[derive(Debug, PartialEq, Eq)]
struct DifferenceRow {
    key: String,
    expected: String,
    served: String,
    cause: String,
}

impl Differences {
    /// Parses the differences of a batch run (`job`, `key`, `batch`, `live`, `cause`) or of a
    /// reconciliation (`key`, `expected`, `served`, for boards `expected_row` and `served_row`,
    /// `cause`). Returns `None` if there are none.
    pub(crate) fn parse(worst: &Value) -> Option<Self> {
        let rows: Vec<DifferenceRow> = worst.as_array()?.iter().map(DifferenceRow::parse).collect();
        (!rows.is_empty()).then_some(Self { rows })
    }
}

impl DifferenceRow {
    fn parse(difference: &Value) -> Self {
        let job = difference.get("job").and_then(Value::as_str);
        let key = format_value(difference.get("key"));
        let format_side = |row: &str, counts: [&str; 2]| match difference.get(row) {
            Some(row @ Value::Object(_)) => format_value(Some(row)),
            _ => format_value(counts.iter().find_map(|name| difference.get(name))),
        };
        Self {
            key: job.map_or_else(|| key.clone(), |job| format!("{job}: {key}")),
            expected: format_side("expected_row", ["expected", "batch"]),
            served: format_side("served_row", ["served", "live"]),
            cause: format_value(difference.get("cause")).replace('_', " "),
        }
    }
}

/// Formats a JSON value; an object becomes `name=value` pairs, as in the output of commands.
fn format_value(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => {
            let fields = fields.iter();
            let fields =
                fields.map(|(name, value)| format!("{name}={}", format_value(Some(value))));
            fields.collect::<Vec<_>>().join(" ")
        }
        Some(other) => other
            .as_i64()
            .map_or_else(|| other.to_string(), format_number),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(difference: &Value) -> [String; 4] {
        let DifferenceRow {
            key,
            expected,
            served,
            cause,
        } = DifferenceRow::parse(difference);
        [key, expected, served, cause]
    }

    #[test]
    fn rows_show_both_sides_of_a_comparison() {
        let run = json!({"job": "plays_detail", "key": "owner_id=1 kind=play", "batch": 1_234, "live": 3, "cause": "lost_live"});
        assert_eq!(
            row(&run),
            [
                "plays_detail: owner_id=1 kind=play",
                "1,234",
                "3",
                "lost live"
            ]
        );
        let counts = json!({"key": {"owner_id": 7, "kind": "play"}, "expected": 5, "served": null, "cause": "unreadable_row"});
        let [key, expected, served, _] = row(&counts);
        assert!(
            key.contains("owner_id=7") && key.contains("kind=play"),
            "{key}"
        );
        assert_eq!((expected.as_str(), served.as_str()), ("5", "–"));
        let board = json!({"key": {"segment_id": 5}, "expected": 1, "served": 0, "cause": "changed_live",
            "expected_row": {"elapsed_time": 103}, "served_row": null});
        assert_eq!(
            row(&board),
            ["segment_id=5", "elapsed_time=103", "0", "changed live"]
        );
        assert!(Differences::parse(&json!([])).is_none());
        assert!(Differences::parse(&Value::Null).is_none());
    }
}
