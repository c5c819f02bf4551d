//! What differs between two sides that were compared: the keys that differ most.

use askama::Template;
use serde_json::Value;

use super::shown::number;

/// Keys that differ, as a table.
#[derive(Debug, Template)]
#[template(path = "differences.html")]
pub(crate) struct Differences {
    rows: Vec<Row>,
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    key: String,
    expected: String,
    served: String,
    cause: String,
}

impl Differences {
    /// Those of a batch run (`job`, `key`, `batch`, `live`, `cause`) or a comparison (`key`, `expected`, `served`, of boards
    /// `expected_row` and `served_row`, `cause`); nothing if there are none.
    pub(crate) fn of(worst: &Value) -> Option<Self> {
        let rows: Vec<Row> = worst.as_array()?.iter().map(Row::of).collect();
        (!rows.is_empty()).then_some(Self { rows })
    }
}

impl Row {
    fn of(one: &Value) -> Self {
        let job = one.get("job").and_then(Value::as_str);
        let key = text(one.get("key"));
        let side = |row: &str, counts: [&str; 2]| match one.get(row) {
            Some(row @ Value::Object(_)) => text(Some(row)),
            _ => text(counts.iter().find_map(|name| one.get(name))),
        };
        Self {
            key: job.map_or_else(|| key.clone(), |job| format!("{job}: {key}")),
            expected: side("expected_row", ["expected", "batch"]),
            served: side("served_row", ["served", "live"]),
            cause: text(one.get("cause")).replace('_', " "),
        }
    }
}

/// A value of a record; of an object its fields, as commands show them.
fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(fields)) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| format!("{name}={}", text(Some(value))));
            fields.collect::<Vec<_>>().join(" ")
        }
        Some(other) => other.as_i64().map_or_else(|| other.to_string(), number),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(one: &Value) -> [String; 4] {
        let Row {
            key,
            expected,
            served,
            cause,
        } = Row::of(one);
        [key, expected, served, cause]
    }

    #[test]
    fn each_kind_of_comparison_shows_both_sides() {
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
        assert!(Differences::of(&json!([])).is_none());
        assert!(Differences::of(&Value::Null).is_none());
    }
}
